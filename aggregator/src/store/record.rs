//! Records: the units that are written to the store, and the campaign that is read back.

use fedspan_protocol::message::RoundId;
use serde::{Deserialize, Serialize};

use crate::journal::CommittedRound;
use fedspan_engine::privacy::Account;
use fedspan_engine::{Checkpoint, DeadlineState, DeviceId, Millis, Update};

/// Unit of durable state.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// State of the engine after a round was opened or committed. Removes updates, aliases, exclusions and
    /// deadline of earlier rounds.
    Checkpoint(Checkpoint),
    /// Update counted in the round that was opened under this id.
    Counted(RoundId, DeviceId, CountedUpdate),
    /// Next id of the open round; updates counted so far stay counted.
    Renumbered(RoundId),
    /// Device that will not answer the open round.
    Excluded(DeviceId),
    /// Deadline override of the open round.
    Deadline(DeadlineState),
    /// Privacy account of a device.
    Account(DeviceId, Account),
    /// Committed round.
    Round(CommittedRound),
    /// Time of the campaign clock.
    Clock(Millis),
    /// Journal line with its number.
    JournalEntry(u64, String),
}

/// Update counted in the open round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CountedUpdate {
    /// Number of updates counted before it.
    pub order: u32,
    /// Time of arrival.
    pub at: Millis,
    /// Update itself.
    pub update: Update,
}

/// Stored campaign.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CampaignState {
    /// Number that identifies the campaign on the wire.
    pub campaign: u64,
    /// Settings that the campaign was begun with.
    pub configuration: String,
    /// Campaign time of the last write.
    pub clock: Millis,
    /// State of the engine at the last opening or commit of a round.
    pub checkpoint: Option<Checkpoint>,
    /// Later ids of the open round, oldest first.
    pub round_aliases: Vec<RoundId>,
    /// Updates counted since, in order of arrival.
    pub updates: Vec<(DeviceId, CountedUpdate)>,
    /// Devices that will not answer the open round, ascending.
    pub excluded: Vec<DeviceId>,
    /// Deadline override of the open round; `None` if it was not extended.
    pub deadline: Option<DeadlineState>,
    /// Privacy accounts, in order of devices.
    pub accounts: Vec<(DeviceId, Account)>,
    /// Number of the next journal line.
    pub next_journal_line: u64,
}

impl CampaignState {
    /// Returns the id under which the open round was opened.
    #[must_use]
    pub fn open_round(&self) -> Option<RoundId> {
        let checkpoint = self.checkpoint.as_ref()?;
        checkpoint.open.as_ref().map(|_| checkpoint.id)
    }

    /// Returns the id of the last opened round.
    #[must_use]
    pub fn last_round(&self) -> Option<RoundId> {
        self.round_aliases.last().copied().or(self.checkpoint.as_ref().map(|checkpoint| checkpoint.id))
    }
}
