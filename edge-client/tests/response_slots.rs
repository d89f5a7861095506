//! A private device answers at fixed times after it began to compute, whatever the computation took and whatever came of
//! it, and says nothing before.
#![cfg(feature = "privacy")]

use crate::common;
use crate::common::priced_task::*;
use crate::common::problem::*;
use crate::common::server::*;
use crate::common::*;
use fedspan_client::Linear;
use fedspan_client::session::{Counters, Event};
use fedspan_protocol::message::{
    Ack, AckOutcome, Decline, DeclineReason, Fault, Missing, RoundId, Task as Wire, ToDevice, ToServer,
    Welcome,
};
use fedspan_protocol::tensor::Encoding;
use proptest::prelude::*;

const SLOT: u64 = 5_000;
const ID: RoundId = RoundId { round: 1, stage: 0 };

fn device(problem: &Problem, slot: u64, flash: &Flash) -> PrivateBench {
    let mut bench = private(problem, 128, Some(1000), slot, flash);
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

/// Goes to the next wake-up, where the update leaves and nothing else; the time of that.
fn leaves(bench: &mut PrivateBench) -> u64 {
    assert!(bench.last.wake.as_u64() > bench.now && !bench.last.again);
    let sent = bench.wake();
    assert!(is_update(&sent), "{sent:?}");
    assert!(sent[1..].iter().all(|(message, _)| matches!(message, ToServer::Chunk(_))), "{sent:?}");
    bench.now
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
        assert_eq!(leaves(&mut bench), opened + slots * SLOT, "{took}");
        let missed = u32::from(took > SLOT);
        let counters = Counters { slots_missed: missed, ..Counters::default() };
        assert_eq!(bench.session.counters(), counters);
    }
}

/// An update, a head that is fitted, and a computation that fails all answer at the slot.
#[test]
fn whatever_comes_of_a_computation_waits() {
    let problem = problem(57, 8, 1);
    for (task, broken) in [(gradient(), false), (Wire::FitHead { head: EXACT }, false), (gradient(), true)] {
        for took in [0, 1, SLOT - 1] {
            let mut bench = device(&problem, SLOT, &Flash::default());
            bench.session.task_mut().broken = broken;
            let opened = bench.now;
            for (message, body) in problem.server(1, task, Encoding::F32, 128).opening() {
                assert!(bench.once(Event::Message(&payload(&message, &body))).is_none());
            }
            assert!(bench.last.again && bench.session.silent_until().as_u64() == opened + SLOT);
            bench.now += took;
            assert!(bench.all(Event::Tick).is_empty());
            assert_eq!(bench.last.wake.as_u64(), opened + SLOT);
            let sent = bench.wake();
            let declined = matches!(&sent[..], [(ToServer::Decline(_), _)]);
            assert!(if broken { declined } else { is_update(&sent) }, "{sent:?}");
        }
    }
}

/// A device that adds no noise is as quick as ever.
#[test]
fn only_private_devices_wait() {
    let problem = problem(57, 8, 1);
    let task = Linear::new(Heap::new(problem.d, problem.k, problem.c));
    let mut bench = Bench::of(config(128), task, problem.samples.clone(), Flash::default());
    bench.connect(7, 60_000);
    for (round, task) in [(1, gradient()), (2, Wire::FitHead { head: EXACT })] {
        let opening = problem.server(round, task, Encoding::F32, 128).opening();
        let sent: Vec<_> = opening.iter().flat_map(|(m, body)| bench.message(m, body)).collect();
        assert!(is_update(&sent));
        assert_eq!(bench.session.silent_until().as_u64(), 0);
    }
}

/// What depends on the message alone, and not on a sample, is declined at once.
#[test]
fn what_is_not_computed_needs_no_slot() {
    let problem = problem(57, 8, 1);
    let mut bench = private(&problem, 128, Some(2), SLOT, &Flash::default());
    bench.connect(7, 60_000);
    let (message, body) = problem.server(1, gradient(), Encoding::F32, 128).opening().remove(0);
    let sent = bench.message(&message, &body);
    let decline = Decline { id: ID, reason: DeclineReason::Budget { left: 2 } };
    assert_eq!(sent, [(ToServer::Decline(decline), Vec::new())]);
    // A representation that is none.
    let mut skewed = common::problem::problem(57, 8, 1);
    skewed.b[0] += 1.0;
    let fit = skewed.server(1, Wire::FitHead { head: EXACT }, Encoding::F32, 128).opening();
    let sent: Vec<_> = fit.iter().flat_map(|(m, body)| bench.message(m, body)).collect();
    assert!(matches!(declined(&sent), DeclineReason::NotOrthonormal { .. }));
    assert_eq!((bench.session.source_mut().passes, bench.session.silent_until().as_u64()), (0, 0));
}

/// It has paid, and does not even say that it is alive; the server's patience has to be longer.
#[test]
fn a_device_that_waits_says_nothing_and_has_paid() {
    let problem = problem(57, 8, 1);
    let flash = Flash::default();
    let mut bench = private(&problem, 128, Some(1000), 60_000, &flash);
    bench.connect(7, 3_000);
    let opened = bench.now;
    compute(&mut bench, &problem);
    assert_eq!(flash.0.borrow().calls, ["load_spent", "save_spent", "save"]);
    for _ in 0..59 {
        bench.now += 1_000;
        assert!(bench.all(Event::Tick).is_empty());
        assert_eq!(bench.last.wake.as_u64(), opened + 60_000);
    }
    assert_eq!(leaves(&mut bench), opened + 60_000);
    // And then again.
    assert_eq!(bench.last.wake.as_u64(), opened + 61_000);
    assert!(matches!(bench.wake()[..], [(ToServer::Alive, _)]));
}

/// Whatever comes meanwhile is lost, and counted: a device may not have room to hear it while it computes, and whether it
/// has heard it would tell when that was over.
#[test]
fn nothing_is_heard_before_the_slot() {
    let problem = problem(57, 8, 1);
    let ack = |id, outcome| ToDevice::Ack(Ack { id, outcome });
    let chunks = std::iter::once(0).collect();
    let mut all = problem.server(1, gradient(), Encoding::F32, 128).opening();
    all.extend(problem.server(2, gradient(), Encoding::F32, 128).opening());
    all.extend(problem.server(3, Wire::FitHead { head: EXACT }, Encoding::F32, 128).opening());
    // One that would be declined at once.
    all.push(problem.server(0, gradient(), Encoding::F32, 128).opening().remove(0));
    all.extend(
        [
            ToDevice::Missing(Missing { id: ID, tensor: 0, chunks }),
            ack(ID, AckOutcome::Counted),
            ack(ID, AckOutcome::Late),
            ToDevice::RoundClosed(ID),
            ToDevice::Fault(Fault::Greet),
            ToDevice::RetryAfter { milliseconds: 1 },
            ToDevice::Welcome(Welcome { campaign: 8, idle_milliseconds: 1 }),
        ]
        .map(|message| (message, Vec::new())),
    );
    let mut bytes: Vec<_> = all.iter().map(|(message, body)| payload(message, body)).collect();
    bytes.push(vec![0xFF; 7]);
    for took in [0, 1, SLOT - 1] {
        for ticked in [false, true] {
            let flash = Flash::default();
            let mut bench = device(&problem, SLOT, &flash);
            let opened = bench.now;
            compute(&mut bench, &problem);
            let passes = bench.session.source_mut().passes;
            bench.now += took;
            if ticked {
                assert!(bench.all(Event::Tick).is_empty());
            }
            for bytes in &bytes {
                assert!(bench.once(Event::Message(bytes)).is_none());
                assert!(!bench.last.again && !bench.last.close);
                assert_eq!(bench.last.wake.as_u64(), opened + SLOT);
            }
            let dropped_while_silent = bytes.len() as u32;
            assert_eq!(bench.session.counters(), Counters { dropped_while_silent, ..Counters::default() });
            assert_eq!(leaves(&mut bench), opened + SLOT);
            assert_eq!((flash.0.borrow().spent, bench.session.source_mut().passes), (3, passes));
            // And is late, as the server had said. The next round is heard when it is opened again.
            assert!(bench.message(&all.last().unwrap().0, &[]).is_empty());
            assert!(bench.message(&ack(ID, AckOutcome::Late), &[]).is_empty());
            assert_eq!(bench.session.last_round(), 1);
            let opened = bench.now;
            for (message, body) in problem.server(2, gradient(), Encoding::F32, 128).opening() {
                assert!(bench.message(&message, &body).is_empty());
            }
            assert_eq!((leaves(&mut bench), flash.0.borrow().spent), (opened + SLOT, 6));
        }
    }
}

/// No server prolongs a slot, whatever it opens meanwhile, and be it a thousand rounds that cost nothing.
#[test]
fn a_thousand_rounds_make_one_slot() {
    let problem = problem(20, 2, 1);
    let mut bench = private(&problem, 256, Some(1000), SLOT, &Flash::default());
    bench.connect(7, 60_000);
    let opened = bench.now;
    for round in 1..=1000 {
        let fit = problem.server(round, Wire::FitHead { head: EXACT }, Encoding::F32, 256);
        for (message, body) in fit.opening() {
            assert!(bench.once(Event::Message(&payload(&message, &body))).is_none());
            assert_eq!(bench.session.silent_until().as_u64(), opened + SLOT);
        }
    }
    assert_eq!(bench.session.counters().dropped_while_silent, 999);
    assert_eq!(leaves(&mut bench), opened + SLOT);
}

/// A server whose rounds are shorter than the slot: the device answers at every slot, late, and pays for no more than it
/// has computed. Once rounds are long enough, its updates count.
#[test]
fn a_server_that_is_too_quick_still_hears_of_the_device() {
    let problem = problem(20, 2, 1);
    for deadline in [1, SLOT / 7, SLOT / 2 + 1, SLOT - 1] {
        let flash = Flash::default();
        let mut bench = private(&problem, 256, Some(1 << 20), SLOT, &flash);
        bench.connect(7, 60_000);
        let (began, mut round, mut late) = (bench.now, 0, 0);
        while bench.now < began + 20 * SLOT {
            let next = bench.now + deadline;
            round += 1;
            let (message, body) = problem.server(round, gradient(), Encoding::F32, 256).opening().remove(0);
            let mut sent = bench.message(&message, &body);
            while bench.last.wake.as_u64() <= next {
                sent.extend(bench.wake());
            }
            for (message, _) in sent {
                if let ToServer::Update(update) = message {
                    late += 1;
                    bench.message(&ToDevice::Ack(Ack { id: update.id, outcome: AckOutcome::Late }), &[]);
                }
            }
            bench.now = next;
            let id = RoundId { round, stage: 0 };
            bench.message(&ToDevice::RoundClosed(id), &[]);
        }
        let counters = bench.session.counters();
        assert!(late >= 9 && counters.late == late, "{deadline}: {late}");
        assert!(flash.0.borrow().spent <= 3 * (u64::from(late) + 1), "{deadline}");
        assert_eq!(counters.slots_missed, 0);
        let mut server = problem.server(round + 1, gradient(), Encoding::F32, 256);
        bench.all(Event::LinkDown);
        bench.now = bench.now.max(bench.last.wake.as_u64());
        exchange(&mut bench, &mut server, 1_000, |_| Fate::Deliver);
        assert_eq!((server.updates.len(), bench.session.counters().counted), (1, 1));
    }
}

/// A decline that waits is its answer; the round is not computed, nor paid for, another time meanwhile, nor after that.
#[test]
fn a_round_whose_decline_waits_is_not_computed_again() {
    let problem = problem(57, 8, 1);
    let flash = Flash::default();
    let mut bench = device(&problem, 60_000, &flash);
    bench.session.task_mut().broken = true;
    let opened = bench.now;
    compute(&mut bench, &problem);
    let passes = bench.session.source_mut().passes;
    for _ in 0..5 {
        bench.now += 10_000;
        for (message, body) in problem.server(1, gradient(), Encoding::F32, 128).opening() {
            assert!(bench.message(&message, &body).is_empty());
        }
    }
    bench.now = opened + 60_000;
    // A message comes before the driver has looked at the clock.
    let (message, body) = problem.server(1, gradient(), Encoding::F32, 128).opening().remove(0);
    assert_eq!(declined(&bench.message(&message, &body)), DeclineReason::UpdateNonFinite);
    assert_eq!(bench.session.source_mut().passes, passes);
    assert_eq!(flash.0.borrow().spent, 3);
}

/// The slot begins with the computation, so that no server can hold a tensor back until its end is near.
#[test]
fn the_slot_counts_from_the_last_tensor() {
    let problem = problem(57, 8, 1);
    for held_back in [1, SLOT - 1, SLOT, 10 * SLOT + 3] {
        let mut bench = device(&problem, SLOT, &Flash::default());
        let mut opening = problem.server(1, gradient(), Encoding::F32, 128).opening();
        let (message, body) = opening.pop().unwrap();
        for (message, body) in opening {
            bench.message(&message, &body);
        }
        bench.now += held_back;
        let began = bench.now;
        assert!(bench.once(Event::Message(&payload(&message, &body))).is_none());
        bench.now += SLOT - 1;
        assert!(bench.all(Event::Tick).is_empty());
        assert_eq!(leaves(&mut bench), began + SLOT);
        assert_eq!(bench.session.counters().slots_missed, 0);
    }
}

/// A link that comes back before the slot is silent until then, whoever opens it. After the slot the update leaves as
/// soon as it is asked for, and always with the same bytes.
#[test]
fn a_lost_link_tells_nothing() {
    let problem = problem(57, 8, 1);
    let reopen = |bench: &mut PrivateBench| {
        let (message, body) = problem.server(1, gradient(), Encoding::F32, 128).opening().remove(0);
        bench.message(&message, &body)
    };
    let welcome = ToDevice::Welcome(Welcome { campaign: 7, idle_milliseconds: 60_000 });
    let mut retries = Vec::new();
    for took in [0, 1, SLOT - 1] {
        let flash = Flash::default();
        let mut bench = device(&problem, SLOT, &flash);
        let opened = bench.now;
        compute(&mut bench, &problem);
        bench.now += took;
        assert!(bench.all(Event::LinkDown).is_empty());
        retries.push(bench.last.wake.as_u64());
        assert!(bench.last.wake.as_u64() > opened + SLOT);
        assert!(bench.all(Event::LinkUp).is_empty());
        assert_eq!(bench.last.wake.as_u64(), opened + SLOT);
        assert!(matches!(bench.wake()[..], [(ToServer::Hello(_), _)]) && bench.now == opened + SLOT);
        assert!(bench.message(&welcome, &[]).is_empty());
        let sent = reopen(&mut bench);
        assert!(is_update(&sent));
        bench.all(Event::LinkDown);
        bench.now += 1;
        bench.connect(7, 60_000);
        assert_eq!(reopen(&mut bench), sent);
        assert_eq!((flash.0.borrow().spent, bench.session.counters().forfeited), (3, 0));
        assert_eq!(bench.session.counters().slots_missed, 0);
    }
    assert!(retries.iter().all(|retry| *retry == retries[0]));
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
        let mut bench = private(&problem, 256, Some(1000), slot, &Flash::default());
        bench.connect(7, u32::MAX);
        let opened = bench.now;
        let (message, body) = problem.server(1, gradient(), Encoding::F32, 256).opening().remove(0);
        prop_assert!(bench.once(Event::Message(&payload(&message, &body))).is_none());
        bench.now = opened.saturating_add(took);
        let slots = took.div_ceil(slot).max(1);
        let due = slot.checked_mul(slots).and_then(|after| opened.checked_add(after)).unwrap_or(u64::MAX);
        let done = bench.now;
        let sent = bench.once(Event::Tick);
        if due == done {
            prop_assert!(matches!(sent, Some((ToServer::Update(_), _))), "{:?}", sent);
        } else {
            prop_assert!(sent.is_none() && !bench.last.again && bench.last.wake.as_u64() == due);
            for (now, leaves) in [(due - 1, false), (due, true)] {
                bench.now = now.max(done);
                let sent = bench.all(Event::Tick);
                prop_assert_eq!(is_update(&sent), leaves, "{} of {}", now, due);
                prop_assert!(leaves || sent.is_empty());
            }
        }
    }
}
