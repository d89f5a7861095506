//! Tests that the memory of a connection stays bounded for any input, of devices with and without keys.

use crate::common;
use std::sync::Arc;

use crate::common::{random, random_tensors};
use fedspan_aggregator::connection::{Acceptor, Connection, PeerMessage};
use fedspan_aggregator::keys::{ActiveKeys, Entropy, KeyError, KeyTable};
use fedspan_engine::RoundBroadcast;
use fedspan_engine::admission::Requirements;
use fedspan_engine::{DeviceId, Request};
use fedspan_protocol::assembly::plan;
use fedspan_protocol::frame::{Decoder, FeedResult, encode};
use fedspan_protocol::message::{
    Ack, AckOutcome, Chunk, Descriptors, HeadSolve, Hello, Message, Missing, Report, RoundId, Task, ToDevice,
    ToServer, Update, Upload, Welcome,
};
use fedspan_protocol::secure::{Channel, HandshakeInit, Key, answer_nonce, encode_hello};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};
use proptest::prelude::*;

const ROUND: RoundId = RoundId { round: 7, stage: 0 };

/// Source of randomness that always returns the same bytes.
struct ConstantEntropy;

impl Entropy for ConstantEntropy {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), KeyError> {
        bytes.fill(7);
        Ok(())
    }
}

fn device_key(device: u64) -> Key {
    Key::new(0, [device as u8; 32])
}

fn create_hello(device: u64, limit: u16) -> Hello {
    common::create_hello(device, (64, 4, 1), limit)
}

fn create_request() -> Request {
    let head = HeadSolve::LeastSquares { ridge: 0.0 };
    let sends = [TensorDescriptor::inline(Role::Representation, Encoding::F32, 64, 4)];
    Request {
        task: Task::FedRep { step_size: 0.5, head, upload: Upload::Gradient, encoding: Encoding::F32 },
        tensors: random_tensors(&sends, &mut random(1), 1.0),
        encoding: Encoding::F32,
        expects: vec![TensorDescriptor::inline(Role::Gradient, Encoding::F32, 64, 4)],
    }
}

fn create_acceptor() -> Arc<Acceptor> {
    let mut keys = KeyTable::new();
    for device in [1, 2] {
        keys.insert(DeviceId(device), device_key(device), 0).unwrap();
    }
    let model = create_hello(1, 256).capabilities.model;
    let welcome = Welcome { campaign: 1, idle_milliseconds: 1000 };
    Arc::new(Acceptor::encrypted(
        Requirements::new(model, &[create_request()], None),
        welcome,
        ActiveKeys::new(keys),
        Box::new(ConstantEntropy),
    ))
}

/// Step of a hostile device with keys.
#[derive(Clone, Debug)]
enum Step {
    Hello {
        device: u64,
        handshake: u64,
        limit: u16,
        often: usize,
    },
    Update {
        rows: u16,
        chunked: bool,
        often: usize,
    },
    Chunk {
        offset: u32,
        often: usize,
    },
    Missing {
        chunks: u16,
        often: usize,
    },
    Report {
        often: usize,
    },
    Alive {
        often: usize,
    },
    Clear {
        often: usize,
    },
    Noise(Vec<u8>),
    /// The core opens a round.
    Open,
    /// The core acknowledges an update.
    Acknowledge,
    /// The core closes a round.
    Close,
    /// The socket accepts all queued frames.
    Drain,
}

fn random_step() -> impl Strategy<Value = Step> {
    let often = 1usize..80;
    let limits = prop::sample::select(vec![128u16, 256, 1280, 4096]);
    prop_oneof![
        3 => (1u64..4, 0u64..30, limits, often.clone())
            .prop_map(|(device, handshake, limit, often)| Step::Hello { device, handshake, limit, often }),
        2 => (1u16..300, any::<bool>(), often.clone())
            .prop_map(|(rows, chunked, often)| Step::Update { rows, chunked, often }),
        2 => (0u32..300, often.clone()).prop_map(|(offset, often)| Step::Chunk { offset, often }),
        2 => (0u16..40, often.clone()).prop_map(|(chunks, often)| Step::Missing { chunks, often }),
        1 => often.clone().prop_map(|often| Step::Report { often }),
        1 => often.clone().prop_map(|often| Step::Alive { often }),
        1 => often.prop_map(|often| Step::Clear { often }),
        2 => prop::collection::vec(any::<u8>(), 0..3000).prop_map(Step::Noise),
        2 => Just(Step::Open),
        1 => Just(Step::Acknowledge),
        1 => Just(Step::Close),
        3 => Just(Step::Drain),
    ]
}

/// Connection and a hostile device.
struct World {
    connection: Connection,
    opening: Arc<RoundBroadcast>,
    /// Encrypted channel of the device; `None` until its hello is answered.
    channel: Option<Channel>,
    greeted: Option<(u64, [u8; 32])>,
    updates: usize,
}

impl World {
    fn new() -> Self {
        let opening = Arc::new(RoundBroadcast::new(ROUND, create_request()).unwrap());
        Self {
            connection: Connection::new(create_acceptor()),
            opening,
            channel: None,
            greeted: None,
            updates: 0,
        }
    }

    /// Asserts that the memory of the connection is within its bounds.
    fn assert_within_limits(&self) {
        let (memory, limit) = (self.connection.memory(), self.connection.memory_max());
        assert!(memory <= limit, "{memory} of {limit} bytes");
        let update = self.connection.update_memory();
        assert!(update <= 64 * 4 * 4 + 4 * 64, "an update of {update} bytes");
    }

    /// Passes bytes to the connection and checks the memory bound.
    fn feed_bytes(&mut self, bytes: &[u8]) {
        let mut input = bytes;
        while let Some(message) = self.connection.next_message(&mut input) {
            self.assert_within_limits();
            self.updates += usize::from(matches!(message, PeerMessage::Update(_)));
        }
        self.assert_within_limits();
    }

    /// Takes queued frames, and completes the handshake if the answer is among them.
    fn take_queued_frames(&mut self) {
        let mut bytes = Vec::new();
        while self.connection.next_frame(&mut bytes) {
            self.assert_within_limits();
        }
        let mut decoder = Decoder::new(vec![0; 4096]);
        let mut input = bytes.as_slice();
        loop {
            match decoder.feed(&mut input) {
                FeedResult::NeedMore => break,
                FeedResult::Sealed(frame) => {
                    if let (Some(nonce), Some((device, transcript))) = (answer_nonce(frame), &self.greeted) {
                        let mut channel = Channel::device(&device_key(*device), transcript, &nonce);
                        if channel.open(frame).is_ok() {
                            self.channel = Some(channel);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// Encodes a message of the device, encrypted after the handshake.
    fn encode_message<M: Message>(&mut self, message: &M, body: &[u8]) -> Vec<u8> {
        let mut buffer = vec![0; 8192];
        let fill = |payload: &mut [u8]| payload.copy_from_slice(body);
        let len = match &mut self.channel {
            Some(channel) => channel.seal(message, body.len(), fill, &mut buffer).unwrap(),
            None => encode(message, body.len(), fill, &mut buffer).unwrap(),
        };
        buffer.truncate(len);
        buffer
    }

    /// Sends a message several times.
    fn send_repeatedly(&mut self, message: &ToServer, body: &[u8], often: usize) {
        let frames: Vec<u8> = (0..often).flat_map(|_| self.encode_message(message, body)).collect();
        self.feed_bytes(&frames);
    }

    /// Performs a step and checks the memory.
    fn perform_step(&mut self, step: Step) {
        match step {
            Step::Hello { device, handshake, limit, often } => {
                let init = HandshakeInit { epoch: 0, handshake, nonce: [3; 16] };
                let mut buffer = vec![0; 300];
                let (len, transcript) =
                    encode_hello(create_hello(device, limit), &init, &mut buffer).unwrap();
                self.greeted = Some((device, transcript));
                self.feed_bytes(&buffer[..len].repeat(often));
            }
            Step::Update { rows, chunked, often } => {
                let mut descriptors: Descriptors =
                    [TensorDescriptor::inline(Role::Gradient, Encoding::F32, rows, 4)].into_iter().collect();
                if chunked {
                    // Adds as many tensors as fit.
                    let small_tensors = [TensorDescriptor::inline(Role::Gradient, Encoding::F32, 1, 1); 3];
                    descriptors.extend(small_tensors);
                    if plan(&mut descriptors, 128).is_err() {
                        return;
                    }
                }
                let len: usize = descriptors.iter().map(|tensor| 4 * tensor.elements()).sum();
                let head =
                    ToServer::Update(Update { id: ROUND, samples: 1, skipped: 0, tensors: descriptors });
                let body = vec![0; if chunked { 0 } else { len }];
                self.send_repeatedly(&head, &body, often);
            }
            Step::Chunk { offset, often } => {
                self.send_repeatedly(
                    &ToServer::Chunk(Chunk { id: ROUND, tensor: 0, offset }),
                    &[0; 64],
                    often,
                );
            }
            Step::Missing { chunks, often } => {
                let chunks = (0..chunks.min(16)).collect();
                self.send_repeatedly(
                    &ToServer::Missing(Missing { id: ROUND, tensor: 0, chunks }),
                    &[],
                    often,
                );
            }
            Step::Report { often } => {
                let report = Report { firmware: Default::default(), reset: Default::default(), uptime: 77 };
                self.send_repeatedly(&ToServer::Report(report), &[1, 5], often);
            }
            Step::Alive { often } => self.send_repeatedly(&ToServer::Alive, &[], often),
            Step::Clear { often } => {
                let mut buffer = vec![0; 64];
                let len = encode(&ToServer::Alive, 0, |_| {}, &mut buffer).unwrap();
                self.feed_bytes(&buffer[..len].repeat(often));
            }
            Step::Noise(bytes) => self.feed_bytes(&bytes),
            // The core sends its next command after this one has been sent.
            Step::Open => {
                self.connection.open(&self.opening);
                self.assert_within_limits();
                self.take_queued_frames();
            }
            Step::Acknowledge => {
                self.connection.send(ToDevice::Ack(Ack { id: ROUND, outcome: AckOutcome::Counted }));
                self.assert_within_limits();
                self.take_queued_frames();
            }
            Step::Close => {
                self.connection.close_round(ROUND);
                self.assert_within_limits();
                self.take_queued_frames();
            }
            Step::Drain => self.take_queued_frames(),
        }
        self.assert_within_limits();
    }
}

proptest! {
    #[test]
    fn connection_memory_stays_bounded(steps in prop::collection::vec(random_step(), 1..60)) {
        let mut world = World::new();
        for step in steps {
            world.perform_step(step);
        }
        // Temporary memory is freed.
        world.take_queued_frames();
        let memory = world.connection.memory();
        prop_assert!(memory + 8 * 64 <= world.connection.memory_max(), "{memory}");
    }
}

/// The memory of a connection grows when a device completes the handshake and fills the outbox. The memory is
/// freed after the frames are sent.
#[test]
fn connection_memory_reaches_bound_and_returns() {
    let mut world = World::new();
    world.perform_step(Step::Hello { device: 1, handshake: 1, limit: 128, often: 1 });
    world.take_queued_frames();
    world.perform_step(Step::Alive { often: 1 });
    world.perform_step(Step::Open);
    let memory_before = world.connection.memory();
    world.perform_step(Step::Missing { chunks: 16, often: 80 });
    assert!(world.connection.memory() > memory_before, "queued requests did not use memory");
    world.take_queued_frames();
    assert!(world.connection.memory() <= memory_before, "{} > {memory_before}", world.connection.memory());
    world.perform_step(Step::Update { rows: 64, chunked: false, often: 3 });
    assert_eq!(world.updates, 0, "an update beyond the frame limit was accepted");
    world.perform_step(Step::Hello { device: 1, handshake: 2, limit: 1280, often: 1 });
    world.take_queued_frames();
    world.perform_step(Step::Alive { often: 1 });
    world.perform_step(Step::Open);
    world.perform_step(Step::Update { rows: 64, chunked: false, often: 3 });
    assert_eq!(world.updates, 3);
    world.perform_step(Step::Update { rows: 30, chunked: true, often: 1 });
    assert!(world.connection.update_memory() > 30 * 4 * 4);
}
