//! Handling of events and of the devices' answers to a round: decides whether an update counts, and passes it
//! to the algorithm and the participation policy.

use fedspan_protocol::message::{Ack, AckOutcome, Decline, DeclineReason, Rejection, RoundId};
use fedspan_protocol::tensor::{Role, TensorDescriptor};

use super::{Action, CountedUpdate, Effects, Engine, Event, NotCounted, OpenRound, Phase, Presence, Record};
use crate::aggregate::UpdateWeight;
use crate::participation::UpdateArrival;
use crate::privacy::releases;
use crate::types::{DeviceId, Millis, Tensor, Update};

/// Part of the state on which [`Engine::next_absence`] depends and which an update of a connected device can
/// change.
#[derive(Clone, Copy, PartialEq)]
struct AbsenceInputs {
    phase: Phase,
    last_id: RoundId,
    is_open: bool,
    cohort: usize,
    absent: usize,
}

impl Engine {
    /// Handles one event.
    pub fn handle(&mut self, now: Millis, event: Event, effects: &mut impl Effects) {
        let inputs_before = match &event {
            Event::Update(device, _) if self.is_connected(*device) => Some(self.absence_inputs()),
            _ => None,
        };
        match event {
            Event::Joined(device) => self.device_joined(now, device, effects),
            Event::Greeted(device) => self.device_greeted(now, device, effects),
            Event::Left(device) => {
                if let Some(presence) = self.fleet.get_mut(&device)
                    && *presence == Presence::Connected
                {
                    *presence = Presence::Disconnected(now);
                    self.connected -= 1;
                    if self.settings.absence == Millis::ZERO {
                        self.give_up_absent(now, effects);
                    }
                }
            }
            Event::Removed(device) => {
                if let Some(presence) = self.fleet.get_mut(&device) {
                    self.connected -= usize::from(*presence == Presence::Connected);
                    *presence = Presence::Removed;
                    self.forget_removed(device, effects);
                    self.give_up_absent(now, effects);
                }
            }
            Event::Update(device, update) => self.receive_update(now, device, update, effects),
            Event::Unread(device, id) => self.unread_update(now, device, id, effects),
            Event::Declined(device, decline) => self.round_declined(now, device, decline, effects),
            Event::Tick => self.tick(now, effects),
            Event::Resumed => self.resumed(now, effects),
        }
        if inputs_before != Some(self.absence_inputs()) {
            self.next_absence_cache.set(None);
        }
    }

    /// Present values of [`AbsenceInputs`].
    fn absence_inputs(&self) -> AbsenceInputs {
        let (cohort, absent) =
            self.open.as_ref().map_or((0, 0), |round| (round.cohort.len(), round.absent.len()));
        AbsenceInputs {
            phase: self.phase,
            last_id: self.last_id,
            is_open: self.open.is_some(),
            cohort,
            absent,
        }
    }

    /// Handles an update of a device: counts or rejects it, acknowledges it, and closes the round if it is
    /// over.
    pub(super) fn receive_update(
        &mut self,
        now: Millis,
        device: DeviceId,
        update: Update,
        effects: &mut dyn Effects,
    ) {
        let id = update.id;
        let outcome = self.absorb_update(now, device, &update, effects);
        if let (AckOutcome::Counted, true, Some(round)) = (outcome, effects.keeps_records(), &self.open) {
            let order = u32::try_from(round.participants.len()).unwrap_or(u32::MAX).saturating_sub(1);
            let counted = CountedUpdate { order, at: now, update };
            effects.record(Record::Counted(round.first_id(), device, counted));
        } else {
            effects.reuse(update);
        }
        // Before the acknowledgement, at which a device that sleeps between rounds disconnects.
        self.tell_next_round(now, device, effects);
        acknowledge(device, Ack { id, outcome }, effects);
        let reason = match outcome {
            AckOutcome::Rejected(rejection) => rejection,
            _ => Rejection::WrongRound,
        };
        self.close_if_ended(now, device, NotCounted::Rejected(reason), effects);
    }

    /// Validates an update and absorbs it if it counts. The caller must then check whether the round is over.
    pub(super) fn absorb_update(
        &mut self,
        now: Millis,
        device: DeviceId,
        update: &Update,
        effects: &mut dyn Effects,
    ) -> AckOutcome {
        let outcome = match &mut self.open {
            Some(round) if update.id == round.id_for(device) => {
                let algorithm = match (&self.start, self.phase) {
                    (Some(start), Phase::Start(_)) => start,
                    _ => &self.algorithm,
                };
                // Ridge scores are counts, which are bounded by the number of samples instead of a norm.
                let ridge = self.ridge.as_ref().filter(|_| self.phase == Phase::RidgeScores);
                let bound = if ridge.is_some() { f32::INFINITY } else { self.settings.norm_bound };
                let admits = |tensors: &[Tensor]| match ridge {
                    Some(ridge) => ridge.admits(update.samples, tensors),
                    None => algorithm.admits(update.samples, tensors),
                };
                round.count_update(device, update, bound, admits, effects)
            }
            _ if update.id.round <= self.last_id.round && update.id.round > 0 => AckOutcome::Late,
            _ => AckOutcome::Rejected(Rejection::WrongRound),
        };
        self.charge_releases(device, update.id, effects);
        self.record_answer(now, device, update.id, effects);
        self.last_answered.insert(device, update.id.round);
        self.counters.count(outcome);
        match outcome {
            AckOutcome::Counted => {
                self.failed_attempts = 0;
                self.counters.skipped_samples += u64::from(update.skipped);
                // Caps the declared sample count at the maximum for one device, for all later uses.
                let is_of_ridges = self.phase == Phase::RidgeScores;
                let max_samples = if is_of_ridges { u32::MAX } else { self.settings.samples.max_samples };
                let samples = update.samples.min(max_samples);
                self.counters.capped_samples += u64::from(samples < update.samples);
                match self.phase {
                    // Waiting and failed campaigns have no open round, and final heads are not uploaded.
                    Phase::Waiting | Phase::Failed | Phase::FitHead | Phase::Finished => {}
                    Phase::RidgeScores => {
                        if let Some(ridge) = &mut self.ridge {
                            ridge.absorb(samples, &update.tensors);
                        }
                    }
                    Phase::Start(_) => {
                        if let Some(start) = &mut self.start {
                            start.absorb(device, UpdateWeight::from_samples(samples), &update.tensors);
                        }
                    }
                    Phase::Train(_) => {
                        let round = self.open.as_ref();
                        let opened_at = round.map_or(now, |round| round.opened_at);
                        self.participation.counted(&UpdateArrival {
                            elapsed: now - opened_at,
                            samples: round.map_or(0, |round| round.counted_samples),
                            tensors: &update.tensors,
                            model: self.algorithm.model(),
                            layout: self.algorithm.upload_layout(),
                        });
                        let weight = round.map_or(UpdateWeight::from_samples(samples), |round| {
                            round.update_weight(device, samples)
                        });
                        self.algorithm.absorb(device, weight, &update.tensors);
                    }
                }
            }
            AckOutcome::Rejected(_) => self.rejected_in_round += 1,
            _ => {}
        }
        outcome
    }

    /// Charges the noisy releases of an update to the device's privacy account, even if the update is
    /// rejected. Updates for the open round and for the last closed round are charged. If devices may answer
    /// earlier rounds, updates for these are charged like one for the last closed round.
    fn charge_releases(&mut self, device: DeviceId, id: RoundId, effects: &mut dyn Effects) {
        let open = self.open.as_ref().filter(|round| round.has_id(id));
        let closed = self.closed.as_ref().filter(|(ids, _)| ids.contains(&id)).map(|(_, releases)| *releases);
        let is_earlier = self.has_patience() && (1..=self.last_id.round).contains(&id.round);
        let earlier = self.closed.as_ref().filter(|_| is_earlier).map(|(_, releases)| *releases);
        let releases = open.map(|round| releases(&round.broadcast.request.task)).or(closed).or(earlier);
        if let Some(releases) = releases
            && let Some(account) = self.ledger.charge_update(device, id.round, releases)
            && effects.keeps_records()
        {
            effects.record(Record::Account(device, account));
        }
    }

    /// Handles an update that the connection discarded because the round was not open on that connection. A
    /// device that has restarted or reconnected may send its update before it receives the broadcast, and
    /// sends it again afterwards, so such an update needs no answer.
    pub(super) fn unread_update(
        &mut self,
        now: Millis,
        device: DeviceId,
        id: RoundId,
        effects: &mut dyn Effects,
    ) {
        self.charge_releases(device, id, effects);
        let outcome = match &self.open {
            Some(round) if id == round.id_for(device) => {
                if !round.cohort.contains(&device) {
                    AckOutcome::Rejected(Rejection::NotAsked)
                } else if round.excluded.contains(&device) {
                    AckOutcome::Rejected(Rejection::Tensors)
                } else {
                    self.counters.unread += 1;
                    return;
                }
            }
            _ if id.round <= self.last_id.round && id.round > 0 => AckOutcome::Late,
            _ => AckOutcome::Rejected(Rejection::WrongRound),
        };
        self.record_answer(now, device, id, effects);
        self.counters.count(outcome);
        acknowledge(device, Ack { id, outcome }, effects);
    }

    /// Handles a device that has declined a round: excludes it, and closes the round if it is over.
    pub(super) fn round_declined(
        &mut self,
        now: Millis,
        device: DeviceId,
        decline: Decline,
        effects: &mut dyn Effects,
    ) {
        self.counters.declined += 1;
        // The device may have lost tensors, so its next broadcast must be complete.
        self.last_answered.remove(&device);
        self.record_answer(now, device, decline.id, effects);
        if let Some(round) = &mut self.open
            && round.id_for(device) == decline.id
            && round.may_answer(device)
        {
            if effects.keeps_records() {
                effects.record(Record::Declined(device, decline));
            }
            round.exclude(device, effects);
            round.needs_new_id |= matches!(decline.reason, DeclineReason::RoundRepeated { .. });
        }
        self.close_if_ended(now, device, NotCounted::Declined(decline.reason), effects);
    }
}

impl OpenRound {
    /// Validates an update for this round. `admits` is the algorithm's check of the tensors. If the result is
    /// [`AckOutcome::Counted`], the device is recorded as a participant, and the caller must absorb the
    /// update.
    fn count_update(
        &mut self,
        device: DeviceId,
        update: &Update,
        norm_bound: f32,
        admits: impl FnOnce(&[Tensor]) -> bool,
        effects: &mut dyn Effects,
    ) -> AckOutcome {
        if !self.cohort.contains(&device) {
            return AckOutcome::Rejected(Rejection::NotAsked);
        }
        let digest = update.digest();
        match self.digests.get(&device) {
            Some(counted) if *counted == digest => return AckOutcome::Duplicate,
            // Without tensors the contents cannot differ: the device has fitted its head again.
            Some(_) if self.broadcast.request.expects.is_empty() => return AckOutcome::Duplicate,
            Some(_) => return AckOutcome::Rejected(Rejection::ContentChanged),
            None => {}
        }
        // The device is connected again, so it is not absent even if its update is invalid.
        self.absent.remove(&device);
        let expects = &self.broadcast.request.expects;
        let admitted = |()| if admits(&update.tensors) { Ok(()) } else { Err(Rejection::Tensors) };
        if let Err(rejection) = check_update(update, expects, norm_bound).and_then(admitted) {
            self.exclude(device, effects);
            return AckOutcome::Rejected(rejection);
        }
        // A device whose earlier update was rejected may send a valid update.
        self.excluded.remove(&device);
        self.wait_again(device);
        self.digests.insert(device, digest);
        self.participants.push(device);
        let samples = update.samples.min(self.sample_cap.max_samples);
        self.declared_samples
            .insert(self.declared_samples.partition_point(|declared| *declared <= samples), samples);
        self.counted_samples = if self.sample_cap.relative {
            self.sample_cap.total(&self.declared_samples)
        } else {
            self.counted_samples.saturating_add(samples.into())
        };
        AckOutcome::Counted
    }
}

/// Checks the descriptors, the sample count and the norm of an update.
pub(super) fn check_update(
    update: &Update,
    expects: &[TensorDescriptor],
    norm_bound: f32,
) -> Result<(), Rejection> {
    let is_same = |(a, b): (&TensorDescriptor, &TensorDescriptor)| {
        (a.role, a.encoding, a.rows, a.cols) == (b.role, b.encoding, b.rows, b.cols)
    };
    if update.descriptors.len() != expects.len() || !update.descriptors.iter().zip(expects).all(is_same) {
        return Err(Rejection::Tensors);
    }
    if update.samples == 0 {
        return Err(Rejection::NoSamples);
    }
    let square: f64 = update.tensors.iter().map(|tensor| sum_of_squares(&tensor.values)).sum();
    // Squares of f32 values are below 2^256, so their sum is finite in f64 unless a value is not finite.
    if !square.is_finite() {
        return Err(Rejection::NonFinite);
    }
    // The limbs of feature sums have no meaningful norm. The algorithm checks them instead.
    if expects.iter().any(|tensor| tensor.role == Role::FeatureSums) {
        return Ok(());
    }
    #[allow(clippy::cast_possible_truncation, reason = "for a comparison with an f32 bound and a message")]
    let norm = square.sqrt() as f32;
    if norm > norm_bound {
        return Err(Rejection::NormOverBound { norm, bound: norm_bound });
    }
    Ok(())
}

/// Number of sums that are computed side by side. Each addition to one sum has to wait for the one before.
const SUMS: usize = 8;

/// Returns the sum of the squares of values.
fn sum_of_squares(values: &[f32]) -> f64 {
    let mut sums = [0.0; SUMS];
    let (blocks, remaining) = values.as_chunks::<SUMS>();
    for block in blocks.iter().map(<[f32; SUMS]>::as_slice).chain([remaining]) {
        for (sum, value) in sums.iter_mut().zip(block) {
            *sum += f64::from(*value) * f64::from(*value);
        }
    }
    sums.iter().sum()
}

/// Sends an acknowledgement to a device, and records it.
fn acknowledge(device: DeviceId, ack: Ack, effects: &mut dyn Effects) {
    if effects.keeps_records() {
        effects.record(Record::Answered(device, ack));
    }
    effects.act(Action::Acknowledge(device, ack));
}
