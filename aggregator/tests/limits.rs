//! Tests of the limits on peers over TCP: connection slots and the update quota.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use crate::common::{create_hello, decode_messages, encode_frame};
use fedspan_aggregator::config::Fleet;
use fedspan_aggregator::server::{Protection, ServeError, Server, Status, query};
use fedspan_protocol::message::{AckOutcome, Rejection, RoundId, ToDevice, ToServer, Update};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};
use getrandom::SysRng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

const PATIENCE: Duration = Duration::from_secs(20);

/// Server in the process of the test.
struct RunningServer {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<Status, ServeError>>,
}

async fn start_server(state: &Path, limits: &str) -> RunningServer {
    let configuration = format!(
        "seed = 5\nstate = {:?}\n[listen]\ntcp = \"127.0.0.1:0\"\n[devices]\nexpected = 2\n[data]\nd = 6\n[model]\nk = 2\n\
         [algorithm]\nname = \"fedrep\"\nrounds = 4\nstep_size = 0.25\n[rounds]\ndeadline = 0\n[limits]\n{limits}",
        state.display().to_string()
    );
    let fleet = Fleet::parse("fleet.toml", &configuration).unwrap();
    let server = Server::bind(fleet, 1, SysRng, Protection::Plaintext).await.unwrap();
    let address = server.address().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async {
        let _ = stopped.await;
    };
    RunningServer { address, stop, task: tokio::spawn(server.serve(shutdown, false)) }
}

impl RunningServer {
    async fn stop(self) -> Status {
        let _ = self.stop.send(());
        self.task.await.unwrap().unwrap()
    }
}

async fn connect_from(address: SocketAddr, from: Ipv4Addr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    socket.connect(address).await.unwrap()
}

/// Simulated device whose messages the test itself sends.
struct Peer {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Peer {
    /// Connects and says hello.
    async fn join(address: SocketAddr, device: u64) -> Self {
        Self::join_from(address, Ipv4Addr::LOCALHOST, device).await
    }

    /// Connects from a given local address and says hello.
    async fn join_from(address: SocketAddr, from: Ipv4Addr, device: u64) -> Self {
        let mut stream = connect_from(address, from).await;
        stream
            .write_all(&encode_frame(&ToServer::Hello(create_hello(device, (6, 2, 1), 256)), &[]))
            .await
            .unwrap();
        Self { stream, received: Vec::new() }
    }

    /// Reads until a message satisfies `wanted` or the server closes the connection. Returns all messages.
    async fn read_until(&mut self, wanted: impl Fn(&ToDevice) -> bool) -> Vec<ToDevice> {
        let read_messages = async {
            loop {
                let complete_len =
                    self.received.iter().rposition(|byte| *byte == 0).map_or(0, |index| index + 1);
                let decoded = decode_messages(&self.received[..complete_len]);
                let decoded: Vec<ToDevice> = decoded.into_iter().map(|(message, _)| message).collect();
                let mut buffer = [0; 4096];
                if decoded.iter().any(&wanted) {
                    return decoded;
                }
                match self.stream.read(&mut buffer).await {
                    Ok(n @ 1..) => self.received.extend_from_slice(&buffer[..n]),
                    _ => return decoded,
                }
            }
        };
        tokio::time::timeout(PATIENCE, read_messages)
            .await
            .expect("neither a message nor the end of the connection arrived in time")
    }

    /// Waits for a round and returns its id.
    async fn wait_for_round(&mut self) -> RoundId {
        let replies = self.read_until(|message| matches!(message, ToDevice::RoundOpen(_))).await;
        let opened = replies.iter().rev().find_map(|message| match message {
            ToDevice::RoundOpen(opened) => Some(opened.id),
            _ => None,
        });
        opened.expect("no round was opened")
    }

    /// Reads until the server closes the connection. Returns all messages.
    async fn read_to_end(&mut self) -> Vec<ToDevice> {
        self.read_until(|_| false).await
    }
}

/// Requests the status through the control socket.
async fn request_status(state: &Path) -> serde_json::Value {
    let mut line = String::new();
    let answered = query(state, "status", |answer| {
        line = answer.to_owned();
        Ok(())
    });
    answered.await.unwrap().expect("the server has no control socket");
    serde_json::from_str(&line).unwrap()
}

/// Encodes an update of which every value is `value`.
fn encode_update(id: RoundId, value: f32) -> Vec<u8> {
    let tensors = std::iter::once(TensorDescriptor::inline(Role::Gradient, Encoding::F32, 6, 2)).collect();
    let body: Vec<u8> = std::iter::repeat_n(value.to_le_bytes(), 12).flatten().collect();
    encode_frame(&ToServer::Update(Update { id, samples: 1, skipped: 0, tensors }), &body)
}

#[tokio::test(flavor = "multi_thread")]
async fn device_exceeding_update_quota_is_cut_off() {
    let state = tempfile::tempdir().unwrap();
    let server = start_server(state.path(), "updates = 5\n").await;
    let mut honest = Peer::join(server.address, 0).await;
    let mut flood = Peer::join(server.address, 1).await;
    let id = flood.wait_for_round().await;
    for _ in 0..40 {
        // The server closes the connection while the device is sending, so errors are ignored.
        let _ = flood.stream.write_all(&encode_update(id, f32::NAN)).await;
    }
    let replies = flood.read_to_end().await;
    let replies = replies.iter().filter(|message| match message {
        ToDevice::Ack(ack) => ack.outcome == AckOutcome::Rejected(Rejection::NonFinite),
        _ => false,
    });
    assert!(replies.count() <= 5);
    // Reconnecting does not reset the quota.
    let mut reconnected = Peer::join(server.address, 1).await;
    reconnected.stream.write_all(&encode_update(id, 0.0)).await.unwrap();
    assert!(!reconnected.read_to_end().await.iter().any(|message| matches!(message, ToDevice::Ack(_))));
    // The honest device's update counts.
    let id = honest.wait_for_round().await;
    honest.stream.write_all(&encode_update(id, 0.0)).await.unwrap();
    let replies = honest.read_until(|message| matches!(message, ToDevice::Ack(_))).await;
    let counted =
        |message: &ToDevice| matches!(message, ToDevice::Ack(ack) if ack.outcome == AckOutcome::Counted);
    assert!(replies.iter().any(counted), "{replies:?}");
    let status = server.stop().await;
    assert_eq!((status.updates.counted, status.updates.rejected()), (1, 5));
    assert_eq!(
        (status.connections.over_quota, status.round),
        (2, 1),
        "the round did not close with the honest device"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn address_has_limited_slots() {
    let state = tempfile::tempdir().unwrap();
    let server = start_server(state.path(), "per_address = 2\n").await;
    let mut first_peer = Peer::join(server.address, 0).await;
    let _second = Peer::join(server.address, 1).await;
    first_peer.wait_for_round().await;
    let replies = Peer::join(server.address, 2).await.read_to_end().await;
    assert!(matches!(replies.as_slice(), [ToDevice::RetryAfter { .. }]), "{replies:?}");
    drop(first_peer);
    // The slot of the first device is free once the server has detected the disconnect.
    let free_slot = async {
        loop {
            let mut peer = Peer::join(server.address, 3).await;
            let replies = peer.read_until(|message| matches!(message, ToDevice::Welcome(_))).await;
            if replies.iter().any(|message| matches!(message, ToDevice::Welcome(_))) {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, free_slot).await.expect("no slot became free");
    assert!(server.stop().await.connections.turned_away >= 1);
}

/// New devices are admitted although four addresses hold more silent connections than the server has slots,
/// and replace every closed connection.
#[tokio::test(flavor = "multi_thread")]
async fn hoarding_connections_keep_no_device_out() {
    let state = tempfile::tempdir().unwrap();
    let server = start_server(state.path(), "connections = 8\nper_address = 2\nhello = 600\n").await;
    let address = server.address;
    let mut first_peer = Peer::join(address, 0).await;
    first_peer.read_until(|message| matches!(message, ToDevice::Welcome(_))).await;
    let mut hoarders = JoinSet::new();
    for hoarder in 0..160 {
        let from = Ipv4Addr::new(127, 0, 2, hoarder % 4 + 1);
        hoarders.spawn(async move {
            loop {
                let mut stream = connect_from(address, from).await;
                let _ = stream.read_to_end(&mut Vec::new()).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    }
    // All slots are in use once a connection has been turned away or evicted.
    let slots_in_use = async {
        loop {
            let connections = request_status(state.path()).await["connections"].clone();
            if connections["evicted"].as_u64() > Some(0) || connections["turned_away"].as_u64() > Some(0) {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, slots_in_use).await.expect("the slots did not fill");
    // New devices are admitted at the first attempt, from any address.
    let mut admitted = Vec::new();
    for device in 1..6 {
        let mut peer = Peer::join_from(address, Ipv4Addr::new(127, 0, 3, device), device.into()).await;
        let replies = peer.read_until(|message| matches!(message, ToDevice::Welcome(_))).await;
        assert!(matches!(replies.first(), Some(ToDevice::Welcome(_))), "device {device}: {replies:?}");
        admitted.push(peer);
    }
    // The device that was connected first is still connected, and its update counts.
    let id = first_peer.wait_for_round().await;
    first_peer.stream.write_all(&encode_update(id, 0.0)).await.unwrap();
    let replies = first_peer.read_until(|message| matches!(message, ToDevice::Ack(_))).await;
    assert!(replies.iter().any(|message| matches!(message, ToDevice::Ack(_))), "{replies:?}");
    hoarders.shutdown().await;
    let connections = request_status(state.path()).await["connections"].clone();
    assert_eq!(connections["welcomed"].as_u64(), Some(6), "{connections}");
    assert_eq!(connections["turned_away"].as_u64(), Some(0), "{connections}");
    server.stop().await;
}
