//! Tests of the records that the engine emits: replayed after any event, they restore the state of the engine
//! in a new one, and keeping records does not change the actions.

use crate::common::campaign::{Setup, honest_update, model_bits, random_setup, two_device_setup};
use crate::common::model::{Op, World, random_op};
use fedspan_engine::{Action, DeviceId, Effects, Engine, Event, Millis, Phase, Record, RecordedEffects};
use fedspan_protocol::message::Privacy;
use proptest::prelude::*;

/// Replays records in a new engine and compares its durable state with that of the engine that emitted them.
fn assert_replayed(setup: Setup, now: u64, records: &[Record], expected: &Engine) {
    let mut engine = setup.engine();
    assert!(engine.replay(Millis::new(now), records), "cannot be replayed: {records:?}");
    let (replayed, original) = (engine.checkpoint(), expected.checkpoint());
    let bits = |state: &[f64]| state.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&replayed.state), bits(&original.state));
    assert_eq!(replayed, original);
    assert_eq!(engine.ledger().accounts(), expected.ledger().accounts());
    assert_eq!(engine.deadline_state(), expected.deadline_state());
    assert_eq!(engine.open_round().is_some(), expected.open_round().is_some());
    if let (Some(replayed), Some(original)) = (engine.open_round(), expected.open_round()) {
        assert_eq!(replayed.broadcast, original.broadcast);
        assert_eq!(replayed.previous_ids, original.previous_ids);
        assert_eq!((replayed.opened_at, replayed.target), (original.opened_at, original.target));
        assert_eq!(replayed.participants, original.participants);
        assert_eq!(replayed.counted_samples, original.counted_samples);
        // Replaying a new id clears all exclusions, while the original engine cleared only those of connected
        // devices. The new engine also lacks invitations that were sent after the opening to devices without
        // a counted update.
        assert!(
            replayed.excluded.is_subset(&original.excluded),
            "{:?} of {:?}",
            replayed.excluded,
            original.excluded
        );
        let missing_exclusions: Vec<_> = original.excluded.difference(&replayed.excluded).collect();
        let is_uninvited = |device| !replayed.cohort.contains(device);
        assert!(
            !replayed.previous_ids.is_empty() || missing_exclusions.into_iter().all(is_uninvited),
            "{:?}",
            original.excluded
        );
    }
}

/// A record contains the values of a counted update at the address at which they arrived.
#[test]
fn record_takes_update_without_copying_it() {
    let setup = Setup { fleet_size: 2, ..two_device_setup() };
    let mut engine = setup.engine();
    let mut effects = RecordedEffects::default();
    (0..2).for_each(|device| engine.handle(Millis::ZERO, Event::Joined(DeviceId(device)), &mut effects));
    let opening = engine.open_round().expect("no round is open").broadcast.clone();
    for device in 0..2 {
        let update = honest_update(DeviceId(device), &opening);
        let address = update.tensors[0].values.as_ptr();
        effects.records.clear();
        engine.handle(Millis::new(1), Event::Update(DeviceId(device), update), &mut effects);
        let counted = effects.records.iter().find_map(|record| match record {
            Record::Counted(_, _, counted) => Some(counted),
            _ => None,
        });
        let counted = counted.expect("no update was counted");
        assert_eq!(counted.update.tensors[0].values.as_ptr(), address);
        assert_eq!(u64::from(counted.order), device);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, max_shrink_iters: 5_000, ..ProptestConfig::default() })]

    /// Uses random histories of events. Every second device has a privacy account.
    #[test]
    fn replayed_records_lead_to_same_state(setup in random_setup(), ops in proptest::collection::vec(random_op(), 0..60)) {
        let mut world = World::new(setup);
        for op in ops {
            if let Op::Join(device) = op && device.0 % 2 == 0 {
                let reported = Privacy::Gaussian { release: 10, budget: 1_000, spent: 10 * device.0 };
                world.engine.record_privacy(device, reported, &mut world.effects);
            }
            world.apply(op);
            if world.model.phase == Phase::Failed {
                prop_assert!(matches!(world.effects.records.last(), Some(Record::Failed(_))));
                return Ok(());
            }
            assert_replayed(setup, world.model.now, &world.effects.records, &world.engine);
        }
    }

    /// Callers that keep no records receive the same actions, and the engine creates no records for them.
    #[test]
    fn recording_changes_no_action(setup in random_setup(), ops in proptest::collection::vec(random_op(), 0..60)) {
        struct ActionsOnly(Vec<Action>);
        impl Effects for ActionsOnly {
            fn act(&mut self, action: Action) {
                self.0.push(action);
            }
            fn record(&mut self, record: Record) {
                panic!("{record:?} is made, but not kept");
            }
        }
        let mut world = World::new(setup);
        for op in ops {
            world.apply(op);
        }
        let mut engine = setup.engine();
        let mut effects = ActionsOnly(Vec::new());
        for (now, event) in &world.events {
            engine.handle(Millis::new(*now), event.clone(), &mut effects);
        }
        prop_assert_eq!(effects.0, world.effects.actions);
        prop_assert_eq!(model_bits(&engine), model_bits(&world.engine));
    }
}
