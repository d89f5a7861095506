//! Test helpers: a simple model of the engine, with sets and f64 sums. It runs in parallel with the
//! engine and predicts the actions, counters and numbers after every event.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fedspan_engine::Tensor;
use fedspan_engine::linalg::{Matrix, from_f32, orthonormal, to_f32};
use fedspan_engine::participation::{ClosedRound, SampleTarget, UpdateArrival, UploadLayout};
use fedspan_engine::{
    Action, Counters, DeviceId, Engine, Event, Failure, Millis, Participation, Phase, RecordedEffects,
    RoundBroadcast, RoundRecord, Update,
};
use fedspan_protocol::message::{AckOutcome, Decline, DeclineReason, Rejection, RoundId};
use proptest::prelude::*;

use super::campaign::{BOUND, D, ETA, ITERATIONS, K, Setup};
use super::{create_update, distance, random, random_tensors};

/// Number of devices in random histories, more than any fleet needs.
pub const UNIVERSE: u64 = 7;

/// Kind of a simulated update: valid, or invalid in one respect.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Good,
    NotFinite(bool),
    Shape,
    Role,
    Norm,
    NoSamples,
    Again,
    Changed,
    Late,
    Future,
}

/// Operation of a random history.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    Join(DeviceId),
    Leave(DeviceId),
    Answer(DeviceId, Kind),
    /// The device declines the last round, or with `false` the round before it.
    Decline(DeviceId, bool),
    /// The device declines because it has already finished the round.
    Repeated(DeviceId),
    Advance(u64),
    Tick,
}

/// Random operations.
pub fn random_op() -> impl Strategy<Value = Op> {
    let device = (0..UNIVERSE).prop_map(DeviceId);
    let kind = prop_oneof![
        12 => Just(Kind::Good),
        1 => any::<bool>().prop_map(Kind::NotFinite),
        1 => Just(Kind::Shape),
        1 => Just(Kind::Role),
        1 => Just(Kind::Norm),
        1 => Just(Kind::NoSamples),
        2 => Just(Kind::Again),
        1 => Just(Kind::Changed),
        2 => Just(Kind::Late),
        1 => Just(Kind::Future),
    ];
    prop_oneof![
        6 => device.clone().prop_map(Op::Join),
        2 => device.clone().prop_map(Op::Leave),
        14 => (device.clone(), kind).prop_map(|(d, k)| Op::Answer(d, k)),
        3 => (device.clone(), prop::bool::weighted(0.8)).prop_map(|(d, now)| Op::Decline(d, now)),
        3 => device.prop_map(Op::Repeated),
        3 => (1u64..120).prop_map(Op::Advance),
        3 => Just(Op::Tick),
    ]
}

/// Expected action of an event. Consecutive actions of the same kind for several devices are combined into
/// one with a set of devices.
#[derive(Clone, Debug, PartialEq)]
pub enum Expected {
    Ack(DeviceId, RoundId, AckOutcome),
    Close(RoundId, BTreeSet<DeviceId>),
    Commit(Box<RoundRecord>),
    Open(RoundId, BTreeSet<DeviceId>),
    /// Devices that may sleep, and for how long.
    NextRound(u64, BTreeSet<DeviceId>),
    Finished,
    /// Failure, with the number of the round and the number of counted updates.
    Failed(u32, usize),
}

/// Open round of the model.
pub struct ModelRound {
    pub id: RoundId,
    /// Earlier ids of the round, for the devices that were invited under them.
    pub ids: BTreeMap<DeviceId, RoundId>,
    /// Whether an invited device has declined the round as already finished.
    pub needs_new_id: bool,
    pub phase: Phase,
    pub cohort: BTreeSet<DeviceId>,
    pub target: usize,
    /// Whether every device that joins is invited.
    pub asking_everyone: bool,
    pub counted: BTreeMap<DeviceId, Update>,
    /// Devices with counted updates, in order of arrival.
    pub order: Vec<DeviceId>,
    /// Devices that declined or were rejected.
    pub excluded: BTreeSet<DeviceId>,
    /// Devices that the round no longer waits for, because they have been disconnected too long.
    pub absent: BTreeSet<DeviceId>,
    /// Number of samples that completes the round with fewer updates.
    pub sample_target: Option<SampleTarget>,
    pub rejected: u32,
    pub opened_at: u64,
    pub deadline: Option<u64>,
}

impl ModelRound {
    /// Whether the round still waits for the device.
    pub fn awaits(&self, device: DeviceId) -> bool {
        self.cohort.contains(&device)
            && !self.counted.contains_key(&device)
            && !self.excluded.contains(&device)
            && !self.absent.contains(&device)
    }

    /// Id of the round under which the device was invited.
    pub fn id_for(&self, device: DeviceId) -> RoundId {
        self.ids.get(&device).copied().unwrap_or(self.id)
    }

    /// Whether the target of the round is met, in updates or in samples.
    pub fn is_target_met(&self, min_count: usize) -> bool {
        let samples: u64 = self.counted.values().map(|update| u64::from(update.samples)).sum();
        let counted = self.counted.len();
        counted >= self.target
            || self.sample_target.is_some_and(|sample_target| {
                samples >= sample_target.samples && counted >= min_count.max(sample_target.answers)
            })
    }

    /// Whether the round waits for no further device.
    pub fn has_all_answers(&self) -> bool {
        self.cohort.iter().all(|device| !self.awaits(*device))
    }
}

/// Model of the engine: its rules, with sets and f64 sums.
pub struct Model {
    pub setup: Setup,
    pub policy: Box<dyn Participation>,
    pub now: u64,
    pub phase: Phase,
    pub basis: Matrix,
    pub head: Matrix,
    /// Time at which each device left; `None` if it is connected.
    pub fleet: BTreeMap<DeviceId, Option<u64>>,
    pub round: Option<ModelRound>,
    pub last: RoundId,
    pub opened: bool,
    /// Number of attempts in a row without a counted update.
    pub failed_attempts: u32,
    /// Time at which a round with too few updates is retried.
    pub retry: Option<u64>,
    /// Time before which no round of the start or of training opens.
    pub not_before: Option<u64>,
    pub counters: Counters,
    /// Numbers of the committed rounds.
    pub commits: Vec<u32>,
}

impl Model {
    pub fn new(setup: Setup) -> Self {
        Self {
            setup,
            policy: setup.policy(),
            now: 0,
            phase: Phase::Waiting,
            basis: setup.basis(),
            head: Matrix::zeros(K, 1),
            fleet: BTreeMap::new(),
            round: None,
            last: RoundId::default(),
            opened: false,
            failed_attempts: 0,
            retry: None,
            not_before: None,
            counters: Counters::default(),
            commits: Vec::new(),
        }
    }

    /// Connected devices among `devices`.
    pub fn connected(&self, devices: &BTreeSet<DeviceId>) -> BTreeSet<DeviceId> {
        devices.iter().copied().filter(|device| self.fleet.get(device) == Some(&None)).collect()
    }

    /// Devices that may be invited: connected, or disconnected for less than the absence time.
    pub fn present_devices(&self) -> BTreeSet<DeviceId> {
        let is_present =
            |left_at: &Option<u64>| left_at.is_none_or(|time| self.now - time < self.setup.absence);
        self.fleet.iter().filter(|(_, left_at)| is_present(left_at)).map(|(device, _)| *device).collect()
    }

    /// Predicts the actions after a device has joined.
    pub fn join(&mut self, device: DeviceId) -> Vec<Expected> {
        self.fleet.insert(device, None);
        match (&mut self.round, self.phase) {
            (Some(round), Phase::FitHead | Phase::Finished) => {
                round.cohort.insert(device);
                round.absent.remove(&device);
                vec![Expected::Open(round.id, BTreeSet::from([device]))]
            }
            // Devices that have already answered are invited again, since their acknowledgement may have been
            // lost.
            (Some(round), _)
                if round.asking_everyone
                    || round.cohort.contains(&device) && !round.excluded.contains(&device) =>
            {
                round.cohort.insert(device);
                round.absent.remove(&device);
                if round.excluded.contains(&device) {
                    self.renumber_if_needed();
                }
                let Some(round) = &mut self.round else { return Vec::new() };
                if round.excluded.remove(&device) {
                    self.counters.asked_again += 1;
                    round.ids.remove(&device);
                }
                vec![Expected::Open(round.id_for(device), BTreeSet::from([device]))]
            }
            (Some(_), _) => self.expect_next_round(&BTreeSet::from([device])),
            (None, Phase::Failed) => Vec::new(),
            (None, _) if self.opened && self.retry.is_some() => Vec::new(),
            (None, _) => {
                let mut expected = self.open_if_possible();
                if self.round.is_none() {
                    expected.extend(self.expect_next_round(&BTreeSet::from([device])));
                }
                expected
            }
        }
    }

    /// Opens the next round if enough devices are present and it is not too early.
    pub fn open_if_possible(&mut self) -> Vec<Expected> {
        let is_last = matches!(self.phase, Phase::Train(done) if done == self.setup.rounds);
        let needed = match self.phase {
            _ if is_last => 1,
            _ if self.opened => self.setup.min_count,
            _ => self.setup.fleet_size.max(self.setup.min_count),
        };
        let is_early = self.not_before.is_some_and(|time| self.now < time) && !is_last;
        if self.present_devices().len() < needed || is_early { Vec::new() } else { self.open_next_round() }
    }

    /// Expected message to the connected ones of `devices` that no round opens before a known time.
    pub fn expect_next_round(&self, devices: &BTreeSet<DeviceId>) -> Vec<Expected> {
        let is_known = match self.phase {
            Phase::Train(done) => self.round.is_some() || done < self.setup.rounds,
            Phase::Waiting | Phase::Start(_) => true,
            _ => false,
        };
        let Some(time) = self.not_before.filter(|time| is_known && *time > self.now) else {
            return Vec::new();
        };
        let mut expected = Vec::new();
        for device in self.connected(devices) {
            // A part of a sixteenth of the interval: the fractional part of the number times the golden ratio.
            let part = f64::from(device.0.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_shr(32) as u32)
                / f64::from(2.0_f32.powi(32));
            let delay = ((self.setup.every.unwrap_or(0) / 16) as f64 * part) as u64;
            merge(&mut expected, Expected::NextRound(time - self.now + delay, BTreeSet::from([device])));
        }
        expected
    }

    /// Opens the next round.
    pub fn open_next_round(&mut self) -> Vec<Expected> {
        let present = self.present_devices();
        if present.is_empty() {
            return Vec::new();
        }
        self.opened = true;
        self.retry = None;
        self.not_before = self.setup.every.map(|every| self.now + every);
        let starts = if self.setup.power { ITERATIONS } else { 0 };
        self.phase = match self.phase {
            Phase::Waiting if starts > 0 => Phase::Start(1),
            Phase::Start(done) if done < starts => Phase::Start(done + 1),
            Phase::Waiting | Phase::Start(_) => Phase::Train(1),
            Phase::Train(done) if done < self.setup.rounds => Phase::Train(done + 1),
            _ => Phase::FitHead,
        };
        let mut cohort = present.clone();
        let mut target = present.len();
        let mut sample_target = None;
        let mut stage = 0;
        if let Phase::Train(number) = self.phase {
            let devices: Vec<DeviceId> = present.into_iter().collect();
            let drawn = self.policy.cohort(number, &devices);
            cohort = drawn.devices.into_iter().collect();
            (target, sample_target, stage) = (drawn.target, drawn.sample_target, drawn.stage);
        }
        if self.phase == Phase::FitHead {
            stage = self.last.stage;
            // This round does not close after a number of updates.
            target = usize::MAX;
        } else {
            target = target.max(self.setup.min_count);
        }
        self.last = RoundId { round: self.last.round + 1, stage };
        let opened = self.connected(&cohort);
        self.round = Some(ModelRound {
            id: self.last,
            ids: BTreeMap::new(),
            needs_new_id: false,
            phase: self.phase,
            cohort,
            target,
            asking_everyone: false,
            counted: BTreeMap::new(),
            order: Vec::new(),
            excluded: BTreeSet::new(),
            absent: BTreeSet::new(),
            sample_target,
            rejected: 0,
            opened_at: self.now,
            deadline: self.setup.deadline.map(|limit| self.now + limit),
        });
        let mut expected =
            if opened.is_empty() { Vec::new() } else { vec![Expected::Open(self.last, opened)] };
        if self.phase != Phase::FitHead
            && self.round.as_ref().is_some_and(|round| round.cohort.len() < self.setup.min_count)
        {
            let newcomers = self.ask_everyone();
            for invitation in self.expect_open(&newcomers) {
                merge(&mut expected, invitation);
            }
        }
        let all: BTreeSet<DeviceId> = self.fleet.keys().copied().collect();
        let uninvited = self.round.iter().flat_map(|round| all.difference(&round.cohort)).copied().collect();
        expected.extend(self.expect_next_round(&uninvited));
        expected
    }

    /// Invites the present devices that were not invited, and returns them.
    pub fn ask_everyone(&mut self) -> BTreeSet<DeviceId> {
        let present = self.present_devices();
        let Some(round) = &mut self.round else { return BTreeSet::new() };
        let newcomers: BTreeSet<DeviceId> = present.difference(&round.cohort).copied().collect();
        round.cohort.extend(&newcomers);
        round.asking_everyone = true;
        newcomers
    }

    /// Invites the connected devices again that declined or were rejected, and returns them.
    pub fn ask_again(&mut self) -> BTreeSet<DeviceId> {
        self.retry = None;
        let reinvited = self.round.as_ref().map(|round| self.connected(&round.excluded)).unwrap_or_default();
        if !reinvited.is_empty() {
            self.renumber_if_needed();
        }
        if let Some(round) = &mut self.round {
            round.excluded.retain(|device| !reinvited.contains(device));
            round.ids.retain(|device, _| !reinvited.contains(device));
        }
        self.counters.asked_again += reinvited.len() as u64;
        reinvited
    }

    /// Gives the open round a new id for the excluded devices, if one of them regards the present id as finished.
    fn renumber_if_needed(&mut self) {
        if let Some(round) = self.round.as_mut().filter(|round| round.needs_new_id) {
            let keep = round.cohort.difference(&round.excluded);
            round.ids = keep.map(|device| (*device, round.id_for(*device))).collect();
            self.last.round += 1;
            (round.id, round.needs_new_id) = (self.last, false);
            self.counters.renamed += 1;
        }
    }

    /// Expected invitations of the connected devices among `devices`.
    pub fn expect_open(&self, devices: &BTreeSet<DeviceId>) -> Vec<Expected> {
        let opened = self.connected(devices);
        if opened.is_empty() { Vec::new() } else { vec![Expected::Open(self.last, opened)] }
    }

    /// Minimum number of updates with which the open round may close below its target.
    pub fn min_updates(&self) -> usize {
        self.round.as_ref().map_or(0, |_| self.setup.min_count)
    }

    /// Predicts the actions after an update. The update is invalid for
    /// `invalid_reason`, or valid if there is no reason.
    pub fn predict_answer(
        &mut self,
        device: DeviceId,
        update: &Update,
        invalid_reason: Option<Rejection>,
    ) -> Vec<Expected> {
        let training = matches!(self.phase, Phase::Train(_));
        let outcome = match &mut self.round {
            Some(round) if round.id_for(device) == update.id => {
                if !round.cohort.contains(&device) {
                    AckOutcome::Rejected(Rejection::NotAsked)
                } else if let Some(known) = round.counted.get(&device) {
                    // In the final rounds updates have no tensors, so a head that was fitted again from other
                    // samples is a duplicate.
                    let is_final_round = self.phase == Phase::FitHead || self.phase == Phase::Finished;
                    let is_same_content =
                        is_final_round || known.tensors == update.tensors && known.samples == update.samples;
                    if is_same_content {
                        AckOutcome::Duplicate
                    } else {
                        AckOutcome::Rejected(Rejection::ContentChanged)
                    }
                } else if let Some(rejection) = invalid_reason {
                    round.absent.remove(&device);
                    round.excluded.insert(device);
                    AckOutcome::Rejected(rejection)
                } else {
                    round.excluded.remove(&device);
                    round.absent.remove(&device);
                    round.order.push(device);
                    if training {
                        self.policy.counted(&UpdateArrival {
                            elapsed: Millis::new(self.now - round.opened_at),
                            samples: round
                                .counted
                                .values()
                                .map(|known| u64::from(known.samples))
                                .sum::<u64>()
                                + u64::from(update.samples),
                            tensors: &update.tensors,
                            model: &self.basis,
                            layout: UploadLayout::Representation,
                        });
                    }
                    round.counted.insert(device, update.clone());
                    self.failed_attempts = 0;
                    AckOutcome::Counted
                }
            }
            _ if (1..=self.last.round).contains(&update.id.round) => AckOutcome::Late,
            _ => AckOutcome::Rejected(Rejection::WrongRound),
        };
        let counters = &mut self.counters;
        match outcome {
            AckOutcome::Counted => {
                counters.counted += 1;
                counters.skipped_samples += u64::from(update.skipped);
            }
            AckOutcome::Duplicate => counters.duplicate += 1,
            AckOutcome::Late => counters.late += 1,
            AckOutcome::Rejected(rejection) => {
                if let Some(round) = &mut self.round {
                    round.rejected += 1;
                }
                *match rejection {
                    Rejection::NotAsked => &mut counters.not_asked,
                    Rejection::WrongRound => &mut counters.wrong_round,
                    Rejection::Tensors => &mut counters.wrong_tensors,
                    Rejection::NonFinite => &mut counters.non_finite,
                    Rejection::NormOverBound { .. } => &mut counters.norm_over_bound,
                    Rejection::ContentChanged => &mut counters.content_changed,
                    Rejection::NoSamples => &mut counters.no_samples,
                    other => panic!("{other:?}"),
                } += 1;
            }
            other => panic!("{other:?}"),
        }
        let mut expected = self.expect_next_round(&BTreeSet::from([device]));
        expected.push(Expected::Ack(device, update.id, outcome));
        expected.extend(self.close_if_ended());
        expected
    }

    /// Predicts the actions after a device has declined a round.
    pub fn decline(&mut self, device: DeviceId, id: RoundId, needs_new_id: bool) -> Vec<Expected> {
        self.counters.declined += 1;
        let is_awaited = |round: &&mut ModelRound| round.id_for(device) == id && round.awaits(device);
        if let Some(round) = self.round.as_mut().filter(is_awaited) {
            round.excluded.insert(device);
            round.needs_new_id |= needs_new_id;
        }
        self.close_if_ended()
    }

    /// Closes the round if it is complete, or retries it if no further device can answer.
    pub fn close_if_ended(&mut self) -> Vec<Expected> {
        let Some(round) = &self.round else { return Vec::new() };
        match self.phase {
            Phase::FitHead if round.has_all_answers() => {
                self.phase = Phase::Finished;
                vec![Expected::Finished]
            }
            Phase::FitHead | Phase::Finished => Vec::new(),
            _ if round.is_target_met(self.setup.min_count) => self.close_round(),
            _ if !round.has_all_answers() => Vec::new(),
            _ if round.counted.len() >= self.min_updates() => self.close_round(),
            _ => {
                let counted = round.counted.len();
                let newcomers = self.ask_everyone();
                if newcomers.is_empty() { self.retry_or_fail(counted) } else { self.expect_open(&newcomers) }
            }
        }
    }

    /// Handles a round with too few updates to which every present device has answered.
    pub fn retry_or_fail(&mut self, counted: usize) -> Vec<Expected> {
        let retry_at = self.setup.retry_delay.map(|retry_delay| self.now + retry_delay);
        let has_no_updates = counted == 0;
        let attempts = self.failed_attempts + 1;
        if retry_at.is_none() && attempts >= 3 {
            self.failed_attempts = attempts;
            self.round = None;
            self.phase = Phase::Failed;
            self.not_before = None;
            return vec![Expected::Failed(self.last.round, counted)];
        }
        if !has_no_updates {
            // The round stays open with its counted updates.
            if retry_at.is_some() {
                self.retry = self.retry.or(retry_at);
                return Vec::new();
            }
            let reinvited = self.ask_again();
            self.failed_attempts += u32::from(!reinvited.is_empty());
            return self.expect_open(&reinvited);
        }
        self.failed_attempts = attempts;
        self.round = None;
        self.counters.repeated += 1;
        self.phase = match self.phase {
            Phase::Start(number) => Phase::Start(number - 1),
            Phase::Train(number) => Phase::Train(number - 1),
            unchanged => unchanged,
        };
        self.retry = retry_at;
        if retry_at.is_some() { Vec::new() } else { self.open_if_possible() }
    }

    /// Predicts the actions of the timeouts that are due.
    pub fn tick(&mut self) -> Vec<Expected> {
        let mut expected = self.at_deadline();
        expected.extend(self.give_up_absent());
        if self.retry.is_some_and(|due| self.now >= due) {
            self.retry = None;
            expected.extend(if self.round.is_none() {
                self.opened = true;
                self.open_if_possible()
            } else {
                let reinvited = self.ask_again();
                self.expect_open(&reinvited)
            });
        }
        if self.not_before.is_some_and(|due| self.now >= due) {
            self.not_before = None;
            if self.round.is_none() && self.retry.is_none() {
                expected.extend(self.open_if_possible());
            }
        }
        expected
    }

    /// Predicts the actions after a device has disconnected.
    pub fn leave(&mut self, device: DeviceId) -> Vec<Expected> {
        let Some(left_at) = self.fleet.get_mut(&device) else { return Vec::new() };
        // A device that has left cannot leave again.
        let was_connected = left_at.is_none();
        left_at.get_or_insert(self.now);
        if was_connected && self.setup.absence == 0 { self.give_up_absent() } else { Vec::new() }
    }

    /// Disconnected devices that the open round still waits for, with the times at which they left.
    pub fn awaited_absent(&self) -> Vec<(DeviceId, u64)> {
        let Some(round) = self.round.as_ref().filter(|_| self.phase != Phase::Finished) else {
            return Vec::new();
        };
        let awaited = round.cohort.iter().filter(|device| round.awaits(**device));
        awaited.filter_map(|device| Some((*device, (*self.fleet.get(device)?)?))).collect()
    }

    /// Stops waiting for devices that have been disconnected too long.
    pub fn give_up_absent(&mut self) -> Vec<Expected> {
        let is_absent = |left_at: u64| self.now - left_at >= self.setup.absence;
        let absent: Vec<DeviceId> = self
            .awaited_absent()
            .into_iter()
            .filter(|(_, left_at)| is_absent(*left_at))
            .map(|(device, _)| device)
            .collect();
        if absent.is_empty() {
            return Vec::new();
        }
        self.counters.absent += absent.len() as u64;
        let (none_present, min_updates) = (self.present_devices().is_empty(), self.min_updates());
        let Some(round) = &mut self.round else { return Vec::new() };
        round.absent.extend(absent);
        let complete = round.has_all_answers() && round.counted.len() >= min_updates;
        if none_present && !complete {
            round.asking_everyone = true;
            return Vec::new();
        }
        self.close_if_ended()
    }

    /// Closes the open round at its deadline, or extends the deadline.
    pub fn at_deadline(&mut self) -> Vec<Expected> {
        let now = self.now;
        let Some(round) = &mut self.round else { return Vec::new() };
        if round.deadline.is_none_or(|deadline| now < deadline) {
            return Vec::new();
        }
        match self.phase {
            Phase::FitHead => {
                round.deadline = None;
                self.phase = Phase::Finished;
                vec![Expected::Finished]
            }
            Phase::Finished => {
                round.deadline = None;
                Vec::new()
            }
            _ if round.counted.len() >= self.setup.min_count => self.close_round(),
            _ => {
                round.deadline = self.setup.deadline.map(|limit| now + limit);
                self.counters.extended += 1;
                let newcomers = self.ask_everyone();
                let mut expected = self.expect_open(&newcomers);
                let reinvited = self.ask_again();
                for invitation in self.expect_open(&reinvited) {
                    merge(&mut expected, invitation);
                }
                expected
            }
        }
    }

    /// Closes the open round: computes the next model, in which each counted update is included once.
    pub fn close_round(&mut self) -> Vec<Expected> {
        let round = self.round.take().unwrap();
        self.retry = None;
        let target = round.target.min(round.cohort.len());
        let is_short = !round.is_target_met(self.setup.min_count) && round.counted.len() < target;
        self.counters.short += u64::from(is_short);
        let previous_basis = self.basis.clone();
        let mut weight = 0.0;
        let mut basis_sum = Matrix::zeros(D, K);
        let mut head_sum = Matrix::zeros(K, 1);
        for update in round.counted.values() {
            let update_weight = if self.setup.by_samples { f64::from(update.samples) } else { 1.0 };
            weight += update_weight;
            basis_sum += from_f32(D, K, &update.tensors[0].values) * update_weight;
            if let Some(head) = update.tensors.get(1) {
                head_sum += from_f32(K, 1, &head.values) * update_weight;
            }
        }
        basis_sum /= weight;
        match round.phase {
            Phase::Start(_) => self.basis = orthonormal(&basis_sum).unwrap(),
            _ if self.setup.fedavg => {
                self.basis = basis_sum;
                self.head = head_sum / weight;
            }
            _ => {
                let decoded_basis = from_f32(D, K, &to_f32(&self.basis));
                self.basis = orthonormal(&(decoded_basis - basis_sum * f64::from(ETA))).unwrap();
            }
        }
        if matches!(round.phase, Phase::Train(_)) {
            let elapsed = self.now - round.opened_at;
            let short_of = is_short.then_some(target);
            self.policy.closed(&ClosedRound {
                elapsed: Millis::new(elapsed),
                short_of,
                before: &previous_basis,
                model: &self.basis,
                ends_cycle: true,
            });
        }
        self.commits.push(round.id.round);
        let awaited = round.cohort.iter().copied().filter(|device| round.awaits(*device)).collect();
        let notified = self.connected(&awaited);
        let mut expected = Vec::new();
        for device in notified {
            for told in self.expect_next_round(&BTreeSet::from([device])) {
                merge(&mut expected, told);
            }
            merge(&mut expected, Expected::Close(round.id_for(device), BTreeSet::from([device])));
        }
        expected.push(Expected::Commit(Box::new(RoundRecord {
            id: round.id,
            phase: round.phase,
            short_of: is_short.then_some(target),
            cohort: round.cohort.iter().copied().collect(),
            participants: round.order.clone(),
            rejected: round.rejected,
            opened_at: Millis::new(round.opened_at),
            closed_at: Millis::new(self.now),
            change: None,
            interference: None,
            ends_training: round.phase == Phase::Train(self.setup.rounds),
        })));
        expected.extend(self.open_if_possible());
        expected
    }
}

/// Adds an expected action. The devices of consecutive actions of the same kind are combined.
fn merge(expected: &mut Vec<Expected>, next: Expected) {
    match (expected.last_mut(), &next) {
        (Some(Expected::Open(a, devices)), Expected::Open(b, more))
        | (Some(Expected::Close(a, devices)), Expected::Close(b, more))
            if a == b =>
        {
            devices.extend(more);
        }
        (Some(Expected::NextRound(a, devices)), Expected::NextRound(b, more)) if a == b => {
            devices.extend(more);
        }
        _ => expected.push(next),
    }
}

/// Engine and model that process the same events.
pub struct World {
    pub engine: Engine,
    pub model: Model,
    /// Last broadcast to each connected device.
    pub pending: BTreeMap<DeviceId, Arc<RoundBroadcast>>,
    pub broadcasts: BTreeMap<u32, Arc<RoundBroadcast>>,
    /// Every counted update, by device.
    pub counted: BTreeMap<DeviceId, Update>,
    pub finished: usize,
    pub draws: u64,
    /// All events so far, with their times.
    pub events: Vec<(u64, Event)>,
    /// All effects of these events.
    pub effects: RecordedEffects,
}

impl World {
    pub fn new(setup: Setup) -> Self {
        Self {
            engine: setup.engine(),
            model: Model::new(setup),
            pending: BTreeMap::new(),
            broadcasts: BTreeMap::new(),
            counted: BTreeMap::new(),
            finished: 0,
            draws: 0,
            events: Vec::new(),
            effects: RecordedEffects::default(),
        }
    }

    /// Applies an operation to engine and model, and compares them.
    pub fn apply(&mut self, op: Op) {
        match op {
            Op::Join(device) => {
                let expected = self.model.join(device);
                self.check_event(Event::Joined(device), expected);
            }
            Op::Leave(device) => {
                let expected = self.model.leave(device);
                self.pending.remove(&device);
                self.check_event(Event::Left(device), expected);
            }
            Op::Answer(device, kind) => self.send_answer(device, kind),
            Op::Decline(device, current) => {
                let mut id = self.model.last;
                if !current {
                    id.round = id.round.saturating_sub(1);
                }
                let expected = self.model.decline(device, id, false);
                let decline = Decline { id, reason: DeclineReason::NoSamples };
                self.check_event(Event::Declined(device, decline), expected);
            }
            Op::Repeated(device) => {
                let id = self.round_id_for(device);
                let expected = self.model.decline(device, id, true);
                let decline = Decline { id, reason: DeclineReason::RoundRepeated { last: id.round } };
                self.check_event(Event::Declined(device, decline), expected);
            }
            Op::Advance(by) => self.model.now += by,
            Op::Tick => {
                let expected = self.model.tick();
                self.check_event(Event::Tick, expected);
            }
        }
    }

    /// Random valid update for a broadcast.
    pub fn random_valid_update(&mut self, broadcast: &RoundBroadcast) -> Update {
        self.draws += 1;
        let stream = &mut random(self.draws);
        let samples = 1 + (self.draws % 7) as u32;
        let values = random_tensors(&broadcast.request.expects, stream, 1.0);
        let skipped = (self.draws % 3) as u32;
        Update { skipped, ..create_update(broadcast.id, samples, &broadcast.request.expects, values) }
    }

    /// Id of the open round under which a device was invited.
    fn round_id_for(&self, device: DeviceId) -> RoundId {
        self.model.round.as_ref().map_or(self.model.last, |round| round.id_for(device))
    }

    /// Sends an update of this kind to engine and model.
    pub fn send_answer(&mut self, device: DeviceId, kind: Kind) {
        let Some(broadcast) = self.broadcasts.get(&self.round_id_for(device).round).cloned() else {
            // No round is open to which a device was invited.
            let stray =
                create_update(RoundId { round: self.model.last.round + 1, stage: 0 }, 1, &[], Vec::new());
            let expected = self.model.predict_answer(device, &stray, None);
            return self.check_event(Event::Update(device, stray), expected);
        };
        let mut update = self.random_valid_update(&broadcast);
        let mut invalid_reason = None;
        let change_last_value = |update: &mut Update, change: &dyn Fn(&mut f32)| {
            update.tensors.last_mut().and_then(|t| t.values.last_mut()).map(change)
        };
        match kind {
            Kind::Good => {}
            Kind::NotFinite(nan) => {
                let non_finite = if nan { f32::NAN } else { f32::NEG_INFINITY };
                invalid_reason =
                    change_last_value(&mut update, &|v| *v = non_finite).map(|()| Rejection::NonFinite);
            }
            Kind::Norm => {
                change_last_value(&mut update, &|v| *v = BOUND * 1.5);
                let all_values = update.tensors.iter().flat_map(|t| &t.values);
                let norm = all_values.map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt() as f32;
                invalid_reason = (norm > BOUND).then_some(Rejection::NormOverBound { norm, bound: BOUND });
            }
            Kind::Shape => {
                match (update.descriptors.last_mut(), update.tensors.last_mut()) {
                    (Some(descriptor), Some(tensor)) => {
                        std::mem::swap(&mut descriptor.rows, &mut descriptor.cols);
                        std::mem::swap(&mut tensor.rows, &mut tensor.cols);
                    }
                    _ => {
                        let extra = Tensor {
                            role: fedspan_protocol::tensor::Role::Gradient,
                            rows: 1,
                            cols: 1,
                            values: vec![0.0],
                        };
                        update.descriptors.push(extra.descriptor(Default::default()));
                        update.tensors.push(extra);
                    }
                }
                invalid_reason = Some(Rejection::Tensors);
            }
            Kind::Role => {
                if let Some(descriptor) = update.descriptors.first_mut() {
                    descriptor.role = fedspan_protocol::tensor::Role::Moment;
                    invalid_reason = Some(Rejection::Tensors);
                }
            }
            Kind::NoSamples => {
                update.samples = 0;
                invalid_reason = Some(Rejection::NoSamples);
            }
            Kind::Again => {
                if let Some(known) = self.counted.get(&device) {
                    update = known.clone();
                    update.skipped += 1;
                }
            }
            Kind::Changed => {
                if let Some(known) = self.counted.get(&device) {
                    update = known.clone();
                    update.samples += 1;
                    change_last_value(&mut update, &|v| *v *= 0.5);
                }
            }
            Kind::Late => {
                let earlier = self.broadcasts.range(..self.model.last.round).next_back();
                let earlier = earlier.map(|(_, broadcast)| Arc::clone(broadcast));
                if let Some(broadcast) = earlier {
                    update = self.random_valid_update(&broadcast);
                }
            }
            Kind::Future => update.id.round += 1 + (self.draws % 4) as u32,
        }
        let expected = self.model.predict_answer(device, &update, invalid_reason);
        if expected.iter().any(|action| matches!(action, Expected::Ack(_, _, AckOutcome::Counted))) {
            self.counted.insert(device, update.clone());
        }
        self.check_event(Event::Update(device, update), expected);
    }

    /// Passes an event to the engine, and compares its actions and state with the model.
    pub fn check_event(&mut self, event: Event, expected: Vec<Expected>) {
        self.events.push((self.model.now, event.clone()));
        let first_new = self.effects.actions.len();
        self.engine.handle(Millis::new(self.model.now), event.clone(), &mut self.effects);
        let actions = self.effects.actions.get(first_new..).unwrap_or_default().to_vec();
        let mut actual = Vec::new();
        for action in &actions {
            match action {
                Action::Open(device, broadcast) => {
                    self.check_broadcast(broadcast);
                    self.pending.insert(*device, Arc::clone(broadcast));
                    match actual.last_mut() {
                        Some(Expected::Open(id, devices)) if *id == broadcast.id => {
                            assert!(devices.insert(*device), "a device was invited twice");
                        }
                        _ => actual.push(Expected::Open(broadcast.id, BTreeSet::from([*device]))),
                    }
                }
                Action::Close(device, id) => {
                    self.pending.remove(device);
                    match actual.last_mut() {
                        Some(Expected::Close(last_id, devices)) if last_id == id => {
                            assert!(devices.insert(*device), "a round was closed twice for a device");
                        }
                        _ => actual.push(Expected::Close(*id, BTreeSet::from([*device]))),
                    }
                }
                Action::Acknowledge(device, ack) => {
                    if self.pending.get(device).is_some_and(|broadcast| broadcast.id == ack.id) {
                        self.pending.remove(device);
                    }
                    actual.push(Expected::Ack(*device, ack.id, ack.outcome));
                }
                Action::NextRound(device, time) => {
                    let told = BTreeSet::from([*device]);
                    merge(&mut actual, Expected::NextRound(time.as_u64(), told));
                }
                Action::Commit(record) => actual.push(Expected::Commit(record.clone())),
                Action::Finished => {
                    self.finished += 1;
                    actual.push(Expected::Finished);
                }
                Action::Failed(Failure::NoUpdates { round, .. }) => actual.push(Expected::Failed(*round, 0)),
                Action::Failed(Failure::TooFew { round, counted, min_count, .. }) => {
                    assert!((1..*min_count).contains(counted), "{counted} of {min_count}");
                    actual.push(Expected::Failed(*round, *counted));
                }
                Action::Failed(failure) => panic!("{failure}"),
                Action::NotAwaited(device) | Action::Awaited(device) => {
                    panic!("{device}: no patience is set")
                }
            }
        }
        assert_eq!(actual, expected, "after {event:?} in {:?}", self.model.phase);
        self.assert_same_state();
    }

    /// Checks a broadcast: all devices have the same, with the current representation.
    pub fn check_broadcast(&mut self, broadcast: &Arc<RoundBroadcast>) {
        let known = self.broadcasts.entry(broadcast.id.round).or_insert_with(|| Arc::clone(broadcast));
        assert!(Arc::ptr_eq(known, broadcast), "devices have different broadcasts");
        // The broadcast contains the current representation.
        if let Some(broadcast_basis) = broadcast.request.tensors.first() {
            let broadcast_basis = from_f32(D, K, &broadcast_basis.values);
            let mut basis = self.model.basis.clone();
            if self.setup().fedavg && matches!(self.model.phase, Phase::FitHead | Phase::Finished) {
                basis = orthonormal(&basis).unwrap();
            }
            assert!(distance(&broadcast_basis, &basis) < 1e-5);
        }
    }

    pub fn setup(&self) -> Setup {
        self.model.setup
    }

    /// Compares the state of the engine with the model.
    pub fn assert_same_state(&self) {
        let (engine, model) = (&self.engine, &self.model);
        assert_eq!(engine.phase(), model.phase);
        assert_eq!(engine.counters(), model.counters);
        let connected = model.fleet.values().filter(|left_at| left_at.is_none()).count();
        assert_eq!(engine.fleet(), (model.fleet.len(), connected));
        let deadline = model.round.as_ref().and_then(|round| round.deadline);
        let absences = model.awaited_absent().into_iter().map(|(_, left_at)| left_at + model.setup.absence);
        assert_eq!(
            engine.wake(),
            deadline
                .into_iter()
                .chain(model.retry)
                .chain(absences)
                .chain(model.not_before.filter(|_| model.round.is_none()))
                .min()
                .map(Millis::new)
        );
        assert!(
            distance(engine.representation(), &model.basis) < 1e-8,
            "an update did not count exactly once"
        );
        if let Some(head) = engine.shared_head() {
            assert!(distance(head, &model.head) < 1e-8);
        }
        match (engine.open_round(), &model.round) {
            (Some(engine_round), Some(round)) => {
                assert_eq!((engine_round.broadcast.id, &engine_round.participants), (round.id, &round.order));
                assert_eq!((&engine_round.cohort, &engine_round.excluded), (&round.cohort, &round.excluded));
                assert_eq!(engine_round.absent, round.absent);
                assert!(
                    round.cohort.iter().all(|device| engine_round.id_for(*device) == round.id_for(*device))
                );
                let outstanding = round.cohort.iter().filter(|device| round.awaits(**device)).count();
                assert_eq!(engine_round.outstanding(), outstanding);
            }
            (None, None) => {}
            (engine_round, _) => panic!("open in one of both: {engine_round:?}"),
        }
        assert!(
            model.commits.windows(2).all(|pair| pair[0] < pair[1]),
            "rounds were committed out of order, or twice"
        );
        assert!(self.finished <= 1);
    }

    /// Answers honestly for all devices until the campaign ends.
    pub fn finish_honestly(&mut self) {
        // Without a deadline a round waits for all invited devices, so all must reconnect. With a deadline a
        // sufficient number must reconnect, and devices that declined are invited again.
        let sample_target = self.setup().fleet_size.max(self.setup().min_count);
        for device in 0..UNIVERSE {
            let connected = self.model.fleet.values().filter(|left_at| left_at.is_none()).count();
            let known = self.model.fleet.contains_key(&DeviceId(device));
            let is_disconnected = self.model.fleet.get(&DeviceId(device)) != Some(&None);
            let must_join = connected < sample_target || self.setup().deadline.is_none() && known;
            if is_disconnected && must_join {
                self.apply(Op::Join(DeviceId(device)));
            }
        }
        for _ in 0..400 {
            if matches!(self.model.phase, Phase::Finished | Phase::Failed) {
                return;
            }
            if let Some((device, broadcast)) = self.pending.iter().next().map(|(d, o)| (*d, Arc::clone(o))) {
                self.pending.remove(&device);
                let update = self.random_valid_update(&broadcast);
                let expected = self.model.predict_answer(device, &update, None);
                self.check_event(Event::Update(device, update), expected);
            } else {
                let wake = self.engine.wake().expect("all devices have answered, but nothing is due");
                self.model.now = self.model.now.max(wake.as_u64());
                self.apply(Op::Tick);
            }
        }
        panic!("stuck in {:?}: {:?}", self.model.phase, self.engine.open_round());
    }
}
