//! What a private device shows to whoever sees its link: which frames leave, how long they are, and when, and when it closes
//! the link. For any course of what a server says and a link does, that is the same for all samples, and for all times that
//! computing takes within a slot.
#![cfg(all(feature = "power", feature = "privacy"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use common::power::*;
use common::private::*;
use common::problem::config;
use common::server::*;
use common::*;
use fedspan_client::Linear;
use fedspan_client::session::{Event, Millis};
use fedspan_protocol::message::{
    Ack, AckOutcome, Fault, HeadSolve, Missing, PowerRows, PowerUpload, RoundId, Task as Wire, ToDevice,
    Welcome,
};
use fedspan_protocol::tensor::{Encoding, Role};
use proptest::prelude::*;

const D: usize = 20;
const R: usize = 2;
const ROWS: usize = 12;

/// What happens to a device, whatever it says.
#[derive(Clone, Debug)]
enum Happens {
    Hears(ToDevice, Vec<u8>),
    Up,
    Down,
}

/// Something that happens so many milliseconds after what was before.
type Course = Vec<(Millis, Happens)>;

/// Samples of which as much is different as can be: all are of one number.
fn samples(seed: u64) -> Sliced {
    let mut random = Random(seed);
    let (mut x, mut y) = (random.normals(ROWS * D), random.normals(ROWS));
    match seed % 6 {
        // None that can be used.
        0 => x.fill(f32::NAN),
        // Singular: all rows are one, or zero.
        1 => x.chunks_mut(D).for_each(|row| row.fill(0.25)),
        2 => x.fill(0.0),
        // Huge.
        3 => x.iter_mut().for_each(|x| *x *= 1e30),
        // Some of everything.
        4 => {
            x[5 * D] = f32::INFINITY;
            y[3] = f32::NAN;
            x[D] = 3e38;
        }
        _ => {}
    }
    Sliced::regression(x, y, D, 1)
}

/// Everything that was seen: when, and what. A driver hears what has come before it looks at the clock, or after.
fn trace(course: &Course, limit: u16, seed: u64, messages_first: bool) -> Vec<(Millis, String)> {
    let known = Known::new(settings(1 << 20, 100).with_iterations(3), seed);
    let model = Linear::private(Heap::power(D, R, 1), known).unwrap();
    let mut bench = Bench::of(config(limit), model, samples(seed), Flash::default());
    let mut durations = Random(seed ^ 77);
    let (mut seen, mut closing) = (Vec::new(), false);
    let mut act = |bench: &mut Bench<Sliced, _>, event: Event<'_>| {
        let passes = bench.session.source_mut().passes;
        let sent = bench.once(event);
        if bench.session.source_mut().passes > passes {
            // The end of the slot is not enough: what has piled up must be heard before.
            bench.now += durations.next() % SLOT;
        }
        // It leaves when the computation is done.
        if let Some((message, body)) = sent {
            seen.push((bench.now, format!("{message:?} {}", body.len())));
        }
        if bench.last.close != closing {
            closing = bench.last.close;
            seen.push((bench.now, format!("closing: {closing}")));
        }
    };
    let mut at = bench.now;
    for (after, happens) in course {
        at += after;
        loop {
            let late = messages_first && at <= bench.now;
            if bench.last.again && !late {
                act(&mut bench, Event::Tick);
            } else if bench.last.wake <= at && bench.last.wake > 0 && !late {
                bench.now = bench.now.max(bench.last.wake);
                act(&mut bench, Event::Tick);
            } else {
                break;
            }
        }
        bench.now = bench.now.max(at);
        match happens {
            Happens::Hears(message, body) => act(&mut bench, Event::Message(&payload(message, body))),
            Happens::Up => act(&mut bench, Event::LinkUp),
            Happens::Down => act(&mut bench, Event::LinkDown),
        }
    }
    for _ in 0..20 {
        bench.now = bench.now.max(if bench.last.again { 0 } else { bench.last.wake });
        act(&mut bench, Event::Tick);
    }
    assert_eq!(bench.session.counters().slots_missed, 0);
    seen
}

fn power(iterations: u16, upload: PowerUpload) -> (Wire, Role) {
    (fed_power(iterations, PowerRows::Features, upload), Role::Subspace)
}

/// The messages that open a round.
fn opening(round: u32, (task, role): (Wire, Role), limit: u16) -> Vec<Happens> {
    let tensors = vec![(role, D, R, identity_columns(D, R))];
    let server = Server::new(round, task, Encoding::F32, limit.into(), tensors);
    server.opening().into_iter().map(|(message, body)| Happens::Hears(message, body)).collect()
}

/// A course that has sense enough to lead to rounds, and not more.
fn course(limit: u16, steps: &[(u8, Millis)]) -> Course {
    let hears = |message| Happens::Hears(message, Vec::new());
    let welcome = || hears(ToDevice::Welcome(Welcome { campaign: 7, idle_milliseconds: 3_000 }));
    let mut course = vec![(0, Happens::Up), (10, welcome())];
    let mut round = 1;
    for &(kind, after) in steps {
        let id = RoundId { round, stage: 0 };
        let events = match kind % 16 {
            0..=2 => {
                round += 1;
                opening(round, power(1, PowerUpload::Product), limit)
            }
            3 => {
                round += 1;
                opening(round, power(3, PowerUpload::ProductAndBasis), limit)
            }
            4 | 5 => {
                round += 1;
                let steps = HeadSolve::Gradient { steps: 3, step_size: 0.5 };
                let head = if kind & 16 == 0 { EXACT } else { steps };
                opening(round, (Wire::FitHead { head }, Role::Representation), limit)
            }
            // Declined at once, or so it would be.
            6 => opening(round + 100, power(4, PowerUpload::Product), limit),
            // Another time.
            7 | 8 => opening(round, power(1, PowerUpload::Product), limit),
            9 => vec![hears(ToDevice::Ack(Ack { id, outcome: AckOutcome::Counted }))],
            10 => vec![hears(ToDevice::RoundClosed(id))],
            11 => vec![hears(ToDevice::Missing(Missing {
                id,
                tensor: 0,
                chunks: std::iter::once(0).collect(),
            }))],
            12 => vec![hears(ToDevice::Fault(Fault::Greet)), welcome()],
            13 => vec![hears(ToDevice::RetryAfter { milliseconds: 300 }), Happens::Down],
            14 => vec![Happens::Down, Happens::Up],
            _ => vec![Happens::Up, welcome()],
        };
        course
            .extend(events.into_iter().enumerate().map(|(n, event)| (if n == 0 { after } else { 0 }, event)));
    }
    course
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, max_shrink_iters: 200, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn no_trace_tells_what_the_samples_are(
        limit in prop::sample::select(vec![128u16, 4096]),
        steps in prop::collection::vec(
            (any::<u8>(), prop_oneof![Just(0u64), 0..50u64, 0..2 * SLOT, Just(SLOT)]), 1..25),
        (seed, messages_first) in (0..1_000_000u64, any::<bool>()),
    ) {
        let course = course(limit, &steps);
        let first = trace(&course, limit, seed, messages_first);
        for n in 1..8 {
            prop_assert_eq!(&trace(&course, limit, seed + n, messages_first), &first);
        }
    }
}

/// The courses do lead to what is to be hidden: updates, heads that are fitted, declines.
#[test]
fn there_is_something_to_hide() {
    let mut random = Random(3);
    let (mut updates, mut heads, mut declines) = (0, 0, 0);
    for _ in 0..50 {
        let steps: Vec<_> = (0..20).map(|_| (random.next() as u8, random.next() % (2 * SLOT))).collect();
        for (_, what) in trace(&course(128, &steps), 128, 5, false) {
            updates += u32::from(what.starts_with("Update") && what.contains("Subspace"));
            heads += u32::from(what.starts_with("Update") && what.contains("tensors: []"));
            declines += u32::from(what.starts_with("Decline"));
        }
    }
    println!("{updates} updates, {heads} heads, {declines} declines");
    assert!(updates > 50 && heads > 20 && declines > 20);
}
