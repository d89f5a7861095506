//! Tests of raw bytes that are sent to a real server. Invalid peers must be refused or disconnected, and
//! counted, while the campaign continues undisturbed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fedspan_aggregator::server::Status;
use fedspan_client::Task as _;
use fedspan_protocol::frame::{Decoder, FeedResult, encode};
use fedspan_protocol::message::{
    Hello, Model, Refusal, Requirement, RoundId, ToDevice, ToServer, Update, decode,
};
use fedspan_sim_core::data::Dataset;
use fedspan_sim_core::device::{Identity, client_session};
use fedspan_sim_core::scenario::Scenario;
use fedspan_tests::{Running, device, fleet_of, start};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const SCENARIO: &str = r#"
seed = 5
[data]
kind = "linear-regression"
clients = 4
d = 20
k = 2
samples = 20
[model]
k = 2
[algorithm]
name = "fedrep"
rounds = 8
step_size = 0.25
"#;

const CAMPAIGN: &str = "[model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 8\nstep_size = 0.25\n\
    [rounds]\ndeadline = 5\nmin_count = 4\n[limits]\nhello = 0.4\nidle = 60\nframe = 0.4\nconnections = 12\n";

/// A server with honest devices.
struct World {
    scenario: Scenario,
    dataset: Arc<Dataset>,
    server: Running,
    _state: tempfile::TempDir,
}

async fn start_world() -> World {
    start_world_with(CAMPAIGN).await
}

async fn start_world_with(campaign: &str) -> World {
    let scenario = Scenario::parse("test", SCENARIO, &[]).expect("scenario");
    let dataset = Arc::new(scenario.dataset(scenario.seed).expect("data"));
    let state = tempfile::tempdir().expect("a directory");
    let fleet = fleet_of(&scenario, &dataset, state.path(), campaign);
    let fleet = fleet.replace("[devices]", "[devices]\nabsence = 0");
    let server = start(&fleet).await.expect("server");
    World { scenario, dataset, server, _state: state }
}

impl World {
    /// Runs the honest devices until the campaign is finished.
    async fn finish(self) -> Status {
        let mut devices = tokio::task::JoinSet::new();
        for index in 0..self.dataset.clients.len() {
            devices.spawn(device(
                self.scenario.clone(),
                Arc::clone(&self.dataset),
                index,
                Identity::plaintext(index as u64),
                self.server.address,
            ));
        }
        while let Some(ended) = devices.join_next().await {
            ended.expect("no panic").expect("device");
        }
        let status = self.server.end.await.expect("no panic").expect("served");
        assert_eq!((status.phase.as_str(), status.round), ("finished", 8));
        status
    }

    fn hello(&self, device: u64) -> Hello {
        let session = client_session(&self.scenario, &self.dataset, 0, Identity::plaintext(device), false)
            .expect("client");
        let mut capabilities = session.task().capabilities();
        capabilities.frame_limit = 256;
        Hello::new(device, capabilities)
    }
}

fn encode_frame(message: &ToServer) -> Vec<u8> {
    let mut out = vec![0; 600];
    let length = encode(message, 0, |_| {}, &mut out).expect("fits");
    out.truncate(length);
    out
}

/// Sends bytes and returns all messages that arrive until the server closes the connection.
async fn send_and_read(address: SocketAddr, bytes: &[u8]) -> Vec<ToDevice> {
    let mut socket = TcpStream::connect(address).await.expect("connects");
    // The server may close the connection during this write.
    let _ = socket.write_all(bytes).await;
    let mut answer = Vec::new();
    let until_closed = tokio::time::timeout(Duration::from_secs(8), async {
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = socket.read(&mut buffer).await {
            answer.extend_from_slice(&buffer[..n]);
        }
    });
    until_closed.await.expect("the server closes the connection");
    let mut decoder = Decoder::new([0u8; 4096]);
    let mut input = answer.as_slice();
    let mut messages = Vec::new();
    loop {
        match decoder.feed(&mut input) {
            FeedResult::NeedMore => return messages,
            FeedResult::Sealed(_) => panic!("a sealed frame from a server without keys"),
            FeedResult::Dropped(reason) => panic!("the server sent a bad frame: {reason:?}"),
            FeedResult::Message(bytes) => messages.push(decode::<ToDevice>(bytes).expect("a message").0),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_hello_gets_a_typed_refusal() {
    let world = start_world().await;
    let valid = world.hello(77);
    let address = world.server.address;
    let answer_to =
        |hello: Hello| async move { send_and_read(address, &encode_frame(&ToServer::Hello(hello))).await };

    let other_version = Hello { wire_version: 99, ..valid };
    assert_eq!(
        answer_to(other_version).await,
        [ToDevice::Refused(Refusal::WireVersion { served: valid.wire_version })]
    );
    let other_schema = Hello { schema_hash: 1, ..valid };
    assert_eq!(
        answer_to(other_schema).await,
        [ToDevice::Refused(Refusal::Schema { served: valid.schema_hash })]
    );

    let mut other_shape = valid;
    other_shape.capabilities.model = Model::linear(21, 2, 1);
    let expected = Model::linear(20, 2, 1);
    assert_eq!(answer_to(other_shape).await, [ToDevice::Refused(Refusal::Model { expected })]);

    let mut without_tasks = valid;
    without_tasks.capabilities.tasks = 0;
    assert_eq!(
        answer_to(without_tasks).await,
        [ToDevice::Refused(Refusal::Capability(Requirement::Tasks(0b11)))]
    );

    let mut small_frames = valid;
    small_frames.capabilities.frame_limit = 16;
    assert_eq!(
        answer_to(small_frames).await,
        [ToDevice::Refused(Refusal::FrameLimit { min: 128, max: 16384 })]
    );

    let status = world.finish().await;
    assert_eq!(status.connections.refused, 5);
    assert_eq!(status.connections.welcomed, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_slow_flooding_and_endless_peers_are_cut_off() {
    let world = start_world().await;
    let address = world.server.address;
    // The peers send nothing at all, an incomplete hello, garbage frames, and a frame without an end.
    assert!(send_and_read(address, &[]).await.is_empty());
    let hello = encode_frame(&ToServer::Hello(world.hello(50)));
    assert!(send_and_read(address, &hello[..hello.len() - 3]).await.is_empty());
    let garbage: Vec<u8> =
        (0..20_000u32).map(|i| if i % 40 == 39 { 0 } else { (i % 251) as u8 + 1 }).collect();
    send_and_read(address, &garbage).await;
    assert!(send_and_read(address, &vec![7; 100_000]).await.is_empty());
    // A welcomed device stops in the middle of a frame.
    let mut incomplete = encode_frame(&ToServer::Hello(world.hello(51)));
    incomplete.extend_from_slice(&hello[..10]);
    let messages = send_and_read(address, &incomplete).await;
    assert!(matches!(messages.as_slice(), [ToDevice::Welcome(_)]), "{messages:?}");
    let status = world.finish().await;
    let counters = status.connections;
    assert_eq!(counters.no_hello, 3, "{counters:?}");
    assert_eq!(counters.flood, 1, "{counters:?}");
    assert_eq!(counters.slow, 1, "{counters:?}");
    assert!(counters.dropped_frames > 64, "{counters:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unrequested_update_does_not_count() {
    let world = start_world().await;
    let mut bytes = encode_frame(&ToServer::Hello(world.hello(60)));
    let id = RoundId { round: 1, stage: 0 };
    bytes.extend(encode_frame(&ToServer::Update(Update {
        id,
        samples: 1,
        skipped: 0,
        tensors: Vec::new().into_iter().collect(),
    })));
    bytes.extend(encode_frame(&ToServer::Alive));
    bytes.extend(encode_frame(&ToServer::Hello(world.hello(61))));
    let mut socket = TcpStream::connect(world.server.address).await.expect("connects");
    socket.write_all(&bytes).await.expect("writes");
    let mut buffer = [0; 512];
    let mut answer = Vec::new();
    while answer.iter().filter(|b| **b == 0).count() < 3 {
        let n = socket.read(&mut buffer).await.expect("answers");
        assert!(n > 0, "three answers before the end");
        answer.extend_from_slice(&buffer[..n]);
    }
    // Waits until the server has closed the connection, because a round with this device would wait for its
    // update.
    socket.shutdown().await.expect("closes");
    while socket.read(&mut buffer).await.expect("the end") > 0 {}
    let status = world.finish().await;
    assert_eq!(status.updates.wrong_round, 1);
    assert_eq!(status.connections.faults, 1);
}

/// Tests a device that repeats its hello, because the server may answer every hello with a whole round.
#[tokio::test(flavor = "multi_thread")]
async fn device_that_repeats_hello_is_cut_off() {
    let world = start_world_with(&CAMPAIGN.replace("deadline = 5", "deadline = 600")).await;
    let hello = encode_frame(&ToServer::Hello(world.hello(60)));
    let messages = send_and_read(world.server.address, &hello.repeat(100)).await;
    let welcomes = messages.iter().filter(|message| matches!(message, ToDevice::Welcome(_))).count();
    // There is no welcome if all hellos arrived in one read.
    assert!(welcomes <= 17, "{welcomes}");
    // The device has also left the campaign, so no round waits for it.
    let status = tokio::time::timeout(Duration::from_secs(60), world.finish())
        .await
        .expect("the campaign does not wait for the device");
    assert_eq!(status.connections.flood, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn surplus_connection_gets_retry_after() {
    let world = start_world().await;
    let address = world.server.address;
    let mut idle = Vec::new();
    for device in 60..72 {
        let mut socket = TcpStream::connect(address).await.expect("connects");
        socket.write_all(&encode_frame(&ToServer::Hello(world.hello(device)))).await.expect("writes");
        assert!(socket.read(&mut [0; 64]).await.expect("welcome") > 0);
        idle.push(socket);
    }
    let hello = encode_frame(&ToServer::Hello(world.hello(72)));
    let answer = send_and_read(address, &hello).await;
    assert!(matches!(answer[..], [ToDevice::RetryAfter { milliseconds: 15_000..=30_000 }]), "{answer:?}");
    // The server closes a connection after it has freed the slot.
    for mut socket in idle {
        socket.shutdown().await.expect("closes");
        while socket.read(&mut [0; 256]).await.expect("the end") > 0 {}
    }
    let status = world.finish().await;
    assert_eq!(status.connections.turned_away, 1);
}
