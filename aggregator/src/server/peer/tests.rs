//! Tests of the peer task: memory per device, and timers while a peer is slow or sends without end.

#![allow(clippy::unwrap_used, clippy::panic)]

use fedspan_engine::{Millis, Request, RoundBroadcast, Tensor};
use fedspan_protocol::frame::{Decoder, FeedResult, encode};
use fedspan_protocol::limits::wire_capacity;
use fedspan_protocol::message::{
    Ack, AckOutcome, Capabilities, Chunk, Descriptors, HeadSolve, Hello, Missing, Model, Numeric, Privacy,
    RoundId, Task, ToDevice, ToServer, Update, Upload, Welcome, decode,
};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use super::*;
use crate::config::Fleet;
use crate::connection::OUTBOX_MAX;
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
    encode_with_body(message, 0)
}

/// Encodes a message with a body of `length` zeros.
fn encode_with_body(message: &ToServer, length: usize) -> Vec<u8> {
    let mut buffer = vec![0; 200 + 2 * length];
    let sent = encode(message, length, |body| body.fill(0), &mut buffer).unwrap();
    buffer.truncate(sent);
    buffer
}

fn hello_frame() -> Vec<u8> {
    hello_frame_with(256)
}

/// Encodes the hello of a device with this frame limit.
fn hello_frame_with(frame_limit: u16) -> Vec<u8> {
    let capabilities = Capabilities {
        frame_limit,
        model: MODEL,
        tasks: u32::MAX,
        roles: u32::MAX,
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
    begin_session_on(64, 256).await
}

/// Begins a session of a device with a frame limit on a link with a buffer of this many bytes.
async fn begin_session_on(buffer: usize, frame_limit: u16) -> BegunSession {
    let fleet = fleet();
    let (inbox, mut events) = mpsc::channel(16);
    let context = plaintext_context(&fleet, inbox);
    let address = SocketAddr::from(([192, 0, 2, 7], 1));
    let slot = ConnectionSlots::new(slot_limits(&fleet.limits)).enter(address).unwrap();
    let (mut device, link) = tokio::io::duplex(buffer);
    let connection = Connection::new(Arc::clone(&context.acceptor));
    let mut peer = Peer::new(0, Origin::Address(address), link, context, connection, Some(slot));
    let session = tokio::spawn(async move { peer.run_session().await });
    device.write_all(&hello_frame_with(frame_limit)).await.unwrap();
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

/// Round that sends each device 100 KB.
fn create_long_round() -> Arc<RoundBroadcast> {
    let (encoding, head) = (Encoding::F32, HeadSolve::LeastSquares { ridge: 0.0 });
    let task = Task::FedRep { step_size: 0.5, head, upload: Upload::Gradient, encoding };
    let sent = Tensor { role: Role::Representation, rows: 250, cols: 100, values: vec![1.0; UPLOAD_LEN / 4] };
    let expects = vec![TensorDescriptor::inline(Role::Gradient, encoding, 250, 100)];
    let request = Request { task, tensors: vec![sent], encoding, expects };
    Arc::new(RoundBroadcast::new(RoundId { round: 2, stage: 0 }, request).unwrap())
}

/// Length of the tensor that a device uploads in a test, in bytes.
const UPLOAD_LEN: usize = 100_000;

/// Encodes an upload of 100 KB for a round in chunks of 500 bytes.
fn encode_upload(id: RoundId) -> Vec<u8> {
    let chunk = 125;
    let descriptor =
        TensorDescriptor { chunk, ..TensorDescriptor::inline(Role::Gradient, Encoding::F32, 250, 100) };
    let tensors: Descriptors = [descriptor].into_iter().collect();
    let mut frames = encode_frame(&ToServer::Update(Update { id, samples: 1, skipped: 0, tensors }));
    for index in 0..u32::try_from(descriptor.chunks()).unwrap() {
        let part = Chunk { id, tensor: 0, offset: index * u32::from(chunk) };
        frames.extend(encode_with_body(&ToServer::Chunk(part), 4 * usize::from(chunk)));
    }
    frames
}

/// Reads frames until all of the open round has been received, and returns the number of its values.
async fn read_round(device: &mut (impl AsyncRead + Unpin), frame_limit: u16) -> usize {
    let mut decoder = Decoder::new(vec![0; frame_limit.into()]);
    let (mut values, mut bytes) = (0, [0; 512]);
    while values < UPLOAD_LEN / 4 {
        let read = device.read(&mut bytes).await.unwrap();
        assert!(read > 0, "the link was closed after {values} values");
        let mut input = &bytes[..read];
        while !input.is_empty() {
            if let FeedResult::Message(message) = decoder.feed(&mut input)
                && let (ToDevice::Chunk(_), body) = decode::<ToDevice>(message).unwrap()
            {
                values += body.len() / 4;
            }
        }
    }
    values
}

/// A device may send all of an update before it reads, while the server sends it the next round. Neither waits for the other, whether the
/// update is for the open round or for one that is over.
#[tokio::test(start_paused = true)]
async fn server_reads_an_upload_while_it_sends_a_round() {
    const LONGEST: u16 = FRAME_LIMIT_MAX as u16;
    for (frame_limit, round) in [(1024, 1), (1024, 2), (LONGEST, 1), (LONGEST, 2)] {
        let BegunSession { mut device, commands, session, mut events } =
            begin_session_on(256, frame_limit).await;
        assert!(commands.send(Command::Open(create_long_round())));
        // The server waits for the device to read.
        sleep(Duration::from_secs(1)).await;
        let id = RoundId { round, stage: 0 };
        let upload = encode_upload(id);
        timeout(Duration::from_secs(5), device.write_all(&upload)).await.unwrap().unwrap();
        // The round is still being written.
        let event = timeout(Duration::from_secs(1), events.recv()).await.unwrap().unwrap();
        match event.kind {
            PeerEventKind::UnreadUpdate(unread) => assert_eq!((unread.round, round), (id.round, 1)),
            PeerEventKind::Update(update) => {
                assert_eq!(
                    (update.id.round, round, update.tensors[0].values.len()),
                    (id.round, 2, UPLOAD_LEN / 4)
                );
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(read_round(&mut device, frame_limit).await, UPLOAD_LEN / 4);
        drop(commands);
        assert_eq!(session.await.unwrap(), DisconnectReason::Ended);
    }
}

/// A device that reads slowly and asks for chunks again and again does not keep its task from the core's commands.
#[tokio::test(start_paused = true)]
async fn device_that_asks_without_end_does_not_keep_its_task() {
    let BegunSession { mut device, commands, session, events } = begin_session_on(256, 1024).await;
    assert!(commands.send(Command::Open(create_long_round())));
    let id = RoundId { round: 2, stage: 0 };
    let chunks = (0..16).collect();
    let asks = encode_frame(&ToServer::Missing(Missing { id, tensor: 0, chunks }));
    let device = tokio::spawn(async move {
        let mut bytes = [0; 200];
        loop {
            if timeout(Duration::from_millis(1), device.write_all(&asks))
                .await
                .is_ok_and(|sent| sent.is_err())
            {
                break;
            }
            match device.read(&mut bytes).await {
                Ok(1..) => sleep(Duration::from_secs(1)).await,
                _ => break,
            }
        }
    });
    sleep(Duration::from_secs(60)).await;
    drop((commands, events));
    // At most the round, and the chunks of the replies that were due.
    let began = tokio::time::Instant::now();
    assert_eq!(session.await.unwrap(), DisconnectReason::Ended);
    let bound = (UPLOAD_LEN + OUTBOX_MAX * 16 * 1024) as u64 / 200;
    assert!(began.elapsed().as_secs() < bound, "{:?} of {bound} s", began.elapsed());
    device.await.unwrap();
}

/// Updates that a device has sent completely reach the core, though the device is cut off while the server writes to it.
#[tokio::test(start_paused = true)]
async fn update_before_a_lost_link_is_not_lost() {
    let fleet = fleet();
    let (inbox, mut events) = mpsc::channel(1);
    let context = plaintext_context(&fleet, inbox);
    let address = SocketAddr::from(([192, 0, 2, 7], 1));
    let slot = ConnectionSlots::new(slot_limits(&fleet.limits)).enter(address).unwrap();
    let (mut device, link) = tokio::io::duplex(256);
    let connection = Connection::new(Arc::clone(&context.acceptor));
    let session = tokio::spawn(run(0, link, address, context, connection, slot));
    device.write_all(&hello_frame_with(1024)).await.unwrap();
    let PeerEventKind::Hello(_, _, commands) = events.recv().await.unwrap().kind else { panic!("a hello") };
    assert!(commands.send(Command::Open(create_long_round())));
    sleep(Duration::from_secs(1)).await;
    // The core, which is busy, has room for one event.
    let upload = encode_upload(RoundId { round: 2, stage: 0 });
    device.write_all(&upload.repeat(2)).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    drop(device);
    for _ in 0..2 {
        let event = events.recv().await.unwrap();
        assert!(matches!(event.kind, PeerEventKind::Update(_)), "{:?}", event.kind);
    }
    assert!(matches!(events.recv().await.unwrap().kind, PeerEventKind::Gone(_)));
    session.await.unwrap();
}

/// A device that sends without end and never reads is ended when a frame has not been sent in time.
#[tokio::test(start_paused = true)]
async fn device_that_only_sends_is_ended_as_slow() {
    let (id, tensors) = (RoundId { round: 2, stage: 0 }, Descriptors::new());
    let old = RoundId { round: 1, stage: 0 };
    for message in [
        ToServer::Alive,
        ToServer::Missing(Missing { id, tensor: 0, chunks: [0].into_iter().collect() }),
        // Answered with a fault.
        ToServer::Chunk(Chunk { id, tensor: 0, offset: 0 }),
        // Reported to the core.
        ToServer::Update(Update { id: old, samples: 1, skipped: 0, tensors }),
    ] {
        let BegunSession { mut device, commands, session, events } = begin_session_on(256, 1024).await;
        // The core takes no events.
        let _events = events;
        assert!(commands.send(Command::Open(create_long_round())));
        let frames = encode_frame(&message).repeat(100);

        let sends = tokio::spawn(async move {
            while device.write_all(&frames).await.is_ok() {
                sleep(Duration::from_millis(10)).await;
            }
        });
        let began = tokio::time::Instant::now();
        assert_eq!(session.await.unwrap(), DisconnectReason::Slow);
        assert_eq!(began.elapsed().as_secs(), 60);
        sends.await.unwrap();
    }
}

/// Link that delivers a hello and then an endless frame. The link ends after many more reads than the task
/// may make.
struct EndlessLink {
    hello: Vec<u8>,
    reads: u32,
    /// Whether the device reads.
    accepts: bool,
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
        if self.accepts { Poll::Ready(Ok(bytes.len())) } else { Poll::Pending }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut std::task::Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut std::task::Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Runs a session on an endless link, and returns the reason for its end.
async fn run_on_endless_link(accepts: bool, change: impl Fn(&mut Timeouts)) -> DisconnectReason {
    let fleet = fleet();
    let (inbox, _events) = mpsc::channel(16);
    let mut context = plaintext_context(&fleet, inbox);
    change(&mut context.timeouts);
    let address = SocketAddr::from(([192, 0, 2, 7], 1));
    let slot = ConnectionSlots::new(slot_limits(&fleet.limits)).enter(address).unwrap();
    let link = EndlessLink { hello: hello_frame(), reads: 0, accepts };
    let connection = Connection::new(Arc::clone(&context.acceptor));
    let mut peer = Peer::new(0, Origin::Address(address), link, context, connection, Some(slot));
    peer.run_session().await
}

#[tokio::test]
async fn endless_frame_times_out() {
    let reason = run_on_endless_link(true, |timeouts| timeouts.idle = Millis::new(20)).await;
    assert_eq!(reason, DisconnectReason::Idle);
}

#[tokio::test]
async fn endless_frame_does_not_delay_the_timeout_of_a_frame_that_is_sent() {
    let reason = run_on_endless_link(false, |timeouts| timeouts.frame = Millis::new(20)).await;
    assert_eq!(reason, DisconnectReason::Slow);
}
