//! Tests of the round engine. Random histories of events are compared with a simple model, which predicts all
//! actions, and every campaign ends. Further tests check single rules.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::common::campaign::{
    D, ETA, ITERATIONS, K, Setup, StoredRound, honest_update, model_bits, random_setup, simulate_campaign,
    two_device_setup,
};
use crate::common::model::{Kind, Op, World, random_op};
use fedspan_engine::aggregate::Rule;
use fedspan_engine::algorithm::{Algorithm, FedRep, FedRepParameters, random_start};
use fedspan_engine::linalg::{Matrix, orthonormal, principal_angle_distance, to_f32};
use fedspan_engine::participation::DoubleBy;
use fedspan_engine::{Action, DeviceId, Engine, Event, Millis, Phase, RoundBroadcast, RoundRecord};
use fedspan_engine::{Request, Weighting};
use fedspan_protocol::message::{
    Ack, AckOutcome, Decline, DeclineReason, HeadSolve, Rejection, RoundId, Upload,
};
use fedspan_protocol::tensor::Encoding;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn engine_matches_model_and_terminates(setup in random_setup(), ops in proptest::collection::vec(random_op(), 0..80)) {
        let mut world = World::new(setup);
        for op in ops {
            world.apply(op);
        }
        world.finish_honestly();
        if world.model.phase == Phase::Failed {
            // A failed campaign remains failed.
            world.apply(Op::Join(DeviceId(50)));
            world.apply(Op::Tick);
            return Ok(());
        }
        prop_assert_eq!(world.finished, 1);
        let expected = setup.rounds + if setup.power { ITERATIONS } else { 0 };
        prop_assert_eq!(
            world.model.commits.len(),
            expected as usize,
            "the number of commits is not that of rounds"
        );
        // After the end, new and returning devices are still invited to fit their heads, but the campaign
        // finishes only once.
        for device in [100, 101] {
            world.apply(Op::Join(DeviceId(device)));
            let broadcast =
                world.pending.get(&DeviceId(device)).cloned().expect("no invitation to fit a head");
            prop_assert_eq!(broadcast.request.expects.len(), 0);
            world.apply(Op::Answer(DeviceId(device), Kind::Good));
            prop_assert_eq!(&world.counted[&DeviceId(device)].id, &broadcast.id);
        }
    }
}

/// A device that reconnects may send its update before it receives the broadcast. The connection discards
/// such an update. The update neither counts nor is rejected, and it counts when it is sent again.
#[test]
fn unread_update_keeps_device_in_round() {
    let mut engine = two_device_setup().engine();
    let mut actions = Vec::new();
    engine.handle(Millis::ZERO, Event::Joined(DeviceId(0)), &mut actions);
    engine.handle(Millis::ZERO, Event::Joined(DeviceId(1)), &mut actions);
    let broadcast = actions.iter().find_map(|action| match action {
        Action::Open(DeviceId(0), broadcast) => Some(Arc::clone(broadcast)),
        _ => None,
    });
    let broadcast = broadcast.expect("device 0 was not invited");
    let mut handle_event = |event| {
        let mut actions = Vec::new();
        engine.handle(Millis::ZERO, event, &mut actions);
        (actions, engine.counters())
    };
    let (actions, counters) = handle_event(Event::Unread(DeviceId(0), broadcast.id));
    assert_eq!((actions, counters.unread, counters.rejected()), (vec![], 1, 0));
    let ack = |device, id, outcome| vec![Action::Acknowledge(device, Ack { id, outcome })];
    let outcome = AckOutcome::Rejected(Rejection::NotAsked);
    assert_eq!(
        handle_event(Event::Unread(DeviceId(7), broadcast.id)).0,
        ack(DeviceId(7), broadcast.id, outcome)
    );
    let next_id = RoundId { round: broadcast.id.round + 1, stage: 0 };
    assert_eq!(
        handle_event(Event::Unread(DeviceId(0), next_id)).0,
        ack(DeviceId(0), next_id, AckOutcome::Rejected(Rejection::WrongRound))
    );
    let counted = handle_event(Event::Update(DeviceId(0), honest_update(DeviceId(0), &broadcast))).0;
    assert_eq!(counted, ack(DeviceId(0), broadcast.id, AckOutcome::Counted));
    handle_event(Event::Update(DeviceId(1), honest_update(DeviceId(1), &broadcast)));
    assert_eq!(
        handle_event(Event::Unread(DeviceId(0), broadcast.id)).0,
        ack(DeviceId(0), broadcast.id, AckOutcome::Late)
    );
}

/// All devices of the cohort leave and never return, but another device is present and is invited instead.
#[test]
fn lost_cohort_is_replaced_by_present_devices() {
    let mut world = World::new(two_device_setup());
    world.apply(Op::Join(DeviceId(0)));
    world.apply(Op::Join(DeviceId(1)));
    world.apply(Op::Leave(DeviceId(0)));
    world.apply(Op::Leave(DeviceId(1)));
    world.apply(Op::Join(DeviceId(2)));
    assert!(world.pending.is_empty());
    world.apply(Op::Advance(100));
    world.apply(Op::Tick);
    assert!(world.pending.contains_key(&DeviceId(2)));
    world.finish_honestly();
    assert_eq!(world.model.phase, Phase::Finished);
}

/// A device that declines because it has no samples must not end the campaign if other devices have samples.
#[test]
fn declining_cohort_is_replaced_by_uninvited_devices() {
    let fraction = Some((0.2, 1.0));
    let mut world = World::new(Setup { fleet_size: 4, fraction, deadline: None, ..two_device_setup() });
    for device in 0..4 {
        world.apply(Op::Join(DeviceId(device)));
    }
    let invited: Vec<DeviceId> = world.pending.keys().copied().collect();
    assert_eq!(invited.len(), 1);
    world.apply(Op::Decline(invited[0], true));
    assert_ne!(world.model.phase, Phase::Failed);
    world.finish_honestly();
    assert_eq!(world.model.phase, Phase::Finished);
}

#[test]
fn campaign_fails_after_three_declined_rounds() {
    let mut world = World::new(two_device_setup());
    world.apply(Op::Join(DeviceId(0)));
    world.apply(Op::Join(DeviceId(1)));
    for _ in 0..3 {
        assert_ne!(world.model.phase, Phase::Failed);
        world.apply(Op::Decline(DeviceId(1), true));
        world.apply(Op::Decline(DeviceId(0), true));
    }
    assert_eq!(world.model.phase, Phase::Failed);
}

/// Campaign that the first `devices` devices have joined.
fn world_with_devices(setup: Setup, devices: u64) -> World {
    let mut world = World::new(setup);
    for device in 0..devices {
        world.apply(Op::Join(DeviceId(device)));
    }
    world
}

/// All four devices have answered, but one update is missing for the minimum. The round stays open with its
/// updates, and the devices that declined or were rejected are invited to the same round again.
#[test]
fn short_round_keeps_updates_and_retries_later() {
    let setup =
        Setup { fleet_size: 4, min_count: 3, deadline: None, retry_delay: Some(70), ..two_device_setup() };
    let mut world = world_with_devices(setup, 4);
    let first_round = world.model.last;
    world.apply(Op::Answer(DeviceId(0), Kind::Good));
    world.apply(Op::Answer(DeviceId(1), Kind::Norm));
    world.apply(Op::Advance(5));
    world.apply(Op::Answer(DeviceId(2), Kind::Good));
    world.pending.clear();
    world.apply(Op::Decline(DeviceId(3), true));
    assert_eq!((world.model.last, world.model.commits.len()), (first_round, 0));
    assert_eq!(world.engine.wake(), Some(Millis::new(75)));
    // A device that reconnects and declines again does not postpone the retry.
    world.apply(Op::Advance(10));
    world.apply(Op::Leave(DeviceId(3)));
    world.apply(Op::Join(DeviceId(3)));
    assert_eq!(world.pending.remove(&DeviceId(3)).map(|broadcast| broadcast.id), Some(first_round));
    world.apply(Op::Decline(DeviceId(3), true));
    assert_eq!(world.engine.wake(), Some(Millis::new(75)));
    for _ in 0..10 {
        world.model.now = world.engine.wake().unwrap().as_u64();
        world.apply(Op::Tick);
        assert_eq!(world.pending.keys().copied().collect::<Vec<_>>(), [1, 3].map(DeviceId));
        world.pending.clear();
        world.apply(Op::Decline(DeviceId(3), true));
        world.apply(Op::Decline(DeviceId(1), true));
        assert_eq!(world.engine.open_round().unwrap().participants, [0, 2].map(DeviceId));
    }
    // A new device can complete the round, and so can a device that has declined before.
    world.apply(Op::Join(DeviceId(6)));
    assert_eq!(world.pending[&DeviceId(6)].id, first_round);
    world.apply(Op::Decline(DeviceId(6), true));
    world.model.now = world.engine.wake().unwrap().as_u64();
    world.apply(Op::Tick);
    world.apply(Op::Answer(DeviceId(3), Kind::Good));
    assert_eq!(world.model.commits.len(), 0, "the round closed although other devices may still answer");
    world.apply(Op::Decline(DeviceId(6), true));
    world.apply(Op::Decline(DeviceId(1), true));
    assert_eq!(world.model.commits, [first_round.round]);
    world.finish_honestly();
    assert_eq!(world.model.phase, Phase::Finished);
}

#[test]
fn short_round_invites_uninvited_devices_first() {
    let fraction = Some((0.5, 1.0));
    let mut world = world_with_devices(
        Setup { fleet_size: 4, min_count: 2, fraction, deadline: None, ..two_device_setup() },
        4,
    );
    let invited: Vec<DeviceId> = world.pending.keys().copied().collect();
    assert_eq!(invited.len(), 2);
    world.apply(Op::Answer(invited[0], Kind::Good));
    world.apply(Op::Decline(invited[1], true));
    assert_eq!(world.model.commits.len(), 0);
    let now: BTreeSet<DeviceId> = world.pending.keys().copied().collect();
    let newly_invited: Vec<DeviceId> = now.into_iter().filter(|device| !invited.contains(device)).collect();
    assert_eq!(newly_invited.len(), 2);
    world.apply(Op::Answer(newly_invited[1], Kind::Good));
    assert_eq!(world.model.commits.len(), 1);
}

/// The minimum holds although the policy waits for fewer updates: the round invites all devices, and no round
/// opens with fewer devices.
#[test]
fn minimum_holds_against_smaller_target_of_the_policy() {
    let fraction = Some((0.2, 1.0));
    let setup = Setup { fleet_size: 2, min_count: 5, fraction, deadline: None, ..two_device_setup() };
    let mut world = world_with_devices(setup, 4);
    assert!(world.engine.open_round().is_none(), "a round has opened with too few devices");
    world.apply(Op::Join(DeviceId(4)));
    assert_eq!(world.pending.len(), 5);
    for device in 0..4 {
        world.apply(Op::Answer(DeviceId(device), Kind::Good));
        assert_eq!(world.model.commits.len(), 0, "a round has closed with {} updates", device + 1);
    }
    world.apply(Op::Answer(DeviceId(4), Kind::Good));
    assert_eq!(world.model.commits.len(), 1);
}

/// Devices that are awake 2 s of every 20 s in turn, and never together, take part in every round.
#[test]
fn fleet_that_is_never_awake_together_trains() {
    for every in [None, Some(20_000)] {
        let setup = Setup {
            fleet_size: 4,
            rounds: 10,
            min_count: 4,
            deadline: Some(45_000),
            absence: 60_000,
            every,
            ..two_device_setup()
        };
        let mut world = World::new(setup);
        let mut sleep = [0; 4];
        for period in 0..40 {
            for device in 0..4_u64 {
                world.model.now = period * 20_000 + device * 5_000;
                while let Some(wake) = world.engine.wake().filter(|wake| wake.as_u64() <= world.model.now) {
                    let now = std::mem::replace(&mut world.model.now, wake.as_u64());
                    world.apply(Op::Tick);
                    world.model.now = now;
                }
                if world.model.now < sleep[device as usize] {
                    continue;
                }
                let told = world.effects.actions.len();
                world.apply(Op::Join(DeviceId(device)));
                world.apply(Op::Advance(1_000));
                if world.pending.contains_key(&DeviceId(device)) {
                    world.apply(Op::Answer(DeviceId(device), Kind::Good));
                }
                world.apply(Op::Advance(1_000));
                world.apply(Op::Leave(DeviceId(device)));
                // A device that obeys the server sleeps at least until a round can open.
                for action in &world.effects.actions[told..] {
                    if let Action::NextRound(id, time) = action {
                        assert_eq!(*id, DeviceId(device));
                        sleep[device as usize] = world.model.now - 1_000 + time.as_u64();
                    }
                }
            }
        }
        let rounds: Vec<&RoundRecord> = world
            .effects
            .actions
            .iter()
            .filter_map(|action| match action {
                Action::Commit(record) => Some(record.as_ref()),
                _ => None,
            })
            .collect();
        assert_eq!(rounds.len(), 10, "{every:?}");
        assert!(rounds.iter().all(|round| round.participants.len() == 4), "a round lost a device");
        let last = rounds[9].closed_at.as_u64();
        assert!(last <= 11 * 20_000, "ten rounds have taken {last} ms with {every:?}");
        assert_eq!(world.engine.phase(), Phase::Finished);
    }
}

/// Rounds open no earlier than the interval allows; devices that join before are informed of the time, and a restart
/// forgets nothing.
#[test]
fn rounds_keep_the_shortest_interval() {
    let setup = Setup { every: Some(1_000), rounds: 3, absence: 5_000, ..two_device_setup() };
    let mut world = world_with_devices(setup, 2);
    for round in 1..3_u64 {
        assert_eq!(world.engine.open_round().unwrap().opened_at, Millis::new((round - 1) * 1_000));
        world.apply(Op::Advance(10));
        world.apply(Op::Answer(DeviceId(0), Kind::Good));
        assert!(world.effects.actions.contains(&Action::NextRound(DeviceId(0), Millis::new(990))));
        world.apply(Op::Answer(DeviceId(1), Kind::Good));
        assert!(world.engine.open_round().is_none(), "the round after {round} opened too early");
        world.apply(Op::Advance(90));
        world.apply(Op::Leave(DeviceId(1)));
        world.apply(Op::Join(DeviceId(1)));
        // The second device wakes later, by 0.618 of a sixteenth of the interval.
        assert_eq!(world.effects.actions.last(), Some(&Action::NextRound(DeviceId(1), Millis::new(938))));
        let mut restarted = setup.engine();
        assert!(restarted.replay(Millis::new(world.model.now), &world.effects.records));
        let opens_at = Some(Millis::new(round * 1_000));
        assert_eq!(restarted.deadline_state().unwrap().deadline, opens_at);
        assert_eq!(world.engine.wake(), opens_at);
        world.apply(Op::Advance(900));
        world.apply(Op::Tick);
    }
    // The final heads need not wait.
    world.apply(Op::Answer(DeviceId(0), Kind::Good));
    world.apply(Op::Answer(DeviceId(1), Kind::Good));
    assert_eq!(world.engine.phase(), Phase::FitHead);
}

#[test]
fn short_round_without_retry_delay_fails_after_three_attempts() {
    let setup = Setup { fleet_size: 3, min_count: 3, deadline: None, ..two_device_setup() };
    let mut engine = setup.engine();
    let mut actions = Vec::new();
    for device in 0..3 {
        engine.handle(Millis::ZERO, Event::Joined(DeviceId(device)), &mut actions);
    }
    let broadcast = Arc::clone(&engine.open_round().unwrap().broadcast);
    let decline = Decline { id: broadcast.id, reason: DeclineReason::NoSamples };
    let mut handle_event = |event| {
        let mut actions = Vec::new();
        engine.handle(Millis::ZERO, event, &mut actions);
        actions.retain(|action| !matches!(action, Action::Acknowledge(..)));
        actions
    };
    let invite_again = |device| Action::Open(device, Arc::clone(&broadcast));
    assert_eq!(handle_event(Event::Update(DeviceId(2), honest_update(DeviceId(2), &broadcast))), []);
    assert_eq!(handle_event(Event::Declined(DeviceId(0), decline)), []);
    assert_eq!(
        handle_event(Event::Declined(DeviceId(1), decline)),
        [invite_again(DeviceId(0)), invite_again(DeviceId(1))]
    );
    // Another update counts, so the number of attempts is reset.
    assert_eq!(handle_event(Event::Update(DeviceId(0), honest_update(DeviceId(0), &broadcast))), []);
    for _ in 0..2 {
        assert_eq!(handle_event(Event::Declined(DeviceId(1), decline)), [invite_again(DeviceId(1))]);
        // A repeated update is not an attempt.
        assert_eq!(handle_event(Event::Update(DeviceId(0), honest_update(DeviceId(0), &broadcast))), []);
    }
    let actions = handle_event(Event::Declined(DeviceId(1), decline));
    let [Action::Failed(failure)] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(
        failure.to_string(),
        "round 1 has 2 of the 3 updates that close it, and no other device can answer; \
         device 1: declined, the device has no usable sample"
    );
}

/// When the deadline passes because a device never returned, connected devices that declined are invited
/// again.
#[test]
fn missed_deadline_invites_declined_devices_again() {
    let setup =
        Setup { fleet_size: 3, min_count: 2, retry_delay: Some(5), absence: 500, ..two_device_setup() };
    let mut world = world_with_devices(setup, 3);
    world.apply(Op::Leave(DeviceId(0)));
    world.apply(Op::Answer(DeviceId(1), Kind::Good));
    world.pending.clear();
    world.apply(Op::Decline(DeviceId(2), true));
    world.apply(Op::Advance(100));
    world.apply(Op::Tick);
    assert_eq!(world.pending.keys().copied().collect::<Vec<_>>(), [DeviceId(2)]);
    world.apply(Op::Answer(DeviceId(2), Kind::Good));
    assert_eq!(
        world.model.commits.len(),
        0,
        "the round closed although device 0 may return until the next deadline"
    );
    world.apply(Op::Advance(100));
    world.apply(Op::Tick);
    assert_eq!(world.model.commits.len(), 1);
}

/// An update that arrives after the deadline is acknowledged as `Late`, and the model equals that of a
/// campaign without the update.
#[test]
fn late_update_never_counts() {
    let setup = Setup { fleet_size: 3, rounds: 3, ..two_device_setup() };
    let run_campaign = |straggler_answers: bool| {
        let mut engine = setup.engine();
        let mut actions = Vec::new();
        for device in 0..3 {
            engine.handle(Millis::ZERO, Event::Joined(DeviceId(device)), &mut actions);
        }
        for round in 0..3u64 {
            let began = 100 * round;
            let broadcast = Arc::clone(&engine.open_round().unwrap().broadcast);
            for device in 0..2 {
                engine.handle(
                    Millis::new(began + 99),
                    Event::Update(DeviceId(device), honest_update(DeviceId(device), &broadcast)),
                    &mut actions,
                );
            }
            assert_eq!(engine.wake(), Some(Millis::new(began + 100)));
            actions.clear();
            engine.handle(Millis::new(began + 100), Event::Tick, &mut actions);
            assert!(
                actions.contains(&Action::Close(DeviceId(2), broadcast.id)),
                "no Close for the device that is late"
            );
            let counted = actions.iter().find_map(|action| match action {
                Action::Commit(record) => Some((record.participants.clone(), record.short_of)),
                _ => None,
            });
            assert_eq!(counted, Some((vec![DeviceId(0), DeviceId(1)], Some(3))));
            if straggler_answers {
                actions.clear();
                engine.handle(
                    Millis::new(began + 100),
                    Event::Update(DeviceId(2), honest_update(DeviceId(2), &broadcast)),
                    &mut actions,
                );
                let ack = Ack { id: broadcast.id, outcome: AckOutcome::Late };
                assert_eq!(actions, [Action::Acknowledge(DeviceId(2), ack)]);
            }
        }
        assert_eq!(engine.counters().late, if straggler_answers { 3 } else { 0 });
        engine.representation().clone()
    };
    assert_eq!(run_campaign(true), run_campaign(false));
}

/// Campaign with doubling participation and no deadline. Stages have one round each, and the first waits for
/// three devices.
fn doubling_setup() -> Setup {
    Setup {
        fleet_size: 6,
        rounds: 3,
        deadline: None,
        doubling: Some((3, 1, DoubleBy::Devices)),
        retry_delay: Some(5),
        ..two_device_setup()
    }
}

/// Number of updates that completes the open round.
fn waits_for(world: &World) -> usize {
    world.engine.open_round().unwrap().target
}

/// Four of six devices leave and never return. The round that waits for three updates closes with two and is
/// counted as short; the next stage waits for the two present devices.
#[test]
fn stage_that_lost_devices_closes_short() {
    let mut world = world_with_devices(doubling_setup(), 6);
    assert_eq!(waits_for(&world), 3);
    for device in 0..4 {
        world.apply(Op::Leave(DeviceId(device)));
    }
    world.apply(Op::Answer(DeviceId(4), Kind::Good));
    world.apply(Op::Answer(DeviceId(5), Kind::Good));
    assert_eq!(world.model.commits.len(), 0, "the round closed although the devices may return");
    world.apply(Op::Advance(49));
    world.apply(Op::Tick);
    assert_eq!(world.model.commits.len(), 0);
    assert_eq!(world.engine.wake(), Some(Millis::new(50)));
    world.apply(Op::Advance(1));
    world.apply(Op::Tick);
    assert_eq!(world.model.commits.len(), 1);
    let counters = world.engine.counters();
    assert_eq!((counters.short, counters.absent), (1, 4));
    assert_eq!(waits_for(&world), 2);
    // A device that returns increases the target again.
    world.apply(Op::Join(DeviceId(0)));
    world.apply(Op::Answer(DeviceId(4), Kind::Good));
    world.apply(Op::Answer(DeviceId(5), Kind::Good));
    assert_eq!(waits_for(&world), 3);
}

/// All devices have left and become absent, and no update has counted. Any device that joins, even a new one,
/// is invited and can complete the round.
#[test]
fn abandoned_round_invites_any_device_that_joins() {
    let mut world = world_with_devices(Setup { fleet_size: 3, ..doubling_setup() }, 3);
    for device in 0..3 {
        world.apply(Op::Leave(DeviceId(device)));
    }
    world.apply(Op::Advance(60));
    world.apply(Op::Tick);
    assert_eq!(world.engine.wake(), None);
    world.apply(Op::Join(DeviceId(6)));
    assert!(world.pending.contains_key(&DeviceId(6)));
    world.apply(Op::Answer(DeviceId(6), Kind::Good));
    assert_eq!(world.model.commits.len(), 1);
}

/// In every stage the first update to arrive contains values that are not finite. Its device is rejected and
/// replaced by the next arrival.
#[test]
fn rejected_device_is_replaced_by_next_arrival() {
    let mut world = world_with_devices(doubling_setup(), 6);
    for (stage, counted) in [3, 5, 5].into_iter().enumerate() {
        assert_eq!(world.model.commits.len(), stage);
        world.apply(Op::Answer(DeviceId(0), Kind::NotFinite(true)));
        for device in 1..=counted {
            assert_eq!(world.model.commits.len(), stage, "device {device}");
            world.apply(Op::Answer(DeviceId(device), Kind::Good));
        }
    }
    assert_eq!(world.model.commits.len(), 3);
    let counters = world.engine.counters();
    assert_eq!((counters.non_finite, counters.counted), (3, 13));
    assert_eq!(
        counters.short, 2,
        "not two rounds were short, which waited for six devices and closed with five"
    );
}

/// If all devices are absent at the retry time, no timeout is due until a device joins.
#[test]
fn nothing_is_due_without_devices() {
    let setup =
        Setup { fleet_size: 1, absence: 0, deadline: None, retry_delay: Some(50), ..two_device_setup() };
    let mut world = world_with_devices(setup, 1);
    world.apply(Op::Decline(DeviceId(0), true));
    world.apply(Op::Leave(DeviceId(0)));
    world.apply(Op::Advance(50));
    world.apply(Op::Tick);
    assert_eq!(world.engine.wake(), None);
    world.apply(Op::Join(DeviceId(3)));
    world.finish_honestly();
    assert_eq!(world.model.phase, Phase::Finished);
}

/// A campaign with a single device continues after the device has declined a round, since the round is
/// repeated under a new id.
#[test]
fn declined_round_is_repeated_under_new_id() {
    let mut world = World::new(Setup { fleet_size: 1, ..two_device_setup() });
    world.apply(Op::Join(DeviceId(0)));
    let previous_number = world.model.last.round;
    world.apply(Op::Decline(DeviceId(0), true));
    assert_eq!(world.model.last.round, previous_number + 1);
    world.finish_honestly();
    assert_eq!(world.model.phase, Phase::Finished);
}

/// The last round of the start, which computes the initial representation, closes at its deadline after all
/// devices have left. The checkpoint of the commit contains the algorithm's state nevertheless.
#[test]
fn start_that_ends_without_devices_can_be_restored() {
    let setup = Setup { power: true, fedavg: true, absence: 0, ..two_device_setup() };
    let mut engine = setup.engine();
    let mut records = Vec::new();
    let mut handle_event = |engine: &mut Engine, now, event| {
        let mut actions = Vec::new();
        engine.handle(now, event, &mut actions);
        let commits =
            actions.iter().filter_map(|a| if let Action::Commit(r) = a { Some(r.phase) } else { None });
        records.extend(commits);
    };
    for device in [0, 1] {
        handle_event(&mut engine, Millis::ZERO, Event::Joined(DeviceId(device)));
    }
    for device in [0, 1, 0] {
        let broadcast = Arc::clone(&engine.open_round().unwrap().broadcast);
        handle_event(
            &mut engine,
            Millis::new(1),
            Event::Update(DeviceId(device), honest_update(DeviceId(device), &broadcast)),
        );
    }
    for device in [0, 1] {
        handle_event(&mut engine, Millis::new(2), Event::Left(DeviceId(device)));
    }
    handle_event(&mut engine, Millis::new(500), Event::Tick);
    assert_eq!(records, [Phase::Start(1), Phase::Start(2)]);
    let mut resumed = setup.engine();
    assert!(resumed.resume(Millis::new(500), &engine.checkpoint()));
    assert_eq!(model_bits(&resumed), model_bits(&engine));
}

/// A server restarts in the round of final heads. Any device that joins is invited at once, and the campaign
/// finishes when all devices of the fleet have fitted their heads.
#[test]
fn finished_campaign_offers_heads_after_restart() {
    let setup = Setup { fleet_size: 3, ..two_device_setup() };
    let campaign = simulate_campaign(setup.engine(), 3, usize::MAX);
    let last_round = campaign.stored.last().unwrap();
    assert_eq!(last_round.phase, Phase::Train(2));
    let mut engine = setup.engine();
    assert!(engine.resume(Millis::ZERO, &last_round.checkpoint));
    let mut finished = 0;
    for device in [7, 0, 1, 2, 8] {
        let mut actions = Vec::new();
        engine.handle(Millis::new(5), Event::Joined(DeviceId(device)), &mut actions);
        let [Action::Open(invited_device, broadcast)] = actions.as_slice() else { panic!("{actions:?}") };
        assert_eq!(*invited_device, DeviceId(device));
        let answer = Event::Update(DeviceId(device), honest_update(DeviceId(device), broadcast));
        let mut actions = Vec::new();
        engine.handle(Millis::new(6), answer, &mut actions);
        finished += actions.iter().filter(|action| **action == Action::Finished).count();
        assert_eq!(engine.phase() == Phase::Finished, [2, 8].contains(&device), "{device}");
    }
    assert_eq!(finished, 1);
}

/// Training ends after the first round whose change is below `stop_change`, with the result of a campaign of
/// this number of rounds. A server that is restarted in between gives the same result.
#[test]
fn small_change_ends_training() {
    for fedavg in [false, true] {
        let setup = Setup { fleet_size: 3, rounds: 12, power: true, fedavg, ..two_device_setup() };
        let starts = ITERATIONS as usize;
        let uninterrupted = simulate_campaign(setup.engine(), 3, usize::MAX);
        let basis = |stored_round: &StoredRound| {
            orthonormal(&Matrix::from_column_slice(D, K, &stored_round.checkpoint.state[..D * K])).unwrap()
        };
        let bases: Vec<Matrix> = uninterrupted.stored[starts - 1..].iter().map(basis).collect();
        let changes: Vec<f64> =
            bases.windows(2).map(|pair| principal_angle_distance(&pair[0], &pair[1])).collect();
        // With this bound, round 6 or an earlier round ends training.
        let stop_change = Some(changes[5] * 1.0001);
        let rounds_trained = changes.iter().position(|change| Some(*change) < stop_change).unwrap() + 1;
        let stopping = Setup { stop_change, ..setup };
        let ended = simulate_campaign(stopping.engine(), 3, usize::MAX);
        assert_eq!(ended.engine.phase(), Phase::Finished);
        assert_eq!(ended.stored.len(), starts + rounds_trained, "{changes:?}");
        assert_eq!(ended.stored[starts + rounds_trained - 1].phase, Phase::Train(rounds_trained as u32));
        for (stored_round, number) in ended.stored.iter().zip(1..) {
            let record = &stored_round.record;
            assert_eq!(record.ends_training, number == starts + rounds_trained);
            let expected = number.checked_sub(starts + 1).map(|index| changes[index]);
            assert_eq!(
                record.change.map(f64::to_bits),
                expected.map(f64::to_bits),
                "the change in a round of the start was recorded"
            );
        }
        assert_eq!(
            ended.stored.last().unwrap().checkpoint.state,
            uninterrupted.stored[starts + rounds_trained - 1].checkpoint.state
        );

        // A server that restarts before the round that ends training repeats this round.
        let previous_round = &ended.stored[starts + rounds_trained - 2];
        let mut engine = stopping.engine();
        assert!(engine.resume(Millis::ZERO, &previous_round.checkpoint));
        let resumed_campaign = simulate_campaign(engine, 3, usize::MAX);
        assert_eq!(resumed_campaign.stored.len(), 1);
        assert_eq!(model_bits(&resumed_campaign.engine), model_bits(&ended.engine));
        // After a restart following the round that ends training, heads are fitted at once.
        let final_round = ended.stored.last().unwrap();
        let mut engine = stopping.engine();
        assert!(engine.resume(Millis::ZERO, &final_round.checkpoint));
        assert_eq!(engine.checkpoint().done, final_round.phase);
        let mut actions = Vec::new();
        engine.handle(Millis::ZERO, Event::Joined(DeviceId(9)), &mut actions);
        let [Action::Open(DeviceId(9), broadcast)] = actions.as_slice() else { panic!("{actions:?}") };
        assert_eq!((engine.phase(), broadcast.request.expects.len()), (Phase::FitHead, 0));
    }
}

/// The criterion `stop_change` does not end the start, even if it is 1.
#[test]
fn small_change_does_not_end_start() {
    let campaign = simulate_campaign(
        Setup { power: true, stop_change: Some(1.0), ..two_device_setup() }.engine(),
        2,
        usize::MAX,
    );
    let phases: Vec<Phase> = campaign.stored.iter().map(|stored_round| stored_round.phase).collect();
    assert_eq!(phases, [Phase::Start(1), Phase::Start(2), Phase::Train(1)]);
}

#[test]
fn stopped_training_closes_round_and_fits_heads() {
    let mut engine = two_device_setup().engine();
    let mut actions = Vec::new();
    engine.handle(Millis::ZERO, Event::Joined(DeviceId(0)), &mut actions);
    engine.finish_training(Millis::ZERO, &mut actions);
    assert_eq!((engine.phase(), actions.len()), (Phase::Waiting, 0));
    engine.handle(Millis::ZERO, Event::Joined(DeviceId(1)), &mut actions);
    let first_id = engine.open_round().unwrap().broadcast.id;
    let mut actions = Vec::new();
    engine.finish_training(Millis::new(1), &mut actions);
    let closed: Vec<_> =
        actions.iter().filter(|a| matches!(a, Action::Close(_, id) if *id == first_id)).collect();
    assert_eq!(closed.len(), 2);
    assert_eq!(engine.phase(), Phase::FitHead);
    assert!(engine.open_round().unwrap().broadcast.id > first_id);
}

/// A rehearsal of a round, with updates that the engine has or has not received, gives the representation that the
/// round then gives, bit for bit, and leaves the engine as it was. What the round would reject does not count.
#[test]
fn rehearsal_gives_what_the_round_gives() {
    for rule in [Rule::MEAN, Rule::SPECTRAL_FILTER, Rule::GEOMETRIC_MEDIAN] {
        let setup = Setup { power: true, fedavg: false, rule, ..two_device_setup() };
        let mut engine = setup.engine();
        let mut actions = Vec::new();
        assert!(engine.rehearsal().is_none());
        for device in [0, 1] {
            engine.handle(Millis::ZERO, Event::Joined(DeviceId(device)), &mut actions);
        }
        for round in 0..ITERATIONS + 2 {
            let broadcast = Arc::clone(&engine.open_round().unwrap().broadcast);
            let [first, second] = [0, 1].map(|device| honest_update(DeviceId(device), &broadcast));
            let mut none_received = engine.rehearsal().unwrap();
            assert!(
                none_received.receive(DeviceId(1), &second) && none_received.receive(DeviceId(0), &first)
            );
            let all_rehearsed = none_received.close();
            let before = engine.representation().clone();
            engine.handle(Millis::ZERO, Event::Update(DeviceId(0), first), &mut actions);
            let mut first_received = engine.rehearsal().unwrap();
            let mut bad = second.clone();
            bad.tensors[0].values[0] = f32::NAN;
            assert!(
                !first_received.receive(DeviceId(1), &bad) && !first_received.receive(DeviceId(7), &second)
            );
            let mut copy = first_received.copy().unwrap();
            assert!(copy.receive(DeviceId(1), &second));
            let (rehearsed, rehearsed_alone) = (copy.close(), first_received.close());
            assert_eq!(engine.representation(), &before, "{rule:?}, round {round}");
            engine.handle(Millis::ZERO, Event::Update(DeviceId(1), second), &mut actions);
            let next = &engine.open_round().unwrap().broadcast.request.tensors[0];
            assert_eq!(next.values, to_f32(&rehearsed), "{rule:?}, round {round}");
            assert_eq!(all_rehearsed, rehearsed, "{rule:?}, round {round}");
            assert_ne!(rehearsed_alone, rehearsed, "{rule:?}, round {round}");
        }
    }
}

/// A value that the encoding cannot represent is an error, and is not sent as another value.
#[test]
fn unencodable_value_is_not_sent() {
    let (_, request) = request_of_f16(65_000.0);
    assert!(RoundBroadcast::new(RoundId { round: 1, stage: 0 }, request).is_ok());
    for value in [1e5, f32::NAN, f32::INFINITY] {
        let (index, request) = request_of_f16(value);
        let error = RoundBroadcast::new(RoundId { round: 1, stage: 0 }, request).unwrap_err();
        assert_eq!(error, fedspan_protocol::Error::NonFinite { index });
    }
}

/// A request with encoding f16 that contains `value`, and the index of this value.
fn request_of_f16(value: f32) -> (usize, Request) {
    let parameters = FedRepParameters {
        step_size: 0.5,
        head: HeadSolve::LeastSquares { ridge: 0.0 },
        upload: Upload::Gradient,
        download_encoding: Encoding::F16,
        upload_encoding: Encoding::F32,
        weighting: Weighting::Uniform,
        rule: Rule::MEAN,
    };
    let mut request = FedRep::new(random_start(4, 2, 0), parameters).request();
    request.tensors[0].values[5] = value;
    (5, request)
}

/// The only update of a round makes the representation rank deficient: its step equals the first column of
/// the representation.
#[test]
fn rank_deficient_round_is_repeated() {
    let run_rank_deficient_round = |retry_delay| {
        let setup = Setup {
            fleet_size: 1,
            min_count: 1,
            power: false,
            fedavg: false,
            retry_delay,
            ..two_device_setup()
        };
        let mut engine = setup.engine();
        let mut actions = Vec::new();
        engine.handle(Millis::ZERO, Event::Joined(DeviceId(0)), &mut actions);
        let broadcast = Arc::clone(&engine.open_round().unwrap().broadcast);
        let mut update = honest_update(DeviceId(0), &broadcast);
        for (index, value) in update.tensors[0].values.iter_mut().enumerate() {
            let broadcast_value = broadcast.request.tensors[0].values[index];
            *value = if index % K == 0 { broadcast_value / ETA } else { 0.0 };
        }
        actions.clear();
        engine.handle(Millis::new(1), Event::Update(DeviceId(0), update), &mut actions);
        (engine, broadcast.id, actions)
    };
    let (mut engine, id, actions) = run_rank_deficient_round(Some(5));
    assert!(
        matches!(actions[..], [Action::Acknowledge(DeviceId(0), Ack { outcome: AckOutcome::Counted, .. })]),
        "{actions:?}"
    );
    assert_eq!((engine.counters().ruined, engine.wake()), (1, Some(Millis::new(6))));
    let mut actions = Vec::new();
    engine.handle(Millis::new(6), Event::Tick, &mut actions);
    let [Action::Open(DeviceId(0), retry)] = actions.as_slice() else { panic!("{actions:?}") };
    assert!(retry.id.round > id.round && retry.request == engine.open_round().unwrap().broadcast.request);
    let update = honest_update(DeviceId(0), retry);
    engine.handle(Millis::new(7), Event::Update(DeviceId(0), update), &mut actions);
    assert!(actions.iter().any(|action| matches!(action, Action::Commit(_))));
    // With a retry delay of 0 the attempts are bounded.
    let (mut engine, _, _) = run_rank_deficient_round(Some(0));
    let mut failed = false;
    for _ in 0..3 {
        let mut actions = Vec::new();
        engine.handle(Millis::new(2), Event::Tick, &mut actions);
        let Some(Action::Open(DeviceId(0), broadcast)) = actions.pop() else { break };
        let mut update = honest_update(DeviceId(0), &broadcast);
        update.tensors[0].values.iter_mut().zip(&broadcast.request.tensors[0].values).enumerate().for_each(
            |(index, (value, broadcast_value))| {
                *value = if index % K == 0 { broadcast_value / ETA } else { 0.0 }
            },
        );
        engine.handle(Millis::new(2), Event::Update(DeviceId(0), update), &mut actions);
        failed = matches!(actions.last(), Some(Action::Failed(_)));
    }
    assert!(failed && engine.counters().ruined == 2, "{:?}", engine.counters());
    // Without a retry delay the campaign fails at once.
    let (_, _, actions) = run_rank_deficient_round(None);
    assert!(matches!(actions[..], [_, Action::Failed(_)]), "{actions:?}");
}

/// Devices that were invited after the round had opened may have kept it open. After a restart, devices
/// without a counted update are not restored, so the round closes with the updates that counted.
#[test]
fn widened_round_is_restored() {
    let setup = Setup { fleet_size: 3, min_count: 2, ..two_device_setup() };
    let mut engine = setup.engine();
    let mut actions = Vec::new();
    (0..3).for_each(|device| engine.handle(Millis::ZERO, Event::Joined(DeviceId(device)), &mut actions));
    let (checkpoint, broadcast) = (engine.checkpoint(), Arc::clone(&engine.open_round().unwrap().broadcast));
    engine.handle(
        Millis::new(1),
        Event::Update(DeviceId(0), honest_update(DeviceId(0), &broadcast)),
        &mut actions,
    );
    for device in [1, 2] {
        let decline = Decline { id: broadcast.id, reason: DeclineReason::NoSamples };
        engine.handle(Millis::new(1), Event::Declined(DeviceId(device), decline), &mut actions);
    }
    [7, 8]
        .into_iter()
        .for_each(|device| engine.handle(Millis::new(2), Event::Joined(DeviceId(device)), &mut actions));
    engine.handle(
        Millis::new(3),
        Event::Update(DeviceId(7), honest_update(DeviceId(7), &broadcast)),
        &mut actions,
    );
    let round = engine.open_round().unwrap();
    assert_eq!(
        (round.broadcast.id, round.participants.as_slice()),
        (broadcast.id, &[0, 7].map(DeviceId)[..])
    );

    let mut restored = setup.engine();
    assert!(restored.resume(Millis::new(3), &checkpoint));
    [1, 2].into_iter().for_each(|device| restored.mark_excluded(DeviceId(device)));
    for (time, device) in [(1, 0), (3, 7)] {
        assert!(
            restored.replay_update(
                Millis::new(time),
                DeviceId(device),
                &honest_update(DeviceId(device), &broadcast)
            ),
            "{device}"
        );
    }
    let mut actions = Vec::new();
    restored.handle(Millis::new(3), Event::Resumed, &mut actions);
    let Some(Action::Commit(record)) = actions.first() else { panic!("{actions:?}") };
    assert_eq!((record.id, record.participants.as_slice()), (broadcast.id, &[0, 7].map(DeviceId)[..]));
}

/// All devices had left when the server stopped, and one of them never returns. After a delay the next round
/// opens without it.
#[test]
fn restored_round_does_not_wait_forever() {
    let setup = Setup { fleet_size: 3, min_count: 2, retry_delay: Some(5_000), ..two_device_setup() };
    let mut engine = setup.engine();
    let mut actions = Vec::new();
    (0..3).for_each(|device| engine.handle(Millis::ZERO, Event::Joined(DeviceId(device)), &mut actions));
    let broadcast = Arc::clone(&engine.open_round().unwrap().broadcast);
    // Two devices leave before the third answers, which closes the round.
    for device in [1, 2] {
        engine.handle(
            Millis::new(1),
            Event::Update(DeviceId(device), honest_update(DeviceId(device), &broadcast)),
            &mut actions,
        );
        engine.handle(Millis::new(1), Event::Left(DeviceId(device)), &mut actions);
    }
    engine.handle(Millis::new(2), Event::Left(DeviceId(0)), &mut actions);
    engine.handle(Millis::new(1_000_000), Event::Tick, &mut actions);
    let checkpoint = engine.checkpoint();
    assert_eq!((checkpoint.done, &checkpoint.open), (Phase::Train(1), &None));

    let mut restored = setup.engine();
    let mut actions = Vec::new();
    assert!(restored.resume(Millis::new(1_000_000), &checkpoint));
    let due = restored.wake().expect("no time of a retry is set");
    (1..3).for_each(|device| {
        restored.handle(Millis::new(1_000_001), Event::Joined(DeviceId(device)), &mut actions)
    });
    assert!(restored.open_round().is_none(), "the round opened although the third device may join");
    restored.handle(due, Event::Tick, &mut actions);
    assert_eq!(
        restored.open_round().unwrap().cohort.iter().copied().collect::<Vec<_>>(),
        [1, 2].map(DeviceId)
    );

    // If all devices return before the delay has passed, the round opens when the last one joins; after the
    // delay it opens with the minimum number of devices.
    let mut restored = setup.engine();
    assert!(restored.resume(Millis::new(1_000_000), &checkpoint));
    (0..3).for_each(|device| {
        restored.handle(Millis::new(1_000_001), Event::Joined(DeviceId(device)), &mut actions)
    });
    assert_eq!(restored.open_round().unwrap().cohort.len(), 3);
    let mut restored = setup.engine();
    assert!(restored.resume(Millis::new(1_000_000), &checkpoint));
    restored.handle(due, Event::Tick, &mut actions);
    (0..2).for_each(|device| {
        restored.handle(due + Millis::new(1), Event::Joined(DeviceId(device)), &mut actions)
    });
    assert_eq!(restored.open_round().unwrap().cohort.len(), 2);
}

/// Devices of one fleet are asked to wake at different times, spread over a sixteenth of the interval, and never before a round can
/// open. A device whose update is rejected is informed, too.
#[test]
fn devices_wake_one_after_the_other() {
    let setup = Setup { every: Some(3_600_000), rounds: 3, absence: 10_000_000, ..two_device_setup() };
    let mut world = world_with_devices(setup, 2);
    world.apply(Op::Advance(10));
    world.apply(Op::Answer(DeviceId(0), Kind::NoSamples));
    let told = |action: &&Action| matches!(action, Action::NextRound(DeviceId(0), _));
    assert_eq!(world.effects.actions.iter().filter(told).count(), 1, "after a rejection");
    for device in 2..1_002 {
        world.apply(Op::Join(DeviceId(device)));
    }
    let interval = 3_600_000 - 10;
    let mut delays: Vec<u64> = Vec::new();
    for action in &world.effects.actions {
        if let Action::NextRound(device, time) = action
            && device.0 >= 2
        {
            delays.push(time.as_u64() - interval);
        }
    }
    delays.sort_unstable();
    let widest = delays.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    assert_eq!(delays.len(), 1_000);
    assert!(*delays.last().unwrap() <= 225_000 && delays[0] < 1_000 && widest < 1_000, "{widest} ms");
}
