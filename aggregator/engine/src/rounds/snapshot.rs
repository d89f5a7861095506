//! Snapshot and restore of a campaign together with its devices, as a simulation needs it. In contrast to a restart of a
//! server, the devices stay connected and keep their tensors, and counters continue. A restored campaign therefore has
//! the same bits as one that was not interrupted, also in its bytes.

use std::collections::BTreeMap;

use fedspan_protocol::message::RoundId;
use fedspan_protocol::tensor::Role;
use serde::{Deserialize, Serialize};

use super::{Action, Checkpoint, Counters, Engine, Phase, Presence};
use crate::privacy::Account;
use crate::types::{DeviceId, Millis};

/// State of a campaign right after the commit of a round, when no update of the next round has counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// State that a server would store.
    pub checkpoint: Checkpoint,
    counters: Counters,
    connected: Vec<DeviceId>,
    last_answered: BTreeMap<DeviceId, u32>,
    trained_roles_before: Vec<Role>,
    accounts: BTreeMap<DeviceId, Account>,
}

/// Reason why the number of rounds of a snapshot cannot be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotExtended {
    /// More rounds are finished already.
    #[error("found {found} rounds, allowed: at least {done}, which are finished")]
    Fewer {
        /// Requested number of rounds.
        found: u32,
        /// Number of finished rounds.
        done: u32,
    },
    /// Training ended before its last round, for a reason that a longer training would meet as well.
    #[error("training ended after {done} of {rounds} rounds, because a condition to stop was met")]
    Stopped {
        /// Number of finished rounds.
        done: u32,
        /// Number of rounds before the stop.
        rounds: u32,
    },
}

impl Snapshot {
    /// Number of finished training rounds.
    #[must_use]
    pub fn done(&self) -> u32 {
        match self.checkpoint.done {
            Phase::Train(number) => number,
            _ => 0,
        }
    }

    /// Changes the number of training rounds. A snapshot of the last round continues with training then.
    ///
    /// # Errors
    /// [`NotExtended`] if more rounds are finished, or if training ended early; the snapshot is then unchanged.
    pub fn extend(&mut self, rounds: u32, configured: u32) -> Result<(), NotExtended> {
        let done = self.done();
        if rounds < done {
            return Err(NotExtended::Fewer { found: rounds, done });
        }
        if self.checkpoint.rounds < configured {
            return Err(NotExtended::Stopped { done, rounds: configured });
        }
        let is_last = done == self.checkpoint.rounds;
        if is_last && rounds > done && self.checkpoint.open.take().is_some() {
            // The round of ridge scores or final heads, which had this id, is replaced by a training round.
            let RoundId { round, stage } = self.checkpoint.id;
            self.checkpoint.id = RoundId { round: round.saturating_sub(1), stage };
        }
        self.checkpoint.rounds = rounds;
        Ok(())
    }
}

impl Engine {
    /// Creates a snapshot. Must be called right after the commit of a round, before an update of the next round counts.
    /// Returns `None` if a restored participation policy would decide differently.
    #[must_use]
    pub fn snapshot(&self) -> Option<Snapshot> {
        if !self.participation.has_whole_state() {
            return None;
        }
        let connected =
            self.fleet.iter().filter(|(_, presence)| **presence == Presence::Connected).map(|(id, _)| *id);
        Some(Snapshot {
            checkpoint: self.checkpoint(),
            counters: self.counters,
            connected: connected.collect(),
            last_answered: self.last_answered.clone(),
            trained_roles_before: self.trained_roles_before.clone(),
            accounts: self.ledger.accounts().clone(),
        })
    }

    /// Restores a snapshot in a new engine at the time `now` of the snapshot, and sends the open round to its devices.
    /// Returns false if the snapshot belongs to another campaign; the engine must then be discarded.
    pub fn restore_snapshot(&mut self, now: Millis, snapshot: &Snapshot, effects: &mut Vec<Action>) -> bool {
        let Snapshot { checkpoint, counters, connected, last_answered, trained_roles_before, accounts } =
            snapshot;
        self.trained_roles.clone_from(trained_roles_before);
        if !self.resume(now, checkpoint) {
            return false;
        }
        self.counters = *counters;
        self.last_answered.clone_from(last_answered);
        for (device, account) in accounts {
            self.restore_account(*device, *account);
        }
        for device in connected {
            self.record_joined(*device);
            self.fleet.insert(*device, Presence::Connected);
        }
        self.connected = connected.len();
        (self.has_opened, self.retry_at) = (true, None);
        self.next_absence_cache.set(None);
        if let Some(open) = &self.open {
            let broadcasts = self.broadcasts(open, open.cohort.iter().copied());
            self.send_broadcasts(now, broadcasts, effects);
        } else {
            self.follow_up(now, effects);
        }
        true
    }
}
