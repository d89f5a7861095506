//! Tests of restarts: acknowledged updates count exactly once, and a campaign that was interrupted in the
//! middle of a round continues with the same results.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::common::campaign::{
    D, ETA, K, Setup, honest_update, model_bits, random_setup, simulate_campaign, two_device_setup,
};
use crate::common::storage::{Disk, Faults};
use fedspan_aggregator::durable_engine::{Campaign, DurableEngine};
use fedspan_aggregator::store::RoundKeyStorage;
use fedspan_engine::aggregate::Rule;
use fedspan_engine::{Action, Checkpoint, DeviceId, Event, Millis, Phase, RoundBroadcast, RoundRecord};
use fedspan_protocol::message::{AckOutcome, RoundId};
use proptest::prelude::*;

fn any_rule() -> impl Strategy<Value = Rule> {
    prop::sample::select(vec![Rule::MEAN, Rule::GEOMETRIC_MEDIAN, Rule::trimmed_mean(0.2)])
}

/// Devices and a server. Power cuts of the server affect unsynced writes.
struct World {
    setup: Setup,
    devices: u64,
    disk: Disk,
    durable_engine: DurableEngine,
    /// Events that devices have sent and the server has not handled.
    events: VecDeque<Event>,
    acknowledged: BTreeSet<(u64, RoundId)>,
    commits: Vec<RoundRecord>,
    opened: BTreeMap<u32, RoundId>,
}

impl World {
    fn new(setup: Setup, devices: u64, seed: u64) -> Self {
        let disk = Disk::new(seed);
        let durable_engine = Self::start_server(&setup, &disk);
        let mut world = Self {
            setup,
            devices,
            disk,
            durable_engine,
            events: VecDeque::new(),
            acknowledged: BTreeSet::new(),
            commits: Vec::new(),
            opened: BTreeMap::new(),
        };
        world.join_all();
        world
    }

    fn start_server(setup: &Setup, disk: &Disk) -> DurableEngine {
        let campaign = Campaign {
            configuration: "a = 1".to_owned(),
            number: 7,
            expected: setup.fleet_size,
            journal: Some(0),
        };
        DurableEngine::new(setup.engine(), disk.store(), &campaign).unwrap().0
    }

    fn join_all(&mut self) {
        self.events = (0..self.devices).map(|device| Event::Joined(DeviceId(device))).collect();
    }

    /// Lets the server handle `batch` events and flush.
    fn handle_batch(&mut self, batch: usize) {
        for _ in 0..batch {
            let Some(event) = self.events.pop_front() else { break };
            self.durable_engine.handle(Millis::ZERO, event);
        }
        let settled = self.durable_engine.flush().unwrap();
        for action in settled.actions {
            match action {
                Action::Open(device, opening) => {
                    let id = opening.id;
                    assert_eq!(
                        *self.opened.entry(id.round).or_insert(id),
                        id,
                        "a round number was used for two rounds"
                    );
                    self.events.push_back(Event::Update(device, honest_update(device, &opening)));
                }
                Action::Acknowledge(device, ack) => {
                    // After a device has been acknowledged in a round, further updates of the device for that
                    // round are duplicates.
                    match ack.outcome {
                        AckOutcome::Counted => {
                            assert!(
                                self.acknowledged.insert((device.0, ack.id)),
                                "counted twice: {device} {ack:?}"
                            );
                        }
                        // The acknowledgement was lost in the power cut.
                        AckOutcome::Duplicate => drop(self.acknowledged.insert((device.0, ack.id))),
                        _ => {}
                    }
                }
                Action::Commit(record) => self.commits.push(*record),
                Action::Failed(failure) => panic!("{failure}"),
                Action::Close(..)
                | Action::NextRound(..)
                | Action::Finished
                | Action::NotAwaited(_)
                | Action::Awaited(_) => {}
            }
        }
    }

    /// Cuts the power: each unsynced write is lost, kept or torn.
    fn cut_power(&mut self) {
        self.disk.cut();
        self.durable_engine = Self::start_server(&self.setup, &self.disk);
        self.join_all();
    }

    /// Runs the campaign to its end.
    fn run_to_end(&mut self) {
        while self.durable_engine.engine().phase() != Phase::Finished {
            assert!(
                !self.events.is_empty(),
                "no event is pending in {:?}",
                self.durable_engine.engine().phase()
            );
            self.handle_batch(3);
        }
    }
}

/// After a restart, the deadline of an extended round is the same on the campaign clock, which continues.
#[test]
fn extended_deadline_survives_restart() {
    let setup =
        Setup { fleet_size: 8, deadline: Some(60), min_count: 2, absence: 1_000_000, ..two_device_setup() };
    let mut world = World::new(setup, 8, 5);
    world.handle_batch(8);
    let handle_event = |world: &mut World, now, event| {
        world.durable_engine.handle(now, event);
        world.durable_engine.flush().unwrap().actions
    };
    let opening = world.durable_engine.engine().open_round().unwrap().broadcast.clone();
    assert_eq!(world.durable_engine.engine().wake(), Some(Millis::new(60)));
    handle_event(&mut world, Millis::new(60), Event::Tick);
    handle_event(
        &mut world,
        Millis::new(70),
        Event::Update(DeviceId(0), honest_update(DeviceId(0), &opening)),
    );
    let deadline_state = |world: &World| {
        let round = world.durable_engine.engine().open_round().unwrap();
        (round.deadline, round.asking_everyone, round.participants.len())
    };
    assert_eq!(deadline_state(&world), (Some(Millis::new(120)), true, 1));
    world.cut_power();
    assert_eq!(deadline_state(&world), (Some(Millis::new(120)), true, 1));
    assert_eq!(world.durable_engine.store().load().unwrap().unwrap().clock, Millis::new(70));
    // New devices are asked as without a restart, and the round does not close before the deadline.
    let actions = handle_event(&mut world, Millis::new(71), Event::Joined(DeviceId(20)));
    assert!(actions.iter().any(|action| matches!(action, Action::Open(DeviceId(20), _))), "{actions:?}");
    assert!(handle_event(&mut world, Millis::new(119), Event::Tick).is_empty());
    handle_event(
        &mut world,
        Millis::new(119),
        Event::Update(DeviceId(20), honest_update(DeviceId(20), &opening)),
    );
    let closed = handle_event(&mut world, Millis::new(120), Event::Tick);
    assert!(closed.iter().any(|action| matches!(action, Action::Commit(_))), "{closed:?}");
    // The clock also continues between rounds.
    world.cut_power();
    assert_eq!(world.durable_engine.store().load().unwrap().unwrap().clock, Millis::new(120));
}

/// The events that led to the failure of a campaign are neither written nor acknowledged, so that a restarted
/// server can retry.
#[test]
fn failing_campaign_acknowledges_nothing() {
    let setup = Setup { deadline: None, ..two_device_setup() };
    let mut world = World::new(setup, 2, 1);
    world.handle_batch(2);
    // The step cancels the representation, and the round may not be repeated.
    let cancelling_update = |device, opening: &RoundBroadcast| {
        let mut update = honest_update(device, opening);
        let broadcast_values = opening.request.tensors.iter().map(|tensor| &tensor.values);
        for (answer, values) in update.tensors.iter_mut().zip(broadcast_values) {
            answer.values = values.iter().map(|value| value / ETA).collect();
        }
        update
    };
    let opening = world.durable_engine.engine().open_round().unwrap().broadcast.clone();
    let mut flushed = Vec::new();
    for device in 0..2 {
        world.durable_engine.handle(
            Millis::ZERO,
            Event::Update(DeviceId(device), cancelling_update(DeviceId(device), &opening)),
        );
        flushed.push(world.durable_engine.flush().unwrap());
    }
    assert!(matches!(flushed[0].actions.as_slice(), [Action::Acknowledge(DeviceId(0), _)]), "{flushed:?}");
    assert!(matches!(flushed[1].actions.as_slice(), [Action::Failed(_)]), "{flushed:?}");
    assert!(flushed[1].lines.is_empty());
    let stored = world.durable_engine.store().load().unwrap().unwrap();
    assert_eq!(stored.updates.iter().map(|(device, _)| *device).collect::<Vec<_>>(), [DeviceId(0)]);
    assert_eq!(stored.open_round(), Some(opening.id));
}

/// Changes the setup so that no round needs a timer, or more devices than the fleet has or the policy waits for: the
/// first of a larger cohort would count, and their order depends on power cuts.
fn without_timers(setup: Setup) -> Setup {
    let is_full = setup.fraction.is_none() && setup.doubling.is_none();
    let min_count = if is_full { setup.min_count.min(setup.fleet_size) } else { 1 };
    Setup { deadline: None, every: None, min_count, ..setup }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// Power cuts between any two messages do not change the results, for any number of power cuts and any
    /// loss of unsynced writes.
    #[test]
    fn power_cuts_change_no_result(
        setup in random_setup(), rule in any_rule(), seed in any::<u64>(),
        steps_before_cuts in prop::collection::vec((0usize..12, 1usize..4), 0..8),
    ) {
        let setup = Setup { rule, ..without_timers(setup) };
        let devices = setup.fleet_size as u64;
        let uninterrupted = simulate_campaign(setup.engine(), devices, usize::MAX);
        prop_assert_eq!(uninterrupted.engine.phase(), Phase::Finished);
        let mut world = World::new(setup, devices, seed);
        for (steps, batch) in steps_before_cuts {
            for _ in 0..steps {
                world.handle_batch(batch);
            }
            let checkpoint_before = world.durable_engine.engine().checkpoint();
            world.cut_power();
            prop_assert_eq!(world.durable_engine.engine().checkpoint(), checkpoint_before);
        }
        world.run_to_end();
        prop_assert_eq!(model_bits(world.durable_engine.engine()), model_bits(&uninterrupted.engine));
        // Every round is committed at most once, in order, with the same number of participants as without
        // interruptions. The commit before a power cut may be missing.
        let mut rounds = BTreeMap::new();
        for record in &world.commits {
            prop_assert!(
                rounds.insert(record.id.round, record.participants.len()).is_none(),
                "committed twice"
            );
        }
        let numbers: Vec<u32> = world.commits.iter().map(|record| record.id.round).collect();
        prop_assert!(numbers.is_sorted());
        for stored_round in &uninterrupted.stored {
            if let Some(participants) = rounds.get(&stored_round.record.id.round) {
                prop_assert_eq!(*participants, stored_round.record.participants.len());
            }
        }
        // According to the journal, every acknowledged update was counted exactly once.
        let lines = world.durable_engine.store().journal(0).unwrap();
        let counted: Vec<(u64, u64)> = lines
            .iter()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
            .filter(|line| line["event"] == "answered" && line["outcome"] == "counted")
            .map(|line| (line["device"].as_u64().unwrap(), line["round"].as_u64().unwrap()))
            .collect();
        let distinct: BTreeSet<(u64, u64)> = counted.iter().copied().collect();
        prop_assert_eq!(distinct.len(), counted.len(), "counted twice");
        for (device, id) in &world.acknowledged {
            prop_assert!(
                distinct.contains(&(*device, id.round.into())),
                "{} got two acknowledgements in {:?}",
                device,
                id
            );
        }
    }

    /// While the disk is full or fails, no update is acknowledged. The campaign continues when the disk can
    /// be written again.
    #[test]
    fn failing_disk_delays_acknowledgements(
        setup in random_setup(), seed in any::<u64>(),
        writes_before_faults in prop::collection::vec(0u32..40, 1..6), cuts_power in any::<bool>(),
    ) {
        let setup = without_timers(setup);
        let devices = setup.fleet_size as u64;
        let uninterrupted = simulate_campaign(setup.engine(), devices, usize::MAX);
        let mut world = World::new(setup, devices, seed);
        for writes in writes_before_faults {
            world.disk.fail(Faults::After(writes));
            let mut steps = 0;
            // Handles events until the disk fails.
            while steps < 60 && !world.events.is_empty() {
                let event = world.events.pop_front().unwrap();
                world.durable_engine.handle(Millis::ZERO, event);
                match world.durable_engine.flush() {
                    Ok(settled) => {
                        for action in settled.actions {
                            if let Action::Open(device, opening) = action {
                                world
                                    .events
                                    .push_back(Event::Update(device, honest_update(device, &opening)));
                            }
                        }
                    }
                    Err(_) => break,
                }
                steps += 1;
            }
            world.disk.fail(Faults::None);
            if cuts_power {
                world.cut_power();
            } else {
                // The disk has room again, so pending writes and actions are performed.
                world.handle_batch(0);
            }
        }
        world.run_to_end();
        prop_assert_eq!(model_bits(world.durable_engine.engine()), model_bits(&uninterrupted.engine));
    }

    /// After a crash between the end of a round and the erasure of its key, the key is erased at the next
    /// start.
    #[test]
    fn leftover_key_is_erased(setup in random_setup(), seed in any::<u64>()) {
        let disk = Disk::new(seed);
        drop(World::start_server(&setup, &disk));
        disk.storage().write(b"the key of a round that is over").unwrap();
        drop(World::start_server(&setup, &disk));
        prop_assert_eq!(disk.keys().0, None);
    }

    /// A checkpoint of another size is refused.
    #[test]
    fn checkpoint_of_other_size_is_refused(setup in random_setup(), len in 0usize..30, number in 1u32..4) {
        let valid_len =
            if setup.fedavg { D * K + K } else { D * K } + if setup.doubling.is_some() { 5 } else { 0 };
        prop_assume!(len != valid_len);
        let id = RoundId { round: 9, stage: 0 };
        let rounds = setup.engine().checkpoint().rounds;
        let checkpoint_with = |done, len| Checkpoint { id, done, rounds, state: vec![0.5; len], open: None };
        prop_assert!(!setup.engine().resume(Millis::ZERO, &checkpoint_with(Phase::Train(number), len)));
        prop_assert_eq!(
            setup.power,
            setup.engine().resume(Millis::ZERO, &checkpoint_with(Phase::Start(1), D * K))
        );
    }
}
