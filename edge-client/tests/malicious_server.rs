//! Tests of a malicious server that tries to extract the device's data: with invalid representations, with
//! rounds that repeat, go back or change midway, and with chunks in any order. The server is tested without
//! encryption, and with the device's key.

use crate::common::problem::*;
use crate::common::server::*;
use crate::common::*;
use fedspan_client::Millis;
use fedspan_client::session::{Config, Event, Progress, Protection};
use fedspan_client::{Linear, NotReady, Session, Task};
use fedspan_protocol::frame::{Decoder, FeedResult};
use fedspan_protocol::limits::wire_capacity;
use fedspan_protocol::message::{
    Ack, AckOutcome, DeclineReason, RoundId, ToDevice, ToServer, Welcome, decode,
};
use fedspan_protocol::secure::{Channel, Key, transcript};
use fedspan_protocol::tensor::Encoding;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

const NOW: u64 = 1_000;

/// A device and its server, which has the device's key or sends without encryption.
pub struct Pair {
    pub session: Session<Linear<Heap>, Sliced, Flash, ChaCha8Rng>,
    limit: usize,
    /// Key of the next handshake.
    pub key: Option<Key>,
    pub channel: Option<Channel>,
    answers: u8,
    out: Vec<u8>,
}

pub type Sent = Vec<(ToServer, Vec<u8>)>;

impl Pair {
    /// Creates a device and connects it, in campaign 7.
    fn new(problem: &Problem, limit: u16, key: Option<Key>, flash: Flash) -> Self {
        Self::with_config(problem, session_config(limit), key, flash)
    }

    /// Creates a device with these settings and connects it, in campaign 7.
    pub fn with_config(problem: &Problem, config: Config, key: Option<Key>, flash: Flash) -> Self {
        let mut pair = Self::unconnected(problem, config, key, flash);
        let sent = pair.handle_event(Event::LinkUp);
        assert!(matches!(sent[..], [(ToServer::Hello(_), _)]), "{sent:?}");
        let welcome = ToDevice::Welcome(Welcome { campaign: 7, idle_milliseconds: 60_000 });
        let confirmed = pair.deliver(&welcome, &[]);
        assert_eq!(confirmed.len(), usize::from(pair.key.is_some()), "{confirmed:?}");
        pair
    }

    /// Creates a device that is not connected.
    pub fn unconnected(problem: &Problem, config: Config, key: Option<Key>, flash: Flash) -> Self {
        let limit = config.frame_limit;
        let protection = key.clone().map_or(Protection::Plaintext, Protection::Key);
        let memory = Heap::new(problem.d, problem.k, problem.c);
        let random = ChaCha8Rng::seed_from_u64(1);
        let session =
            Session::new(config, protection, Linear::new(memory), problem.samples.clone(), flash, random);
        let out = vec![0; config.transmit_capacity()];
        Self { session, limit: limit.into(), key, channel: None, answers: 0, out }
    }

    /// Passes an event to the session. Returns all messages that the device sends.
    pub fn handle_event(&mut self, event: Event<'_>) -> Sent {
        self.handle_events([event])
    }

    /// Passes events to the session, of which the later ones arrive before the device has sent all its answers to the earlier ones.
    /// Returns all messages that the device sends.
    fn handle_events<'a>(&mut self, events: impl IntoIterator<Item = Event<'a>>) -> Sent {
        let mut sent = Vec::new();
        let mut progress = Progress { sent: 0, again: false, close: false, wake: Millis::ZERO };
        for event in events {
            progress = self.session.handle(Millis::new(NOW), event, &mut self.out);
            sent.extend(self.decode_sent(progress));
        }
        while progress.again {
            progress = self.session.handle(Millis::new(NOW), Event::Tick, &mut self.out);
            sent.extend(self.decode_sent(progress));
        }
        sent
    }

    /// Decodes the message that the device has sent in one step, if any.
    fn decode_sent(&mut self, progress: Progress) -> Sent {
        if progress.sent == 0 {
            return Vec::new();
        }
        let mut decoder = Decoder::new(vec![0; self.limit]);
        let bytes = match decoder.feed(&mut &self.out[..progress.sent]) {
            FeedResult::Message(bytes) => bytes.to_vec(),
            FeedResult::Sealed(frame) => self.channel.as_mut().unwrap().open(frame).unwrap().to_vec(),
            other => panic!("{other:?}"),
        };
        let (message, body) = decode::<ToServer>(&bytes).unwrap();
        if let (ToServer::Hello(_), Some(key)) = (&message, &self.key) {
            self.answers += 1;
            self.channel = Some(Channel::server(key, &transcript(&bytes), &[self.answers; 16]));
        }
        vec![(message, body.to_vec())]
    }

    /// Sends a message to the device, sealed if there is a key. Returns the answers.
    pub fn deliver(&mut self, message: &ToDevice, body: &[u8]) -> Sent {
        if self.channel.is_none() {
            return self.handle_event(Event::Message(&payload(message, body)));
        }
        let mut frame = self.seal(message, body);
        let unopened = self.session.counters().unopened;
        let sent = self.handle_event(Event::Sealed(&mut frame));
        assert_eq!(
            self.session.counters().unopened,
            unopened,
            "a frame of the server, which has the key, did not open"
        );
        sent
    }

    /// Sends sealed messages to the device, all before it has answered. Returns the answers.
    #[cfg(all(feature = "key-rotation", feature = "beacons", feature = "reports"))]
    pub fn deliver_together(&mut self, messages: &[(ToDevice, Vec<u8>)]) -> Sent {
        let mut frames: Vec<_> = messages.iter().map(|(message, body)| self.seal(message, body)).collect();
        self.handle_events(frames.iter_mut().map(|frame| Event::Sealed(frame)))
    }

    /// Returns the frame of a message, sealed with the keys of the connection.
    fn seal(&mut self, message: &ToDevice, body: &[u8]) -> Vec<u8> {
        let channel = self.channel.as_mut().expect("keys of the connection");
        let mut frame_bytes = vec![0; wire_capacity(5000)];
        let sent = match message {
            ToDevice::Welcome(_) => channel.seal_answer(&[self.answers; 16], message, &mut frame_bytes),
            _ => channel.seal(message, body.len(), |buffer| buffer.copy_from_slice(body), &mut frame_bytes),
        };
        let mut decoder = Decoder::new(vec![0; 5000]);
        let FeedResult::Sealed(frame) = decoder.feed(&mut &frame_bytes[..sent.unwrap()]) else {
            panic!("not sealed")
        };
        frame.to_vec()
    }

    fn deliver_all(&mut self, messages: &[(ToDevice, Vec<u8>)]) -> Sent {
        messages.iter().flat_map(|(message, body)| self.deliver(message, body)).collect()
    }

    fn predict_first_sample(&mut self, problem: &Problem) -> Result<Vec<u32>, NotReady> {
        let mut out = vec![0.0; problem.c];
        self.session.task_mut().predict(problem.samples.get(0).0, &mut out).map(|()| bits(&out))
    }
}

/// Returns pairs without and with a key, with a small frame limit and with one that needs no chunks.
fn all_pairs(problem: &Problem) -> impl Iterator<Item = (Pair, Flash, u16)> {
    let keys = [None, Some(Key::new(3, [0x42; 32]))];
    keys.into_iter().flat_map(move |key| {
        [128u16, 4096].map(|limit| {
            let flash = Flash::default();
            (Pair::new(problem, limit, key.clone(), flash.clone()), flash, limit)
        })
    })
}

/// Opens round 5 as an honest server does. Returns the update.
fn open_round_5(pair: &mut Pair, problem: &Problem, limit: u16) -> Sent {
    let sent = pair.deliver_all(&problem.server(5, gradient_task(), Encoding::F32, limit).opening_messages());
    assert!(matches!(sent[0].0, ToServer::Update(_)), "{sent:?}");
    sent
}

/// Acknowledges the update of round 5, as an honest server does.
fn acknowledge_round_5(pair: &mut Pair) {
    let id = RoundId { round: 5, stage: 0 };
    assert!(pair.deliver(&ToDevice::Ack(Ack { id, outcome: AckOutcome::Counted }), &[]).is_empty());
    assert_eq!(pair.session.last_round(), 5);
}

/// A gradient or a head for these representations would reveal more of the samples than the method allows.
/// The device declines them, sends nothing else, and keeps its head.
#[test]
fn invalid_representation_is_declined() {
    let problem = create_problem(57, 8, 1);
    let b = &problem.b;
    // All columns repeat the first one.
    let rank_one: Vec<f32> = b.chunks(8).flat_map(|row| [row[0]; 8]).collect();
    let single_entry: Vec<f32> = (0..b.len()).map(|i| f32::from(u8::from(i == 0))).collect();
    let scaled = |scale: f32| b.iter().map(|v| v * scale).collect::<Vec<f32>>();
    let largest = b.iter().map(|_| f32::MAX).collect();
    let invalid = [
        vec![0.0; b.len()],
        single_entry,
        rank_one,
        scaled(1e30),
        scaled(1e-30),
        scaled(2.0),
        scaled(1.01),
        largest,
    ];
    for (mut pair, flash, limit) in all_pairs(&problem) {
        open_round_5(&mut pair, &problem, limit);
        acknowledge_round_5(&mut pair);
        let head = bits(pair.session.task().head());
        let record = flash.0.borrow().record.clone();
        let mut openings: Vec<_> = invalid
            .iter()
            .map(|b| {
                problem.server_of(6, gradient_task(), Encoding::F32, limit, b.clone()).opening_messages()
            })
            .collect();
        for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            // The encoder refuses such a value, so the value is written into the encoded bytes.
            let mut opening = problem.server(6, gradient_task(), Encoding::F32, limit).opening_messages();
            let body = &mut opening.last_mut().unwrap().1;
            let n = body.len();
            body[n - 4..].copy_from_slice(&poison.to_le_bytes());
            openings.push(opening);
        }
        for (index, opening) in openings.iter().enumerate() {
            let sent = pair.deliver_all(opening);
            match decline_reason(&sent) {
                DeclineReason::NonFinite | DeclineReason::NotOrthonormal { .. } => {}
                other => panic!("{index}: {other:?}"),
            }
            assert_eq!(sent.len(), 1, "{index}, limit {limit}: {sent:?}");
            assert_eq!(pair.predict_first_sample(&problem), Err(NotReady::NoRepresentation), "{index}");
            assert_eq!(bits(pair.session.task().head()), head);
            assert_eq!(flash.0.borrow().record, record);
        }
        assert_eq!(pair.session.last_round(), 5);
        // A valid representation is accepted.
        let sent =
            pair.deliver_all(&problem.server(6, gradient_task(), Encoding::F32, limit).opening_messages());
        assert!(matches!(sent[0].0, ToServer::Update(_)), "{sent:?}");
    }
}

/// A device sends one update per round, for any claim of the server about the round: the same bytes while the
/// update is pending, and nothing afterwards.
#[test]
fn no_second_update_for_a_round() {
    let problem = create_problem(57, 8, 1);
    let other_basis = flat(&Random(5).orthonormal(57, 8));
    for (mut pair, _, limit) in all_pairs(&problem) {
        let update = open_round_5(&mut pair, &problem, limit);
        let open = |round, stage, b: &[f32]| {
            let mut server = problem.server_of(round, gradient_task(), Encoding::F32, limit, b.to_vec());
            server.open.id = RoundId { round, stage };
            server.opening_messages()
        };
        // The server opens the round again with another representation while the update is pending. The
        // device sends the computed update again, and ignores the chunks that follow.
        let (message, body) = &open(5, 0, &other_basis)[0];
        assert_eq!(pair.deliver(message, body), update, "limit {limit}");
        let unexpected = pair.session.counters().unexpected;
        let chunks = &open(5, 0, &other_basis)[1..];
        assert!(pair.deliver_all(chunks).is_empty());
        assert_eq!(pair.session.counters().unexpected as usize, unexpected as usize + chunks.len());
        // Another stage or an earlier round is declined, and the update is unchanged.
        for (round, stage) in [(5, 1), (5, u16::MAX), (4, 0), (1, 7), (0, 0)] {
            let (message, body) = &open(round, stage, &other_basis)[0];
            assert_eq!(
                decline_reason(&pair.deliver(message, body)),
                DeclineReason::RoundRepeated { last: 5 }
            );
            let (message, body) = &open(5, 0, &other_basis)[0];
            assert_eq!(pair.deliver(message, body), update, "after {round}, {stage}");
        }
        acknowledge_round_5(&mut pair);
        for (round, stage) in [(5, 0), (5, 1), (4, 9), (0, 0)] {
            let (message, body) = &open(round, stage, &other_basis)[0];
            assert_eq!(
                decline_reason(&pair.deliver(message, body)),
                DeclineReason::RoundRepeated { last: 5 }
            );
        }
        // The next round is computed.
        assert!(matches!(pair.deliver_all(&open(6, 0, &other_basis))[0].0, ToServer::Update(_)));
    }
}

/// The update has the same bytes for any order and repetition of the chunks.
#[test]
fn chunk_order_has_no_effect() {
    let problem = create_problem(57, 8, 1);
    for key in [None, Some(Key::new(3, [0x42; 32]))] {
        let fresh = || Pair::new(&problem, 128, key.clone(), Flash::default());
        let update = open_round_5(&mut fresh(), &problem, 128);
        let opening = problem.server(5, gradient_task(), Encoding::F32, 128).opening_messages();
        let (open, chunks) = opening.split_first().unwrap();
        let mut random = Random(3);
        for order in 0..20 {
            let mut pair = fresh();
            assert!(pair.deliver(&open.0, &open.1).is_empty());
            let mut remaining: Vec<usize> = (0..chunks.len()).collect();
            let mut sent = Vec::new();
            while !remaining.is_empty() {
                let next = match order {
                    0 => remaining.len() - 1,
                    1 => remaining.len() / 2,
                    _ => random.below(remaining.len()),
                };
                let index = remaining.remove(next);
                assert!(sent.is_empty(), "the device sent a message before the last chunk");
                sent = pair.deliver(&chunks[index].0, &chunks[index].1);
                if !remaining.is_empty() && order % 2 == 1 {
                    assert!(
                        pair.deliver(&chunks[index].0, &chunks[index].1).is_empty(),
                        "a duplicate chunk was answered"
                    );
                }
            }
            assert_eq!(sent, update, "order {order}");
        }
    }
}
