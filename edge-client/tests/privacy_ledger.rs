//! Tests of the privacy budget in a session. An update is charged once, durably, before it is computed, and
//! the charge is never refunded. A round that exceeds the budget is declined before anything is received. A
//! ledger that cannot be read counts as spent.
#![cfg(feature = "privacy")]

use crate::common::priced_task::*;
use crate::common::problem::*;
use crate::common::server::*;
use crate::common::*;
use fedspan_client::Millis;
use fedspan_client::session::{Config, Counters, Event, Protection, Sampling, Session};
use fedspan_client::source::NoRecording;
use fedspan_client::store::ALL_SPENT;
use fedspan_client::{Linear, Release, Task};
use fedspan_protocol::message::{
    Ack, AckOutcome, DeclineReason, Fault, Privacy, Rejection, RoundId, Task as Wire, ToDevice, ToServer,
    Welcome,
};
use fedspan_protocol::secure::Key;
use fedspan_protocol::tensor::{Encoding, Role};
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

/// Slot of the devices in milliseconds.
const SLOT: u64 = 5_000;

/// Opens `round` with all its messages. Returns the answer, which is sent at once or at the end of the slot.
fn open_round(bench: &mut PrivateBench, problem: &Problem, round: u32) -> Vec<(ToServer, Vec<u8>)> {
    open_task(bench, problem, round, gradient_task())
}

/// Opens a round of this task with all its messages. Returns the answer, as [`open_round`] does.
fn open_task(
    bench: &mut PrivateBench,
    problem: &Problem,
    round: u32,
    task: Wire,
) -> Vec<(ToServer, Vec<u8>)> {
    let limit = bench.limit as u16;
    let opening = problem.server(round, task, Encoding::F32, limit).opening_messages();
    let mut sent: Vec<_> =
        opening.iter().flat_map(|(message, body)| bench.receive_message(message, body)).collect();
    if bench.session.silent_until().as_u64() > bench.now {
        assert!(sent.is_empty());
        sent = bench.wake_up();
    }
    sent
}

/// Acknowledges an update.
fn acknowledge(bench: &mut PrivateBench, round: u32, outcome: AckOutcome) {
    bench.receive_message(&ToDevice::Ack(Ack { id: RoundId { round, stage: 0 }, outcome }), &[]);
}

fn is_update(sent: &[(ToServer, Vec<u8>)]) -> bool {
    matches!(sent, [(ToServer::Update(_), _), ..])
}

/// Reconnects, and returns the spent budget that the hello announces.
fn announced_spent(bench: &mut PrivateBench) -> u64 {
    bench.handle_until_idle(Event::LinkDown);
    let sent = bench.connect(7, 60_000);
    assert!(sent.is_empty());
    match bench.session.privacy() {
        Privacy::Gaussian { spent, .. } => spent,
        other => panic!("{other:?}"),
    }
}

#[test]
fn hello_announces_the_spent_budget() {
    let problem = create_problem(20, 2, 1);
    let flash = Flash::default();
    for spent in [0, 3, 6] {
        let mut bench = priced_bench(&problem, 256, Some(10), SLOT, &flash);
        let sent = bench.handle_until_idle(Event::LinkUp);
        let [(ToServer::Hello(hello), _)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!(hello.capabilities.privacy, Privacy::Gaussian { release: 3, budget: 10, spent });
        bench.connect(7, 60_000);
        assert!(is_update(&open_round(&mut bench, &problem, 1 + spent as u32)));
        // The next hello of the same session announces the new value.
        assert_eq!(announced_spent(&mut bench), spent + 3);
    }
}

/// The order of events is: the ledger is saved, the samples are read, the record is saved, and the first byte
/// is sent.
#[test]
fn update_is_charged_before_it_is_computed() {
    let problem = create_problem(57, 8, 1);
    for limit in [128, 256, 4096] {
        let flash = Flash::default();
        let mut bench = priced_bench(&problem, limit, Some(10), SLOT, &flash);
        bench.connect(7, 60_000);
        let opening = problem.server(1, gradient_task(), Encoding::F32, limit).opening_messages();
        for (n, (message, body)) in opening.iter().enumerate() {
            let calls = flash.0.borrow().calls.clone();
            let sent = bench.handle_event(Event::Message(&payload(message, body)));
            if n + 1 < opening.len() {
                assert_eq!((sent, calls, flash.0.borrow().spent), (None, vec!["load_spent"], 0));
            } else {
                assert!(sent.is_none());
                assert_eq!(flash.0.borrow().calls, ["load_spent", "save_spent", "save"]);
                assert_eq!(flash.0.borrow().spent, 3);
                assert!(bench.handle_until_idle(Event::Tick).is_empty());
                assert!(is_update(&bench.wake_up()));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// Frames are lost, duplicated and reordered, and the link breaks; the round is charged only once.
    #[test]
    fn round_is_charged_once_however_often_it_is_sent(
        seed in any::<u64>(), limit in prop::sample::select(vec![128u16, 256, 4096]),
        slot in prop::sample::select(vec![1u64, 700, 30_000]),
    ) {
        let problem = create_problem(57, 8, 2);
        let flash = Flash::default();
        let mut bench = priced_bench(&problem, limit, Some(1000), slot, &flash);
        let mut server = problem.server(1, gradient_task(), Encoding::F32, limit);
        let mut random = Random(seed);
        run_link(&mut bench, &mut server, 20_000, |frame| match random.below(20) {
            0..=1 => Fate::Lose,
            2 => Fate::Twice,
            3..=4 => Fate::Later,
            5 if frame < 400 && random.below(8) == 0 => Fate::CutBefore,
            6 if frame < 400 && random.below(8) == 0 => Fate::CutAfter,
            _ => Fate::Deliver,
        });
        prop_assert!(!server.updates.is_empty(), "{:?}", bench.session.counters());
        for index in 0..server.updates.len() {
            prop_assert_eq!(bits(&server.update_values(index)), bits(&server.update_values(0)));
        }
        prop_assert_eq!(flash.0.borrow().spent, 3);
        prop_assert_eq!(bench.session.counters().forfeited, 0);
        // The next round is a new charge.
        bench.handle_until_idle(Event::LinkDown);
        let mut server = problem.server(2, gradient_task(), Encoding::F32, limit);
        run_link(&mut bench, &mut server, 20_000, |_| Fate::Deliver);
        prop_assert_eq!((server.updates.len(), flash.0.borrow().spent), (1, 6));
    }
}

/// Returns the releases of device 0xABCD in this round, one for each value of the budget spent before.
fn releases_of(round: u32, spent: &[u64]) -> Vec<Release> {
    let round = RoundId { round, stage: 0 };
    spent.iter().map(|&spent| Release { device: 0xABCD, campaign: 7, round, spent }).collect()
}

/// The success of a computation may depend on the records, so a round is charged before it is computed and
/// not refunded. If the same round is opened again, it is not charged twice, and the answer is the same.
#[test]
fn failed_round_is_charged_once() {
    let problem = create_problem(20, 2, 1);
    let flash = Flash::default();
    let mut bench = priced_bench(&problem, 256, Some(9), SLOT, &flash);
    bench.connect(7, 60_000);
    // The first pass over the samples fails.
    bench.session.source_mut().failing_pass = Some(1);
    for _ in 0..5 {
        assert_eq!(decline_reason(&open_round(&mut bench, &problem, 1)), DeclineReason::Device);
        assert_eq!((flash.0.borrow().spent, bench.session.counters().forfeited), (3, 1));
        assert_eq!(flash.0.borrow().calls, ["load_spent", "save_spent"]);
    }
    bench.session.task_mut().computation_fails = true;
    for _ in 0..5 {
        assert_eq!(decline_reason(&open_round(&mut bench, &problem, 2)), DeclineReason::UpdateNonFinite);
        assert_eq!((flash.0.borrow().spent, bench.session.counters().forfeited), (6, 2));
    }
    bench.session.task_mut().computation_fails = false;
    assert_eq!(decline_reason(&open_round(&mut bench, &problem, 2)), DeclineReason::UpdateNonFinite);
    assert!(is_update(&open_round(&mut bench, &problem, 3)));
    acknowledge(&mut bench, 3, AckOutcome::Counted);
    assert_eq!(decline_reason(&open_round(&mut bench, &problem, 4)), DeclineReason::Budget { left: 0 });
    let paid: Vec<_> = (1..).zip([0, 3, 6]).flat_map(|(round, spent)| releases_of(round, &[spent])).collect();
    assert_eq!(bench.session.task().releases, paid);
}

/// Events between two openings of a round. The argument is the number of a round without a cost.
type Interlude<'a> = &'a dyn Fn(&mut PrivateBench, u32);

/// Between two openings of a failed round there are declined rounds, a lost link, a new handshake, or rounds
/// without a cost.
#[test]
fn no_event_charges_a_failed_round_again() {
    let problem = create_problem(20, 2, 1);
    let flash = Flash::default();
    for number in 0..2 {
        let mut bench = priced_bench(&problem, 256, Some(1000), SLOT, &flash);
        bench.connect(7, 60_000);
        bench.session.task_mut().computation_fails = true;
        let spent = 3 * number + 3;
        let round = 10;
        // The link is lost before the decline of this round is sent.
        for (message, body) in problem.server(round, gradient_task(), Encoding::F32, 256).opening_messages() {
            assert!(bench.receive_message(&message, &body).is_empty());
        }
        bench.handle_until_idle(Event::LinkDown);
        bench.now = bench.now.max(bench.last.wake.as_u64());
        bench.connect(7, 60_000);
        assert_eq!(decline_reason(&open_round(&mut bench, &problem, round)), DeclineReason::UpdateNonFinite);
        let mut free_round = 11;
        let interludes: [Interlude<'_>; 5] = [
            &|_, _| (),
            &|bench, _| {
                drop(bench.receive_message(&ToDevice::RoundClosed(RoundId { round: 10, stage: 0 }), &[]))
            },
            &|bench, free_round| {
                let broken = problem.server(free_round, Wire::FitHead { head: EXACT }, Encoding::F32, 256);
                let (message, mut body) = broken.opening_messages().remove(0);
                body[3] ^= 0x7F;
                decline_reason(&bench.receive_message(&message, &body));
            },
            &|bench, _| {
                bench.receive_message(&ToDevice::Fault(Fault::Greet), &[]);
                bench.receive_message(
                    &ToDevice::Welcome(Welcome { campaign: 7, idle_milliseconds: 60_000 }),
                    &[],
                );
            },
            &|bench, _| {
                // An older round is declined for want of entropy.
                bench.session.task_mut().entropy_fails = true;
                assert_eq!(decline_reason(&open_round(bench, &problem, 9)), DeclineReason::Entropy);
                bench.session.task_mut().entropy_fails = false;
            },
        ];
        for interlude in interludes {
            interlude(&mut bench, free_round);
            free_round += 1;
            assert_eq!(
                decline_reason(&open_round(&mut bench, &problem, round)),
                DeclineReason::UpdateNonFinite
            );
            assert_eq!(flash.0.borrow().spent, spent, "{free_round}");
        }
        // A round without a cost is computed, even if its number is that of the failed round.
        bench.session.task_mut().computation_fails = false;
        assert!(is_update(&open_task(&mut bench, &problem, round, Wire::FitHead { head: EXACT })));
        acknowledge(&mut bench, round, AckOutcome::Counted);
        assert_eq!(
            decline_reason(&open_round(&mut bench, &problem, round)),
            DeclineReason::RoundRepeated { last: round }
        );
        assert_eq!(flash.0.borrow().spent, spent);
        // The record is removed, which restores the state before the round. The next iteration starts after a
        // reset. Another campaign, below, has other rounds.
        flash.0.borrow_mut().record = None;
    }
    let mut bench = priced_bench(&problem, 256, Some(1000), SLOT, &flash);
    bench.connect(7, 60_000);
    bench.session.task_mut().computation_fails = true;
    assert_eq!(decline_reason(&open_round(&mut bench, &problem, 10)), DeclineReason::UpdateNonFinite);
    bench.session.task_mut().computation_fails = false;
    bench.handle_until_idle(Event::LinkDown);
    bench.connect(8, 60_000);
    assert!(is_update(&open_round(&mut bench, &problem, 10)));
    assert_eq!(flash.0.borrow().spent, 12);
}

/// A power cut after the charge and before the record is saved loses the round, so the next attempt is
/// another release.
#[test]
fn reset_gives_no_second_release_for_free() {
    let problem = create_problem(20, 2, 1);
    let flash = Flash::default();
    for record_saved in [false, true] {
        let spent = flash.0.borrow().spent;
        let mut bench = priced_bench(&problem, 256, Some(100), SLOT, &flash);
        bench.connect(7, 60_000);
        bench.session.task_mut().computation_fails = !record_saved;
        let opening = problem.server(1, gradient_task(), Encoding::F32, 256).opening_messages();
        assert!(opening.iter().all(|(message, body)| bench.receive_message(message, body).is_empty()));
        assert_eq!(flash.0.borrow().spent, spent + 3);
        // The device is reset before the end of the slot.
        let mut bench = priced_bench(&problem, 256, Some(100), SLOT, &flash);
        bench.connect(7, 60_000);
        let sent = open_round(&mut bench, &problem, 1);
        if record_saved {
            assert_eq!(decline_reason(&sent), DeclineReason::RoundRepeated { last: 1 });
            assert!(bench.session.task().releases.is_empty());
            assert_eq!(flash.0.borrow().spent, spent + 3);
        } else {
            assert!(is_update(&sent));
            assert_eq!(bench.session.task().releases, releases_of(1, &[spent + 3]));
            assert_eq!(flash.0.borrow().spent, spent + 6);
            flash.0.borrow_mut().record = None;
        }
    }
}

/// The power fails after the charge is written and before the update is computed, or the store reports an
/// error although it has written the charge.
#[test]
fn unused_charge_is_not_reused_after_a_reset() {
    let problem = create_problem(20, 2, 1);
    // The flash contains the ledger of the charge and no record.
    let flash = Flash::default();
    flash.0.borrow_mut().spent = 3;
    let mut bench = priced_bench(&problem, 256, Some(100), SLOT, &flash);
    bench.connect(7, 60_000);
    assert!(is_update(&open_round(&mut bench, &problem, 1)));
    assert_eq!((bench.session.task().releases.clone(), flash.0.borrow().spent), (releases_of(1, &[3]), 6));
    for reset in [false, true] {
        let flash = Flash::default();
        let mut bench = priced_bench(&problem, 256, Some(100), SLOT, &flash);
        bench.connect(7, 60_000);
        flash.0.borrow_mut().fail_spent_after = true;
        assert_eq!(decline_reason(&open_round(&mut bench, &problem, 1)), DeclineReason::Device);
        assert_eq!((flash.0.borrow().spent, bench.session.source_mut().passes), (3, 0));
        flash.0.borrow_mut().fail_spent_after = false;
        if reset {
            bench = priced_bench(&problem, 256, Some(100), SLOT, &flash);
            bench.connect(7, 60_000);
        }
        assert!(is_update(&open_round(&mut bench, &problem, 1)));
        // The first charge was not used for a computation, so without a reset the next attempt is the same
        // release.
        let (before, after) = if reset { (vec![3], 6) } else { (vec![0, 0], 3) };
        assert_eq!(bench.session.task().releases, releases_of(1, &before));
        assert_eq!((flash.0.borrow().spent, announced_spent(&mut bench)), (after, after));
    }
}

/// A round without entropy costs nothing and is declined at once, because no sample was read.
#[test]
fn round_without_entropy_is_not_charged() {
    let problem = create_problem(20, 2, 1);
    let flash = Flash::default();
    let mut bench = priced_bench(&problem, 256, Some(10), SLOT, &flash);
    bench.connect(7, 60_000);
    bench.session.task_mut().entropy_fails = true;
    let (message, body) = problem.server(1, gradient_task(), Encoding::F32, 256).opening_messages().remove(0);
    assert_eq!(decline_reason(&bench.receive_message(&message, &body)), DeclineReason::Entropy);
    assert_eq!((flash.0.borrow().spent, bench.session.source_mut().passes), (0, 0));
    assert_eq!(bench.session.counters().forfeited, 0);
}

/// Rounds with a cost are declined without a slot, because the duration of a private computation would be
/// visible.
#[test]
fn round_with_a_cost_needs_a_slot() {
    let problem = create_problem(20, 2, 1);
    let flash = Flash::default();
    let mut bench = priced_bench(&problem, 256, Some(10), 0, &flash);
    bench.connect(7, 60_000);
    for _ in 0..3 {
        assert_eq!(decline_reason(&open_round(&mut bench, &problem, 1)), DeclineReason::Device);
    }
    assert_eq!((flash.0.borrow().spent, bench.session.source_mut().passes), (0, 0));
    assert_eq!(bench.session.counters().declined, 3);
}

#[test]
fn budget_is_exact_to_the_unit() {
    let problem = create_problem(20, 2, 1);
    for budget in 0..=9u64 {
        let flash = Flash::default();
        let mut bench = priced_bench(&problem, 256, Some(budget), SLOT, &flash);
        bench.connect(7, 60_000);
        for round in 1..=5u32 {
            let sent = open_round(&mut bench, &problem, round);
            let paid = u64::from(round) * 3;
            if paid <= budget {
                assert!(is_update(&sent), "round {round} of {budget}");
                assert_eq!(flash.0.borrow().spent, paid);
                acknowledge(&mut bench, round, AckOutcome::Counted);
            } else {
                assert_eq!(decline_reason(&sent), DeclineReason::Budget { left: budget % 3 });
                assert_eq!(flash.0.borrow().spent, budget / 3 * 3);
            }
        }
        assert_eq!(u64::from(bench.session.counters().declined), 5 - budget / 3);
        // The spent budget persists when a release becomes more expensive.
        let mut larger = priced_bench(&problem, 256, Some(budget), SLOT, &flash);
        larger.session.task_mut().release = 4;
        larger.connect(7, 60_000);
        assert_eq!(
            decline_reason(&open_round(&mut larger, &problem, 9)),
            DeclineReason::Budget { left: budget % 3 }
        );
    }
    // The budget is below the amount that was spent before.
    let flash = Flash::default();
    flash.0.borrow_mut().spent = 8;
    let mut bench = priced_bench(&problem, 256, Some(5), SLOT, &flash);
    bench.connect(7, 60_000);
    assert_eq!(decline_reason(&open_round(&mut bench, &problem, 9)), DeclineReason::Budget { left: 0 });
}

/// For a round over the budget, no tensor is received, no sample is read and nothing is written. Predictions
/// and head fits continue.
#[test]
fn rounds_without_a_cost_continue_over_the_budget() {
    let problem = create_problem(57, 8, 1);
    for limit in [128, 4096] {
        let flash = Flash::default();
        let mut bench = priced_bench(&problem, limit, Some(5), SLOT, &flash);
        bench.connect(7, 60_000);
        assert!(is_update(&open_round(&mut bench, &problem, 1)));
        acknowledge(&mut bench, 1, AckOutcome::Counted);
        let mut out = [0.0];
        let row = problem.samples.x[..57].to_vec();
        bench.session.task_mut().task.predict(&row, &mut out).unwrap();
        let (passes, calls) = (bench.session.source_mut().passes, flash.0.borrow().calls.clone());
        let sent = open_round(&mut bench, &problem, 2);
        assert_eq!(decline_reason(&sent), DeclineReason::Budget { left: 2 });
        assert_eq!((bench.session.source_mut().passes, &flash.0.borrow().calls), (passes, &calls));
        let mut later_out = [0.0];
        bench.session.task_mut().task.predict(&row, &mut later_out).unwrap();
        assert_eq!(bits(&out), bits(&later_out));
        for round in 3..6 {
            let sent = open_task(&mut bench, &problem, round, Wire::FitHead { head: EXACT });
            assert!(matches!(&sent[..], [(ToServer::Update(update), _)] if update.tensors.is_empty()));
            acknowledge(&mut bench, round, AckOutcome::Counted);
            bench.session.task_mut().task.predict(&row, &mut later_out).unwrap();
        }
        assert_eq!((flash.0.borrow().spent, bench.session.counters().forfeited), (3, 0));
        assert_eq!(announced_spent(&mut bench), 3);
    }
}

/// A round over the budget does not affect a pending update.
#[test]
fn update_in_flight_survives_a_round_over_the_budget() {
    let problem = create_problem(20, 2, 1);
    let mut bench = priced_bench(&problem, 256, Some(5), SLOT, &Flash::default());
    bench.connect(7, 60_000);
    let first_answer = open_round(&mut bench, &problem, 1);
    assert_eq!(decline_reason(&open_round(&mut bench, &problem, 2)), DeclineReason::Budget { left: 2 });
    assert_eq!(open_round(&mut bench, &problem, 1), first_answer);
}

#[test]
fn failing_storage_blocks_the_update() {
    let problem = create_problem(20, 2, 1);
    let flash = Flash::default();
    let mut bench = priced_bench(&problem, 256, Some(10), SLOT, &flash);
    bench.connect(7, 60_000);
    flash.0.borrow_mut().fail_spent = true;
    for failures in 1..4 {
        assert_eq!(decline_reason(&open_round(&mut bench, &problem, 1)), DeclineReason::Device);
        assert!(bench.wake_up().iter().all(|(message, _)| *message == ToServer::Alive));
        let counters = Counters { declined: failures, storage: failures, ..Counters::default() };
        assert_eq!(bench.session.counters(), counters);
        assert_eq!((flash.0.borrow().spent, flash.0.borrow().saves), (0, 0), "the ledger was written");
    }
    flash.0.borrow_mut().fail_spent = false;
    assert!(is_update(&open_round(&mut bench, &problem, 1)));
    assert_eq!((flash.0.borrow().spent, bench.session.counters().forfeited), (3, 0));
}

/// The ledger can be saved and the record cannot (a worn page, a buffer that is too small). One round is
/// charged and lost, and further rounds are declined without a charge until a record can be written again.
#[test]
fn failing_record_costs_one_round() {
    let problem = create_problem(20, 2, 1);
    let flash = Flash::default();
    let mut bench = priced_bench(&problem, 256, Some(1000), SLOT, &flash);
    bench.connect(7, 60_000);
    assert!(is_update(&open_round(&mut bench, &problem, 4)));
    acknowledge(&mut bench, 4, AckOutcome::Counted);
    flash.0.borrow_mut().fail_save = true;
    let mut failures = 0;
    for round in 5..105 {
        for _ in 0..3 {
            assert_eq!(decline_reason(&open_round(&mut bench, &problem, round)), DeclineReason::Device);
            failures += 1;
            assert_eq!((flash.0.borrow().spent, bench.session.counters().forfeited), (6, 1), "{round}");
        }
        // A head fit is declined too, since its record cannot be saved either.
        let fit = open_task(&mut bench, &problem, round + 1, Wire::FitHead { head: EXACT });
        assert_eq!(decline_reason(&fit), DeclineReason::Device);
    }
    assert_eq!(bench.session.counters().declined, failures + 100);
    assert_eq!(bench.session.task().releases.len(), 2);
    // When the store works again, it gets the last finished round and the head in memory.
    flash.0.borrow_mut().fail_save = false;
    flash.0.borrow_mut().calls.clear();
    let head = bench.session.task().task.head().to_vec();
    let opening = problem.server(105, gradient_task(), Encoding::F32, 256).opening_messages().remove(0);
    flash.0.borrow_mut().fail_spent = true;
    assert_eq!(decline_reason(&bench.receive_message(&opening.0, &opening.1)), DeclineReason::Device);
    let (loaded, saved) = flash.0.borrow().record.clone().unwrap();
    assert_eq!((loaded.campaign, loaded.round, bits(&saved)), (7, 4, bits(&head)));
    assert_eq!(Some(loaded.representation), bench.session.task().task.head_fitted_on());
    flash.0.borrow_mut().fail_spent = false;
    // The device saves the record once more, then continues as usual.
    assert!(is_update(&open_round(&mut bench, &problem, 105)));
    assert_eq!(flash.0.borrow().calls, ["save", "save_spent", "save"]);
    assert_eq!((flash.0.borrow().spent, bench.session.counters().forfeited), (9, 1));
    acknowledge(&mut bench, 105, AckOutcome::Counted);
    assert!(is_update(&open_round(&mut bench, &problem, 106)));
    assert_eq!(flash.0.borrow().calls, ["save", "save_spent", "save", "save_spent", "save"]);
}

/// A charge is not refunded if the update is late, rejected, closed, replaced by another round, not finite,
/// or lost in a reset or with its campaign.
#[test]
fn charge_is_never_refunded() {
    let problem = create_problem(20, 2, 1);
    let flash = Flash::default();
    let mut bench = priced_bench(&problem, 256, Some(100), SLOT, &flash);
    bench.connect(7, 60_000);
    let mut paid = 0;
    let outcomes = [AckOutcome::Late, AckOutcome::Rejected(Rejection::NotAsked), AckOutcome::Duplicate];
    for (round, outcome) in (1..).zip(outcomes) {
        assert!(is_update(&open_round(&mut bench, &problem, round)));
        acknowledge(&mut bench, round, outcome);
        paid += 3;
        assert_eq!((flash.0.borrow().spent, announced_spent(&mut bench)), (paid, paid));
    }
    assert!(is_update(&open_round(&mut bench, &problem, 4)));
    bench.receive_message(&ToDevice::RoundClosed(RoundId { round: 4, stage: 0 }), &[]);
    assert!(
        is_update(&open_round(&mut bench, &problem, 5)) && is_update(&open_round(&mut bench, &problem, 6))
    );
    assert_eq!((flash.0.borrow().spent, announced_spent(&mut bench)), (18, 18));
    // Another campaign numbers its rounds from 1, and these rounds are charged.
    bench.handle_until_idle(Event::LinkDown);
    bench.connect(8, 60_000);
    assert!(is_update(&open_round(&mut bench, &problem, 1)));
    // After a reset the same round is a repetition, which is not charged again.
    let mut bench = priced_bench(&problem, 256, Some(100), SLOT, &flash);
    bench.connect(8, 60_000);
    assert_eq!(
        decline_reason(&open_round(&mut bench, &problem, 1)),
        DeclineReason::RoundRepeated { last: 1 }
    );
    assert_eq!(flash.0.borrow().spent, 21);
    // An update that is not finite is charged, because that is only known after it is computed.
    let overflowing = {
        let (d, k) = (57, 8);
        let b: Vec<f32> = (0..d * k).map(|i| if i % k == i / k { 1.0 } else { 0.0 }).collect();
        let mut random = Random(1);
        let mut samples = Sliced::regression(random.normals(30 * d), random.normals(30), d, 1);
        samples.x.chunks_mut(d).for_each(|x| x[d - 1] = 3e38);
        Problem { d, k, c: 1, b, samples }
    };
    let flash = Flash::default();
    let mut bench = priced_bench(&overflowing, 4096, Some(100), SLOT, &flash);
    bench.connect(7, 60_000);
    let opening = overflowing.server(1, gradient_task(), Encoding::F32, 4096).opening_messages();
    assert!(bench.handle_event(Event::Message(&payload(&opening[0].0, &opening[0].1))).is_none());
    assert!(bench.handle_until_idle(Event::Tick).is_empty());
    assert_eq!(decline_reason(&bench.wake_up()), DeclineReason::UpdateNonFinite);
    assert_eq!((flash.0.borrow().spent, bench.session.counters().forfeited), (3, 1));
}

#[test]
fn unreadable_ledger_counts_as_spent() {
    let problem = create_problem(20, 2, 1);
    for is_all_spent in [false, true] {
        let flash = Flash::default();
        flash.0.borrow_mut().fail_load = !is_all_spent;
        flash.0.borrow_mut().spent = if is_all_spent { ALL_SPENT } else { 0 };
        let mut bench = priced_bench(&problem, 256, Some(u64::MAX), SLOT, &flash);
        bench.connect(7, 60_000);
        flash.0.borrow_mut().fail_load = false;
        for round in 1..4 {
            assert_eq!(
                decline_reason(&open_round(&mut bench, &problem, round)),
                DeclineReason::Budget { left: 0 }
            );
        }
        assert_eq!(bench.session.counters().ledger_lost, 1);
        assert_eq!(announced_spent(&mut bench), ALL_SPENT);
        assert!(!flash.0.borrow().calls.contains(&"save_spent"));
    }
}

/// A device without privacy does not read a ledger. A task whose updates have a cost but which announces no
/// privacy sends no update. Keys are independent of privacy.
#[test]
fn privacy_and_keys_are_independent() {
    let problem = create_problem(20, 2, 1);
    let flash = Flash::default();
    let mut bench = priced_bench(&problem, 256, None, SLOT, &flash);
    bench.connect(7, 60_000);
    assert_eq!(decline_reason(&open_round(&mut bench, &problem, 1)), DeclineReason::Budget { left: 0 });
    assert_eq!((flash.0.borrow().calls.len(), bench.session.counters().ledger_lost), (0, 0));
    assert_eq!(bench.session.privacy(), Privacy::None);
    for (budget, keyed) in [(None, false), (None, true), (Some(10), false), (Some(10), true)] {
        let flash = Flash::default();
        let protection = if keyed { Protection::Key(Key::new(0, [7; 32])) } else { Protection::Plaintext };
        let task = PricedTask::new(Linear::new(Heap::new(20, 2, 1)), budget, SLOT);
        let (source, random) = (problem.samples.clone(), ChaCha8Rng::seed_from_u64(1));
        let mut session = Session::new(session_config(256), protection, task, source, flash.clone(), random);
        let mut out = vec![0; session_config(256).transmit_capacity()];
        assert!(session.handle(Millis::ZERO, Event::LinkUp, &mut out).sent > 0);
        let calls = flash.0.borrow().calls.clone();
        assert_eq!(calls.contains(&"load_spent"), budget.is_some());
        assert_eq!(calls.contains(&"save_handshakes"), keyed);
    }
}

/// Creates a device with this budget that collects 30 streamed samples per round.
fn streaming_bench(budget: u64, flash: &Flash) -> Bench<NoRecording, PricedTask<Linear<Heap>>> {
    let config = Config { sampling: Sampling::Stream { samples: 30 }, ..session_config(256) };
    let task = PricedTask::new(Linear::new(Heap::streaming(20, 2, 1)), Some(budget), SLOT);
    let mut bench = Bench::with_task(config, task, NoRecording, flash.clone());
    bench.connect(7, 60_000);
    bench
}

/// Returns the message that opens a round of the streaming device.
fn opening_of(round: u32, problem: &Problem) -> (ToDevice, Vec<u8>) {
    let tensors = vec![(Role::Representation, 20, 2, problem.b.clone())];
    Server::new(round, gradient_task(), Encoding::F32, 256, tensors).opening_messages().remove(0)
}

#[test]
fn streaming_round_is_charged_once_before_the_first_sample() {
    let (problem, flash) = (create_problem(20, 2, 1), Flash::default());
    let mut bench = streaming_bench(5, &flash);
    let opening = |round| opening_of(round, &problem);
    let (message, body) = opening(1);
    assert!(bench.receive_message(&message, &body).is_empty());
    // The seed is drawn and the round is charged before the first sample.
    for i in 0..30 {
        assert_eq!(flash.0.borrow().spent, 3);
        let (x, target) = problem.samples.get(i);
        assert!(bench.handle_until_idle(Event::Sample(x, target)).is_empty(), "{i}");
    }
    assert_eq!(flash.0.borrow().spent, 3);
    assert_eq!(bench.last.wake.as_u64(), bench.now + SLOT);
    assert!(is_update(&bench.wake_up()));
    let (message, body) = opening(2);
    assert_eq!(decline_reason(&bench.receive_message(&message, &body)), DeclineReason::Budget { left: 2 });
    assert!(!bench.session.is_collecting());
}

/// A lost link loses the samples of the open round and its charge, because the same noise must not hide other
/// samples.
#[test]
fn lost_link_between_samples_costs_the_round() {
    let (problem, flash) = (create_problem(20, 2, 1), Flash::default());
    let mut bench = streaming_bench(100, &flash);
    let opening = |round| opening_of(round, &problem);
    let (message, body) = opening(1);
    assert!(bench.receive_message(&message, &body).is_empty());
    let (x, target) = problem.samples.get(0);
    assert!(bench.handle_until_idle(Event::Sample(x, target)).is_empty());
    bench.handle_until_idle(Event::LinkDown);
    bench.connect(7, 60_000);
    for _ in 0..3 {
        assert_eq!(decline_reason(&bench.receive_message(&message, &body)), DeclineReason::Device);
        assert!(!bench.session.is_collecting());
    }
    assert_eq!((flash.0.borrow().spent, bench.session.task().releases.len()), (3, 1));
    let (message, body) = opening(2);
    assert!(bench.receive_message(&message, &body).is_empty());
    assert!(bench.session.is_collecting());
    assert_eq!((flash.0.borrow().spent, bench.session.task().releases.len()), (6, 2));
}
