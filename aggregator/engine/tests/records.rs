//! Tests of the records that the engine emits: replayed after any event, they restore the state of the engine
//! in a new one, and keeping records does not change the actions.

use crate::common::campaign::{Setup, honest, plain, result, setup};
use crate::common::model::{Op, World, op};
use fedspan_engine::{Action, DeviceId, Effects, Engine, Event, Millis, Phase, Record, RecordedEffects};
use fedspan_protocol::message::Privacy;
use proptest::prelude::*;

/// Replays records in a new engine and compares its durable state with that of the engine that emitted them.
fn assert_replayed(setup: Setup, now: u64, records: &[Record], expected: &Engine) {
    let mut engine = setup.engine();
    assert!(engine.replay(Millis::new(now), records), "cannot be replayed: {records:?}");
    let (found, wanted) = (engine.checkpoint(), expected.checkpoint());
    let bits = |state: &[f64]| state.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&found.state), bits(&wanted.state));
    assert_eq!(found, wanted);
    assert_eq!(engine.ledger().accounts(), expected.ledger().accounts());
    assert_eq!(engine.deadline_state(), expected.deadline_state());
    assert_eq!(engine.open_round().is_some(), expected.open_round().is_some());
    if let (Some(found), Some(wanted)) = (engine.open_round(), expected.open_round()) {
        assert_eq!(found.broadcast, wanted.broadcast);
        assert_eq!(found.previous_ids, wanted.previous_ids);
        assert_eq!((found.opened_at, found.target), (wanted.opened_at, wanted.target));
        assert_eq!(found.participants, wanted.participants);
        assert_eq!(found.counted_samples, wanted.counted_samples);
        // Replaying a new id clears all exclusions, while the original engine cleared only those of connected
        // devices. The new engine also lacks invitations that were sent after the opening to devices without
        // a counted update.
        assert!(found.excluded.is_subset(&wanted.excluded), "{:?} of {:?}", found.excluded, wanted.excluded);
        let lost: Vec<_> = wanted.excluded.difference(&found.excluded).collect();
        let is_new = |device| !found.cohort.contains(device);
        assert!(!found.previous_ids.is_empty() || lost.into_iter().all(is_new), "{:?}", wanted.excluded);
    }
}

/// A record contains the values of a counted update at the address at which they arrived.
#[test]
fn record_takes_update_without_copying_it() {
    let setup = Setup { fleet_size: 2, ..plain() };
    let (mut engine, mut effects) = (setup.engine(), RecordedEffects::default());
    (0..2).for_each(|device| engine.handle(Millis::ZERO, Event::Joined(DeviceId(device)), &mut effects));
    let opening = engine.open_round().expect("a round").broadcast.clone();
    for device in 0..2 {
        let update = honest(DeviceId(device), &opening);
        let address = update.tensors[0].values.as_ptr();
        effects.records.clear();
        engine.handle(Millis::new(1), Event::Update(DeviceId(device), update), &mut effects);
        let counted = effects.records.iter().find_map(|record| match record {
            Record::Counted(_, _, counted) => Some(counted),
            _ => None,
        });
        let counted = counted.expect("a counted update");
        assert_eq!(counted.update.tensors[0].values.as_ptr(), address);
        assert_eq!(u64::from(counted.order), device);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, max_shrink_iters: 5_000, ..ProptestConfig::default() })]

    /// Uses random histories of events. Every second device has a privacy account.
    #[test]
    fn replayed_records_lead_to_same_state(setup in setup(), ops in proptest::collection::vec(op(), 0..60)) {
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
    fn recording_changes_no_action(setup in setup(), ops in proptest::collection::vec(op(), 0..60)) {
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
        let (mut engine, mut effects) = (setup.engine(), ActionsOnly(Vec::new()));
        for (now, event) in &world.events {
            engine.handle(Millis::new(*now), event.clone(), &mut effects);
        }
        prop_assert_eq!(effects.0, world.effects.actions);
        prop_assert_eq!(result(&engine), result(&world.engine));
    }
}
