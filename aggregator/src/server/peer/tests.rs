//! Tests of the peer task: memory per device, and timers while a peer is slow or sends without end.

#![allow(clippy::unwrap_used, clippy::panic)]

use fedspan_engine::Millis;
use fedspan_protocol::frame::encode;
use fedspan_protocol::limits::wire_capacity;
use fedspan_protocol::message::{
    Ack, AckOutcome, Capabilities, Hello, Model, Numeric, Privacy, RoundId, ToServer, Welcome,
};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use super::*;
use crate::config::Fleet;
use crate::core::{COMMAND_CAPACITY, PeerEventKind, Sender, command_queue_memory};
use crate::server::slot_limits;
use fedspan_connections::ConnectionSlots;
use fedspan_engine::admission::Requirements;

/// Number of bytes that the runtime needs for a task, its socket and its entry in the task list. As of tokio
/// 1.54, a task needs 128 and a socket 256, aligned to 128.
const RUNTIME: usize = 640;

/// Number of bytes of a device's entries in the tables of the core and the engine.
const TABLES: usize = 256;

/// Documented limit of memory per device for a model of 64 features and width 4: 8 KiB and a decoded update.
const MEMORY_LIMIT: usize = 8192 + 64 * 4 * 4;

const MODEL: Model = Model::linear(64, 4, 1);

fn requirements(fleet: &Fleet) -> Requirements {
    Requirements::new(MODEL, &fleet.engine().requests(), None)
}

fn fleet() -> Fleet {
    let text = "[devices]\nexpected = 2\n[data]\nd = 64\n[model]\nk = 4\n[algorithm]\nname = \"fedrep\"\n\
                rounds = 3\nstep_size = 0.25\n[limits]\nidle = 2\nframe = 60\n";
    Fleet::parse("fleet.toml", text).unwrap()
}

/// Creates the context of peer tasks of a server in plaintext mode.
fn plaintext_context(fleet: &Fleet, inbox: mpsc::Sender<PeerEvent>) -> PeerContext {
    let welcome = Welcome { campaign: 1, idle_milliseconds: 1 };
    let acceptor = Arc::new(Acceptor::plaintext(requirements(fleet), welcome));
    PeerContext {
        acceptor,
        timeouts: Timeouts::from(&fleet.limits),
        clock: Clock::new(),
        inbox,
        beacons: None,
    }
}

#[tokio::test]
async fn device_memory_is_bounded() {
    let fleet = fleet();
    let longest = requirements(&fleet).longest_upload();
    let (inbox, _events) = mpsc::channel(1);
    let context = plaintext_context(&fleet, inbox);
    let connection = Connection::new(Arc::clone(&context.acceptor));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let socket = TcpStream::connect(address).await.unwrap();
    let slot = ConnectionSlots::new(slot_limits(&fleet.limits)).enter(address).unwrap();
    let on_heap = connection.memory_max() - size_of::<Connection>();
    let task = size_of_val(&run(0, socket, address, context, connection, slot));
    let commands = command_queue_memory::<Command>(COMMAND_CAPACITY);
    // A round that is being written, an update in the core's inbox, and the unprocessed part of a read.
    let in_transit = wire_capacity(longest) + (64 * 4 * 4 + 256) + READ_LEN;
    let total = task + RUNTIME + TABLES + on_heap + commands + in_transit;
    println!("task {task}, connection {on_heap}, commands {commands}, in transit {in_transit}: {total}");
    assert!(task <= 2048, "{task}");
    assert!(total <= MEMORY_LIMIT, "{total}");
}

fn encode_frame(message: &ToServer) -> Vec<u8> {
    let mut buffer = vec![0; 200];
    let sent = encode(message, 0, |_| {}, &mut buffer).unwrap();
    buffer.truncate(sent);
    buffer
}

fn hello_frame() -> Vec<u8> {
    let capabilities = Capabilities {
        frame_limit: 256,
        model: MODEL,
        tasks: u16::MAX,
        roles: u16::MAX,
        encodings: u8::MAX,
        numeric: Numeric::F32,
        tensors: 2,
        tensor_elements: 256,
        total_elements: 256,
        privacy: Privacy::None,
    };
    encode_frame(&ToServer::Hello(Hello::new(1, capabilities)))
}

/// Device with a session, after the hello.
struct BegunSession {
    device: tokio::io::DuplexStream,
    commands: Sender<Command>,
    events: mpsc::Receiver<PeerEvent>,
    session: tokio::task::JoinHandle<DisconnectReason>,
}

/// Begins a session on a link with a buffer of 64 bytes.
async fn begin_session() -> BegunSession {
    let fleet = fleet();
    let (inbox, mut events) = mpsc::channel(16);
    let context = plaintext_context(&fleet, inbox);
    let address = SocketAddr::from(([192, 0, 2, 7], 1));
    let slot = ConnectionSlots::new(slot_limits(&fleet.limits)).enter(address).unwrap();
    let (mut device, link) = tokio::io::duplex(64);
    let connection = Connection::new(Arc::clone(&context.acceptor));
    let mut peer = Peer::new(0, Origin::Address(address), link, context, connection, Some(slot));
    let session = tokio::spawn(async move { peer.run_session().await });
    device.write_all(&hello_frame()).await.unwrap();
    let PeerEventKind::Hello(_, _, commands) = events.recv().await.unwrap().kind else { panic!("a hello") };
    BegunSession { device, commands, events, session }
}

/// A keep-alive that arrives in time counts as in time, even if the peer task is waiting for the device to
/// read.
#[tokio::test(start_paused = true)]
async fn bytes_received_while_writing_are_in_time() {
    // Repeated, because a random order of branches in `select!` could pass by chance.
    for _ in 0..40 {
        let BegunSession { mut device, commands, session, events: _events } = begin_session().await;
        let id = RoundId { round: 1, stage: 0 };
        for _ in 0..10 {
            assert!(commands.send(Command::Acknowledge(Ack { id, outcome: AckOutcome::Late })));
        }
        sleep(Duration::from_secs(1)).await;
        device.write_all(&encode_frame(&ToServer::Alive)).await.unwrap();
        sleep(Duration::from_secs(2)).await;
        let mut buffer = [0; 512];
        while timeout(Duration::from_millis(100), device.read(&mut buffer))
            .await
            .is_ok_and(|n| n.unwrap() > 0)
        {}
        drop(commands);
        assert_eq!(session.await.unwrap(), DisconnectReason::Ended);
    }
}

/// Link that delivers a hello and then an endless frame. The link ends after many more reads than the task
/// may make.
struct EndlessLink {
    hello: Vec<u8>,
    reads: u32,
}

impl AsyncRead for EndlessLink {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        self.reads += 1;
        match self.reads {
            1 => buffer.put_slice(&self.hello),
            2..10_000_000 => buffer.put_slice(&[1; READ_LEN]),
            _ => {}
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for EndlessLink {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut std::task::Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut std::task::Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn endless_frame_times_out() {
    let fleet = fleet();
    let (inbox, _events) = mpsc::channel(16);
    let mut context = plaintext_context(&fleet, inbox);
    context.timeouts.idle = Millis::new(20);
    let address = SocketAddr::from(([192, 0, 2, 7], 1));
    let slot = ConnectionSlots::new(slot_limits(&fleet.limits)).enter(address).unwrap();
    let link = EndlessLink { hello: hello_frame(), reads: 0 };
    let connection = Connection::new(Arc::clone(&context.acceptor));
    let mut peer = Peer::new(0, Origin::Address(address), link, context, connection, Some(slot));
    assert_eq!(peer.run_session().await, DisconnectReason::Idle);
}
