//! Private updates leave at fixed times after the round's opening, whatever the computation took.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use common::costly::*;
use common::problem::*;
use common::server::*;
use common::*;
use fedspan_client::session::{Counters, Event, Millis};
use fedspan_protocol::message::{
    Ack, AckOutcome, Decline, DeclineReason, Missing, RoundId, Task as Wire, ToDevice, ToServer,
};
use fedspan_protocol::tensor::Encoding;
use proptest::prelude::*;

const SLOT: Millis = 5_000;
const ID: RoundId = RoundId { round: 1, stage: 0 };

fn device(problem: &Problem, slot: Millis, flash: &Flash) -> PrivateBench {
    let mut bench = private(problem, 128, Some(1000), Some(slot), flash);
    bench.connect(7, 60_000);
    bench
}

/// Hands in the whole round, each message at once after the other; nothing leaves at that time.
fn compute(bench: &mut PrivateBench, problem: &Problem) {
    for (message, body) in problem.server(1, gradient(), Encoding::F32, 128).opening() {
        let bytes = payload(&message, &body);
        assert!(bench.once(Event::Message(&bytes)).is_none());
    }
    // The driver is to say what time it is now.
    assert!(bench.last.again);
}

fn is_update(sent: &[(ToServer, Vec<u8>)]) -> bool {
    matches!(sent, [(ToServer::Update(_), _), ..])
}

/// Goes from one wake-up to the next until an update begins to leave; the time of that, and how often Alive was said.
fn leaves(bench: &mut PrivateBench) -> (Millis, usize) {
    let mut alive = 0;
    loop {
        let sent = bench.wake();
        if is_update(&sent) {
            return (bench.now, alive);
        }
        assert!(sent.iter().all(|(message, _)| *message == ToServer::Alive), "{sent:?}");
        alive += sent.len();
        assert!(bench.last.wake > bench.now && alive < 100_000);
    }
}

/// However long it took within a slot, it leaves at the same time: the end of that slot.
#[test]
fn the_time_of_sending_does_not_tell_how_long_computing_took() {
    let problem = problem(57, 8, 1);
    for (took, slots) in [
        (0, 1),
        (1, 1),
        (17, 1),
        (SLOT - 1, 1),
        (SLOT, 1),
        (SLOT + 1, 2),
        (2 * SLOT - 1, 2),
        (2 * SLOT, 2),
        (2 * SLOT + 1, 3),
        (1000 * SLOT - 3, 1000),
    ] {
        let mut bench = device(&problem, SLOT, &Flash::default());
        let opened = bench.now;
        compute(&mut bench, &problem);
        bench.now += took;
        let early = bench.all(Event::Tick);
        if took == slots * SLOT {
            // Not over yet.
            assert!(is_update(&early));
            continue;
        }
        assert!(!is_update(&early) && !bench.last.again);
        assert_eq!(leaves(&mut bench).0, opened + slots * SLOT, "{took}");
        let missed = u32::from(took > SLOT);
        let counters = Counters { slots_missed: missed, ..Counters::default() };
        assert_eq!(bench.session.counters(), counters);
    }
}

/// What costs nothing, and a device without slots, is as quick as ever.
#[test]
fn only_private_updates_wait() {
    let problem = problem(57, 8, 1);
    for slot in [None, Some(0)] {
        let mut bench = private(&problem, 128, Some(10), slot, &Flash::default());
        bench.connect(7, 60_000);
        let opening = problem.server(1, gradient(), Encoding::F32, 128).opening();
        let sent: Vec<_> = opening.iter().flat_map(|(m, body)| bench.message(m, body)).collect();
        assert!(is_update(&sent));
    }
    let mut bench = device(&problem, SLOT, &Flash::default());
    let opening = problem.server(1, Wire::FitHead { head: EXACT }, Encoding::F32, 128).opening();
    let sent: Vec<_> = opening.iter().flat_map(|(m, body)| bench.message(m, body)).collect();
    assert!(is_update(&sent));
}

/// It was paid for when it was computed, and it says that it is alive meanwhile.
#[test]
fn a_device_that_waits_is_alive_and_has_paid() {
    let problem = problem(57, 8, 1);
    let flash = Flash::default();
    let mut bench = private(&problem, 128, Some(1000), Some(60_000), &flash);
    bench.connect(7, 3_000);
    let opened = bench.now;
    compute(&mut bench, &problem);
    assert_eq!(flash.0.borrow().calls, ["load_spent", "save_spent", "save"]);
    assert!(!is_update(&bench.all(Event::Tick)));
    let (at, alive) = leaves(&mut bench);
    assert_eq!(at, opened + 60_000);
    assert!((59..=60).contains(&alive), "every second: {alive}");
}

/// The server hears nothing of the round for a while and opens it again; or asks for what has not left.
#[test]
fn nothing_makes_it_leave_early() {
    let problem = problem(57, 8, 1);
    let mut bench = device(&problem, SLOT, &Flash::default());
    let opened = bench.now;
    compute(&mut bench, &problem);
    let opening = problem.server(1, gradient(), Encoding::F32, 128).opening();
    for ticked in [false, true] {
        for (message, body) in &opening {
            bench.now += 1;
            assert!(bench.once(Event::Message(&payload(message, body))).is_none());
        }
        let chunks = std::iter::once(0).collect();
        let missing = ToDevice::Missing(Missing { id: ID, tensor: 0, chunks });
        assert!(bench.once(Event::Message(&payload(&missing, &[]))).is_none());
        let ack = ToDevice::Ack(Ack { id: ID, outcome: AckOutcome::Counted });
        assert!(bench.once(Event::Message(&payload(&ack, &[]))).is_none());
        assert_eq!(bench.last.again, !ticked);
        if !ticked {
            assert!(bench.all(Event::Tick).is_empty());
        }
    }
    assert_eq!(bench.session.counters().unexpected as usize, 2 * opening.len() + 4);
    assert_eq!(leaves(&mut bench).0, opened + SLOT);
}

#[test]
fn a_round_may_close_while_its_update_waits() {
    let problem = problem(57, 8, 1);
    for ticked in [false, true] {
        let flash = Flash::default();
        let mut bench = device(&problem, SLOT, &flash);
        compute(&mut bench, &problem);
        if ticked {
            assert!(bench.all(Event::Tick).is_empty());
        }
        assert!(bench.message(&ToDevice::RoundClosed(ID), &[]).is_empty());
        let counters = Counters { closed: 1, forfeited: 1, ..Counters::default() };
        assert_eq!((bench.session.counters(), bench.session.last_round()), (counters, 1));
        for _ in 0..10 {
            assert!(!is_update(&bench.wake()));
        }
        assert_eq!(flash.0.borrow().spent, 3);
    }
    // Another round replaces it; the first one is paid for and lost.
    let flash = Flash::default();
    let mut bench = device(&problem, SLOT, &flash);
    compute(&mut bench, &problem);
    bench.all(Event::Tick);
    bench.now += 1_000;
    let opened = bench.now;
    for (message, body) in problem.server(2, gradient(), Encoding::F32, 128).opening() {
        assert!(bench.message(&message, &body).is_empty());
    }
    assert_eq!(leaves(&mut bench).0, opened + SLOT);
    assert_eq!((flash.0.borrow().spent, bench.session.counters().forfeited), (6, 1));
}

/// As long as nothing has left, a link that comes back changes no slot. Afterwards the same bytes are sent at once.
#[test]
fn a_lost_link_does_not_move_the_slots() {
    let problem = problem(57, 8, 1);
    let reopen = |bench: &mut PrivateBench| {
        let (message, body) = problem.server(1, gradient(), Encoding::F32, 128).opening().remove(0);
        bench.message(&message, &body)
    };
    for (back, slots) in [(1, 1), (SLOT - 1, 1), (SLOT + 1, 2), (7 * SLOT - 2, 7)] {
        let flash = Flash::default();
        let mut bench = device(&problem, SLOT, &flash);
        let opened = bench.now;
        compute(&mut bench, &problem);
        bench.all(Event::Tick);
        bench.all(Event::LinkDown);
        bench.now = opened + back;
        bench.connect(7, 60_000);
        assert!(reopen(&mut bench).is_empty());
        let (at, _) = leaves(&mut bench);
        assert_eq!(at, opened + slots * SLOT, "{back}");
        // Now that something has left: at once.
        bench.all(Event::LinkDown);
        bench.now += 1;
        bench.connect(7, 60_000);
        assert!(is_update(&reopen(&mut bench)));
        assert_eq!((flash.0.borrow().spent, bench.session.counters().forfeited), (3, 0));
    }
}

/// A round that is declined for the budget does not wait.
#[test]
fn a_decline_needs_no_slot() {
    let problem = problem(57, 8, 1);
    let mut bench = private(&problem, 128, Some(2), Some(SLOT), &Flash::default());
    bench.connect(7, 60_000);
    let (message, body) = problem.server(1, gradient(), Encoding::F32, 128).opening().remove(0);
    let sent = bench.message(&message, &body);
    let decline = Decline { id: ID, reason: DeclineReason::Budget { left: 2 } };
    assert_eq!(sent, [(ToServer::Decline(decline), Vec::new())]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    /// For any slot and any duration, up to the end of the clock: never before the first slot, never before it is
    /// computed, always at a slot, and less than one after it was computed.
    #[test]
    fn an_update_leaves_at_the_first_slot_that_is_not_over(
        slot in prop_oneof![1..100u64, 1..1_000_000u64, any::<u64>()],
        took in prop_oneof![0..1_000u64, 0..100_000_000u64, any::<u64>()],
    ) {
        let problem = problem(6, 2, 1);
        let slot = slot.max(1);
        let mut bench = private(&problem, 256, Some(1000), Some(slot), &Flash::default());
        bench.connect(7, u32::MAX);
        let opened = bench.now;
        let (message, body) = problem.server(1, gradient(), Encoding::F32, 256).opening().remove(0);
        prop_assert!(bench.once(Event::Message(&payload(&message, &body))).is_none());
        bench.now = opened.saturating_add(took);
        let slots = took.div_ceil(slot).max(1);
        let due = slot.checked_mul(slots).and_then(|after| opened.checked_add(after)).unwrap_or(Millis::MAX);
        let done = bench.now;
        let mut sent = bench.once(Event::Tick);
        // Alive comes first where the silence was long; what is left to say follows.
        if matches!(sent, Some((ToServer::Alive, _))) {
            sent = bench.once(Event::Tick);
        }
        if due == done {
            prop_assert!(matches!(sent, Some((ToServer::Update(_), _))), "{:?}", sent);
        } else {
            prop_assert!(sent.is_none() && !bench.last.again && bench.last.wake <= due);
            for (now, leaves) in [(due - 1, false), (due, true)] {
                bench.now = now.max(done);
                let sent = bench.all(Event::Tick);
                let is = sent.iter().any(|(message, _)| matches!(message, ToServer::Update(_)));
                prop_assert_eq!(is, leaves, "{} of {}", now, due);
            }
        }
    }
}
