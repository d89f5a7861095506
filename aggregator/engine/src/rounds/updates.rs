//! Reactions to updates, declines and timeouts: counting, closing, and what to do about a round with too few
//! updates.

use fedspan_protocol::message::{Ack, AckOutcome, Decline, DeclineReason, Rejection, RoundId};

use super::{Action, Engine, Failure, NotCounted, Phase, Presence};
use crate::aggregate::UpdateWeight;
use crate::participation::UpdateArrival;
use crate::privacy::releases;
use crate::types::{DeviceId, Millis, Update};

/// Attempts in a row without a new counted update after which a campaign without a retry delay fails.
const FAILED_ATTEMPTS_MAX: u32 = 3;

impl Engine {
    pub(super) fn receive_update(
        &mut self,
        now: Millis,
        device: DeviceId,
        update: &Update,
        actions: &mut Vec<Action>,
    ) {
        let outcome = self.absorb_update(now, device, update);
        actions.push(Action::Acknowledge(device, Ack { id: update.id, outcome }));
        let why = match outcome {
            AckOutcome::Rejected(rejection) => rejection,
            _ => Rejection::WrongRound,
        };
        self.close_if_ended(now, device, NotCounted::Rejected(why), actions);
    }

    /// Validates an update and absorbs it if accepted. Does not close the round; the caller must.
    pub(super) fn absorb_update(&mut self, now: Millis, device: DeviceId, update: &Update) -> AckOutcome {
        let outcome = match &mut self.open {
            Some(round) if update.id == round.id_for(device) => {
                let algorithm = match (&self.start, self.phase) {
                    (Some(start), Phase::Start(_)) => start,
                    _ => &self.algorithm,
                };
                // Scores are counts, bounded by the number of samples instead of a norm.
                let ridge = self.ridge.as_ref().filter(|_| self.phase == Phase::RidgeScores);
                let bound = if ridge.is_some() { f32::INFINITY } else { self.settings.norm_bound };
                round.record_update(device, update, bound, |tensors| match ridge {
                    Some(ridge) => ridge.admits(update.samples, tensors),
                    None => algorithm.admits(update.samples, tensors),
                })
            }
            _ if update.id.round <= self.last_id.round && update.id.round > 0 => AckOutcome::Late,
            _ => AckOutcome::Rejected(Rejection::WrongRound),
        };
        self.charge(device, update.id);
        self.last_answered.insert(device, update.id.round);
        self.counters.count(outcome);
        match outcome {
            AckOutcome::Counted => {
                self.failed_attempts = 0;
                self.counters.skipped_samples += u64::from(update.skipped);
                // The only place where a declared sample count is cut to the maximum for one device.
                let is_of_ridges = self.phase == Phase::RidgeScores;
                let max_samples = if is_of_ridges { u32::MAX } else { self.settings.samples.max_samples };
                let samples = update.samples.min(max_samples);
                self.counters.capped_samples += u64::from(samples < update.samples);
                match self.phase {
                    // The first two phases have no open round, and so no update that counts.
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
                            elapsed: now.saturating_sub(opened_at),
                            samples: round.map_or(0, |round| round.counted_samples),
                            tensors: &update.tensors,
                            model: self.algorithm.model(),
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

    /// Charges the noisy releases of an update to the device's account, whatever the outcome, for the open
    /// round and the one before it.
    fn charge(&mut self, device: DeviceId, id: RoundId) {
        let open = self.open.as_ref().filter(|round| round.has_id(id));
        let closed = self.closed.as_ref().filter(|(ids, _)| ids.contains(&id)).map(|(_, releases)| *releases);
        if let Some(releases) = open.map(|round| releases(&round.broadcast.request.task)).or(closed) {
            self.ledger.charge_update(device, id.round, releases);
        }
    }

    /// Handles an update that the connection discarded because the round was not open on it. A device that
    /// has restarted or reconnected may send its update before the broadcast reaches it; it sends the update
    /// again after that, so such an update needs no answer.
    pub(super) fn unread_update(&mut self, device: DeviceId, id: RoundId, actions: &mut Vec<Action>) {
        self.charge(device, id);
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
        self.counters.count(outcome);
        actions.push(Action::Acknowledge(device, Ack { id, outcome }));
    }

    pub(super) fn round_declined(
        &mut self,
        now: Millis,
        device: DeviceId,
        decline: Decline,
        actions: &mut Vec<Action>,
    ) {
        self.counters.declined += 1;
        // The device may have lost tensors: it gets the complete broadcast next time.
        self.last_answered.remove(&device);
        if let Some(round) = &mut self.open
            && round.id_for(device) == decline.id
            && round.awaits(device)
        {
            round.excluded.insert(device);
            round.needs_new_id |= matches!(decline.reason, DeclineReason::RoundRepeated { .. });
        }
        self.close_if_ended(now, device, NotCounted::Declined(decline.reason), actions);
    }

    /// Closes the round if it is complete, and handles a round that every invited device has answered without
    /// completing it.
    pub(super) fn close_if_ended(
        &mut self,
        now: Millis,
        device: DeviceId,
        why: NotCounted,
        actions: &mut Vec<Action>,
    ) {
        let Some(round) = &self.open else { return };
        let all_answered = round.outstanding() == 0;
        match self.phase {
            // After a restart devices rejoin one by one, so the first few must not pass for the whole
            // fleet.
            Phase::FitHead if all_answered && self.fleet.len() >= self.settings.fleet_size => {
                self.phase = Phase::Finished;
                actions.push(Action::Finished);
            }
            Phase::FitHead | Phase::Finished => {}
            // Devices that cannot score ridges, or do not, are not needed.
            Phase::RidgeScores if all_answered => self.close_round(now, actions),
            _ if round.is_complete() => self.close_round(now, actions),
            _ if all_answered => self.retry_or_fail(now, device, why, actions),
            _ => {}
        }
    }

    /// Handles a round with too few updates that no further invited device can answer. Acknowledged updates
    /// are never given up: a round with a counted update stays open until it has enough.
    fn retry_or_fail(
        &mut self,
        now: Millis,
        device: DeviceId,
        reason: NotCounted,
        actions: &mut Vec<Action>,
    ) {
        if self.ask_everyone(now, actions) {
            return;
        }
        let Some(open) = &self.open else { return };
        let (round, counted, min_count) =
            (open.broadcast.id.round, open.participants.len(), open.min_updates);
        let patience = self.settings.patience.map(|patience| now.saturating_add(patience));
        if counted == 0 {
            self.failed_attempts += 1;
            if patience.is_some() {
                self.retry_at = patience;
                self.abandon_round();
            } else if self.failed_attempts < FAILED_ATTEMPTS_MAX {
                // Under a new id: a device that declined because it had lost an acknowledgement can answer
                // that.
                self.abandon_round();
                self.next_round(now, actions);
            } else {
                self.fail(Failure::NoUpdates { round, device, reason }, actions);
            }
        } else if patience.is_some() {
            // A device that keeps rejoining and declining must not postpone the retry.
            self.retry_at = self.retry_at.or(patience);
        } else if self.failed_attempts + 1 >= FAILED_ATTEMPTS_MAX {
            self.fail(Failure::TooFew { round, counted, min_count, device, reason }, actions);
        } else if self.ask_again(actions) {
            self.failed_attempts += 1;
        }
    }

    /// Stops waiting for devices that have been disconnected too long. If no device is present the round
    /// stays open for the first to join.
    pub(super) fn give_up_absent(&mut self, now: Millis, actions: &mut Vec<Action>) {
        if self.phase == Phase::Finished {
            return;
        }
        let Some(round) = &mut self.open else { return };
        let long = |device: &DeviceId| match self.fleet.get(device) {
            Some(Presence::Disconnected(since)) => now.saturating_sub(*since) >= self.settings.absence,
            _ => false,
        };
        let absent: Vec<DeviceId> =
            round.cohort.iter().copied().filter(|device| round.awaits(*device) && long(device)).collect();
        let Some(last) = absent.last().copied() else { return };
        self.counters.absent += absent.len() as u64;
        round.absent.extend(absent);
        if round.is_complete() || !self.present(now).is_empty() {
            self.close_if_ended(now, last, NotCounted::Absent, actions);
        } else if let Some(round) = &mut self.open {
            round.asking_everyone = true;
        }
    }

    /// Handles the time that [`Self::wake`] announced.
    pub(super) fn tick(&mut self, now: Millis, actions: &mut Vec<Action>) {
        let due = |at: Option<Millis>| at.is_some_and(|at| now >= at);
        // First, since it may close the round, which makes the other timeouts void.
        if self.open.as_ref().is_some_and(|round| due(round.deadline)) {
            self.deadline_passed(now, actions);
        }
        self.give_up_absent(now, actions);
        if due(self.retry_at) {
            self.retry_at = None;
            match self.open {
                Some(_) => {
                    self.ask_again(actions);
                }
                None => {
                    self.has_opened = true;
                    self.next_round(now, actions);
                }
            }
        }
    }

    fn deadline_passed(&mut self, now: Millis, actions: &mut Vec<Action>) {
        let Some(round) = &mut self.open else { return };
        match self.phase {
            Phase::FitHead => {
                round.deadline = None;
                self.phase = Phase::Finished;
                actions.push(Action::Finished);
            }
            Phase::Finished => round.deadline = None,
            Phase::RidgeScores => self.close_round(now, actions),
            _ if round.participants.len() >= round.min_updates => self.close_round(now, actions),
            _ => {
                round.deadline = self.settings.deadline.map(|limit| now.saturating_add(limit));
                self.counters.extended += 1;
                // The devices invited so far may never return.
                self.ask_everyone(now, actions);
                self.ask_again(actions);
            }
        }
    }
}
