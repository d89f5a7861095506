//! Tests of patience with silent devices: the laws of rounds that stop waiting for a device which has missed
//! too many deadlines, in virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;

use crate::common::campaign::{Setup, honest_update, model_bits, random_setup, two_device_setup};
use crate::common::model::{Op, World, random_op};
use fedspan_engine::{
    Action, DeviceId, Engine, Event, Millis, Phase, Record, RecordedEffects, RoundBroadcast, RoundRecord,
};
use fedspan_protocol::message::{AckOutcome, Decline, DeclineReason, Privacy, RoundId};
use proptest::prelude::*;

/// Deadline of the rounds in this file, in ms.
const DEADLINE: u64 = 100;

/// Behaviour of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Behaviour {
    /// Answers this long after it was sent a round, and takes only one round at a time.
    Answers(u64),
    /// Never answers.
    Silent,
    /// Never answers, and reconnects after this time without end.
    Reconnects(u64),
    /// Never answers; connects for 1 ms in each period of this length.
    Blinks(u64),
    /// Never answers; in each period of this length it connects for 2 ms, and declines a round that it was not sent.
    Lies(u64),
    /// Is silent until this time, and then answers as [`Self::Answers`] does.
    SilentUntil(u64, u64),
    /// Declines every round after this time.
    Declines(u64),
}

impl Behaviour {
    /// Time until the device answers a round, or `None` if it does not answer.
    fn delay(self, now: u64) -> Option<u64> {
        match self {
            Self::Answers(delay) | Self::Declines(delay) => Some(delay),
            Self::SilentUntil(until, delay) => (now >= until).then_some(delay),
            Self::Silent | Self::Reconnects(_) | Self::Blinks(_) | Self::Lies(_) => None,
        }
    }
}

/// Events of a fleet that are due.
#[derive(Clone, Debug)]
enum Due {
    Event(Event),
    Answer(DeviceId),
    Wake(DeviceId),
}

/// Fleet of devices with fixed behaviours, and the engine that they are connected to.
struct Fleet {
    engine: Engine,
    behaviours: Vec<Behaviour>,
    now: u64,
    /// Events that are due, by time and number.
    due: BTreeMap<(u64, u64), Due>,
    number: u64,
    /// Round that each device computes an answer for.
    computing: BTreeMap<DeviceId, Arc<RoundBroadcast>>,
    /// Broadcast that a device received last, while it was computing.
    next: BTreeMap<DeviceId, Arc<RoundBroadcast>>,
    committed: Vec<RoundRecord>,
    effects: RecordedEffects,
    /// Number of actions of `effects` that were carried out.
    done: usize,
    /// Events that were handled, with their times.
    events: Vec<(u64, Event)>,
    /// Number of deadlines that have passed.
    deadlines: u64,
}

impl Fleet {
    /// Fleet of a campaign of `rounds` rounds, in which all devices join at time 0.
    fn new(setup: Setup, behaviours: &[Behaviour]) -> Self {
        let mut fleet = Self {
            engine: setup.engine(),
            behaviours: behaviours.to_vec(),
            now: 0,
            due: BTreeMap::new(),
            number: 0,
            computing: BTreeMap::new(),
            next: BTreeMap::new(),
            committed: Vec::new(),
            effects: RecordedEffects::default(),
            done: 0,
            events: Vec::new(),
            deadlines: 0,
        };
        for (device, behaviour) in behaviours.iter().enumerate() {
            let device = DeviceId(device as u64);
            fleet.plan(0, Due::Event(Event::Joined(device)));
            match *behaviour {
                Behaviour::Reconnects(period) => {
                    (1..2000).for_each(|turn| fleet.plan(turn * period, Due::Event(Event::Joined(device))));
                }
                Behaviour::Blinks(period) => {
                    for turn in 0..500 {
                        fleet.plan(turn * period + 1, Due::Event(Event::Left(device)));
                        fleet.plan((turn + 1) * period, Due::Event(Event::Joined(device)));
                    }
                }
                Behaviour::Lies(period) => {
                    let id = RoundId { round: 1_000_000, stage: 0 };
                    let bogus = Decline { id, reason: DeclineReason::NoSamples };
                    for turn in 0..2000 {
                        fleet.plan(turn * period + 1, Due::Event(Event::Declined(device, bogus)));
                        fleet.plan(turn * period + 2, Due::Event(Event::Left(device)));
                        fleet.plan((turn + 1) * period, Due::Event(Event::Joined(device)));
                    }
                }
                Behaviour::SilentUntil(until, _) => fleet.plan(until, Due::Wake(device)),
                Behaviour::Answers(_) | Behaviour::Silent | Behaviour::Declines(_) => {}
            }
        }
        fleet
    }

    fn plan(&mut self, at: u64, due: Due) {
        self.number += 1;
        self.due.insert((at, self.number), due);
    }

    /// Starts to compute an answer.
    fn compute(&mut self, device: DeviceId, broadcast: Arc<RoundBroadcast>) {
        let behaviour = self.behaviours[usize::try_from(device.0).unwrap()];
        if let Some(delay) = behaviour.delay(self.now) {
            self.next.remove(&device);
            self.computing.insert(device, broadcast);
            self.plan(self.now + delay, Due::Answer(device));
        } else {
            // Connections send an unanswered round again.
            self.next.insert(device, broadcast);
        }
    }

    /// Changes the behaviour of a device.
    fn change(&mut self, device: u64, behaviour: Behaviour) {
        self.behaviours[usize::try_from(device).unwrap()] = behaviour;
        self.wake(DeviceId(device));
    }

    /// Starts to compute the answer to the round that a device received while it was silent.
    fn wake(&mut self, device: DeviceId) {
        if let Some(broadcast) = self.next.remove(&device) {
            self.compute(device, broadcast);
        }
    }

    fn handle(&mut self, event: Event) {
        self.events.push((self.now, event.clone()));
        let deadline = self.engine.open_round().and_then(|round| round.deadline);
        if event == Event::Tick && deadline.is_some_and(|deadline| deadline.as_u64() <= self.now) {
            self.deadlines += 1;
        }
        self.engine.handle(Millis::new(self.now), event, &mut self.effects);
        for action in self.effects.actions.split_off(self.done) {
            match &action {
                Action::Open(device, broadcast) => {
                    if self.computing.contains_key(device) {
                        self.next.insert(*device, Arc::clone(broadcast));
                    } else {
                        self.compute(*device, Arc::clone(broadcast));
                    }
                }
                // A device drops its answer if it receives the end of the round meanwhile.
                Action::Close(device, id) => {
                    if self.computing.get(device).is_some_and(|broadcast| broadcast.id == *id) {
                        self.computing.remove(device);
                    }
                }
                Action::Commit(record) => self.committed.push((**record).clone()),
                Action::Acknowledge(..)
                | Action::Finished
                | Action::NextRound(..)
                | Action::NotAwaited(_)
                | Action::Awaited(_)
                | Action::Failed(_) => {}
            }
            self.effects.actions.push(action);
        }
        self.done = self.effects.actions.len();
    }

    /// Runs until `until`, or until the final heads are fitted.
    fn run(&mut self, until: u64) {
        loop {
            let next = self.due.first_key_value().map(|((at, _), _)| *at);
            let wake = self.engine.wake().map(Millis::as_u64);
            let Some(at) = next.into_iter().chain(wake).min() else { return };
            let training = !matches!(self.engine.phase(), Phase::FitHead | Phase::Finished | Phase::Failed);
            if at > until || !training {
                return;
            }
            self.now = self.now.max(at);
            if next.is_none_or(|next| wake.is_some_and(|wake| wake <= next)) {
                self.handle(Event::Tick);
                continue;
            }
            let Some((_, due)) = self.due.pop_first() else { return };
            match due {
                Due::Event(event) => self.handle(event),
                Due::Wake(device) => self.wake(device),
                Due::Answer(device) => {
                    if let Some(broadcast) = self.computing.remove(&device) {
                        let declines = matches!(self.behaviours[device.0 as usize], Behaviour::Declines(_));
                        let reason = DeclineReason::NoSamples;
                        self.handle(match declines {
                            true => Event::Declined(device, Decline { id: broadcast.id, reason }),
                            false => Event::Update(device, honest_update(device, &broadcast)),
                        });
                    }
                    if let Some(broadcast) = self.next.remove(&device)
                        && !self.computing.contains_key(&device)
                    {
                        self.compute(device, broadcast);
                    }
                }
            }
        }
    }

    /// Rounds whose updates did not come from all of `devices`.
    fn rounds_without(&self, devices: &[u64]) -> usize {
        let is_missing = |record: &&RoundRecord| {
            devices.iter().any(|device| !record.participants.contains(&DeviceId(*device)))
        };
        self.committed.iter().filter(is_missing).count()
    }

    fn not_awaited(&self) -> Vec<u64> {
        self.engine.not_awaited().map(|device| device.0).collect()
    }
}

/// Setup of `rounds` rounds with all devices, and the patience `limit`; 0 is none.
fn setup_with_patience(devices: usize, rounds: u32, limit: u32) -> Setup {
    let patience = NonZeroU32::new(limit);
    let deadline = Some(DEADLINE);
    Setup {
        fleet_size: devices,
        rounds,
        deadline,
        absence: 500,
        patience,
        retry_delay: Some(5),
        ..two_device_setup()
    }
}

use Behaviour::{Answers, Blinks, Declines, Lies, Reconnects, Silent, SilentUntil};

#[test]
fn silent_device_costs_as_many_deadlines_as_patience() {
    for limit in 1..=4 {
        let mut fleet = Fleet::new(setup_with_patience(3, 50, limit), &[Answers(1), Answers(2), Silent]);
        fleet.run(1_000_000);
        assert_eq!(fleet.committed.len(), 50);
        assert_eq!(fleet.deadlines, u64::from(limit));
        assert_eq!(fleet.now, u64::from(limit) * DEADLINE + u64::from(50 - limit) * 2);
        assert_eq!(fleet.rounds_without(&[0, 1]), 0);
        assert_eq!(fleet.engine.counters().missed, u64::from(limit));
    }
}

#[test]
fn silent_device_costs_every_deadline_without_patience() {
    let mut fleet = Fleet::new(setup_with_patience(3, 50, 0), &[Answers(1), Answers(2), Silent]);
    fleet.run(1_000_000);
    assert_eq!((fleet.deadlines, fleet.now), (50, 50 * DEADLINE));
    assert_eq!(fleet.engine.counters().missed, 0);
}

/// Rounds close without the device, but the device does not receive their end, and is sent no other round
/// until it has answered or its deadline has passed.
#[test]
fn device_that_answers_again_is_waited_for_although_it_is_slower_than_rounds() {
    let behaviours = [Answers(1), Answers(2), SilentUntil(350, 40)];
    let mut fleet = Fleet::new(setup_with_patience(3, 400, 3), &behaviours);
    fleet.run(330);
    assert_eq!(fleet.not_awaited(), [2]);
    fleet.run(600);
    assert_eq!(fleet.not_awaited(), [] as [u64; 0]);
    let last = fleet.committed.last().unwrap();
    assert!(last.participants.contains(&DeviceId(2)), "{last:?}");
    assert_eq!((last.closed_at - last.opened_at).as_u64(), 40);
}

/// A silent device is sent one round a deadline, not every round.
#[test]
fn silent_device_is_sent_one_round_a_deadline() {
    let mut fleet = Fleet::new(setup_with_patience(3, 2_000, 3), &[Answers(1), Answers(1), Silent]);
    fleet.run(1_000_000);
    assert_eq!(fleet.committed.len(), 2_000);
    let sent = |device| {
        fleet.effects.actions.iter().filter(|a| matches!(a, Action::Open(d, _) if *d == device)).count()
            as u64
    };
    assert!(sent(DeviceId(0)) >= 2_000);
    assert!(sent(DeviceId(2)) <= fleet.now / DEADLINE + 2, "{} in {}", sent(DeviceId(2)), fleet.now);
}

#[test]
fn device_that_reconnects_without_end_takes_no_rounds() {
    for period in [1, 3, 20, 60] {
        let behaviours = [Answers(1), Answers(2), Reconnects(period)];
        let mut fleet = Fleet::new(setup_with_patience(3, 50, 3), &behaviours);
        fleet.run(1_000_000);
        assert_eq!(fleet.committed.len(), 50);
        assert!(fleet.now <= 50 * 2 + 3 * period.min(DEADLINE) + DEADLINE, "{period}: {}", fleet.now);
    }
}

/// A device that is connected for a moment again and again, so that it is never absent, is not asleep.
#[test]
fn device_that_joins_and_leaves_without_end_takes_no_rounds() {
    for period in [7, 90, 250, 450, 600] {
        let behaviours = [Answers(1), Answers(2), Blinks(period)];
        let mut fleet = Fleet::new(setup_with_patience(3, 200, 3), &behaviours);
        fleet.run(1_000_000);
        assert_eq!(fleet.committed.len(), 200);
        assert!(fleet.deadlines <= 3, "{period}: {} deadlines", fleet.deadlines);
    }
}

/// A device that has answered and then leaves is asleep, and misses no deadline.
#[test]
fn sleeping_device_misses_nothing() {
    let setup = Setup { absence: 10_000, ..setup_with_patience(2, 20, 1) };
    let mut fleet = Fleet::new(setup, &[Answers(1), Answers(1)]);
    fleet.run(1);
    fleet.handle(Event::Left(DeviceId(1)));
    fleet.run(950);
    assert!(fleet.deadlines >= 8);
    assert_eq!((fleet.not_awaited(), fleet.engine.counters().missed), (vec![], 0));
}

/// Without a device that is waited for the round goes on until its deadline: it neither closes empty nor
/// spins.
#[test]
fn round_of_silent_devices_waits_for_deadlines() {
    let mut fleet = Fleet::new(setup_with_patience(3, 5, 2), &[Silent, Silent, Silent]);
    fleet.run(10 * DEADLINE);
    assert_eq!((fleet.committed.len(), fleet.not_awaited()), (0, vec![0, 1, 2]));
    assert_eq!(fleet.engine.counters().extended, 10);
    assert!(fleet.events.len() <= 3 + 10 * 2, "{} events", fleet.events.len());
    // The first answer closes the round, and the others come back within a deadline.
    [Answers(1), Answers(3), Answers(60)]
        .into_iter()
        .zip(0..)
        .for_each(|(b, device)| fleet.change(device, b));
    fleet.run(13 * DEADLINE);
    assert_eq!((fleet.committed.len(), fleet.not_awaited()), (5, vec![]));
}

#[test]
fn minimum_of_updates_holds_for_silent_devices() {
    let setup = Setup { min_count: 3, ..setup_with_patience(3, 5, 2) };
    let mut fleet = Fleet::new(setup, &[Answers(1), Answers(1), Silent]);
    fleet.run(999);
    assert_eq!((fleet.committed.len(), fleet.not_awaited()), (0, vec![2]));
    fleet.change(2, Answers(1));
    fleet.run(2_000);
    assert_eq!((fleet.committed.len(), fleet.rounds_without(&[0, 1, 2])), (5, 0));
}

/// A policy that draws only silent devices invites the others at once.
#[test]
fn drawn_silent_device_costs_no_further_deadline() {
    for rate in [0.01, 0.5] {
        let setup = Setup { fraction: Some((rate, 1.0)), ..setup_with_patience(4, 200, 3) };
        let mut fleet = Fleet::new(setup, &[Answers(1), Silent, Answers(1), Silent]);
        fleet.run(1_000_000);
        assert_eq!(fleet.committed.len(), 200);
        assert!(fleet.deadlines <= 6, "{} deadlines", fleet.deadlines);
    }
}

/// A round whose devices have left invites the others shortly before its deadline. They have a whole deadline
/// to answer.
#[test]
fn device_that_is_invited_late_has_a_whole_deadline() {
    let setup = Setup { fraction: Some((0.01, 1.0)), absence: DEADLINE - 1, ..setup_with_patience(2, 5, 1) };
    let mut fleet = Fleet::new(setup, &[Silent, Silent]);
    fleet.run(0);
    let cohort = fleet.engine.open_round().unwrap().cohort.clone();
    let invited = cohort.first().copied().unwrap();
    let other = DeviceId(1 - invited.0);
    assert_eq!(cohort.len(), 1);
    fleet.behaviours[usize::try_from(other.0).unwrap()] = Answers(60);
    fleet.handle(Event::Left(invited));
    fleet.run(DEADLINE - 1);
    assert!(fleet.engine.open_round().unwrap().cohort.contains(&other), "the other device is not invited");
    fleet.run(DEADLINE + 60);
    assert_eq!((fleet.deadlines, fleet.not_awaited()), (0, vec![]));
    assert_eq!(fleet.committed[0].participants, [other]);
}

/// A device whose first missed deadline is counted is not sent the same round again.
#[test]
fn silent_device_is_sent_an_extended_round_once() {
    let mut fleet = Fleet::new(setup_with_patience(2, 5, 1), &[Silent, Silent]);
    fleet.run(3 * DEADLINE);
    let opens = fleet.effects.actions.iter().filter(|action| matches!(action, Action::Open(..))).count();
    assert_eq!((fleet.engine.counters().extended, opens), (3, 2));
}

/// A device that names a round which it was not sent has not answered.
#[test]
fn device_that_lies_costs_no_more_deadlines_than_a_silent_one() {
    for period in [50, 110, 150, 400] {
        let mut fleet = Fleet::new(setup_with_patience(3, 100, 3), &[Answers(1), Answers(2), Lies(period)]);
        fleet.run(1_000_000);
        assert_eq!((fleet.committed.len(), fleet.rounds_without(&[0, 1])), (100, 0), "period {period}");
        assert!(fleet.deadlines <= 3, "period {period}: {} deadlines", fleet.deadlines);
    }
}

/// A device that reconnects shortly before a deadline misses it, but its answer within a whole deadline is in time.
#[test]
fn device_that_reconnects_shortly_before_the_deadline_is_waited_for_again() {
    let mut fleet = Fleet::new(setup_with_patience(2, 50, 1), &[Answers(1), Answers(60)]);
    // The second round opens after 60 ms.
    fleet.run(70);
    fleet.handle(Event::Left(DeviceId(1)));
    fleet.computing.remove(&DeviceId(1));
    fleet.run(60 + DEADLINE - 1);
    fleet.handle(Event::Joined(DeviceId(1)));
    fleet.run(60 + DEADLINE);
    assert_eq!((fleet.engine.counters().missed, fleet.not_awaited()), (1, vec![1]));
    fleet.run(60 + DEADLINE - 1 + 60);
    assert_eq!(fleet.not_awaited(), [0; 0]);
    assert_eq!(fleet.rounds_without(&[0]), 0);
}

/// A device that declines is repeated after the retry delay, not at the deadline of a silent device.
#[test]
fn silent_device_does_not_delay_retry() {
    let mut fleet = Fleet::new(setup_with_patience(2, 5, 1), &[Declines(1), Silent]);
    fleet.run(DEADLINE * 5);
    assert!(fleet.engine.counters().repeated >= 30, "{:?}", fleet.engine.counters());
    assert_eq!(fleet.not_awaited(), [1]);
}

/// Revocation forgets a device.
#[test]
fn removed_device_is_forgotten() {
    let mut fleet = Fleet::new(setup_with_patience(3, 2_000, 2), &[Answers(1), Answers(1), Silent]);
    fleet.run(250);
    assert_eq!(fleet.not_awaited(), [2]);
    fleet.handle(Event::Removed(DeviceId(2)));
    assert_eq!(fleet.not_awaited(), [] as [u64; 0]);
    let last = fleet.effects.records.iter().rev().find_map(|record| match record {
        Record::Missed(missed) => Some((missed.device, missed.missed)),
        _ => None,
    });
    assert_eq!(last, Some((DeviceId(2), 0)));
}

/// The round of final heads waits for every device.
#[test]
fn final_heads_wait_for_every_device() {
    let mut fleet = Fleet::new(setup_with_patience(3, 5, 1), &[Answers(1), Answers(1), Silent]);
    fleet.run(1_000_000);
    assert_eq!((fleet.engine.phase(), fleet.not_awaited()), (Phase::FitHead, vec![]));
    assert_eq!(fleet.engine.open_round().unwrap().outstanding(), 3);
}

/// An answer to a round that has closed long ago is charged to the privacy account of a device that is not
/// waited for, since the device has spent the noise.
#[test]
fn late_answer_of_silent_device_is_charged() {
    let mut fleet =
        Fleet::new(setup_with_patience(3, 400, 1), &[Answers(1), Answers(1), SilentUntil(150, 60)]);
    let reported = Privacy::Gaussian { release: 10, budget: 100_000, spent: 0 };
    fleet.engine.record_privacy(DeviceId(2), reported, &mut fleet.effects);
    fleet.run(300);
    let late = fleet.effects.records.iter().find_map(|record| match record {
        Record::Answered(DeviceId(2), ack) if ack.outcome == AckOutcome::Late => Some(ack.id),
        _ => None,
    });
    assert!(late.is_some(), "no late answer");
    assert!(fleet.engine.ledger().accounts()[&DeviceId(2)].spent > 0);
}

/// Number of each behaviour, drawn at random.
fn random_behaviour() -> impl Strategy<Value = Behaviour> {
    prop_oneof![
        4 => (1u64..80).prop_map(Answers),
        2 => Just(Silent),
        1 => (1u64..150).prop_map(Reconnects),
        1 => (2u64..700).prop_map(Blinks),
        1 => (3u64..700).prop_map(Lies),
        1 => (0u64..2_000, 1u64..80).prop_map(|(until, delay)| SilentUntil(until, delay)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, max_shrink_iters: 5_000, ..ProptestConfig::default() })]

    /// A device that never answers, or not until some time, costs the campaign at most as many deadlines as its
    /// patience, under any policy, and a device that answers in time is never on the list.
    #[test]
    fn silent_devices_cost_their_patience(
        behaviours in proptest::collection::vec(random_behaviour(), 1..5),
        limit in 1u32..4,
        fraction in proptest::option::of((0.1f64..1.0, 1.0f64..2.0)),
        seed in any::<u64>(),
    ) {
        let mut behaviours = behaviours;
        behaviours.insert(0, Answers(1));
        let setup = Setup { fraction, seed, ..setup_with_patience(behaviours.len(), 60, limit) };
        let mut fleet = Fleet::new(setup, &behaviours);
        for step in 1..=400u64 {
            fleet.run(step * 50);
            let wrong = fleet.not_awaited().into_iter().find(|d| matches!(behaviours[*d as usize], Answers(_)));
            prop_assert_eq!(wrong, None, "a device that answers in time");
            if !matches!(fleet.engine.phase(), Phase::Train(_)) {
                break;
            }
        }
        let silent = behaviours.iter().filter(|behaviour| !matches!(behaviour, Answers(_))).count() as u64;
        prop_assert_eq!(fleet.committed.len(), 60);
        let missed = silent * u64::from(limit);
        prop_assert!(fleet.deadlines <= missed, "{} deadlines, at most {missed}", fleet.deadlines);
    }

    /// A limit that is never reached changes no action, unless a round invites devices late, which restarts its
    /// deadline. In that case all such limits are alike.
    #[test]
    fn large_patience_is_no_patience(
        setup in random_setup(),
        ops in proptest::collection::vec(random_op(), 0..60),
    ) {
        let mut world = World::new(setup);
        ops.into_iter().for_each(|op| world.apply(op));
        let run = |limit| {
            let mut engine = Setup { patience: NonZeroU32::new(limit), ..setup }.engine();
            let mut effects = RecordedEffects::default();
            for (now, event) in &world.events {
                engine.handle(Millis::new(*now), event.clone(), &mut effects);
            }
            (effects.actions, model_bits(&engine))
        };
        let invites_late =
            |record: &Record| matches!(record, Record::Deadline(state) if state.asking_everyone);
        let expected = match world.effects.records.iter().any(invites_late) {
            true => run(2_000),
            false => (world.effects.actions.clone(), model_bits(&world.engine)),
        };
        prop_assert_eq!(run(1_000), expected);
    }

    /// Records replayed after any event restore the numbers of missed deadlines, and the model.
    #[test]
    fn replayed_records_restore_missed_deadlines(
        setup in random_setup(),
        limit in 1u32..4,
        ops in proptest::collection::vec(random_op(), 0..60),
    ) {
        let mut world = World::new(setup);
        for op in ops {
            // Declines and silence alternate with time, so that deadlines pass.
            world.apply(op);
            if let Op::Answer(..) = op {
                world.apply(Op::Advance(60));
            }
        }
        let setup = Setup { patience: NonZeroU32::new(limit), ..setup };
        let mut engine = setup.engine();
        let mut effects = RecordedEffects::default();
        for (now, event) in &world.events {
            engine.handle(Millis::new(*now), event.clone(), &mut effects);
            if engine.phase() == Phase::Failed {
                return Ok(());
            }
            let mut restored = setup.engine();
            prop_assert!(restored.replay(Millis::new(*now), &effects.records));
            let (not_awaited, expected): (BTreeSet<_>, BTreeSet<_>) =
                (restored.not_awaited().collect(), engine.not_awaited().collect());
            prop_assert_eq!(not_awaited, expected);
            prop_assert_eq!(restored.checkpoint(), engine.checkpoint());
            prop_assert_eq!(model_bits(&restored), model_bits(&engine));
            if let (Some(restored), Some(round)) = (restored.open_round(), engine.open_round()) {
                for device in restored.cohort.intersection(&round.cohort) {
                    prop_assert!(
                        round.absent.contains(device)
                            || restored.excluded.contains(device) != round.excluded.contains(device)
                            || restored.waits_for(*device) == round.waits_for(*device)
                            || !engine.not_awaited().any(|listed| listed == *device)
                    );
                }
            }
        }
    }
}
