//! Tests of devices that lose an update in a power cut after the update may have been sent. Such a device
//! cannot compute the update again, and declines the round. The round continues for the device under a new
//! id, counted updates stay counted, and restarts of the server do not change the results.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::common::campaign::{
    Setup, honest_update, model_bits, random_setup, simulate_campaign, two_device_setup,
};
use crate::common::storage::Disk;
use fedspan_aggregator::durable_engine::{Campaign, DurableEngine};
use fedspan_aggregator::journal::{CommittedRound, JournalEntry, Outcome};
use fedspan_engine::{Action, DeviceId, Event, Millis, Phase, RoundBroadcast, Update};
use fedspan_protocol::message::{AckOutcome, Decline, DeclineReason, RoundId};
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// Simulated device: its flash and its memory.
#[derive(Default)]
struct Device {
    /// Last round id for which an update was sent or may have been sent.
    last_answered: u32,
    /// Update in memory that has not been acknowledged.
    pending: Option<Update>,
    counted: BTreeSet<RoundId>,
}

/// Devices that may lose updates, and a server whose power may be cut.
struct World {
    setup: Setup,
    disk: Disk,
    durable_engine: DurableEngine,
    now: u64,
    devices: Vec<Device>,
    events: VecDeque<Event>,
    /// Updates that will arrive late.
    late_updates: Vec<(u64, Update)>,
    random: ChaCha8Rng,
    /// Number of updates that will be lost.
    losses: u32,
    /// Number of new ids that rounds have received.
    renamed: u64,
}

impl World {
    fn new(setup: Setup, seed: u64, losses: u32) -> Self {
        let disk = Disk::new(seed);
        let durable_engine = Self::start_server(&setup, &disk);
        let devices = (0..setup.fleet_size).map(|_| Device::default()).collect();
        let random = ChaCha8Rng::seed_from_u64(seed);
        let events = VecDeque::new();
        let late_updates = Vec::new();
        let mut world = Self {
            setup,
            disk,
            durable_engine,
            now: 0,
            devices,
            events,
            late_updates,
            random,
            losses,
            renamed: 0,
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
        self.events = (0..self.setup.fleet_size as u64).map(|id| Event::Joined(DeviceId(id))).collect();
        self.late_updates.clear();
    }

    /// Handles a round that is opened on a device: the device sends its update, declines the round, or loses
    /// the update.
    fn handle_opening(&mut self, id: u64, opening: &Arc<RoundBroadcast>) {
        let device = &mut self.devices[usize::try_from(id).unwrap()];
        let uploads = !opening.request.expects.is_empty();
        if let Some(pending) = device.pending.as_ref().filter(|pending| pending.id == opening.id) {
            return self.events.push_back(Event::Update(DeviceId(id), pending.clone()));
        }
        if uploads && opening.id.round <= device.last_answered {
            let reason = DeclineReason::RoundRepeated { last: device.last_answered };
            return self.events.push_back(Event::Declined(DeviceId(id), Decline { id: opening.id, reason }));
        }
        device.last_answered = opening.id.round;
        let update = honest_update(DeviceId(id), opening);
        // The device loses the update in two of six equally likely cases, and sends it late in one.
        let fate = self.random.next_u32() % 6;
        if uploads && fate < 2 && self.losses > 0 {
            self.losses -= 1;
            device.pending = None;
            // The update was sent before the power cut, or not.
            if fate == 0 {
                self.events.push_back(Event::Update(DeviceId(id), update));
            }
            self.late_updates.retain(|(device, _)| *device != id);
            self.events.extend([Event::Left(DeviceId(id)), Event::Joined(DeviceId(id))]);
        } else if uploads && fate == 5 {
            device.pending = Some(update.clone());
            self.late_updates.push((id, update));
        } else {
            device.pending = Some(update.clone());
            self.events.push_back(Event::Update(DeviceId(id), update));
        }
    }

    /// Lets the server handle the next event.
    fn handle_next_event(&mut self) {
        let event = self.events.pop_front().unwrap_or_else(|| {
            // No messages are in transit, so the time advances to the next timer.
            match self.durable_engine.engine().wake() {
                Some(wake) if self.late_updates.is_empty() || !self.random.next_u32().is_multiple_of(4) => {
                    self.now = (wake.max(Millis::new(self.now))).as_u64();
                    Event::Tick
                }
                _ => {
                    let (device, update) =
                        self.late_updates.pop().expect("no update is pending and no timer is set");
                    Event::Update(DeviceId(device), update)
                }
            }
        });
        self.durable_engine.handle(Millis::new(self.now), event);
        for action in self.durable_engine.flush().unwrap().actions {
            match action {
                Action::Open(device, opening) => self.handle_opening(device.0, &opening),
                Action::Acknowledge(device, ack) => {
                    let device = &mut self.devices[usize::try_from(device.0).unwrap()];
                    device.pending.take_if(|pending| pending.id == ack.id);
                    if matches!(ack.outcome, AckOutcome::Counted | AckOutcome::Duplicate) {
                        device.counted.insert(ack.id);
                    }
                }
                Action::Failed(failure) => panic!("{failure}"),
                _ => {}
            }
        }
    }

    /// Cuts the power of the server and restarts it.
    fn cut_power(&mut self) {
        self.renamed += self.durable_engine.engine().counters().renamed;
        self.disk.cut();
        self.durable_engine = Self::start_server(&self.setup, &self.disk);
        self.join_all();
    }

    /// Runs the campaign to its end.
    fn run_to_end(&mut self) {
        let mut steps = 0;
        while self.durable_engine.engine().phase() != Phase::Finished {
            self.handle_next_event();
            steps += 1;
            assert!(steps < 20_000, "no end: {:?}", self.durable_engine.engine().open_round());
        }
        self.renamed += self.durable_engine.engine().counters().renamed;
    }

    /// Returns the devices counted in each committed round, with the round id that each device answered, from
    /// the journal.
    fn journalled_rounds(&self) -> Vec<(u32, BTreeMap<DeviceId, u32>)> {
        let lines = self.durable_engine.store().journal(0).unwrap();
        let mut rounds = Vec::new();
        let mut counted_devices = BTreeMap::new();
        let mut last_number = 0;
        for line in &lines {
            match serde_json::from_str(line).unwrap() {
                JournalEntry::Opened(opened) => {
                    assert!(opened.round > last_number);
                    match opened.continues {
                        Some(previous_number) => assert_eq!(previous_number, last_number),
                        None => counted_devices.clear(),
                    }
                    last_number = opened.round;
                }
                JournalEntry::Answered(answer) if answer.outcome == Outcome::Counted => {
                    assert_eq!(counted_devices.insert(answer.device, answer.round), None, "counted twice");
                }
                JournalEntry::Committed(committed) => {
                    assert_eq!(committed.round, last_number);
                    let participants: BTreeSet<DeviceId> = committed.participants.iter().copied().collect();
                    assert_eq!(participants, counted_devices.keys().copied().collect());
                    rounds.push((last_number, std::mem::take(&mut counted_devices)));
                }
                _ => {}
            }
        }
        rounds
    }
}

/// Changes the setup so that every round needs all devices.
fn require_all_devices(setup: Setup) -> Setup {
    Setup {
        deadline: setup.deadline.map(|_| 300),
        retry_delay: Some(70),
        absence: 1_000,
        min_count: setup.fleet_size,
        fraction: None,
        doubling: None,
        ..setup
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn every_round_counts_every_device_once(
        setup in random_setup(), seed in any::<u64>(), losses in 0u32..40,
        steps_before_cuts in prop::collection::vec(1usize..40, 0..8),
    ) {
        let setup = require_all_devices(setup);
        let uninterrupted = simulate_campaign(
            Setup { deadline: None, every: None, ..setup }.engine(),
            setup.fleet_size as u64,
            usize::MAX,
        );
        prop_assert_eq!(uninterrupted.engine.phase(), Phase::Finished);
        let mut world = World::new(setup, seed, losses);
        for steps in steps_before_cuts {
            for _ in 0..steps {
                if world.durable_engine.engine().phase() != Phase::Finished {
                    world.handle_next_event();
                }
            }
            world.cut_power();
        }
        world.run_to_end();
        prop_assert_eq!(model_bits(world.durable_engine.engine()), model_bits(&uninterrupted.engine));
        let rounds = world.journalled_rounds();
        prop_assert!(rounds.iter().all(|(_, counted)| counted.len() == setup.fleet_size));
        for (device, state) in (0..).map(DeviceId).zip(&world.devices) {
            for id in &state.counted {
                let is_committed = rounds.iter().any(|(_, counted)| counted.get(&device) == Some(&id.round));
                prop_assert!(
                    is_committed || id.round > rounds.last().map_or(0, |(last_number, _)| *last_number),
                    "{} {:?}",
                    device,
                    id
                );
            }
        }
        // The stored rounds have the same participants.
        let mut committed: Vec<(u32, BTreeSet<DeviceId>)> = Vec::new();
        let add_round = |line: &str| {
            let round: CommittedRound = serde_json::from_str(line).unwrap();
            committed.push((round.exchange, round.participants.into_iter().collect()));
            true
        };
        world.durable_engine.store().read_snapshot().unwrap().rounds(add_round).unwrap();
        let journalled: Vec<(u32, BTreeSet<DeviceId>)> =
            rounds.into_iter().map(|(exchange, counted)| (exchange, counted.into_keys().collect())).collect();
        prop_assert_eq!(committed, journalled);
    }
}

/// A server that restarts in a round with several ids restores all of the ids.
#[test]
fn renumbered_round_survives_restart() {
    let setup =
        require_all_devices(Setup { fleet_size: 3, rounds: 30, deadline: None, ..two_device_setup() });
    let mut world = World::new(setup, 5, 60);
    for _ in 0..1_000 {
        world.handle_next_event();
        let open_round = world.durable_engine.engine().open_round();
        if open_round.is_some_and(|round| round.previous_ids.len() > 1 && !round.participants.is_empty()) {
            break;
        }
    }
    let round = world.durable_engine.engine().open_round().unwrap();
    let (id, first_id, counted) = (round.broadcast.id, round.first_id(), round.participants.clone());
    assert!(id > first_id && !counted.is_empty(), "{id:?} {first_id:?} {counted:?}");
    world.cut_power();
    let round = world.durable_engine.engine().open_round().unwrap();
    assert_eq!((round.broadcast.id, round.first_id(), &round.participants), (id, first_id, &counted));
    world.run_to_end();
    assert!(
        world
            .journalled_rounds()
            .iter()
            .any(|(_, counted)| counted.values().collect::<BTreeSet<_>>().len() > 1)
    );
}
