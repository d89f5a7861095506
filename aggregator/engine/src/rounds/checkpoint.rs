//! What a restart goes on from. Everything that a campaign is at the moment at which a round has been opened is a
//! [`Checkpoint`]; with the updates that were counted since, in their order, it is everything that was acknowledged.
//!
//! What a restart may forget, because it comes again or was nobody's: who is connected, who has been gone for how long, what
//! counters say.

use fedspan_protocol::message::{AckOutcome, RoundId};
use serde::{Deserialize, Serialize};

use super::{Action, Engine, NotCounted, OpenRound, Phase, Presence};
use crate::types::{DeviceId, Millis, Update};

/// A campaign at a moment at which no update of the open round has counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The exchange that was opened last, under its first number.
    pub id: RoundId,
    /// What is done: the round of the start or of training that is finished, or the scores of ridges;
    /// [`Phase::FitHead`] where there are to be none of these.
    pub done: Phase,
    /// Training rounds of the campaign; fewer than its settings say where it ended earlier.
    pub rounds: u32,
    /// The state of the algorithm (or of the start), and behind it that of the participation policy: where a round is open, as it
    /// was before the policy was asked whom to ask, as it is asked again. Behind that what devices have said of ridges,
    /// once they have.
    pub state: Vec<f64>,
    /// The exchange that is open: the one that was opened last.
    pub open: Option<OpenRoundCheckpoint>,
}

/// When a round was opened, and among whom.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenRoundCheckpoint {
    /// When.
    pub opened_at: Millis,
    /// Devices that were there, ascending.
    pub fleet: Vec<DeviceId>,
}

/// How an open round waits, where that is not as when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadlineState {
    /// Until when, if there are deadlines.
    pub deadline: Option<Millis>,
    /// Everybody who comes is asked.
    pub asking_everyone: bool,
}

impl Checkpoint {
    /// Whether training has ended.
    #[must_use]
    pub fn ends_training(&self) -> bool {
        match self.done {
            Phase::Train(done) => done >= self.rounds,
            Phase::RidgeScores | Phase::FitHead => true,
            Phase::Waiting | Phase::Start(_) | Phase::Finished | Phase::Failed => false,
        }
    }
}

impl Engine {
    /// What a restart goes on from. It is to be taken, and made durable, when a round has been opened or committed, before
    /// anything that was asked for then is done.
    #[must_use]
    pub fn checkpoint(&self) -> Checkpoint {
        let mut state = self.current().state();
        // Policies have no say in a start.
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
            // What is open then is told from scores.
            Phase::FitHead | Phase::Finished if self.ridge.is_some() => Phase::FitHead,
            Phase::FitHead | Phase::Finished => Phase::Train(self.settings.rounds),
            Phase::RidgeScores if open.is_some() => Phase::Train(self.settings.rounds),
            other => other,
        };
        if let Some(ridge) = self.ridge.as_ref().filter(|_| done == Phase::RidgeScores) {
            state.extend(ridge.state());
        }
        Checkpoint { id: self.last_id, done, rounds: self.settings.rounds, state, open }
    }

    /// Training has ended: no round will close any more.
    #[must_use]
    pub fn is_trained(&self) -> bool {
        match self.phase {
            Phase::FitHead | Phase::Finished => true,
            Phase::Train(done) => {
                !self.scores_ridges() && self.open.is_none() && done >= self.settings.rounds
            }
            Phase::RidgeScores => self.open.is_none(),
            Phase::Waiting | Phase::Start(_) | Phase::Failed => false,
        }
    }

    /// Goes on from a checkpoint: with the same round open, under the same number, as it was when nobody had answered it.
    /// [`Self::recount`] then brings what was counted. Nobody is connected; all who were there are expected back. False if the
    /// checkpoint is none of this campaign; the engine is of no use then.
    pub fn resume(&mut self, now: Millis, checkpoint: &Checkpoint) -> bool {
        let Checkpoint { id, done, rounds, state, open } = checkpoint;
        let start_goes_on = match (done, &self.start) {
            (Phase::Start(_), None) => return false,
            (Phase::Start(done), Some(start)) => *done < start.rounds_needed(),
            (Phase::Waiting, start) => start.is_some(),
            _ => false,
        };
        let target = match &mut self.start {
            Some(start) if start_goes_on => start,
            _ => &mut self.algorithm,
        };
        let Some((own, mut policy)) = state.split_at_checked(target.state().len()) else { return false };
        if *done == Phase::RidgeScores {
            let Some(ridge) = &mut self.ridge else { return false };
            // Whatever may leave a device by now, it has.
            ridge.asked = true;
            let before = policy.len().checked_sub(ridge.state().len());
            let Some((rest, scores)) = before.and_then(|before| policy.split_at_checked(before)) else {
                return false;
            };
            if !ridge.restore(scores) {
                return false;
            }
            policy = rest;
        }
        let policy = if start_goes_on { policy.is_empty() } else { self.participation.restore(policy) };
        if *rounds > self.settings.rounds || !(policy && target.restore(own)) {
            return false;
        }
        if !start_goes_on {
            self.start = None;
        }
        self.next_absence_cache.set(None);
        self.settings.rounds = *rounds;
        self.phase = *done;
        self.last_id = *id;
        // Scores of ridges were open, and none may leave a device any longer.
        let dropped = *done == Phase::Train(*rounds) && self.ridge.is_some() && !self.scores_ridges();
        let Some(open) = open.as_ref().filter(|_| !dropped) else {
            // Everybody had left. Some may never come back: after a while it goes on with those who have.
            let patience = self.settings.patience.filter(|_| id.round > 0);
            self.retry_at = patience.map(|patience| now.saturating_add(patience.max(self.settings.absence)));
            return true;
        };
        let Some(before) = id.round.checked_sub(1) else { return false };
        self.last_id.round = before;
        self.fleet = open.fleet.iter().map(|device| (*device, Presence::Disconnected(now))).collect();
        // Nobody is there to be told.
        self.open_round_among(open.opened_at, open.fleet.clone(), &mut Vec::new());
        self.open.as_ref().is_some_and(|round| round.broadcast.id == *id)
    }

    /// The number that an exchange had last which [`Self::resume`] has dropped, because its answers may not leave devices any
    /// longer. False if it cannot have had it.
    pub fn restore_dropped_id(&mut self, id: RoundId) -> bool {
        let follows = self.open.is_none() && id >= self.last_id && id.stage == self.last_id.stage;
        if follows {
            self.last_id = id;
        }
        follows
    }

    /// How the open round waits, if it is one that will be closed.
    #[must_use]
    pub fn deadline_state(&self) -> Option<DeadlineState> {
        let closes = matches!(self.phase, Phase::Start(_) | Phase::Train(_) | Phase::RidgeScores);
        let round = self.open.as_ref().filter(|_| closes)?;
        Some(DeadlineState { deadline: round.deadline, asking_everyone: round.asking_everyone })
    }

    /// How the open round had come to wait before a restart. False if no such round is open.
    pub fn restore_deadline(&mut self, state: DeadlineState) -> bool {
        let is_open = self.deadline_state().is_some();
        if let Some(round) = self.open.as_mut().filter(|_| is_open) {
            (round.deadline, round.asking_everyone) = (state.deadline, state.asking_everyone);
        }
        is_open
    }

    /// The open round went on under this number before a restart. What is counted after this was counted under it. False if
    /// it cannot have.
    pub fn restore_id(&mut self, id: RoundId) -> bool {
        let Some(round) = self.open.as_mut().filter(|_| id > self.last_id && id.stage == self.last_id.stage)
        else {
            return false;
        };
        // Who has been asked under which number is not kept: those who have not answered are asked under the last.
        round.rename(id, OpenRound::has_counted);
        self.last_id = id;
        true
    }

    /// A device that will not answer the open round had said so before a restart, or its update was rejected.
    pub fn mark_excluded(&mut self, device: DeviceId) {
        if let Some(round) = self.open.as_mut().filter(|round| round.awaits(device)) {
            round.excluded.insert(device);
        }
        self.next_absence_cache.set(None);
    }

    /// Counts an update again that was counted before a restart, at the same time on the same clock: in the order in which
    /// they were. What that leads to waits for [`super::Event::Resumed`]. False if it does not count in the open round.
    pub fn replay_update(&mut self, at: Millis, device: DeviceId, update: &Update) -> bool {
        let Some(round) = &mut self.open else { return false };
        // It may have been asked later than the others, or earlier.
        round.cohort.insert(device);
        round.keep_earlier_id(device, update.id);
        self.fleet.entry(device).or_insert(Presence::Disconnected(at));
        self.next_absence_cache.set(None);
        self.absorb_update(at, device, update) == AckOutcome::Counted
    }

    /// Everything is counted again: who was asked later than the others, and has not answered, is not asked any more, so that
    /// the round may be complete now, or out of devices.
    pub(super) fn resumed(&mut self, now: Millis, actions: &mut Vec<Action>) {
        let last = self
            .open
            .as_ref()
            .and_then(|round| round.participants.iter().chain(&round.excluded).last().copied());
        if let Some(device) = last {
            self.close_if_ended(now, device, NotCounted::Absent, actions);
        }
    }
}
