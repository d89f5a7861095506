//! Tests of a fleet that sends packets over UDP. Packets are lost, repeated and reordered; the fleet learns the same bits as the
//! simulator.

use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fedspan_aggregator::server::{Protection, Status};
use fedspan_aggregator::store;
use fedspan_client::Millis;
use fedspan_client::link::{AsyncPackets, Buffers, DatagramLink, Driver, NoSensor, Packets, Step, run_async};
use fedspan_client::session::Counters;
use fedspan_engine::linalg::{Matrix, orthonormal};
use fedspan_engine::random::{Purpose, Stream, stream};
use fedspan_protocol::datagram::PacketCounters;
use fedspan_protocol::frame::crc32c;
use fedspan_sim_core::data::Dataset;
use fedspan_sim_core::device::client_session;
use fedspan_sim_core::fleet::SimSession;
use fedspan_sim_core::run::{NoProgress, run};
use fedspan_sim_core::scenario::Scenario;
use fedspan_tests::keys::{identity, keys};
use fedspan_tests::{Running, fleet_of, start_with};

const DEVICES: u64 = 4;

const SCENARIO: &str = "seed = 3\n[data]\nkind = \"linear-regression\"\nclients = 4\nd = 20\nk = 2\nsamples = 20\n\
    noise_std = 0.1\n";

const CAMPAIGN: &str = "[model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 4\nstep_size = 0.25\n";

/// Number of milliseconds of a device's clock in one of the server's, so that devices repeat what was lost after a tenth of a second.
const HASTE: u64 = 20;

/// Address at which the system chooses a port.
const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// Socket of a device, between two networks that lose, repeat and reorder packets.
struct LossyUdp {
    socket: UdpSocket,
    /// One of so many packets is lost, one is repeated, and one waits for the next; 0 for none.
    one_in: u64,
    random: Stream,
    /// Packets that were received and are not delivered yet.
    received: VecDeque<Vec<u8>>,
    /// Packet that is sent after the next.
    delayed: Option<Vec<u8>>,
    /// Lengths of packets that were sent and received.
    sent: Vec<usize>,
    arrived: Vec<usize>,
    /// Socket at which beacons arrive; `None` for a device that receives none.
    beacons: Option<UdpSocket>,
}

impl LossyUdp {
    fn new(server: SocketAddr, one_in: u64, seed: u64) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.connect(server).expect("an address");
        socket.set_read_timeout(Some(Duration::from_millis(5))).expect("a timeout");
        let random = stream(seed, Purpose::Device, 0);
        Self {
            socket,
            one_in,
            random,
            received: VecDeque::new(),
            delayed: None,
            sent: Vec::new(),
            arrived: Vec::new(),
            beacons: None,
        }
    }

    /// Returns true for one of `one_in` packets.
    fn happens(&mut self) -> bool {
        self.one_in > 0 && self.random.bits().is_multiple_of(self.one_in)
    }
}

impl Packets for LossyUdp {
    type Error = std::io::Error;

    fn send(&mut self, packet: &[u8]) -> std::io::Result<bool> {
        self.sent.push(packet.len());
        if self.happens() {
            return Ok(true);
        }
        // An error says that an earlier packet could not be delivered.
        if self.happens() && self.delayed.is_none() {
            self.delayed = Some(packet.to_vec());
            return Ok(true);
        }
        let _ = self.socket.send(packet);
        if self.happens() {
            let _ = self.socket.send(packet);
        }
        if let Some(delayed) = self.delayed.take() {
            let _ = self.socket.send(&delayed);
        }
        Ok(true)
    }

    fn receive(&mut self, packet: &mut [u8]) -> std::io::Result<Option<usize>> {
        let mut bytes = [0; 2048];
        // The socket of beacons does not wait.
        if let Some(Ok(length)) = self.beacons.as_ref().map(|socket| socket.recv(packet)) {
            return Ok(Some(length));
        }
        if self.received.is_empty()
            && let Ok(length) = self.socket.recv(&mut bytes)
        {
            let copies = match (self.happens(), self.happens()) {
                (true, _) => 0,
                (_, true) => 2,
                _ => 1,
            };
            self.received.extend((0..copies).map(|_| bytes[..length].to_vec()));
        }
        Ok(self.received.pop_front().filter(|received| received.len() <= packet.len()).map(|received| {
            self.arrived.push(received.len());
            packet[..received.len()].copy_from_slice(&received);
            received.len()
        }))
    }
}

/// Packets and result of a device.
struct Report {
    packets: PacketCounters,
    counters: Counters,
    sent: Vec<usize>,
    arrived: Vec<usize>,
}

/// Runs a session over packets until its head is fitted.
fn run_device(mut session: SimSession, udp: LossyUdp, longest: usize, frames: &AtomicU32) -> Report {
    let config = session.config();
    let frame = usize::from(config.frame_limit);
    let (mut receive, mut transmit) = (vec![0; frame], vec![0; config.transmit_capacity()]);
    let (mut packet, mut collected) = (vec![0; longest], vec![0; frame]);
    let mut driver = Driver::new(Buffers { receive: &mut receive, transmit: &mut transmit });
    let mut link = DatagramLink::new(udp, &mut packet, &mut collected);
    let began = Instant::now();
    let mut fitted = false;
    while !fitted {
        let now = Millis::new(HASTE * Millis::from(began.elapsed()).as_u64());
        frames.store(link.counters().frames, Ordering::Relaxed);
        match driver.step_non_blocking(&mut session, &mut link, now, &mut NoSensor) {
            // The socket has waited already.
            Step::Again | Step::Wait(_) => {}
            Step::Closed(_) => {
                fitted = session.is_fitted();
                link.reset();
            }
        }
    }
    let packets = link.counters();
    let udp = link.packets_mut();
    Report { packets, counters: session.counters(), sent: udp.sent.clone(), arrived: udp.arrived.clone() }
}

/// Starts a server whose devices send packets of at most `packet` bytes.
async fn serve(
    scenario: &Scenario,
    dataset: &Dataset,
    state: &Path,
    campaign: &str,
    (udp, packet): (SocketAddr, usize),
    beacon: Option<SocketAddr>,
    protection: Protection,
) -> Running {
    let fleet = fleet_of(
        scenario,
        dataset,
        state,
        &format!("{campaign}[rounds]\ndeadline = 0\n[limits]\nidle = 5\nrepeat = 0.5\n"),
    );
    let beacon = beacon.map_or_else(String::new, |to| format!("beacon = \"{to}\"\nbeacon_delay = 0.05\n"));
    let udp = format!("[listen]\nudp = \"{udp}\"\npacket = {packet}\n{beacon}");
    start_with(&fleet.replace("[listen]\n", &udp), protection, Vec::new(), false).await.expect("server")
}

/// Runs a campaign of devices over packets and checks it against the simulation.
async fn run_campaign(one_in: u64, packet: usize, short_tags: bool) -> Vec<Report> {
    let scenario = Scenario::parse("test", &format!("{SCENARIO}{CAMPAIGN}"), &[]).expect("scenario");
    run_scenario(&scenario, CAMPAIGN, one_in, packet, short_tags, None).await
}

/// Fate of beacons on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beacons {
    Delivered,
    Lost,
    /// A byte of each is changed, with a correct checksum.
    Forged,
}

/// Gateway of a radio: passes each packet that arrives on to all devices. Returns the number of packets and their bytes once `stop` is
/// set.
fn run_gateway(
    gateway: &UdpSocket,
    devices: &[SocketAddr],
    fate: Beacons,
    stop: &AtomicBool,
) -> (usize, usize) {
    let (mut count, mut sum) = (0, 0);
    let mut bytes = [0; 2048];
    gateway.set_read_timeout(Some(Duration::from_millis(5))).expect("a timeout");
    while !stop.load(Ordering::Relaxed) {
        let Ok(length) = gateway.recv(&mut bytes) else { continue };
        let packet = &mut bytes[..length];
        (count, sum) = (count + 1, sum + length);
        if fate == Beacons::Forged {
            let (content, check) = packet.split_at_mut(length - 4);
            *content.last_mut().expect("a body") ^= 1;
            check.copy_from_slice(&crc32c(content).to_le_bytes());
        }
        for device in devices.iter().filter(|_| fate != Beacons::Lost) {
            gateway.send_to(packet, device).expect("sent");
        }
    }
    (count, sum)
}

/// Runs the campaign of a scenario, whose sections are `campaign`.
async fn run_scenario(
    scenario: &Scenario,
    campaign: &str,
    one_in: u64,
    packet: usize,
    short_tags: bool,
    beacons: Option<Beacons>,
) -> Vec<Report> {
    let dataset = scenario.dataset(scenario.seed).expect("data");
    let state = tempfile::tempdir().expect("a directory");
    let (protection, keys) = keys(state.path(), DEVICES).expect("keys");
    let gateway = beacons.map(|fate| (fate, UdpSocket::bind(ANY_PORT).expect("a socket")));
    let to_gateway = gateway.as_ref().map(|(_, socket)| socket.local_addr().expect("an address"));
    let server =
        serve(scenario, &dataset, state.path(), campaign, (ANY_PORT, packet), to_gateway, protection).await;
    let mut devices = Vec::new();
    let mut ears = Vec::new();
    for index in 0..DEVICES {
        let identity = identity(index, &keys[&index], 0);
        let identity = if short_tags { identity.with_short_tags() } else { identity };
        let identity = if beacons.is_some() { identity.with_beacons() } else { identity };
        let session = client_session(scenario, &dataset, index as usize, identity, true).expect("client");
        let mut udp = LossyUdp::new(server.udp.expect("an address"), one_in, index);
        if beacons.is_some() {
            let ear = UdpSocket::bind(ANY_PORT).expect("a socket");
            ear.set_nonblocking(true).expect("a socket that does not wait");
            ears.push(ear.local_addr().expect("an address"));
            udp.beacons = Some(ear);
        }
        devices
            .push(tokio::task::spawn_blocking(move || run_device(session, udp, packet, &AtomicU32::new(0))));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let gateway = gateway.map(|(fate, socket)| {
        let stop = Arc::clone(&stop);
        tokio::task::spawn_blocking(move || run_gateway(&socket, &ears, fate, &stop))
    });
    let mut reports = Vec::new();
    for device in devices {
        reports.push(device.await.expect("no panic"));
    }
    stop.store(true, Ordering::Relaxed);
    if let Some(gateway) = gateway {
        let (count, bytes) = gateway.await.expect("no panic");
        println!("{count} beacons of {} bytes", bytes / count.max(1));
        // One for each round, and for the fit of the head.
        assert_eq!(count, scenario.algorithm.rounds as usize + 1);
    }
    let received = finish(server, scenario, state.path()).await.packets.expect("packets are counted");
    println!("packets that the server received: {received:?}");
    let sent: u64 = reports.iter().map(|report| report.sent.len() as u64).sum();
    assert!(received.frames > 0 && received.frames <= 2 * sent && received.malformed + received.dropped == 0);
    assert!(one_in > 0 || received.repeated_fragments + received.incomplete == 0);
    for report in &reports {
        assert!(report.sent.iter().all(|length| *length <= packet));
    }
    reports
}

/// Stops the server and checks the representation against the simulation. Returns the last status.
async fn finish(server: Running, scenario: &Scenario, state: &Path) -> Status {
    server.stop.send(()).expect("running");
    let status = server.end.await.expect("no panic").expect("served");
    assert_eq!(status.phase, "finished");
    let simulated = run(scenario, scenario.seed, &mut NoProgress).expect("simulation");
    let committed = store::read(state).expect("readable").expect("committed");
    let simulated = simulated.representation.expect("a representation");
    let (d, k) = simulated.shape();
    let served = Matrix::from_column_slice(d, k, &committed.checkpoint.expect("a checkpoint").state[..d * k]);
    let bits = |matrix: &Matrix| matrix.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    let served = orthonormal(&served).expect("full rank");
    assert_eq!(bits(&served), bits(&simulated));
    status
}

/// Socket of a device for an asynchronous driver.
struct AsyncUdp(tokio::net::UdpSocket);

impl AsyncPackets for AsyncUdp {
    type Error = std::io::Error;

    async fn send(&mut self, packet: &[u8]) -> std::io::Result<()> {
        // An error says that an earlier packet could not be delivered.
        let _ = self.0.send(packet).await;
        Ok(())
    }

    async fn receive(&mut self, packet: &mut [u8]) -> std::io::Result<usize> {
        loop {
            if let Ok(length) = self.0.recv(packet).await {
                return Ok(length);
            }
        }
    }
}

/// Devices with asynchronous drivers learn the same bits over packets, in frames of one packet or of many fragments.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asynchronous_devices_send_packets() {
    let scenario = Scenario::parse("test", &format!("{SCENARIO}{CAMPAIGN}"), &[]).expect("scenario");
    let dataset = scenario.dataset(scenario.seed).expect("data");
    for longest in [1232, 51] {
        let state = tempfile::tempdir().expect("a directory");
        let (protection, keys) = keys(state.path(), DEVICES).expect("keys");
        let server =
            serve(&scenario, &dataset, state.path(), CAMPAIGN, (ANY_PORT, longest), None, protection).await;
        let address = server.udp.expect("an address");
        let device = async |index: u64| {
            let identity = identity(index, &keys[&index], 0).with_short_tags();
            let mut session =
                client_session(&scenario, &dataset, index as usize, identity, true).expect("client");
            let socket = tokio::net::UdpSocket::bind(ANY_PORT).await.expect("a socket");
            socket.connect(address).await.expect("an address");
            let config = session.config();
            let frame = usize::from(config.frame_limit);
            let (mut receive, mut transmit) = (vec![0; frame], vec![0; config.transmit_capacity()]);
            let (mut packet, mut collected) = (vec![0; longest], vec![0; frame]);
            let mut link = DatagramLink::new(AsyncUdp(socket), &mut packet, &mut collected);
            let began = tokio::time::Instant::now();
            let clock = || Millis::from(began.elapsed());
            let sleep = |until: Millis| {
                tokio::time::sleep_until(began + Duration::from_millis(until.as_u64().min(1 << 40)))
            };
            while !session.is_fitted() {
                let buffers = Buffers { receive: &mut receive, transmit: &mut transmit };
                run_async(&mut session, &mut link, buffers, clock, sleep).await;
                link.reset();
            }
        };
        tokio::join!(device(0), device(1), device(2), device(3));
        finish(server, &scenario, state.path()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fleet_over_udp_learns_the_same_bits_as_the_simulator() {
    for (packet, short_tags) in [(1232, false), (244, true), (51, true)] {
        let reports = run_campaign(0, packet, short_tags).await;
        assert!(reports.iter().all(|report| report.packets.malformed == 0 && report.packets.incomplete == 0));
    }
}

/// Tests that lost, repeated and reordered packets only slow a campaign down, also when frames have many fragments.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lossy_network_only_slows_a_campaign_down() {
    for (packet, short_tags) in [(244, true), (100, false)] {
        let reports = run_campaign(20, packet, short_tags).await;
        let repeated: u32 = reports.iter().map(|report| report.packets.repeated_fragments).sum();
        let sent: usize = reports.iter().map(|report| report.sent.len()).sum();
        println!("packets of {packet} bytes: {sent} sent, {repeated} fragments received twice");
    }
}

/// Tests that devices notice that the server was restarted, though no packet reports the end of their connection.
/// The server sends shorter packets than the devices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn devices_return_to_a_restarted_server() {
    let scenario = Scenario::parse("test", &format!("{SCENARIO}{CAMPAIGN}"), &[]).expect("scenario");
    let dataset = scenario.dataset(scenario.seed).expect("data");
    let state = tempfile::tempdir().expect("a directory");
    let (protection, device_keys) = keys(state.path(), DEVICES).expect("keys");
    let server = serve(&scenario, &dataset, state.path(), CAMPAIGN, (ANY_PORT, 100), None, protection).await;
    let address = server.udp.expect("an address");
    let start = |index: u64, frames: &Arc<AtomicU32>| {
        let identity = identity(index, &device_keys[&index], 0).with_short_tags();
        let session = client_session(&scenario, &dataset, index as usize, identity, true).expect("client");
        let (udp, frames) = (LossyUdp::new(address, 0, index), Arc::clone(frames));
        tokio::task::spawn_blocking(move || run_device(session, udp, 244, &frames))
    };
    // All but one device connect, so no round opens.
    let answered: Vec<Arc<AtomicU32>> = (1..DEVICES).map(|_| Arc::default()).collect();
    let mut devices: Vec<_> =
        (1..DEVICES).zip(&answered).map(|(index, frames)| start(index, frames)).collect();
    while answered.iter().any(|frames| frames.load(Ordering::Relaxed) == 0) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.stop.send(()).expect("running");
    server.end.await.expect("no panic").expect("served");
    let (protection, _) = keys(state.path(), DEVICES).expect("keys");
    let server = serve(&scenario, &dataset, state.path(), CAMPAIGN, (address, 100), None, protection).await;
    devices.push(start(0, &Arc::default()));
    for device in devices {
        device.await.expect("no panic");
    }
    finish(server, &scenario, state.path()).await;
}

/// Measures the bytes of a round of a (16, 4) model in 8 bits, sealed, with the acknowledgement, towards the server and back.
async fn bytes_of_a_round(upload: &str, beacons: Option<Beacons>) -> (usize, usize) {
    let rounds = [4, 8];
    let mut bytes = Vec::new();
    for rounds in rounds {
        let campaign = format!(
            "[model]\nk = 4\n[algorithm]\nname = \"fedrep\"\nrounds = {rounds}\nstep_size = 0.25\nupload = \"{upload}\"\n\
             download = \"i8\"\n"
        );
        let data = SCENARIO.replace("d = 20", "d = 16").replace("k = 2", "k = 4");
        let scenario = Scenario::parse("test", &format!("{data}{campaign}"), &[]).expect("scenario");
        let reports = run_scenario(&scenario, &campaign, 0, 244, true, beacons).await;
        // Without messages that only keep the connection alive: header, counter, one byte, tag.
        let sum =
            |lengths: &[usize]| lengths.iter().filter(|length| **length != 1 + 2 + 1 + 8).sum::<usize>();
        bytes.push((sum(&reports[0].sent), sum(&reports[0].arrived)));
        assert!(reports[0].sent.iter().chain(&reports[0].arrived).all(|length| *length <= 244));
    }
    let added = rounds[1] - rounds[0];
    let (up, down) = ((bytes[1].0 - bytes[0].0) / added, (bytes[1].1 - bytes[0].1) / added);
    println!(
        "bytes of a round at (16, 4), upload {upload:?}, beacons {beacons:?}, sealed: up {up}, down {down}"
    );
    (up, down)
}

/// Tests how many bytes a round takes in 8 bits: each message is one packet that fits into a notification of BLE.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn round_in_8_bits_takes_two_notifications() {
    let (up, down) = bytes_of_a_round("i8", None).await;
    assert!(up <= 95 && down <= 125, "{up} {down}");
    let (up, down) = bytes_of_a_round("i8-top-k", None).await;
    assert!(up <= 60 && down <= 125, "{up} {down}");
}

/// Tests beacons: one packet opens a round on the whole fleet, and each device receives little else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beacon_opens_a_round_on_the_whole_fleet() {
    let (up, down) = bytes_of_a_round("i8-top-k", Some(Beacons::Delivered)).await;
    assert!(up <= 60 && down <= 40, "{up} {down}");
}

/// Tests that the rounds of lost and forged beacons open on each device alone, with the same bits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_and_forged_beacons_only_cost_time() {
    let scenario = Scenario::parse("test", &format!("{SCENARIO}{CAMPAIGN}"), &[]).expect("scenario");
    for fate in [Beacons::Delivered, Beacons::Lost, Beacons::Forged] {
        let reports = run_scenario(&scenario, CAMPAIGN, 0, 244, true, Some(fate)).await;
        // All training rounds and the fit of the head, unless the network has delayed one.
        let heard: Vec<u32> = reports.iter().map(|report| report.counters.beacons).collect();
        let ignored: Vec<u32> = reports.iter().map(|report| report.counters.beacons_ignored).collect();
        println!("{fate:?}: beacons {heard:?}, ignored {ignored:?}");
        match fate {
            Beacons::Delivered => assert!(heard.iter().all(|heard| *heard >= 1), "{heard:?}"),
            Beacons::Lost => assert_eq!((heard, ignored), (vec![0; 4], vec![0; 4])),
            Beacons::Forged => {
                assert_eq!(heard, [0; 4]);
                assert!(ignored.iter().all(|count| *count >= 4), "{ignored:?}");
            }
        }
    }
}
