//! Tests of serial lines, which remain open when sessions end: noise, restarts of boards and servers,
//! unplugged cables. The fleet must always learn the same bits as the simulator.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fedspan_aggregator::store;
use fedspan_engine::linalg::{Matrix, orthonormal};
use fedspan_engine::random::{Purpose, Stream, stream};
use fedspan_protocol::secure::Key;
use fedspan_sim_core::data::Dataset;
use fedspan_sim_core::device::{Identity, client_session, run_session_over};
use fedspan_sim_core::fleet::SimSession;
use fedspan_sim_core::run::{NoProgress, run};
use fedspan_sim_core::scenario::Scenario;
use fedspan_tests::keys::{identity, keys};
use fedspan_tests::{Running, device, fleet_of, start_with};
use serial2_tokio::SerialPort;
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, split,
};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;

const SCENARIO: &str = r#"
seed = 3
[data]
kind = "linear-regression"
clients = 5
d = 20
k = 2
samples = 20
noise_std = 0.1
[model]
k = 2
[algorithm]
name = "fedrep"
rounds = 6
step_size = 0.25
"#;

const CAMPAIGN: &str = "[model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 6\nstep_size = 0.25\n\
    [rounds]\ndeadline = 0\n[limits]\nidle = 60\n";

/// Scenario, data and keys of a fleet.
struct World {
    scenario: Scenario,
    dataset: Arc<Dataset>,
    state: tempfile::TempDir,
    keys: BTreeMap<u64, Key>,
    /// Number of sessions created; each has other random numbers.
    lives: AtomicU64,
}

impl World {
    fn new() -> Self {
        let scenario = Scenario::parse("test", SCENARIO, &[]).expect("scenario");
        let dataset = Arc::new(scenario.dataset(scenario.seed).expect("data"));
        let state = tempfile::tempdir().expect("a directory");
        let (_, keys) = keys(state.path(), 5).expect("keys");
        Self { scenario, dataset, state, keys, lives: AtomicU64::new(0) }
    }

    fn fleet(&self) -> String {
        fleet_of(&self.scenario, &self.dataset, self.state.path(), CAMPAIGN)
    }

    fn identity(&self, index: usize) -> Identity {
        identity(index as u64, &self.keys[&(index as u64)], self.lives.fetch_add(1, Ordering::Relaxed))
    }

    /// Creates the session of a device with its key.
    fn session(&self, index: usize) -> SimSession {
        client_session(&self.scenario, &self.dataset, index, self.identity(index), true).expect("client")
    }

    /// Starts a server with the devices' keys.
    async fn serve(&self, fleet: &str, lines: Vec<DuplexStream>) -> Running {
        self.serve_until(fleet, lines, true).await
    }

    async fn serve_until(&self, fleet: &str, lines: Vec<DuplexStream>, finished: bool) -> Running {
        let (protection, _) = keys(self.state.path(), 5).expect("keys");
        start_with(fleet, protection, lines, finished).await.expect("server")
    }

    /// Checks that the representation of the server has the same bits as the simulator's.
    fn check_against_simulation(&self) {
        let simulated = run(&self.scenario, self.scenario.seed, &mut NoProgress).expect("simulation");
        let committed = store::read(self.state.path()).expect("readable").expect("committed");
        let served =
            Matrix::from_column_slice(20, 2, &committed.checkpoint.expect("a checkpoint").state[..40]);
        let bits = |matrix: &Matrix| matrix.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        let served = orthonormal(&served).expect("full rank");
        assert_eq!(
            bits(&served),
            bits(simulated.representation.as_ref().expect("the simulation has a representation"))
        );
    }
}

/// Copies bytes. One of `one_in` bytes is lost, doubled or changed.
async fn copy_with_noise(
    mut from: ReadHalf<DuplexStream>,
    mut to: WriteHalf<DuplexStream>,
    one_in: u64,
    mut random: Stream,
) {
    let mut buffer = [0; 64];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        let mut bytes = Vec::new();
        for byte in &buffer[..n] {
            match random.bits() % one_in {
                0 => match random.bits() % 3 {
                    0 => {}
                    1 => bytes.extend([*byte, *byte]),
                    _ => bytes.push(byte ^ 1 << (random.bits() % 8)),
                },
                _ => bytes.push(*byte),
            }
        }
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

/// Creates a noisy line and returns its two ends.
fn noisy_line(one_in: u64, seed: u64) -> (DuplexStream, DuplexStream) {
    let ((server_end, a), (b, device_end)) = (duplex(4096), duplex(4096));
    let ((a_in, a_out), (b_in, b_out)) = (split(a), split(b));
    tokio::spawn(copy_with_noise(a_in, b_out, one_in, stream(seed, Purpose::Device, 0)));
    tokio::spawn(copy_with_noise(b_in, a_out, one_in, stream(seed, Purpose::Device, 1)));
    (server_end, device_end)
}

/// Tests noisy lines, in virtual time.
#[tokio::test(start_paused = true)]
async fn noisy_line_only_slows_a_campaign_down() {
    for one_in in [1000, 100] {
        let world = World::new();
        let mut devices = JoinSet::new();
        let mut lines = Vec::new();
        for index in 0..5 {
            let (server_end, device_end) = noisy_line(one_in, index as u64);
            lines.push(server_end);
            let mut session = world.session(index);
            devices.spawn(async move {
                let mut dropped = 0;
                let (start, mut device_end) = (Instant::now(), device_end);
                while !session.is_fitted() {
                    let closed = run_session_over(&mut session, &mut device_end, start).await;
                    assert!(session.refusal().is_none());
                    let frames = closed.frames;
                    dropped += frames.oversize + frames.framing + frames.check + frames.header;
                    tokio::time::sleep_until(start + Duration::from_millis(closed.retry_at.as_u64())).await;
                }
                // The line stays open, because the server may still request a hello.
                (session.counters(), dropped, device_end)
            });
        }
        let fleet = world.fleet().replace("[devices]", "[devices]\nabsence = 1e6");
        // The server waits for every update, however long noise delays it. It continues to run so that the
        // last acknowledgements arrive.
        let server = world.serve_until(&fleet, lines, false).await;
        let mut ended = Vec::new();
        while let Some(device) = devices.join_next().await {
            ended.push(device.expect("no panic"));
        }
        server.stop.send(()).expect("the server runs");
        let status = server.end.await.expect("no panic").expect("served");
        assert_eq!((status.phase.as_str(), status.round), ("finished", 6));
        assert_eq!(status.updates.rejected(), 0, "{status:?}");
        assert_eq!(status.updates.counted, 5 * 7, "an update did not count exactly once: {status:?}");
        let dropped: u32 = ended.iter().map(|(_, dropped, _)| dropped).sum();
        assert!(dropped > 0 && ended.iter().all(|(counters, _, _)| counters.malformed == 0));
        world.check_against_simulation();
    }
}

/// Runs a session until the line is closed or the head is fitted. `start` is time 0 of the session.
async fn run_until_fitted(session: &mut SimSession, line: &mut DuplexStream, start: Instant) {
    while !session.is_fitted() {
        let closed = run_session_over(session, &mut *line, start).await;
        assert!(session.refusal().is_none() && closed.error.is_none());
        tokio::time::sleep_until(start + Duration::from_millis(closed.retry_at.as_u64())).await;
    }
}

/// Runs a session until the device has received `bytes` bytes, then interrupts it.
async fn run_until_received(
    bytes: usize,
    session: &mut SimSession,
    line: &mut (impl AsyncRead + AsyncWrite + Unpin),
    start: Instant,
) {
    let (session_end, mut wire_end) = duplex(4096);
    let mut received = 0;
    let device = run_session_over(session, session_end, start);
    let wire = async {
        let (mut up, mut down) = ([0; 256], [0; 1]);
        while received < bytes {
            tokio::select! {
                n = wire_end.read(&mut up) => line.write_all(&up[..n.expect("the device")]).await.expect("the line"),
                n = line.read(&mut down) => {
                    received += n.expect("the line");
                    wire_end.write_all(&down).await.expect("the device");
                }
            }
        }
    };
    tokio::select! {
        _ = device => panic!("the device ended the session"),
        () = wire => {}
    }
}

/// Tests a board that restarts without memory at any point: within each message that it receives, and between
/// messages.
#[tokio::test(start_paused = true)]
async fn restarted_board_rejoins() {
    for received in (0..520).step_by(37) {
        let world = World::new();
        let mut devices = JoinSet::new();
        let mut lines = Vec::new();
        for index in 0..5 {
            let (server_end, mut device_end) = duplex(4096);
            lines.push(server_end);
            let (mut session, restarted_session) = (world.session(index), world.session(index));
            devices.spawn(async move {
                let start = Instant::now();
                if index == 0 {
                    run_until_received(received, &mut session, &mut device_end, start).await;
                    session = restarted_session;
                }
                run_until_fitted(&mut session, &mut device_end, start).await;
                device_end
            });
        }
        let server = world.serve(&world.fleet(), lines).await;
        while let Some(device) = devices.join_next().await {
            device.expect("no panic");
        }
        let status = server.end.await.expect("no panic").expect("served");
        assert_eq!((status.phase.as_str(), status.round), ("finished", 6), "after {received} bytes");
        assert_eq!(status.updates.rejected(), 0, "{status:?}");
        world.check_against_simulation();
    }
}

/// Tests a server that restarts while the lines stay open, so that the boards are not notified.
#[tokio::test(start_paused = true)]
async fn restarted_server_reconnects_its_boards() {
    let world = World::new();
    let mut devices = JoinSet::new();
    let mut bridges: Vec<(DuplexStream, DuplexStream)> = Vec::new();
    let mut lines = Vec::new();
    for index in 0..5 {
        let ((server_end, server_side), (board_side, mut device_end)) = (duplex(4096), duplex(4096));
        lines.push(server_end);
        bridges.push((server_side, board_side));
        let mut session = world.session(index);
        devices.spawn(async move {
            run_until_fitted(&mut session, &mut device_end, Instant::now()).await;
            (session.counters(), device_end)
        });
    }
    let first_server = world.serve(&world.fleet(), lines).await;
    // The first server runs until it has sent a part of the campaign.
    let mut bytes_sent = 0;
    while bytes_sent < 5 * 900 {
        for (server_side, board_side) in &mut bridges {
            let (mut up, mut down) = ([0; 64], [0; 64]);
            tokio::select! {
                biased;
                n = server_side.read(&mut down) => {
                    let n = n.expect("the server");
                    bytes_sent += n;
                    board_side.write_all(&down[..n]).await.expect("the board");
                }
                n = board_side.read(&mut up) => server_side.write_all(&up[..n.expect("the board")]).await.expect("the server"),
                () = tokio::time::sleep(Duration::from_millis(1)) => {}
            }
        }
    }
    first_server.stop.send(()).expect("the server runs");
    let status = first_server.end.await.expect("no panic").expect("served");
    assert!(status.round > 0 && status.round < 6, "{status:?}");
    // The next server uses the same lines.
    let mut lines = Vec::new();
    for (_, mut board_side) in bridges {
        let (server_end, mut server_side) = duplex(4096);
        lines.push(server_end);
        tokio::spawn(async move { tokio::io::copy_bidirectional(&mut server_side, &mut board_side).await });
    }
    let second_server = world.serve(&world.fleet(), lines).await;
    while let Some(device) = devices.join_next().await {
        let (counters, _line) = device.expect("no panic");
        assert!(counters.rehandshakes >= 1, "{counters:?}");
    }
    let status = second_server.end.await.expect("no panic").expect("served");
    assert_eq!((status.phase.as_str(), status.round), ("finished", 6));
    world.check_against_simulation();
}

/// Returns the names of the terminals that this process has open.
fn open_terminals() -> BTreeSet<PathBuf> {
    let open = std::fs::read_dir("/proc/self/fd").expect("a list");
    open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        // The server may still have a terminal open whose other end is closed: "/dev/pts/0 (deleted)".
        .filter(|path| path.starts_with("/dev/pts") && path.exists())
        .collect()
}

/// Opens a pseudo-terminal and links the server's end under `name`. The name stays the same when another
/// cable is plugged in.
fn plug_in(name: &Path) -> (SerialPort, SerialPort) {
    /// Lock that is held while a terminal is opened, so that tests in parallel threads do not confuse their
    /// terminals.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().expect("no test panics while plugging");
    let before = open_terminals();
    let (board, port) = SerialPort::pair().expect("a pseudo-terminal");
    let path = open_terminals().difference(&before).next().cloned().expect("no terminal was opened");
    let _ = std::fs::remove_file(name);
    std::os::unix::fs::symlink(path, name).expect("a link");
    (board, port)
}

/// Tests pseudo-terminals as serial ports. One is unplugged and plugged in again; one device uses TCP.
#[tokio::test(flavor = "multi_thread")]
async fn serial_port_may_be_unplugged_and_plugged_in_again() {
    let world = World::new();
    let names: Vec<PathBuf> = (0..4).map(|index| world.state.path().join(format!("port{index}"))).collect();
    let ports: Vec<String> = names.iter().map(|name| format!("{:?}", name.display().to_string())).collect();
    let fleet = world.fleet().replace("[devices]", &format!("serial = [{}]\n[devices]", ports.join(", ")));
    let server = world.serve(&fleet, Vec::new()).await;
    let mut devices = JoinSet::new();
    let (plugged_in, plugged_in_again) = oneshot::channel();
    let mut plugged_in = Some(plugged_in);
    for (index, name) in names.iter().enumerate() {
        let (mut session, name) = (world.session(index), name.clone());
        let unplugged = plugged_in.take();
        devices.spawn(async move {
            let (mut board, mut port) = plug_in(&name);
            let start = Instant::now();
            if let Some(plugged_in) = unplugged {
                // The cable is unplugged within the welcome, then plugged in with another terminal.
                run_until_received(20, &mut session, &mut board, start).await;
                drop((board, port));
                (board, port) = plug_in(&name);
                plugged_in.send(()).expect("the test waits");
            }
            while !session.is_fitted() {
                let closed = run_session_over(&mut session, &mut board, start).await;
                tokio::time::sleep_until(start + Duration::from_millis(closed.retry_at.as_u64())).await;
            }
            (board, port)
        });
    }
    // Training starts when the fifth device has joined.
    plugged_in_again.await.expect("the cable is plugged in again");
    let session =
        device(world.scenario.clone(), Arc::clone(&world.dataset), 4, world.identity(4), server.address);
    session.await.expect("the device on TCP");
    let mut boards = Vec::new();
    while let Some(board) = devices.join_next().await {
        boards.push(board.expect("no panic"));
    }
    let status = server.end.await.expect("no panic").expect("served");
    assert_eq!((status.phase.as_str(), status.round), ("finished", 6));
    world.check_against_simulation();
}
