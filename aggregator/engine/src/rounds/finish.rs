//! End of a round: decides when a round is over, and whether it is then closed and committed, retried, or
//! fails the campaign.

use super::{
    Action, DeadlineState, Effects, Engine, Failure, NotCounted, OpenRound, Phase, Presence, Record,
    RoundRecord,
};
use crate::linalg::{Matrix, orthonormal, principal_angle_distance};
use crate::participation::ClosedRound;
use crate::privacy::releases;
use crate::types::{DeviceId, Millis};

/// Number of rank-deficient rounds in a row after which a campaign with a retry delay of 0 fails.
const RANK_DEFICIENT_ROUNDS_MAX: u32 = 3;

/// Number of attempts in a row without a new counted update after which a campaign without a retry delay
/// fails.
const FAILED_ATTEMPTS_MAX: u32 = 3;

impl Engine {
    /// Ends training because a target was reached: discards the updates of the open round, and opens the
    /// round of final heads (or, before it, of ridge scores).
    pub fn finish_training(&mut self, now: Millis, effects: &mut impl Effects) {
        let Phase::Train(number) = self.phase else { return };
        if let Some(round) = self.open.take() {
            self.close_on_devices(now, &round, effects);
        }
        self.settings.rounds = number;
        self.retry_at = None;
        self.next_absence_cache.set(None);
        self.follow_up(now, effects);
    }

    /// Closes the round on the connected devices that have not answered it.
    fn close_on_devices(&self, now: Millis, round: &OpenRound, effects: &mut dyn Effects) {
        if round.outstanding() == 0 && round.not_awaited().len() == 0 {
            return;
        }
        let awaited =
            round.cohort.iter().filter(|device| round.may_answer(**device) && self.is_connected(**device));
        // A device that is not waited for may finish its answer.
        let awaited = awaited.filter(|device| !self.is_occupied(now, **device));
        for device in awaited {
            self.tell_next_round(now, *device, effects);
            effects.act(Action::Close(*device, round.id_for(*device)));
        }
    }

    /// Opens the round that follows a closed or abandoned round. If too few devices are present, the round opens
    /// when the next devices join; if the shortest interval between rounds has not passed, at its end.
    pub(super) fn follow_up(&mut self, now: Millis, effects: &mut dyn Effects) {
        self.open_if_possible(now, effects);
        if self.open.is_none() {
            self.record_closed(effects);
        }
    }

    /// Abandons the open round, so that the next round repeats it under a new id.
    pub(super) fn abandon_round(&mut self) {
        self.open = None;
        self.counters.repeated += 1;
        self.phase = match self.phase {
            Phase::Start(number) => Phase::Start(number - 1),
            Phase::Train(number) => Phase::Train(number - 1),
            Phase::Waiting | Phase::RidgeScores | Phase::FitHead | Phase::Finished | Phase::Failed => {
                self.phase
            }
        };
    }

    /// Closes the round if it is complete. If every invited device has answered but the round is not
    /// complete, retries it or fails. `device` and `reason` are the last device without a counted update and
    /// the reason, for the failure.
    pub(super) fn close_if_ended(
        &mut self,
        now: Millis,
        device: DeviceId,
        reason: NotCounted,
        effects: &mut dyn Effects,
    ) {
        let Some(round) = &self.open else { return };
        let all_answered = round.outstanding() == 0;
        match self.phase {
            // After a restart devices reconnect one by one. The campaign must not finish before as many
            // devices as a fleet needs have reconnected.
            Phase::FitHead if all_answered && self.fleet.len() >= self.settings.fleet_size => {
                self.phase = Phase::Finished;
                effects.act(Action::Finished);
            }
            Phase::FitHead | Phase::Finished => {}
            // The round needs no minimum of scores: devices that cannot score ridges may decline.
            Phase::RidgeScores if all_answered => self.close_round(now, effects),
            _ if round.is_complete() => self.close_round(now, effects),
            _ if all_answered => self.retry_or_fail(now, device, reason, effects),
            _ => {}
        }
    }

    /// Handles a round with too few updates to which every invited device has answered. A round with a
    /// counted update stays open until it has enough updates, so that no acknowledged update is discarded.
    fn retry_or_fail(
        &mut self,
        now: Millis,
        device: DeviceId,
        reason: NotCounted,
        effects: &mut dyn Effects,
    ) {
        if self.ask_everyone(now, effects) {
            return;
        }
        let Some(open) = &self.open else { return };
        // Devices that are not waited for may still answer before the deadline.
        if open.not_awaited().len() > 0 && open.excluded.is_empty() {
            return;
        }
        let (round, counted, min_count) =
            (open.broadcast.id.round, open.participants.len(), open.min_updates);
        let retry_delay = self.settings.retry_delay.map(|retry_delay| now + retry_delay);
        if counted == 0 {
            self.failed_attempts += 1;
            if retry_delay.is_some() {
                self.retry_at = retry_delay;
                self.abandon_round();
                self.record_closed(effects);
            } else if self.failed_attempts < FAILED_ATTEMPTS_MAX {
                // The round is repeated under a new id, which a device accepts even if it declined the old id
                // because it had lost an acknowledgement.
                self.abandon_round();
                self.follow_up(now, effects);
            } else {
                self.fail(Failure::NoUpdates { round, device, reason }, effects);
            }
        } else if retry_delay.is_some() {
            // Keeps the earlier time, so that a device which repeatedly reconnects and declines does not
            // postpone the retry.
            self.retry_at = self.retry_at.or(retry_delay);
        } else if self.failed_attempts + 1 >= FAILED_ATTEMPTS_MAX {
            self.fail(Failure::TooFew { round, counted, min_count, device, reason }, effects);
        } else if self.ask_again(now, effects) {
            self.failed_attempts += 1;
        }
    }

    /// Stops waiting for devices that have been disconnected too long. If no device is present, the round
    /// stays open and invites the next devices that join.
    pub(super) fn give_up_absent(&mut self, now: Millis, effects: &mut dyn Effects) {
        if self.phase == Phase::Finished {
            return;
        }
        let Some(round) = &mut self.open else { return };
        let is_absent = |device: &DeviceId| match self.fleet.get(device) {
            Some(Presence::Disconnected(since)) => now - *since >= self.settings.absence,
            Some(Presence::Removed) => true,
            Some(Presence::Connected) | None => false,
        };
        let absent: Vec<DeviceId> = round
            .cohort
            .iter()
            .copied()
            .filter(|device| round.may_answer(*device) && is_absent(device))
            .collect();
        let Some(last) = absent.last().copied() else { return };
        self.counters.absent += absent.len() as u64;
        round.mark_absent(&absent);
        if round.is_complete() || !self.present(now).is_empty() {
            self.close_if_ended(now, last, NotCounted::Absent, effects);
        } else {
            self.start_asking_everyone(effects);
        }
    }

    /// Handles the timeouts that are due: the deadline, absent devices, and the retry.
    pub(super) fn tick(&mut self, now: Millis, effects: &mut dyn Effects) {
        let is_due = |time: Option<Millis>| time.is_some_and(|time| now >= time);
        // The deadline is first, since it may close the round, which cancels the other timeouts.
        if self.open.as_ref().is_some_and(|round| is_due(round.deadline)) {
            self.deadline_passed(now, effects);
        }
        self.give_up_absent(now, effects);
        if is_due(self.retry_at) {
            self.retry_at = None;
            match self.open {
                Some(_) => {
                    self.ask_again(now, effects);
                }
                None => {
                    self.has_opened = true;
                    self.open_if_possible(now, effects);
                }
            }
        }
        if is_due(self.opens_at) {
            self.opens_at = None;
            if self.open.is_none() && self.retry_at.is_none() {
                self.open_if_possible(now, effects);
            }
            if self.open.is_none() && effects.keeps_records() {
                let state = DeadlineState { deadline: None, asking_everyone: false };
                effects.record(Record::Deadline(state));
            }
        }
    }

    /// Closes a round at its deadline, or extends the deadline if too few updates have counted.
    fn deadline_passed(&mut self, now: Millis, effects: &mut dyn Effects) {
        let Some(id) = self.open.as_ref().map(OpenRound::first_id) else { return };
        self.count_deadline(now, effects);
        let Some(round) = self.open.as_mut().filter(|round| round.first_id() == id) else { return };
        match self.phase {
            Phase::FitHead => {
                round.deadline = None;
                self.phase = Phase::Finished;
                effects.act(Action::Finished);
            }
            Phase::Finished => round.deadline = None,
            Phase::RidgeScores => self.close_round(now, effects),
            _ if round.participants.len() >= round.min_updates => self.close_round(now, effects),
            _ => {
                round.deadline = self.settings.deadline.map(|limit| now + limit);
                self.counters.extended += 1;
                self.record_deadline(effects);
                // Invites more devices, since those invited so far may never answer.
                self.ask_everyone(now, effects);
                self.ask_again(now, effects);
                self.send_to_not_awaited(now, effects);
            }
        }
    }

    /// Closes the open round: computes the next model, commits the round, and opens the next round.
    pub(super) fn close_round(&mut self, now: Millis, effects: &mut dyn Effects) {
        let Some(round) = self.open.take() else { return };
        self.retry_at = None;
        let id = round.broadcast.id;
        let ids = round.previous_ids.iter().copied().chain([id]).collect();
        self.closed = Some((ids, releases(&round.broadcast.request.task)));
        let is_of_ridges = self.phase == Phase::RidgeScores;
        let short_of = |target: usize| {
            Some(target).filter(|n| !is_of_ridges && !round.is_reached() && round.participants.len() < *n)
        };
        // For the policy, a device that the round did not wait for is one that has not answered.
        let short_of_invited = short_of(round.target.min(round.cohort.len()));
        let short_of = short_of(round.target.min(round.cohort.len() - round.not_awaited().len()));
        self.close_on_devices(now, &round, effects);
        let is_training = matches!(self.phase, Phase::Train(_));
        if is_training {
            self.last_sizes = Some(round.sizes());
        }
        let before = is_training.then(|| (self.algorithm.model().clone(), self.representation().clone()));
        let finished = match (&mut self.start, self.phase) {
            (Some(start), Phase::Start(_)) => start.finish(),
            (_, Phase::RidgeScores) => Ok(()),
            _ => self.algorithm.finish(),
        };
        if let Err(error) = finished {
            return self.discard_rank_deficient(
                now,
                Failure::Representation { round: id.round, error },
                effects,
            );
        }
        self.rank_deficient_rounds = 0;
        self.counters.short += u64::from(short_of.is_some());
        self.counters.capped_to_others += round.capped_to_others() as u64;
        let phase = self.phase;
        // The checkpoint after the last round of a start must contain the algorithm's state, even if the next
        // round opens later.
        if let (Some(start), Phase::Start(number)) = (&self.start, phase)
            && number >= start.rounds_needed()
        {
            self.hand_over_start();
        }
        if let Some((before, _)) = &before {
            self.participation.closed(&ClosedRound {
                elapsed: now - round.opened_at,
                short_of: short_of_invited,
                before,
                model: self.algorithm.model(),
                ends_cycle: self.algorithm.begins_cycle(),
            });
        }
        let stop = self.settings.stop_change.is_some();
        let change = before
            .filter(|_| stop)
            .and_then(|(_, before)| representation_change(&before, self.representation()));
        if let Phase::Train(number) = phase
            && let (Some(change), Some(stop)) = (change, self.settings.stop_change)
            && change < stop
        {
            self.settings.rounds = number;
        }
        let record = Box::new(RoundRecord {
            id,
            phase,
            short_of,
            cohort: round.cohort.iter().copied().collect(),
            participants: round.participants,
            rejected: self.rejected_in_round,
            opened_at: round.opened_at,
            closed_at: now,
            change,
            interference: self.algorithm.interference().filter(|_| is_training),
            ends_training: phase == Phase::Train(self.settings.rounds),
        });
        if effects.keeps_records() {
            effects.record(Record::Committed(record.clone()));
        }
        effects.act(Action::Commit(record));
        self.follow_up(now, effects);
    }

    /// Discards the updates of a round whose combination is rank deficient, and schedules a retry. Fails the
    /// campaign if it has no retry delay, or if the delay is 0 and too many rounds in a row were rank
    /// deficient.
    fn discard_rank_deficient(&mut self, now: Millis, failure: Failure, effects: &mut dyn Effects) {
        self.rank_deficient_rounds += 1;
        let retry_delay = self.settings.retry_delay.filter(|retry_delay| {
            *retry_delay > Millis::ZERO || self.rank_deficient_rounds < RANK_DEFICIENT_ROUNDS_MAX
        });
        let Some(retry_delay) = retry_delay else { return self.fail(failure, effects) };
        self.counters.ruined += 1;
        self.abandon_round();
        self.record_closed(effects);
        self.retry_at = Some(now + retry_delay);
    }

    /// Ends the campaign with a failure.
    pub(super) fn fail(&mut self, failure: Failure, effects: &mut dyn Effects) {
        (self.open, self.opens_at) = (None, None);
        self.phase = Phase::Failed;
        effects.act(Action::Failed(failure));
        if effects.keeps_records() {
            effects.record(Record::Failed(failure));
        }
    }
}

/// Sine of the largest principal angle between two representations, which need not be orthonormal. `None` if
/// either representation is rank deficient.
fn representation_change(before: &Matrix, after: &Matrix) -> Option<f64> {
    Some(principal_angle_distance(&orthonormal(before).ok()?, &orthonormal(after).ok()?))
}
