//! Checkpoint and restore of an engine. A [`Checkpoint`] contains the whole state of a campaign at the moment
//! when a round opens. Together with the updates that have counted since, in order, it contains everything
//! that was acknowledged to devices.
//!
//! Connections, times of disconnection and counters are not part of a checkpoint, since they are rebuilt or
//! irrelevant after a restart.

use fedspan_protocol::message::{AckOutcome, RoundId};

use super::{
    Action, Checkpoint, DeadlineState, Effects, Engine, MissedDeadlines, NotCounted, OpenRound,
    OpenRoundCheckpoint, Phase, Presence, Record,
};
use crate::types::{DeviceId, Millis, Update};

impl Engine {
    /// Creates a checkpoint of the campaign. The caller must create it and make it durable whenever a round
    /// has opened or was committed, before it carries out the actions of the same event.
    #[must_use]
    pub fn checkpoint(&self) -> Checkpoint {
        let mut state = self.current().state();
        // A start has no participation policy.
        if self.start.is_none() {
            match &self.open {
                Some(round) => state.extend(&round.policy_state),
                None => state.extend(self.participation.state()),
            }
        }
        let open = self
            .open
            .as_ref()
            .map(|round| OpenRoundCheckpoint { opened_at: round.opened_at, fleet: round.fleet.clone() });
        let done = match self.phase {
            Phase::Start(number) if open.is_some() => Phase::Start(number - 1),
            Phase::Train(number) if open.is_some() => Phase::Train(number - 1),
            Phase::FitHead | Phase::Finished if self.scores_ridges() => Phase::RidgeScores,
            // When the checkpoint is restored, the open round is rebuilt from the scores.
            Phase::FitHead | Phase::Finished if self.ridge.is_some() => Phase::FitHead,
            Phase::FitHead | Phase::Finished => Phase::Train(self.settings.rounds),
            Phase::RidgeScores if open.is_some() => Phase::Train(self.settings.rounds),
            phase => phase,
        };
        if let Some(ridge) = self.ridge.as_ref().filter(|_| done == Phase::RidgeScores) {
            state.extend(ridge.state());
        }
        Checkpoint { id: self.last_id, done, rounds: self.settings.rounds, state, open }
    }

    /// Emits a record with a checkpoint.
    pub(super) fn record_checkpoint(&self, effects: &mut dyn Effects) {
        if effects.keeps_records() && self.phase != Phase::Failed {
            effects.record(Record::Checkpoint(self.checkpoint()));
        }
    }

    /// Emits the records of a state in which no round is open.
    pub(super) fn record_closed(&self, effects: &mut dyn Effects) {
        self.record_checkpoint(effects);
        self.record_deadline(effects);
    }

    /// Emits a record with the deadline of the open round, or with the time at which the next round may open.
    pub(super) fn record_deadline(&self, effects: &mut dyn Effects) {
        if effects.keeps_records()
            && let Some(deadline) = self.deadline_state()
        {
            effects.record(Record::Deadline(deadline));
        }
    }

    /// Restores a new engine after a restart at time `now` by replaying the records of a campaign up to any
    /// event. The caller must then handle [`super::Event::Resumed`]. Returns false if the records do not
    /// belong to the campaign of this engine; the engine must then be discarded.
    pub fn replay(&mut self, now: Millis, records: &[Record]) -> bool {
        for record in records {
            if let Record::Account(device, account) = record {
                self.restore_account(*device, *account);
            }
            if let Record::Missed(MissedDeadlines { device, missed, .. }) = record {
                self.restore_missed(*device, *missed);
            }
        }
        let last = records.iter().rposition(|record| matches!(record, Record::Checkpoint(_)));
        let since = last.and_then(|last| records.get(last..)).unwrap_or_default();
        since.iter().all(|record| match record {
            Record::Checkpoint(checkpoint) => self.resume(now, checkpoint),
            Record::Counted(_, device, counted) => self.replay_update(counted.at, *device, &counted.update),
            Record::Renumbered(opening) => self.restore_id(opening.id),
            Record::Deadline(deadline) => self.restore_deadline(*deadline),
            Record::Excluded(device) => {
                self.mark_excluded(*device);
                true
            }
            Record::Reinvited(device) => {
                if let Some(round) = &mut self.open {
                    round.excluded.remove(device);
                }
                self.apply_patience();
                true
            }
            Record::Account(..)
            | Record::Missed(_)
            | Record::DeadlinePassed(_)
            | Record::Answered(..)
            | Record::Declined(..)
            | Record::Committed(_)
            | Record::Opened(_)
            | Record::Failed(_) => true,
        })
    }

    /// Whether training has ended and no further round will close.
    #[must_use]
    pub fn is_trained(&self) -> bool {
        match self.phase {
            Phase::FitHead | Phase::Finished => true,
            Phase::Train(number) => {
                !self.scores_ridges() && self.open.is_none() && number >= self.settings.rounds
            }
            Phase::RidgeScores => self.open.is_none(),
            Phase::Waiting | Phase::Start(_) | Phase::Failed => false,
        }
    }

    /// Restores a checkpoint: opens the same round under the same id, without any update.
    /// [`Self::replay_update`] then restores the updates that counted. All devices are initially
    /// disconnected, and the round waits for those of the checkpoint to reconnect. Returns false if the
    /// checkpoint belongs to another campaign; the engine must then be discarded.
    pub fn resume(&mut self, now: Millis, checkpoint: &Checkpoint) -> bool {
        let Checkpoint { id, done, rounds, state, open } = checkpoint;
        let in_start = match (done, &self.start) {
            (Phase::Start(_), None) => return false,
            (Phase::Start(number), Some(start)) => *number < start.rounds_needed(),
            (Phase::Waiting, start) => start.is_some(),
            _ => false,
        };
        let target = match &mut self.start {
            Some(start) if in_start => start,
            _ => &mut self.algorithm,
        };
        let Some((algorithm_state, mut policy)) = state.split_at_checked(target.state().len()) else {
            return false;
        };
        if *done == Phase::RidgeScores {
            let Some(ridge) = &mut self.ridge else { return false };
            // Scores in the checkpoint are used even if the present configuration does not request scores.
            ridge.is_requested = true;
            let policy_len = policy.len().checked_sub(ridge.state().len());
            let Some((policy_state, scores)) = policy_len.and_then(|length| policy.split_at_checked(length))
            else {
                return false;
            };
            if !ridge.restore(scores) {
                return false;
            }
            policy = policy_state;
        }
        let policy = if in_start { policy.is_empty() } else { self.participation.restore(policy) };
        if *rounds > self.settings.rounds || !(policy && target.restore(algorithm_state)) {
            return false;
        }
        if !in_start {
            self.start = None;
        }
        self.next_absence_cache.set(None);
        self.settings.rounds = *rounds;
        self.phase = *done;
        self.last_id = *id;
        // The open round requested ridge scores, which the present configuration forbids.
        let is_dropped = *done == Phase::Train(*rounds) && self.ridge.is_some() && !self.scores_ridges();
        let Some(open) = open.as_ref().filter(|_| !is_dropped) else {
            // No device is connected, and some may never reconnect. After a delay the next round opens with
            // the devices that have reconnected.
            let retry_delay = self.settings.retry_delay.filter(|_| id.round > 0);
            self.retry_at = retry_delay.map(|retry_delay| now + retry_delay.max(self.settings.absence));
            return true;
        };
        let Some(previous_round) = id.round.checked_sub(1) else { return false };
        self.last_id.round = previous_round;
        self.fleet = open.fleet.iter().map(|device| (*device, Presence::Disconnected(now))).collect();
        // No device is connected, so no broadcast is sent.
        self.open_round_among(open.opened_at, open.fleet.clone(), &mut Vec::<Action>::new());
        self.open.as_ref().is_some_and(|round| round.broadcast.id == *id)
    }

    /// Restores the last id of a round that [`Self::resume`] dropped because the configuration forbids ridge
    /// scores. Returns false if the round cannot have had this id.
    pub fn restore_dropped_id(&mut self, id: RoundId) -> bool {
        let follows = self.open.is_none() && id >= self.last_id && id.stage == self.last_id.stage;
        if follows {
            self.last_id = id;
        }
        follows
    }

    /// Deadline state of the open round, or the time at which the next round may open; `None` if neither is
    /// known, or in a round of final heads, which stays open.
    #[must_use]
    pub fn deadline_state(&self) -> Option<DeadlineState> {
        if self.open.is_none() {
            return self.opens_at.map(|at| DeadlineState { deadline: Some(at), asking_everyone: false });
        }
        let closes = matches!(self.phase, Phase::Start(_) | Phase::Train(_) | Phase::RidgeScores);
        let round = self.open.as_ref().filter(|_| closes)?;
        Some(DeadlineState { deadline: round.deadline, asking_everyone: round.asking_everyone })
    }

    /// Restores the deadline state that the open round had before a restart, or the time at which the next
    /// round may open. Returns false if a round is open that has no deadline state.
    pub fn restore_deadline(&mut self, state: DeadlineState) -> bool {
        if self.open.is_none() {
            self.opens_at = state.deadline;
            return true;
        }
        let is_open = self.deadline_state().is_some();
        if let Some(round) = self.open.as_mut().filter(|_| is_open) {
            (round.deadline, round.asking_everyone) = (state.deadline, state.asking_everyone);
        }
        is_open
    }

    /// Restores a later id of the open round, under which the updates that are replayed next were counted.
    /// Returns false if the round cannot have had this id.
    pub fn restore_id(&mut self, id: RoundId) -> bool {
        let Some(round) = self.open.as_mut().filter(|_| id > self.last_id && id.stage == self.last_id.stage)
        else {
            return false;
        };
        // The ids under which devices were invited are not stored, so devices without a counted update get
        // the last id.
        round.rename(id, OpenRound::has_counted);
        round.excluded.clear();
        self.last_id = id;
        self.apply_patience();
        true
    }

    /// Restores the exclusion of a device that declined the open round, or whose update was rejected, before
    /// the restart.
    pub fn mark_excluded(&mut self, device: DeviceId) {
        if let Some(round) = self.open.as_mut().filter(|round| round.may_answer(device)) {
            round.wait_again(device);
            round.excluded.insert(device);
        }
        self.next_absence_cache.set(None);
    }

    /// Counts an update again that was counted before the restart. Must be called with the original times and
    /// in the original order. The round is not closed before [`super::Event::Resumed`]. Returns false if the
    /// update does not count in the open round.
    pub fn replay_update(&mut self, counted_at: Millis, device: DeviceId, update: &Update) -> bool {
        let Some(round) = &mut self.open else { return false };
        // The device may be missing in the redrawn cohort, if it was invited after the round had opened.
        round.cohort.insert(device);
        round.keep_earlier_id(device, update.id);
        self.fleet.entry(device).or_insert(Presence::Disconnected(counted_at));
        self.next_absence_cache.set(None);
        self.absorb_update(counted_at, device, update, &mut Vec::<Action>::new()) == AckOutcome::Counted
    }

    /// Ends the replay of updates, and closes or retries the open round if no further device can answer it.
    /// Devices that were invited after the round had opened, and have no counted update, lose their
    /// invitation by the restart.
    pub(super) fn resumed(&mut self, now: Millis, effects: &mut dyn Effects) {
        let last = self
            .open
            .as_ref()
            .and_then(|round| round.participants.iter().chain(&round.excluded).last().copied());
        if let Some(device) = last {
            self.close_if_ended(now, device, NotCounted::Absent, effects);
        }
    }
}
