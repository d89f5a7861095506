//! Tests that a private device answers at the end of a time slot that starts with its computation, for any
//! duration and result of the computation, and that it sends nothing before.
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

/// Length of the slot in milliseconds.
const SLOT: u64 = 5_000;
const ID: RoundId = RoundId { round: 1, stage: 0 };

/// Creates a connected device with a budget and this response slot.
fn connected_bench(problem: &Problem, slot: u64, flash: &Flash) -> PrivateBench {
    let mut bench = priced_bench(problem, 128, Some(1000), slot, flash);
    bench.connect(7, 60_000);
    bench
}

/// Passes a whole round to the device, one message directly after the other. The device sends nothing.
fn pass_round(bench: &mut PrivateBench, problem: &Problem) {
    for (message, body) in problem.server(1, gradient_task(), Encoding::F32, 128).opening_messages() {
        let bytes = payload(&message, &body);
        assert!(bench.handle_event(Event::Message(&bytes)).is_none());
    }
    // The session asks to be called again with the current time.
    assert!(bench.last.again);
}

fn is_update(sent: &[(ToServer, Vec<u8>)]) -> bool {
    matches!(sent, [(ToServer::Update(_), _), ..])
}

/// Advances to the next wake-up, at which the device must send the update and nothing else. Returns that
/// time.
fn time_of_update(bench: &mut PrivateBench) -> u64 {
    assert!(bench.last.wake.as_u64() > bench.now && !bench.last.again);
    let sent = bench.wake_up();
    assert!(is_update(&sent), "{sent:?}");
    assert!(sent[1..].iter().all(|(message, _)| matches!(message, ToServer::Chunk(_))), "{sent:?}");
    bench.now
}

/// If a computation takes any time within a slot, the update is sent at the end of that slot.
#[test]
fn send_time_hides_the_duration_of_a_computation() {
    let problem = create_problem(57, 8, 1);
    for (computing_time, slots) in [
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
        let mut bench = connected_bench(&problem, SLOT, &Flash::default());
        let start = bench.now;
        pass_round(&mut bench, &problem);
        bench.now += computing_time;
        let early = bench.handle_until_idle(Event::Tick);
        if computing_time == slots * SLOT {
            // The computation ends exactly at the end of a slot.
            assert!(is_update(&early));
            continue;
        }
        assert!(!is_update(&early) && !bench.last.again);
        assert_eq!(time_of_update(&mut bench), start + slots * SLOT, "{computing_time}");
        let missed = u32::from(computing_time > SLOT);
        let counters = Counters { slots_missed: missed, ..Counters::default() };
        assert_eq!(bench.session.counters(), counters);
    }
}

/// An update, a fitted head and a failed computation are all answered at the end of the slot.
#[test]
fn every_result_waits_for_the_slot() {
    let problem = create_problem(57, 8, 1);
    for (task, computation_fails) in
        [(gradient_task(), false), (Wire::FitHead { head: EXACT }, false), (gradient_task(), true)]
    {
        for computing_time in [0, 1, SLOT - 1] {
            let mut bench = connected_bench(&problem, SLOT, &Flash::default());
            bench.session.task_mut().computation_fails = computation_fails;
            let start = bench.now;
            for (message, body) in problem.server(1, task, Encoding::F32, 128).opening_messages() {
                assert!(bench.handle_event(Event::Message(&payload(&message, &body))).is_none());
            }
            assert!(bench.last.again && bench.session.silent_until().as_u64() == start + SLOT);
            bench.now += computing_time;
            assert!(bench.handle_until_idle(Event::Tick).is_empty());
            assert_eq!(bench.last.wake.as_u64(), start + SLOT);
            let sent = bench.wake_up();
            let declined = matches!(&sent[..], [(ToServer::Decline(_), _)]);
            assert!(if computation_fails { declined } else { is_update(&sent) }, "{sent:?}");
        }
    }
}

/// A device without noise answers at once.
#[test]
fn only_private_devices_wait() {
    let problem = create_problem(57, 8, 1);
    let task = Linear::new(Heap::new(problem.d, problem.k, problem.c));
    let mut bench = Bench::with_task(session_config(128), task, problem.samples.clone(), Flash::default());
    bench.connect(7, 60_000);
    for (round, task) in [(1, gradient_task()), (2, Wire::FitHead { head: EXACT })] {
        let opening = problem.server(round, task, Encoding::F32, 128).opening_messages();
        let sent: Vec<_> = opening.iter().flat_map(|(m, body)| bench.receive_message(m, body)).collect();
        assert!(is_update(&sent));
        assert_eq!(bench.session.silent_until().as_u64(), 0);
    }
}

/// A decline that depends only on the message, and on no sample, is sent at once.
#[test]
fn decline_without_a_computation_is_immediate() {
    let problem = create_problem(57, 8, 1);
    let mut bench = priced_bench(&problem, 128, Some(2), SLOT, &Flash::default());
    bench.connect(7, 60_000);
    let (message, body) = problem.server(1, gradient_task(), Encoding::F32, 128).opening_messages().remove(0);
    let sent = bench.receive_message(&message, &body);
    let decline = Decline { id: ID, reason: DeclineReason::Budget { left: 2 } };
    assert_eq!(sent, [(ToServer::Decline(decline), Vec::new())]);
    // The representation is not orthonormal.
    let mut skewed = common::problem::create_problem(57, 8, 1);
    skewed.b[0] += 1.0;
    let fit = skewed.server(1, Wire::FitHead { head: EXACT }, Encoding::F32, 128).opening_messages();
    let sent: Vec<_> = fit.iter().flat_map(|(m, body)| bench.receive_message(m, body)).collect();
    assert!(matches!(decline_reason(&sent), DeclineReason::NotOrthonormal { .. }));
    assert_eq!((bench.session.source_mut().passes, bench.session.silent_until().as_u64()), (0, 0));
}

/// A waiting device has charged the update, and does not even send keep-alives. The server's idle limit must
/// therefore be longer than the slot.
#[test]
fn waiting_device_is_silent_and_has_charged() {
    let problem = create_problem(57, 8, 1);
    let flash = Flash::default();
    let mut bench = priced_bench(&problem, 128, Some(1000), 60_000, &flash);
    bench.connect(7, 3_000);
    let start = bench.now;
    pass_round(&mut bench, &problem);
    assert_eq!(flash.0.borrow().calls, ["load_spent", "save_spent", "save"]);
    for _ in 0..59 {
        bench.now += 1_000;
        assert!(bench.handle_until_idle(Event::Tick).is_empty());
        assert_eq!(bench.last.wake.as_u64(), start + 60_000);
    }
    assert_eq!(time_of_update(&mut bench), start + 60_000);
    // After the slot the device sends keep-alives again.
    assert_eq!(bench.last.wake.as_u64(), start + 61_000);
    assert!(matches!(bench.wake_up()[..], [(ToServer::Alive, _)]));
}

/// Input during the slot is dropped and counted, because a device may have no room to receive it while it
/// computes, and handling it would reveal the end of the computation.
#[test]
fn input_before_the_slot_is_dropped() {
    let problem = create_problem(57, 8, 1);
    let ack = |id, outcome| ToDevice::Ack(Ack { id, outcome });
    let chunks = std::iter::once(0).collect();
    let mut messages = problem.server(1, gradient_task(), Encoding::F32, 128).opening_messages();
    messages.extend(problem.server(2, gradient_task(), Encoding::F32, 128).opening_messages());
    messages.extend(problem.server(3, Wire::FitHead { head: EXACT }, Encoding::F32, 128).opening_messages());
    // This round would be declined at once at any other time.
    messages.push(problem.server(0, gradient_task(), Encoding::F32, 128).opening_messages().remove(0));
    messages.extend(
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
    let mut bytes: Vec<_> = messages.iter().map(|(message, body)| payload(message, body)).collect();
    bytes.push(vec![0xFF; 7]);
    for computing_time in [0, 1, SLOT - 1] {
        for ticked in [false, true] {
            let flash = Flash::default();
            let mut bench = connected_bench(&problem, SLOT, &flash);
            let start = bench.now;
            pass_round(&mut bench, &problem);
            let passes = bench.session.source_mut().passes;
            bench.now += computing_time;
            if ticked {
                assert!(bench.handle_until_idle(Event::Tick).is_empty());
            }
            for bytes in &bytes {
                assert!(bench.handle_event(Event::Message(bytes)).is_none());
                assert!(!bench.last.again && !bench.last.close);
                assert_eq!(bench.last.wake.as_u64(), start + SLOT);
            }
            let dropped_while_silent = bytes.len() as u32;
            assert_eq!(bench.session.counters(), Counters { dropped_while_silent, ..Counters::default() });
            assert_eq!(time_of_update(&mut bench), start + SLOT);
            assert_eq!((flash.0.borrow().spent, bench.session.source_mut().passes), (3, passes));
            // The update is late. The next round is handled when the server opens it again.
            assert!(bench.receive_message(&messages.last().unwrap().0, &[]).is_empty());
            assert!(bench.receive_message(&ack(ID, AckOutcome::Late), &[]).is_empty());
            assert_eq!(bench.session.last_round(), 1);
            let start = bench.now;
            for (message, body) in problem.server(2, gradient_task(), Encoding::F32, 128).opening_messages() {
                assert!(bench.receive_message(&message, &body).is_empty());
            }
            assert_eq!((time_of_update(&mut bench), flash.0.borrow().spent), (start + SLOT, 6));
        }
    }
}

/// A server cannot extend a slot, not even by opening a thousand rounds without a cost.
#[test]
fn rounds_do_not_extend_a_slot() {
    let problem = create_problem(20, 2, 1);
    let mut bench = priced_bench(&problem, 256, Some(1000), SLOT, &Flash::default());
    bench.connect(7, 60_000);
    let start = bench.now;
    for round in 1..=1000 {
        let fit = problem.server(round, Wire::FitHead { head: EXACT }, Encoding::F32, 256);
        for (message, body) in fit.opening_messages() {
            assert!(bench.handle_event(Event::Message(&payload(&message, &body))).is_none());
            assert_eq!(bench.session.silent_until().as_u64(), start + SLOT);
        }
    }
    assert_eq!(bench.session.counters().dropped_while_silent, 999);
    assert_eq!(time_of_update(&mut bench), start + SLOT);
}

/// If the server's rounds are shorter than the slot, the device answers at the end of every slot, late, and
/// charges only the rounds that it computes. Once the rounds are long enough, its updates count.
#[test]
fn device_answers_a_server_with_short_rounds() {
    let problem = create_problem(20, 2, 1);
    for deadline in [1, SLOT / 7, SLOT / 2 + 1, SLOT - 1] {
        let flash = Flash::default();
        let mut bench = priced_bench(&problem, 256, Some(1 << 20), SLOT, &flash);
        bench.connect(7, 60_000);
        let start = bench.now;
        let mut round = 0;
        let mut late = 0;
        while bench.now < start + 20 * SLOT {
            let round_end = bench.now + deadline;
            round += 1;
            let (message, body) =
                problem.server(round, gradient_task(), Encoding::F32, 256).opening_messages().remove(0);
            let mut sent = bench.receive_message(&message, &body);
            while bench.last.wake.as_u64() <= round_end {
                sent.extend(bench.wake_up());
            }
            for (message, _) in sent {
                if let ToServer::Update(update) = message {
                    late += 1;
                    bench.receive_message(
                        &ToDevice::Ack(Ack { id: update.id, outcome: AckOutcome::Late }),
                        &[],
                    );
                }
            }
            bench.now = round_end;
            let id = RoundId { round, stage: 0 };
            bench.receive_message(&ToDevice::RoundClosed(id), &[]);
        }
        let counters = bench.session.counters();
        assert!(late >= 9 && counters.late == late, "{deadline}: {late}");
        assert!(flash.0.borrow().spent <= 3 * (u64::from(late) + 1), "{deadline}");
        assert_eq!(counters.slots_missed, 0);
        let mut server = problem.server(round + 1, gradient_task(), Encoding::F32, 256);
        bench.handle_until_idle(Event::LinkDown);
        bench.now = bench.now.max(bench.last.wake.as_u64());
        run_link(&mut bench, &mut server, 1_000, |_| Fate::Deliver);
        assert_eq!((server.updates.len(), bench.session.counters().counted), (1, 1));
    }
}

/// A round with a pending decline is answered by it, and is not computed or charged again.
#[test]
fn round_with_a_pending_decline_is_not_computed_again() {
    let problem = create_problem(57, 8, 1);
    let flash = Flash::default();
    let mut bench = connected_bench(&problem, 60_000, &flash);
    bench.session.task_mut().computation_fails = true;
    let start = bench.now;
    pass_round(&mut bench, &problem);
    let passes = bench.session.source_mut().passes;
    for _ in 0..5 {
        bench.now += 10_000;
        for (message, body) in problem.server(1, gradient_task(), Encoding::F32, 128).opening_messages() {
            assert!(bench.receive_message(&message, &body).is_empty());
        }
    }
    bench.now = start + 60_000;
    // A message arrives before the driver calls the session with the current time.
    let (message, body) = problem.server(1, gradient_task(), Encoding::F32, 128).opening_messages().remove(0);
    assert_eq!(decline_reason(&bench.receive_message(&message, &body)), DeclineReason::UpdateNonFinite);
    assert_eq!(bench.session.source_mut().passes, passes);
    assert_eq!(flash.0.borrow().spent, 3);
}

/// The slot starts with the computation, so a server cannot shorten the remaining slot by delaying the last
/// tensor.
#[test]
fn slot_starts_with_the_last_tensor() {
    let problem = create_problem(57, 8, 1);
    for held_back in [1, SLOT - 1, SLOT, 10 * SLOT + 3] {
        let mut bench = connected_bench(&problem, SLOT, &Flash::default());
        let mut opening = problem.server(1, gradient_task(), Encoding::F32, 128).opening_messages();
        let (message, body) = opening.pop().unwrap();
        for (message, body) in opening {
            bench.receive_message(&message, &body);
        }
        bench.now += held_back;
        let start = bench.now;
        assert!(bench.handle_event(Event::Message(&payload(&message, &body))).is_none());
        bench.now += SLOT - 1;
        assert!(bench.handle_until_idle(Event::Tick).is_empty());
        assert_eq!(time_of_update(&mut bench), start + SLOT);
        assert_eq!(bench.session.counters().slots_missed, 0);
    }
}

/// If the link is lost and opened again before the end of the slot, the device stays silent until the end.
/// After the slot the update is sent as soon as it is requested, always with the same bytes.
#[test]
fn lost_link_reveals_nothing() {
    let problem = create_problem(57, 8, 1);
    let reopen = |bench: &mut PrivateBench| {
        let (message, body) =
            problem.server(1, gradient_task(), Encoding::F32, 128).opening_messages().remove(0);
        bench.receive_message(&message, &body)
    };
    let welcome = ToDevice::Welcome(Welcome { campaign: 7, idle_milliseconds: 60_000 });
    let mut retries = Vec::new();
    for took in [0, 1, SLOT - 1] {
        let flash = Flash::default();
        let mut bench = connected_bench(&problem, SLOT, &flash);
        let opened = bench.now;
        pass_round(&mut bench, &problem);
        bench.now += took;
        assert!(bench.handle_until_idle(Event::LinkDown).is_empty());
        retries.push(bench.last.wake.as_u64());
        assert!(bench.last.wake.as_u64() > opened + SLOT);
        assert!(bench.handle_until_idle(Event::LinkUp).is_empty());
        assert_eq!(bench.last.wake.as_u64(), opened + SLOT);
        assert!(matches!(bench.wake_up()[..], [(ToServer::Hello(_), _)]) && bench.now == opened + SLOT);
        assert!(bench.receive_message(&welcome, &[]).is_empty());
        let sent = reopen(&mut bench);
        assert!(is_update(&sent));
        bench.handle_until_idle(Event::LinkDown);
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

    /// For any slot and any duration, up to the end of the clock, the update is sent at the first end of a
    /// slot after the computation.
    #[test]
    fn update_is_sent_at_the_first_slot_after_the_computation(
        slot in prop_oneof![1..100u64, 1..1_000_000u64, any::<u64>()],
        took in prop_oneof![0..1_000u64, 0..100_000_000u64, any::<u64>()],
    ) {
        let problem = create_problem(6, 2, 1);
        let slot = slot.max(1);
        let mut bench = priced_bench(&problem, 256, Some(1000), slot, &Flash::default());
        bench.connect(7, u32::MAX);
        let opened = bench.now;
        let (message, body) = problem.server(1, gradient_task(), Encoding::F32, 256).opening_messages().remove(0);
        prop_assert!(bench.handle_event(Event::Message(&payload(&message, &body))).is_none());
        bench.now = opened.saturating_add(took);
        let slots = took.div_ceil(slot).max(1);
        let due = slot.checked_mul(slots).and_then(|after| opened.checked_add(after)).unwrap_or(u64::MAX);
        let computed_at = bench.now;
        let sent = bench.handle_event(Event::Tick);
        if due == computed_at {
            prop_assert!(matches!(sent, Some((ToServer::Update(_), _))), "{:?}", sent);
        } else {
            prop_assert!(sent.is_none() && !bench.last.again && bench.last.wake.as_u64() == due);
            for (now, leaves) in [(due - 1, false), (due, true)] {
                bench.now = now.max(computed_at);
                let sent = bench.handle_until_idle(Event::Tick);
                prop_assert_eq!(is_update(&sent), leaves, "{} of {}", now, due);
                prop_assert!(leaves || sent.is_empty());
            }
        }
    }
}
