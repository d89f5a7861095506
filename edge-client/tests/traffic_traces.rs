//! Tests of the traffic of a private device as an observer of its link sees it: the frames, their lengths and
//! times, and when the link is closed. For any sequence of server messages and link events, the traffic is
//! the same for all samples and for all durations of a computation within a slot.
#![cfg(all(feature = "power", feature = "privacy"))]

use crate::common::power::*;
use crate::common::private::*;
use crate::common::problem::session_config;
use crate::common::server::*;
use crate::common::*;
use fedspan_client::Linear;
use fedspan_client::Millis;
use fedspan_client::privacy::{Clip, Clipped};
use fedspan_client::session::{Event, Progress, Protection, Session};
use fedspan_protocol::frame::{Decoder, FeedResult};
use fedspan_protocol::limits::wire_capacity;
use fedspan_protocol::message::{
    Ack, AckOutcome, Fault, HeadSolve, Missing, PowerRows, PowerUpload, RoundId, Task as Wire, ToDevice,
    ToServer, Upload, Welcome, decode,
};
use fedspan_protocol::secure::{Channel, Key, transcript};
use fedspan_protocol::tensor::{Encoding, Role};
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

const D: usize = 20;
const R: usize = 2;
const ROWS: usize = 12;

/// Nonce of every answer that the server seals.
const NONCE: [u8; 16] = [9; 16];

/// An event at the device, independent of the frames that the device sends.
#[derive(Clone, Debug)]
enum LinkEvent {
    Receives(ToDevice, Vec<u8>),
    /// An unsealed message, which any attacker on the link may have sent.
    ReceivesUnsealed(ToDevice),
    Up,
    Down,
}

/// Events, each with the time since the preceding event in milliseconds.
type EventSequence = Vec<(u64, LinkEvent)>;

/// Returns samples that depend on the seed as much as possible; all sets have the same number of samples.
fn samples_of_seed(seed: u64) -> Sliced {
    let mut random = Random(seed);
    let (mut x, mut y) = (random.normals(ROWS * D), random.normals(ROWS));
    match seed % 6 {
        // No sample is usable.
        0 => x.fill(f32::NAN),
        // The samples are singular: all rows are equal, or zero.
        1 => x.chunks_mut(D).for_each(|row| row.fill(0.25)),
        2 => x.fill(0.0),
        // The samples are huge.
        3 => x.iter_mut().for_each(|x| *x *= 1e30),
        // Some samples are not finite.
        4 => {
            x[5 * D] = f32::INFINITY;
            y[3] = f32::NAN;
            x[D] = 3e38;
        }
        _ => {}
    }
    Sliced::regression(x, y, D, 1)
}

/// A device, its clock and its server. If there is a key, the server's messages are sealed.
struct Link {
    session: Session<Linear<Heap, Clipped<Known>>, Sliced, Flash, ChaCha8Rng>,
    key: Option<Key>,
    channel: Option<Channel>,
    now: u64,
    last: Progress,
    /// Draws the durations of computations, and whether input during a computation fits the receive buffer.
    random: Random,
    /// Time at which the last computation ended.
    computed_at: u64,
    /// The observed traffic: times and descriptions.
    traffic: Vec<(u64, String)>,
    closing: bool,
    out: Vec<u8>,
}

impl Link {
    /// Creates a device whose samples, noise and times are drawn from `seed`.
    fn new(limit: u16, seed: u64, key: Option<Key>) -> Self {
        let known = Known::new(settings(1 << 20, 100).with_iterations(3), seed);
        let mechanism = Clipped::new(known, Clip::new(0.5).unwrap());
        let model = Linear::private(Heap::power(D, R, 1), mechanism).unwrap();
        let protection = key.clone().map_or(Protection::Plaintext, Protection::Key);
        let random = ChaCha8Rng::seed_from_u64(1);
        let session = Session::new(
            session_config(limit),
            protection,
            model,
            samples_of_seed(seed),
            Flash::default(),
            random,
        );
        Self {
            session,
            key,
            channel: None,
            now: 1_000,
            last: Progress { sent: 0, again: false, close: false, wake: Millis::ZERO },
            random: Random(seed ^ 77),
            computed_at: 0,
            traffic: Vec::new(),
            closing: false,
            out: vec![0; session_config(limit).transmit_capacity()],
        }
    }

    /// Passes an event to the session, and records the traffic.
    fn handle_event(&mut self, event: Event<'_>) {
        let passes = self.session.source_mut().passes;
        self.last = self.session.handle(Millis::new(self.now), event, &mut self.out);
        if self.session.source_mut().passes > passes {
            // A computation takes at most one slot minus 1 ms, so that buffered input is handled before the
            // end of the slot.
            self.now += self.random.next() % SLOT;
            self.computed_at = self.now;
        }
        // The frame is sent when the computation has ended.
        if self.last.sent > 0 {
            let description = self.describe_sent();
            self.traffic.push((self.now, description));
        }
        if self.last.close != self.closing {
            self.closing = self.last.close;
            self.traffic.push((self.now, format!("closing: {}", self.closing)));
        }
    }

    /// Returns a description of the frame that the device has sent.
    fn describe_sent(&mut self) -> String {
        let mut decoder = Decoder::new(vec![0; self.out.len()]);
        let bytes = match decoder.feed(&mut &self.out[..self.last.sent]) {
            FeedResult::Message(bytes) => bytes.to_vec(),
            FeedResult::Sealed(frame) => self.channel.as_mut().unwrap().open(frame).unwrap().to_vec(),
            other => panic!("{other:?}"),
        };
        let (message, body) = decode::<ToServer>(&bytes).unwrap();
        if let (ToServer::Hello(_), Some(key)) = (&message, &self.key) {
            self.channel = Some(Channel::server(key, &transcript(&bytes), &NONCE));
        }
        format!("{message:?} {}", body.len())
    }

    /// Delivers a server message at a given time. A message that arrives during a computation may be lost,
    /// because the buffer may have no room.
    fn deliver(&mut self, time: u64, message: &ToDevice, body: &[u8], sealed: bool) {
        let channel = self.channel.as_mut().filter(|_| sealed);
        let frame = channel.map(|channel| {
            let mut frame_bytes = vec![0; wire_capacity(5000)];
            let answer = match message {
                ToDevice::Welcome(_) => channel.seal_answer(&NONCE, message, &mut frame_bytes).ok(),
                _ => None,
            };
            let fill = |buffer: &mut [u8]| buffer.copy_from_slice(body);
            let length =
                answer.unwrap_or_else(|| channel.seal(message, body.len(), fill, &mut frame_bytes).unwrap());
            match Decoder::new(vec![0; 5000]).feed(&mut &frame_bytes[..length]) {
                FeedResult::Sealed(frame) => frame.to_vec(),
                other => panic!("{other:?}"),
            }
        });
        if time <= self.computed_at && self.random.below(2) == 0 {
            return;
        }
        match frame {
            Some(mut frame) => self.handle_event(Event::Sealed(&mut frame)),
            None => self.handle_event(Event::Message(&payload(message, body))),
        }
    }
}

/// Runs a device with these events, and returns the observed traffic. The driver handles buffered messages
/// before it checks the clock if `messages_first`, and after it otherwise.
fn trace_device(
    events: &EventSequence,
    limit: u16,
    seed: u64,
    messages_first: bool,
    key: Option<&Key>,
) -> Vec<(u64, String)> {
    let mut link = Link::new(limit, seed, key.cloned());
    let mut time = link.now;
    for (delay, event) in events {
        time += delay;
        loop {
            let is_overdue = messages_first && time <= link.now;
            if link.last.again && !is_overdue {
                link.handle_event(Event::Tick);
            } else if link.last.wake.as_u64() <= time && link.last.wake.as_u64() > 0 && !is_overdue {
                link.now = link.now.max(link.last.wake.as_u64());
                link.handle_event(Event::Tick);
            } else {
                break;
            }
        }
        link.now = link.now.max(time);
        match event {
            LinkEvent::Receives(message, body) => link.deliver(time, message, body, true),
            LinkEvent::ReceivesUnsealed(message) => link.deliver(time, message, &[], false),
            LinkEvent::Up => link.handle_event(Event::LinkUp),
            LinkEvent::Down => link.handle_event(Event::LinkDown),
        }
    }
    // After the last event the device sends the pending frames.
    while link.last.again || link.last.wake.as_u64() <= time + 4 * SLOT {
        link.now = link.now.max(if link.last.again { 0 } else { link.last.wake.as_u64() });
        link.handle_event(Event::Tick);
    }
    assert_eq!(link.session.counters().slots_missed, 0);
    link.traffic
}

fn power_task(iterations: u16, upload: PowerUpload) -> (Wire, Role) {
    (fed_power(iterations, PowerRows::Features, upload), Role::Subspace)
}

/// Returns the messages that open a round.
fn round_messages(round: u32, (task, role): (Wire, Role), limit: u16) -> Vec<LinkEvent> {
    let tensors = vec![(role, D, R, identity_columns(D, R))];
    let server = Server::new(round, task, Encoding::F32, limit.into(), tensors);
    server.opening_messages().into_iter().map(|(message, body)| LinkEvent::Receives(message, body)).collect()
}

/// Returns a sequence of events that is plausible enough to lead to rounds.
fn event_sequence(limit: u16, steps: &[(u8, u64)]) -> EventSequence {
    let receives = |message| LinkEvent::Receives(message, Vec::new());
    let welcome = || receives(ToDevice::Welcome(Welcome { campaign: 7, idle_milliseconds: 3_000 }));
    let mut sequence = vec![(0, LinkEvent::Up), (10, welcome())];
    let mut round = 1;
    for &(kind, delay) in steps {
        let id = RoundId { round, stage: 0 };
        let events = match kind % 21 {
            0..=2 => {
                round += 1;
                round_messages(round, power_task(1, PowerUpload::Product), limit)
            }
            3 => {
                round += 1;
                round_messages(round, power_task(3, PowerUpload::ProductAndBasis), limit)
            }
            4 | 5 => {
                round += 1;
                let steps = HeadSolve::Gradient { steps: 3, step_size: 0.5 };
                let head = if kind & 16 == 0 { EXACT } else { steps };
                round_messages(round, (Wire::FitHead { head }, Role::Representation), limit)
            }
            // This round is normally declined at once.
            6 => round_messages(round + 100, power_task(4, PowerUpload::Product), limit),
            // The same round is opened again.
            7 | 8 => round_messages(round, power_task(1, PowerUpload::Product), limit),
            9 => vec![receives(ToDevice::Ack(Ack { id, outcome: AckOutcome::Counted }))],
            10 => vec![receives(ToDevice::RoundClosed(id))],
            11 => vec![receives(ToDevice::Missing(Missing {
                id,
                tensor: 0,
                chunks: std::iter::once(0).collect(),
            }))],
            12 => vec![receives(ToDevice::Fault(Fault::Greet)), welcome()],
            13 => vec![receives(ToDevice::RetryAfter { milliseconds: 300 }), LinkEvent::Down],
            14 => vec![LinkEvent::Down, LinkEvent::Up],
            15 => vec![LinkEvent::ReceivesUnsealed(ToDevice::Fault(Fault::Greet)), welcome()],
            16 => vec![LinkEvent::ReceivesUnsealed(ToDevice::RetryAfter { milliseconds: 300 })],
            17 => vec![LinkEvent::Up, welcome()],
            _ => {
                round += 1;
                let upload = if kind & 1 == 0 { Upload::Gradient } else { Upload::Representation };
                let (head, encoding) = (EXACT, Encoding::F32);
                let task = Wire::FedRep { step_size: 0.1, head, upload, encoding };
                round_messages(round, (task, Role::Representation), limit)
            }
        };
        sequence
            .extend(events.into_iter().enumerate().map(|(n, event)| (if n == 0 { delay } else { 0 }, event)));
    }
    sequence
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, max_shrink_iters: 200, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn traffic_is_independent_of_the_samples(
        limit in prop::sample::select(vec![128u16, 4096]),
        steps in prop::collection::vec(
            (any::<u8>(), prop_oneof![Just(0u64), 0..50u64, 0..2 * SLOT, Just(SLOT)]), 1..25),
        (seed, messages_first, keyed) in (0..1_000_000u64, any::<bool>(), any::<bool>()),
    ) {
        let (events, key) = (event_sequence(limit, &steps), Key::new(3, [0x42; 32]));
        let key = keyed.then_some(&key);
        let first = trace_device(&events, limit, seed, messages_first, key);
        for n in 1..8 {
            prop_assert_eq!(&trace_device(&events, limit, seed + n, messages_first, key), &first);
        }
    }
}

/// The random event sequences lead to all behaviour that must be hidden: updates, fitted heads and declines.
#[test]
fn event_sequences_reach_updates_and_declines() {
    for key in [None, Some(Key::new(3, [0x42; 32]))] {
        let mut random = Random(3);
        let mut updates = 0;
        let mut gradients = 0;
        let mut heads = 0;
        let mut declines = 0;
        for _ in 0..80 {
            let steps: Vec<_> = (0..20).map(|_| (random.next() as u8, random.next() % (2 * SLOT))).collect();
            for (_, description) in trace_device(&event_sequence(128, &steps), 128, 5, false, key.as_ref()) {
                updates += u32::from(description.starts_with("Update") && description.contains("Subspace"));
                gradients += u32::from(description.starts_with("Update") && description.contains("Gradient"));
                heads += u32::from(description.starts_with("Update") && description.contains("tensors: []"));
                declines += u32::from(description.starts_with("Decline"));
            }
        }
        println!("{updates} updates, {gradients} gradients, {heads} heads, {declines} declines");
        assert!(updates > 50 && gradients > 20 && heads > 20 && declines > 20);
    }
}
