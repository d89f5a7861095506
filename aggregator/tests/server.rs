//! Tests of the whole server in the process of the test, with simulated devices over TCP: restarts, control
//! socket and shutdown.

use crate::common;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use crate::common::campaign::{honest_update, honest_values};
use crate::common::{
    Scratch, ServerProcess, bits, create_hello, encode_frame, encode_values, read_line_with,
};
use fedspan_aggregator::config::Fleet;
use fedspan_aggregator::durable_engine::ResumeError;
use fedspan_engine::{Action, DeviceId, Engine, Event, Millis, Phase};

use fedspan_aggregator::server::{Protection, ServeError, Server, Status, query};
use fedspan_aggregator::store::{self, StoreError};
use fedspan_protocol::assembly::{Assembly, plan};
use fedspan_protocol::frame::{Decoder, FeedResult};
use fedspan_protocol::message::{
    AckOutcome, Chunk, Decline, DeclineReason, Descriptors, RoundOpen, Task, ToDevice, ToServer, Update,
    decode,
};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};
use getrandom::SysRng;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpSocket, TcpStream, UnixStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

/// Longest wait for a condition; reached only if the test fails.
pub const PATIENCE: Duration = Duration::from_secs(120);

fn configuration_text(state: &Path, expected: usize, sections: &str) -> String {
    format!(
        "seed = 5\nstate = {:?}\n[listen]\ntcp = \"127.0.0.1:0\"\n[devices]\nexpected = {expected}\nabsence = 20.0\n\
         [data]\nd = 6\noutputs = 1\n{sections}",
        state.display().to_string()
    )
}

const FEDREP: &str =
    "[model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 4\nstep_size = 0.25\n[rounds]\ndeadline = 0\n";
const POWER_FEDREP: &str = "[model]\nk = 2\ninit = \"power\"\npower_iterations = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 3\nstep_size = 0.25\n[rounds]\ndeadline = 0\n";
const POWER_FEDAVG: &str = "[model]\nk = 2\ninit = \"power\"\npower_iterations = 2\n[algorithm]\nname = \"fedavg\"\nrounds = 3\nstep_size = 0.25\n[rounds]\ndeadline = 0\n";

/// Server in the process of the test.
struct RunningServer {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<Status, ServeError>>,
}

async fn start_server(fleet: &str, until_finished: bool) -> RunningServer {
    let fleet = Fleet::parse("fleet.toml", fleet).unwrap();
    let server = Server::bind(fleet, 1, SysRng, Protection::Plaintext).await.unwrap();
    let address = server.address().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async {
        let _ = stopped.await;
    };
    RunningServer { address, stop, task: tokio::spawn(server.serve(shutdown, until_finished)) }
}

/// Returns the error of a server that cannot start.
async fn start_error(fleet: &str) -> ServeError {
    let fleet = Fleet::parse("fleet.toml", fleet).unwrap();
    Server::bind(fleet, 1, SysRng, Protection::Plaintext).await.unwrap_err()
}

impl RunningServer {
    /// Aborts the server like a crash: no data are flushed or sent.
    async fn crash(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }

    /// Waits until the campaign is finished.
    async fn wait_until_finished(self) -> Status {
        let status = tokio::time::timeout(PATIENCE, self.task)
            .await
            .expect("the campaign did not finish in time")
            .unwrap()
            .unwrap();
        assert_eq!(status.phase, "finished");
        status
    }
}

/// Requests the status through the control socket.
pub async fn status(state: &Path) -> serde_json::Value {
    let mut lines = Vec::new();
    let answered = query(state, "status", |line| {
        lines.push(line.to_owned());
        Ok(())
    });
    answered.await.unwrap().expect("the server has no control socket");
    assert_eq!(lines.len(), 1, "{lines:?}");
    serde_json::from_str(&lines[0]).unwrap()
}

/// Requests the status until it satisfies a condition.
async fn status_with(state: &Path, condition: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
    let matching = async {
        loop {
            let status_now = status(state).await;
            if condition(&status_now) {
                return status_now;
            }
        }
    };
    tokio::time::timeout(PATIENCE, matching).await.expect("no status satisfied the condition in time")
}

/// Observation of a device: port of the server, device, round id, and the outcome once the update is
/// acknowledged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observation {
    port: u16,
    device: u64,
    round: u32,
    outcome: Option<AckOutcome>,
}

/// Log of the observations of all devices.
pub type Log = watch::Sender<Vec<Observation>>;

/// Updates that devices hold back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Hold {
    Nothing,
    Training,
    /// Updates of rounds with this id or a later one.
    From(u32),
    All,
}

/// State that the connections of a device share with the test.
struct Shared {
    address: watch::Receiver<SocketAddr>,
    hold: watch::Receiver<Hold>,
    log: Log,
}

/// Simulates a device, which reconnects until it is aborted and answers as `honest` does. The last answered
/// round and campaign are kept between connections.
async fn run_device(id: u64, mut shared: Shared, limit: u16) {
    let mut last_round = 0;
    let mut campaign = None;
    loop {
        let address = *shared.address.borrow_and_update();
        if let Ok(stream) = TcpStream::connect(address).await {
            let _ = run_connection(id, stream, &mut shared, limit, &mut last_round, &mut campaign).await;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Runs one connection of a device.
async fn run_connection(
    id: u64,
    mut stream: TcpStream,
    shared: &mut Shared,
    limit: u16,
    last_round: &mut u32,
    campaign: &mut Option<u64>,
) -> std::io::Result<()> {
    let port = stream.peer_addr()?.port();
    let record = |round, outcome| {
        shared.log.send_modify(|log| log.push(Observation { port, device: id, round, outcome }));
    };
    stream.write_all(&encode_frame(&ToServer::Hello(create_hello(id, (6, 2, 1), limit)), &[])).await?;
    let mut decoder = Decoder::new(vec![0u8; usize::from(limit)]);
    let mut incoming: Option<(RoundOpen, Assembly, Vec<Vec<f32>>)> = None;
    let mut ready: Option<(u32, Task, Vec<u8>)> = None;
    let mut buffer = [0u8; 1024];
    loop {
        let hold = *shared.hold.borrow_and_update();
        let is_held = |round: u32, task: &Task| match hold {
            Hold::Nothing => false,
            Hold::From(first_held) => round >= first_held,
            Hold::Training => matches!(task, Task::FedRep { .. } | Task::FedAvg { .. }),
            Hold::All => true,
        };
        if let Some((.., bytes)) = ready.take_if(|(round, task, _)| !is_held(*round, task)) {
            stream.write_all(&bytes).await?;
        }
        let count = tokio::select! {
            result = stream.read(&mut buffer) => result?,
            _ = shared.hold.changed() => continue,
        };
        if count == 0 {
            return Ok(());
        }
        let mut input = &buffer[..count];
        loop {
            let (message, body) = match decoder.feed(&mut input) {
                FeedResult::NeedMore => break,
                FeedResult::Dropped(reason) => panic!("a bad frame: {reason:?}"),
                FeedResult::Sealed(_) => panic!("a sealed frame from a server without keys"),
                FeedResult::Message(bytes) => decode::<ToDevice>(bytes).unwrap(),
            };
            match message {
                ToDevice::Welcome(welcome) => {
                    if campaign.replace(welcome.campaign) != Some(welcome.campaign) {
                        *last_round = 0;
                    }
                }
                ToDevice::RoundOpen(round) if round.id.round <= *last_round => {
                    record(round.id.round, None);
                    let decline =
                        Decline { id: round.id, reason: DeclineReason::RoundRepeated { last: *last_round } };
                    stream.write_all(&encode_frame(&ToServer::Decline(decline), &[])).await?;
                }
                ToDevice::RoundOpen(round) => {
                    record(round.id.round, None);
                    let mut values: Vec<Vec<f32>> =
                        round.tensors.iter().map(|t| vec![0.0; t.elements()]).collect();
                    let mut remaining = body;
                    for (tensor, values) in
                        round.tensors.iter().zip(&mut values).filter(|(t, _)| t.chunk == 0)
                    {
                        let (tensor_bytes, tail) = remaining.split_at(tensor.byte_len());
                        tensor.encoding.decode(tensor_bytes, values).unwrap();
                        remaining = tail;
                    }
                    let assembly = Assembly::new(&round.tensors).unwrap();
                    incoming = Some((round, assembly, values));
                }
                ToDevice::Chunk(chunk) => {
                    if let Some((round, assembly, values)) = &mut incoming
                        && chunk.id == round.id
                        && let Some(range) = assembly.accept(&chunk, body.len()).unwrap()
                    {
                        let encoding = round.tensors[range.tensor].encoding;
                        encoding.decode(body, &mut values[range.tensor][range.elements]).unwrap();
                    }
                }
                ToDevice::Ack(ack) => {
                    *last_round = ack.id.round;
                    record(ack.id.round, Some(ack.outcome));
                }
                ToDevice::RoundClosed(id) => {
                    *last_round = id.round;
                    ready = None;
                }
                unexpected => panic!("{unexpected:?}"),
            }
            if let Some((round, _, values)) = incoming.take_if(|(_, assembly, _)| assembly.is_complete()) {
                ready = Some((round.id.round, round.task, encode_update(id, &round, &values, limit)));
            }
        }
    }
}

/// Encodes the update of a device as frames.
fn encode_update(id: u64, round: &RoundOpen, broadcast: &[Vec<f32>], limit: u16) -> Vec<u8> {
    let values = honest_values(DeviceId(id), &round.task, 6, 2, broadcast);
    let describe = |role, (rows, cols)| TensorDescriptor::inline(role, Encoding::F32, rows, cols);
    let mut tensors: Descriptors = match round.task {
        Task::FedRep { upload, .. } => [describe(upload.role(), (6, 2))].into_iter().collect(),
        Task::PowerStart => [describe(Role::Subspace, (6, 2))].into_iter().collect(),
        Task::FedAvg { .. } => {
            [describe(Role::Representation, (6, 2)), describe(Role::SharedHead, (2, 1))].into_iter().collect()
        }
        _ => Descriptors::new(),
    };
    plan(&mut tensors, limit.into()).unwrap();
    let bytes: Vec<Vec<u8>> = values.iter().map(|v| encode_values(Encoding::F32, v)).collect();
    let inline = tensors.iter().all(|t| t.chunk == 0);
    let head = Update { id: round.id, samples: 1 + id as u32 % 5, skipped: 0, tensors: tensors.clone() };
    let mut wire = encode_frame(&ToServer::Update(head), &if inline { bytes.concat() } else { Vec::new() });
    for (tensor, descriptor) in tensors.iter().enumerate() {
        for index in 0..descriptor.chunks() {
            let range = descriptor.chunk_range(index).unwrap();
            let chunk = Chunk { id: round.id, tensor: tensor as u8, offset: range.start as u32 };
            wire.extend(encode_frame(
                &ToServer::Chunk(chunk),
                &bytes[tensor][range.start * 4..range.end * 4],
            ));
        }
    }
    wire
}

/// Simulated devices with a common log.
pub struct Devices {
    pub address: watch::Sender<SocketAddr>,
    pub hold: watch::Sender<Hold>,
    log: Log,
    tasks: tokio::task::JoinSet<()>,
}

impl Devices {
    pub fn new(address: SocketAddr) -> Self {
        let (address, _) = watch::channel(address);
        let (hold, _) = watch::channel(Hold::Nothing);
        Self { address, hold, log: Log::default(), tasks: tokio::task::JoinSet::new() }
    }

    /// Starts a device. With `holds_updates`, the device holds back the updates that [`Devices::hold`]
    /// selects.
    pub fn add_device(&mut self, id: u64, holds_updates: bool) {
        let (_, never_holds) = watch::channel(Hold::Nothing);
        let hold = if holds_updates { self.hold.subscribe() } else { never_holds };
        let shared = Shared { address: self.address.subscribe(), hold, log: self.log.clone() };
        // The two frame limits cover inline and chunked tensors.
        self.tasks.spawn(run_device(id, shared, if id.is_multiple_of(2) { 256 } else { 128 }));
    }

    /// Waits until each of these devices has `count` counted updates at the server of this port.
    async fn wait_until_counted(&self, devices: std::ops::Range<u64>, port: u16, count: usize) {
        let counted = |log: &[Observation], device| {
            let is_counted = |seen: &&Observation| {
                seen.device == device && seen.port == port && seen.outcome == Some(AckOutcome::Counted)
            };
            log.iter().filter(is_counted).count()
        };
        self.wait_for_log(|log| devices.clone().all(|device| counted(log, device) == count)).await;
    }

    /// Waits until the log satisfies a condition.
    async fn wait_for_log(&self, mut condition: impl FnMut(&[Observation]) -> bool) {
        let mut log = self.log.subscribe();
        let observed = log.wait_for(|log| condition(log));
        tokio::time::timeout(PATIENCE, observed)
            .await
            .expect("the log did not satisfy the condition in time")
            .unwrap();
    }

    /// Returns the round ids opened under each server, in order of the servers.
    fn rounds_by_server(&self) -> Vec<(u16, Vec<u32>)> {
        let mut rounds_by_server: Vec<(u16, Vec<u32>)> = Vec::new();
        for seen in self.log.borrow().iter().filter(|seen| seen.outcome.is_none()) {
            match rounds_by_server.iter_mut().find(|(port, _)| *port == seen.port) {
                Some((_, rounds)) => rounds.push(seen.round),
                None => rounds_by_server.push((seen.port, vec![seen.round])),
            }
        }
        rounds_by_server
    }
}

/// Runs the campaign in an engine without a server, and returns the engine.
fn run_without_server(fleet: &str, devices: u64) -> Engine {
    let mut engine = Fleet::parse("fleet.toml", fleet).unwrap().engine();
    let mut queue: Vec<Event> = (0..devices).rev().map(|device| Event::Joined(DeviceId(device))).collect();
    while let Some(event) = queue.pop() {
        let mut actions = Vec::new();
        engine.handle(Millis::ZERO, event, &mut actions);
        for action in actions {
            if let Action::Open(device, opening) = action {
                queue.insert(0, Event::Update(device, honest_update(device, &opening)));
            }
        }
    }
    assert_eq!(engine.phase(), Phase::Finished);
    engine
}

/// Returns the bits of the stored model.
pub fn on_disk(state: &Path) -> Vec<u64> {
    let checkpoint = store::read(state).unwrap().unwrap().checkpoint.unwrap();
    checkpoint.state.iter().map(|v| v.to_bits()).collect()
}

/// Returns the bits of the model of an engine, as [`on_disk`] returns those of a stored model.
fn model_bits(engine: &Engine) -> Vec<u64> {
    let head = engine.shared_head().map(bits).unwrap_or_default();
    [bits(engine.representation()), head].concat()
}

/// Asserts that no device received `Counted` twice for one round, from any server.
fn assert_counted_once(devices: &Devices) {
    let mut counted = std::collections::BTreeSet::new();
    for seen in devices.log.borrow().iter() {
        if seen.outcome == Some(AckOutcome::Counted) {
            assert!(counted.insert((seen.device, seen.round)), "{} in {}", seen.device, seen.round);
        }
    }
}

/// Runs a campaign with three crashes, each in the middle of a round in which two of three updates are
/// acknowledged.
async fn crashes_while_rounds_are_open(campaign: &str, hold: Hold, counted_before: usize) {
    let state = Scratch::new();
    let fleet = configuration_text(state.path(), 3, campaign);
    let mut server = start_server(&fleet, true).await;
    let mut devices = Devices::new(server.address);
    devices.hold.send_replace(hold);
    for id in 0..3 {
        devices.add_device(id, id == 2);
    }
    let port = server.address.port();
    // The third device keeps the round open.
    devices.wait_until_counted(0..2, port, counted_before + 1).await;
    for _ in 0..3 {
        server.crash().await;
        server = start_server(&fleet, true).await;
        devices.address.send_replace(server.address);
        let status_now = status(state.path()).await;
        assert_eq!(
            (status_now["answers"].as_u64(), status_now["devices"].as_u64()),
            (Some(2), Some(3)),
            "{status_now}"
        );
        status_with(state.path(), |status_now| status_now["connected"] == 3).await;
    }
    devices.hold.send_replace(Hold::Nothing);
    let status = server.wait_until_finished().await;
    // All training rounds and the heads are counted, with three devices each.
    assert_eq!(status.updates.counted, 3 * (u64::from(status.rounds) + 1));
    assert_counted_once(&devices);
    assert_eq!(devices.rounds_by_server().len(), 4);
    assert_eq!(on_disk(state.path()), model_bits(&run_without_server(&fleet, 3)));
}

#[tokio::test(flavor = "multi_thread")]
async fn server_survives_crashes_before_first_commit() {
    crashes_while_rounds_are_open(FEDREP, Hold::All, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn server_survives_crashes_between_start_and_fedrep() {
    crashes_while_rounds_are_open(POWER_FEDREP, Hold::Training, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn server_survives_crashes_between_start_and_fedavg() {
    crashes_while_rounds_are_open(POWER_FEDAVG, Hold::Training, 2).await;
}

/// The server survives several crashes, each after a different number of rounds and acknowledgements.
#[tokio::test(flavor = "multi_thread")]
async fn server_survives_crashes_at_any_moment() {
    let state = Scratch::new();
    let campaign = FEDREP.replace("rounds = 4", "rounds = 400");
    let fleet = configuration_text(state.path(), 3, &campaign);
    let mut server = start_server(&fleet, true).await;
    let mut devices = Devices::new(server.address);
    for id in 0..3 {
        devices.add_device(id, false);
    }
    for messages in [3, 11, 17, 8, 23] {
        let log_len = devices.log.borrow().len();
        devices.wait_for_log(|log| log.len() >= log_len + messages).await;
        server.crash().await;
        server = start_server(&fleet, true).await;
        devices.address.send_replace(server.address);
    }
    let status = server.wait_until_finished().await;
    assert_eq!((status.round, status.updates.rejected()), (400, 0));
    assert_counted_once(&devices);
    assert_eq!(on_disk(state.path()), model_bits(&run_without_server(&fleet, 3)));
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_finishes_campaign_after_shutdown() {
    let state = Scratch::new();
    let fleet = configuration_text(state.path(), 2, FEDREP);
    let server = start_server(&fleet, false).await;
    let mut devices = Devices::new(server.address);
    devices.add_device(0, false);
    devices.add_device(1, true);
    devices.hold.send_replace(Hold::From(3));
    status_with(state.path(), |status_now| status_now["round"].as_u64() >= Some(1)).await;
    let _ = server.stop.send(());
    let status = tokio::time::timeout(PATIENCE, server.task)
        .await
        .expect("the server did not return in time")
        .unwrap()
        .unwrap();
    let checkpoint = store::read(state.path()).unwrap().unwrap().checkpoint.unwrap();
    assert_eq!(checkpoint.done, Phase::Train(status.round));
    assert!(!state.path().join("control.sock").exists());
    // After the shutdown the port and the lock are free, so a new server can finish the campaign.
    devices.hold.send_replace(Hold::Nothing);
    let server = start_server(&fleet, true).await;
    devices.address.send_replace(server.address);
    assert_eq!(server.wait_until_finished().await.round, 4);
    assert_eq!(on_disk(state.path()), model_bits(&run_without_server(&fleet, 2)));

    // After a restart of the server of a finished campaign, a new device can fit its head at once.
    devices.tasks.abort_all();
    let server = start_server(&fleet, false).await;
    let mut newcomer = Devices::new(server.address);
    newcomer.add_device(40, false);
    let port = server.address.port();
    newcomer.wait_until_counted(40..41, port, 1).await;
    let _ = server.stop.send(());
    server.task.await.unwrap().unwrap();
    assert_eq!(on_disk(state.path()), model_bits(&run_without_server(&fleet, 2)));
}

/// Training that ended because of a small change of the representation remains ended after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn training_ended_by_small_change_stays_ended() {
    let state = Scratch::new();
    let fleet = configuration_text(state.path(), 2, &format!("{FEDREP}[stop]\nchange = 1.0\n"));
    let server = start_server(&fleet, false).await;
    let mut devices = Devices::new(server.address);
    devices.add_device(0, false);
    devices.add_device(1, false);
    let port = server.address.port();
    // Each device has two counted updates: one of a training round, and the head.
    devices.wait_until_counted(0..2, port, 2).await;
    server.crash().await;
    devices.tasks.abort_all();
    let stored_model = on_disk(state.path());
    assert_eq!(store::read(state.path()).unwrap().unwrap().checkpoint.unwrap().done, Phase::Train(1));

    // The server is started twice, because it writes a checkpoint at startup.
    for newcomer in [40, 41] {
        let server = start_server(&fleet, false).await;
        let mut devices = Devices::new(server.address);
        devices.add_device(newcomer, false);
        let port = server.address.port();
        devices.wait_until_counted(newcomer..newcomer + 1, port, 1).await;
        let status_now = status(state.path()).await;
        assert_eq!(
            (status_now["round"].as_u64(), status_now["rounds"].as_u64()),
            (Some(1), Some(4)),
            "{status_now}"
        );
        server.crash().await;
        assert_eq!(on_disk(state.path()), stored_model);
    }
    let changed = fleet.replace("change = 1.0", "change = 0.5");
    let error = start_error(&changed).await;
    let ServeError::Resume(ResumeError::Changed { difference }) = &error else { panic!("{error}") };
    assert_eq!(difference, "- stop.change = 1.0\n+ stop.change = 0.5\n");
    let error = start_error(&fleet.replace("change = 1.0", "")).await;
    let ServeError::Resume(ResumeError::Changed { difference }) = &error else { panic!("{error}") };
    assert_eq!(difference, "- stop.change = 1.0\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn other_configuration_is_refused_with_difference() {
    let state = Scratch::new();
    let fleet = configuration_text(state.path(), 1, FEDREP);
    // No round is committed, so the configuration may change.
    let server = start_server(&fleet.replace("seed = 5", "seed = 8"), true).await;
    server.crash().await;
    let server = start_server(&fleet, true).await;
    let mut devices = Devices::new(server.address);
    devices.add_device(0, false);
    server.wait_until_finished().await;
    let stored_model = on_disk(state.path());

    let changed = fleet.replace("seed = 5", "seed = 6").replace("step_size = 0.25", "step_size = 0.5");
    let error = start_error(&changed).await;
    let ServeError::Resume(ResumeError::Changed { difference }) = &error else { panic!("{error}") };
    let lines: Vec<&str> = difference.lines().collect();
    assert_eq!(lines.len(), 4, "{difference}");
    assert_eq!(lines[..2], ["- seed = 5", "+ seed = 6"]);
    assert_eq!(lines[2..], ["- algorithm.step_size = 0.25", "+ algorithm.step_size = 0.5"]);
    assert_eq!(on_disk(state.path()), stored_model, "a refused start changed the state");

    // Settings outside the fingerprint may change.
    let moved = fleet.replace("[rounds]", "[limits]\nidle = 7\n[rounds]\nmin_count = 1");
    let server = start_server(&moved, false).await;
    let _ = server.stop.send(());
    server.task.await.unwrap().unwrap();

    // A damaged store is an error, not a new campaign.
    std::fs::write(state.path().join("campaign.redb"), b"FEDSPAN and nothing else").unwrap();
    let error = start_error(&fleet).await;
    assert!(matches!(error, ServeError::Store(StoreError::Damaged { .. })), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn state_directory_admits_one_server() {
    let state = Scratch::new();
    let fleet = configuration_text(state.path(), 1, FEDREP);
    let _server = start_server(&fleet, false).await;
    let error = start_error(&fleet).await;
    assert!(error.to_string().contains("another server"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn control_socket_answers_in_json() {
    use std::os::unix::fs::PermissionsExt;
    let state = Scratch::new();
    assert_eq!(query(state.path(), "status", |_| panic!("no server is running")).await.unwrap(), None);
    let server = start_server(&configuration_text(state.path(), 2, FEDREP), false).await;
    let socket = state.path().join("control.sock");
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);

    let waiting = status(state.path()).await;
    assert_eq!((waiting["phase"].as_str(), waiting["devices"].as_u64()), (Some("waiting"), Some(0)));
    // The watcher connects before the first round.
    let mut watcher = UnixStream::connect(&socket).await.unwrap();
    watcher.write_all(b"watch\n").await.unwrap();
    let mut watched = BufReader::new(watcher).lines();
    // Clients are accepted in order, so the answer to `status` shows that the watcher is subscribed.
    status(state.path()).await;

    let mut devices = Devices::new(server.address);
    devices.add_device(0, false);
    devices.add_device(1, false);
    for round in 1..=4u64 {
        let line = tokio::time::timeout(PATIENCE, watched.next_line()).await.unwrap().unwrap().unwrap();
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(line["phase"], "training");
        assert_eq!((line["round"].as_u64(), line["of"].as_u64()), (Some(round), Some(4)));
        assert_eq!(line["cohort"], serde_json::json!([0, 1]));
        assert_eq!(line["participants"].as_array().map(Vec::len), Some(2));
        assert_eq!(line["rejected"].as_u64(), Some(0));
        assert!(line["milliseconds"].is_u64());
    }
    let port = server.address.port();
    devices.wait_until_counted(0..2, port, 5).await;
    let finished = status(state.path()).await;
    assert_eq!(finished["phase"], "finished");
    assert_eq!((finished["round"].as_u64(), finished["rounds"].as_u64()), (Some(4), Some(4)));
    assert_eq!(finished["updates"]["counted"].as_u64(), Some(10));
    assert_eq!(finished["connections"]["welcomed"].as_u64(), Some(2));
    assert_eq!(finished["connected"].as_u64(), Some(2));

    // The last line says how the campaign has ended, also to a client that asks later.
    let end = serde_json::json!({"phase": "finished", "round": 4, "of": 4, "counted": 10, "rejected": 0});
    let mut later = Vec::new();
    let watched_later = query(state.path(), "watch", |line| {
        later.push(line.to_owned());
        Ok(())
    });
    tokio::time::timeout(PATIENCE, watched_later).await.unwrap().unwrap().unwrap();
    let line = tokio::time::timeout(PATIENCE, watched.next_line()).await.unwrap().unwrap().unwrap();
    for line in [&line, &later[0]] {
        assert_eq!(serde_json::from_str::<serde_json::Value>(line).unwrap(), end);
    }
    assert_eq!(
        (later.len(), watched.next_line().await.unwrap()),
        (1, None),
        "the watcher was not disconnected"
    );

    // Devices, of which these report nothing about themselves.
    let mut lines = Vec::new();
    let asked = query(state.path(), "devices", |line| {
        lines.push(serde_json::from_str::<serde_json::Value>(line).unwrap());
        Ok(())
    });
    asked.await.unwrap().unwrap();
    let joined =
        |device: u64| serde_json::json!({"device": device, "connected": true, "seen_s": 0, "joined": 1});
    assert_eq!(lines, [joined(0), joined(1)]);

    // Invalid requests do not stop the server.
    for (request, is_read_in_full) in
        [("stop", true), ("", true), ("STATUS", true), (&"x".repeat(10_000), false)]
    {
        let mut lines = Vec::new();
        let answered = query(state.path(), request, |line| {
            lines.push(line.to_owned());
            Ok(())
        })
        .await;
        if is_read_in_full {
            answered.unwrap();
            let answer: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
            assert!(answer["error"].as_str().unwrap().contains("status, devices, watch"), "{answer}");
        }
    }
    // A silent client and a client that sends invalid text do not delay other clients.
    let _idle_client = UnixStream::connect(&socket).await.unwrap();
    let mut invalid_client = UnixStream::connect(&socket).await.unwrap();
    invalid_client.write_all(&[0xff, 0xfe, b'\n']).await.unwrap();
    assert_eq!(status(state.path()).await["phase"], "finished");

    let _ = server.stop.send(());
    server.task.await.unwrap().unwrap();
    assert!(!socket.exists());
}

/// If a device reconnects before its old connection times out, the old connection is closed and the new one
/// is used.
#[tokio::test(flavor = "multi_thread")]
async fn newer_connection_replaces_older() {
    let state = Scratch::new();
    let server = start_server(&configuration_text(state.path(), 2, FEDREP), true).await;
    let mut old_connection = TcpStream::connect(server.address).await.unwrap();
    old_connection
        .write_all(&encode_frame(&ToServer::Hello(create_hello(0, (6, 2, 1), 256)), &[]))
        .await
        .unwrap();
    let mut buffer = [0; 256];
    assert!(old_connection.read(&mut buffer).await.unwrap() > 0, "the device was not welcomed");
    let mut devices = Devices::new(server.address);
    devices.add_device(0, false);
    // The old connection ends.
    tokio::time::timeout(PATIENCE, async {
        while old_connection.read(&mut buffer).await.unwrap_or(0) > 0 {}
    })
    .await
    .unwrap();
    devices.add_device(1, false);
    let status = server.wait_until_finished().await;
    assert_eq!((status.connections.welcomed, status.devices), (3, 2));
}

/// A device that does not read is disconnected, and rounds close without the device.
#[tokio::test(flavor = "multi_thread")]
async fn device_that_does_not_read_is_disconnected() {
    let state = Scratch::new();
    // The rounds have half a megabyte and a short deadline.
    let campaign = "[model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 100000\nstep_size = 0.25\n\
                    [rounds]\ndeadline = 0.03\n[limits]\nframe = 600\nidle = 600\n";
    let fleet = configuration_text(state.path(), 2, campaign)
        .replace("d = 6", "d = 60000")
        .replace("absence = 20.0", "absence = 0");
    let server = start_server(&fleet, false).await;
    let connect = |id, buffer| async move {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(buffer).unwrap();
        let mut stream = socket.connect(server.address).await.unwrap();
        let hello = ToServer::Hello(create_hello(id, (60_000, 2, 1), 4096));
        stream.write_all(&encode_frame(&hello, &[])).await.unwrap();
        stream
    };
    let unreading_device = connect(0, 4096).await;
    // The other device answers every round with zeros.
    let mut honest = connect(1, 1 << 20).await;
    let answering = tokio::spawn(async move {
        let mut decoder = Decoder::new(vec![0u8; 4096]);
        let mut buffer = vec![0u8; 1 << 16];
        let mut tensors: Descriptors =
            [TensorDescriptor::inline(Role::Gradient, Encoding::F32, 60_000, 2)].into_iter().collect();
        plan(&mut tensors, 4096).unwrap();
        loop {
            let n = honest.read(&mut buffer).await.unwrap_or(0);
            if n == 0 {
                return;
            }
            let mut input = &buffer[..n];
            let mut opened = Vec::new();
            loop {
                match decoder.feed(&mut input) {
                    FeedResult::NeedMore => break,
                    FeedResult::Dropped(reason) => panic!("{reason:?}"),
                    FeedResult::Sealed(_) => panic!("a sealed frame from a server without keys"),
                    FeedResult::Message(bytes) => {
                        if let ToDevice::RoundOpen(round) = decode::<ToDevice>(bytes).unwrap().0 {
                            opened.push(round.id);
                        }
                    }
                }
            }
            for id in opened {
                let head = Update { id, samples: 1, skipped: 0, tensors: tensors.clone() };
                let mut wire = encode_frame(&ToServer::Update(head), &[]);
                for index in 0..tensors[0].chunks() {
                    let range = tensors[0].chunk_range(index).unwrap();
                    let chunk = Chunk { id, tensor: 0, offset: range.start as u32 };
                    wire.extend(encode_frame(&ToServer::Chunk(chunk), &vec![0; range.len() * 4]));
                }
                if honest.write_all(&wire).await.is_err() {
                    return;
                }
            }
        }
    });
    let status_now =
        status_with(state.path(), |status_now| status_now["connections"]["congested"].as_u64() > Some(0))
            .await;
    assert_eq!(status_now["connections"]["congested"].as_u64(), Some(1), "{status_now}");
    assert_eq!(
        (status_now["devices"].as_u64(), status_now["connected"].as_u64()),
        (Some(2), Some(1)),
        "{status_now}"
    );
    answering.abort();
    drop(unreading_device);
    server.crash().await;
}

/// A device that finds no free slot receives a retry delay, regardless of the data that it has already sent.
#[tokio::test(flavor = "multi_thread")]
async fn turned_away_device_gets_retry_delay() {
    let state = Scratch::new();
    let fleet = configuration_text(state.path(), 1, &format!("{FEDREP}[limits]\nconnections = 1\n"));
    let server = start_server(&fleet, false).await;
    let mut connected = TcpStream::connect(server.address).await.unwrap();
    connected.write_all(&encode_frame(&ToServer::Hello(create_hello(0, (6, 2, 1), 256)), &[])).await.unwrap();
    assert!(connected.read(&mut [0; 64]).await.unwrap() > 0);
    for attempt in 0..50u64 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream
            .write_all(&encode_frame(&ToServer::Hello(create_hello(1, (6, 2, 1), 256)), &[]))
            .await
            .unwrap();
        // Every second device begins to read only after the server has turned it away.
        if attempt % 2 == 1 {
            let turned_away =
                |status_now: &serde_json::Value| status_now["connections"]["turned_away"].as_u64();
            status_with(state.path(), |status_now| turned_away(status_now) > Some(attempt)).await;
        }
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap_or_else(|error| panic!("attempt {attempt}: {error}"));
        let answer = common::decode_messages(&answer);
        assert!(
            matches!(answer.as_slice(), [(ToDevice::RetryAfter { .. }, _)]),
            "attempt {attempt}: {answer:?}"
        );
    }
    assert_eq!(status(state.path()).await["connections"]["turned_away"].as_u64(), Some(50));
    server.crash().await;
}

/// If so many connections are silent that the oldest are evicted, the end of each connection is counted under
/// exactly one reason.
#[tokio::test(flavor = "multi_thread")]
async fn evicted_connections_are_counted() {
    let state = Scratch::new();
    let fleet =
        configuration_text(state.path(), 1, &format!("{FEDREP}[limits]\nconnections = 1\nhello = 1\n"));
    let server = start_server(&fleet, false).await;
    let mut connected = TcpStream::connect(server.address).await.unwrap();
    connected.write_all(&encode_frame(&ToServer::Hello(create_hello(0, (6, 2, 1), 256)), &[])).await.unwrap();
    assert!(connected.read(&mut [0; 64]).await.unwrap() > 0);
    let mut crowd = Vec::new();
    for _ in 0..400 {
        crowd.push(TcpStream::connect(server.address).await.unwrap());
    }
    for stream in &mut crowd {
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer))
            .await
            .expect("the connection did not end in time");
        assert!(answer.is_empty(), "{ended:?}: {answer:?}");
    }
    let connections = status(state.path()).await["connections"].clone();
    let count = |name: &str| connections[name].as_u64().unwrap();
    assert_eq!(count("evicted") + count("dropped") + count("no_hello"), 400, "{connections}");
    // The number of timeouts depends on the machine.
    assert!(count("evicted") > 0, "{connections}");
    // The connected device is not affected.
    connected.write_all(&encode_frame(&ToServer::Hello(create_hello(0, (6, 2, 1), 256)), &[])).await.unwrap();
    assert!(connected.read(&mut [0; 64]).await.unwrap() > 0);
    server.crash().await;
}

/// A server process with few file descriptors still serves connected devices while accept fails.
#[tokio::test(flavor = "multi_thread")]
async fn server_without_file_descriptors_serves_connected_devices() {
    let state = Scratch::new();
    let config = state.path().join("fleet.toml");
    let sections = format!("{FEDREP}[limits]\nhello = 600\n");
    std::fs::write(
        &config,
        configuration_text(&state.path().join("state"), 1, &sections)
            .replace("[devices]", "plaintext = true\n[devices]"),
    )
    .unwrap();
    let mut server = ServerProcess::start(
        std::process::Command::new("sh")
            .args(["-c", "ulimit -n 40; exec \"$0\" serve --config \"$1\""])
            .arg(env!("CARGO_BIN_EXE_fedspan-aggregator"))
            .arg(&config)
            .stderr(std::process::Stdio::piped()),
    );
    let mut log = std::io::BufReader::new(server.child.stderr.take().unwrap());
    let address = server.line.split_whitespace().find_map(|part| part.trim_end_matches(',').parse().ok());
    let address: SocketAddr = address.expect(&server.line);
    let mut connected = TcpStream::connect(address).await.unwrap();
    let mut crowd = Vec::new();
    for _ in 0..80 {
        crowd.push(TcpStream::connect(address).await.unwrap());
    }
    read_line_with(&mut log, "accept failed");
    connected.write_all(&encode_frame(&ToServer::Hello(create_hello(0, (6, 2, 1), 256)), &[])).await.unwrap();
    let mut buffer = [0; 256];
    let len = tokio::time::timeout(PATIENCE, connected.read(&mut buffer))
        .await
        .expect("the device was not served in time")
        .unwrap();
    assert!(matches!(common::decode_messages(&buffer[..len])[0], (ToDevice::Welcome(_), _)));
    drop(crowd);
    let status_now = status(&state.path().join("state")).await;
    assert!(status_now["connections"]["accept_errors"].as_u64() >= Some(1), "{status_now}");
}

#[tokio::test(flavor = "multi_thread")]
async fn startup_errors_name_listener_or_directory() {
    let state = Scratch::new();
    let bound_listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = bound_listener.local_addr().unwrap().to_string();
    let fleet = configuration_text(state.path(), 1, FEDREP).replace("127.0.0.1:0", &address);
    let error = start_error(&fleet).await;
    assert!(error.to_string().contains(&address), "{error}");
    let file = state.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let error = start_error(&configuration_text(&file, 1, FEDREP)).await;
    assert!(error.to_string().contains("file"), "{error}");
}
