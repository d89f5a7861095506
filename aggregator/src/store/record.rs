//! What is written.

use fedspan_protocol::message::RoundId;
use serde::{Deserialize, Serialize};

use crate::journal::CommittedRound;
use fedspan_engine::privacy::Account;
use fedspan_engine::{Checkpoint, DeviceId, Millis, Update, Waits};

/// One thing that must not be forgotten.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// A round was opened or committed. Updates of other rounds, and who was out of them, are of no use any more.
    Checkpoint(Checkpoint),
    /// An update counts in the round that was opened under this number.
    Counted(RoundId, DeviceId, CountedUpdate),
    /// The open round goes on under another number; what has counted counts.
    Renumbered(RoundId),
    /// A device will not answer the open round.
    Excluded(DeviceId),
    /// The open round waits otherwise than when it was opened.
    Deadline(Waits),
    /// What a device has spent.
    Account(DeviceId, Account),
    /// A round was committed.
    Round(CommittedRound),
    /// What the campaign's clock says.
    Clock(Millis),
    /// A line of the journal, and which.
    JournalEntry(u64, String),
}

/// An update that counts in the open round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CountedUpdate {
    /// How many had been counted before it.
    pub order: u32,
    /// When it came.
    pub at: Millis,
    /// The update.
    pub update: Update,
}

/// A campaign as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CampaignState {
    /// Identifies the campaign on the wire.
    pub campaign: u64,
    /// The configuration that it was begun with.
    pub configuration: String,
    /// What its clock said when something was last written.
    pub clock: Millis,
    /// Its last opening or commit.
    pub checkpoint: Option<Checkpoint>,
    /// Further numbers of the open round, oldest first.
    pub round_aliases: Vec<RoundId>,
    /// What has been counted since, in that order.
    pub updates: Vec<(DeviceId, CountedUpdate)>,
    /// Who will not answer the open round, ascending.
    pub excluded: Vec<DeviceId>,
    /// How the open round waits, if not as when it was opened.
    pub deadline: Option<Waits>,
    /// What devices have spent, in order of devices.
    pub accounts: Vec<(DeviceId, Account)>,
    /// The number of the journal's next line.
    pub next_journal_line: u64,
}

impl CampaignState {
    /// The round that is open, under the number with which it was opened.
    #[must_use]
    pub fn open_round(&self) -> Option<RoundId> {
        let checkpoint = self.checkpoint.as_ref()?;
        checkpoint.open.as_ref().map(|_| checkpoint.id)
    }

    /// The exchange that was opened last.
    #[must_use]
    pub fn last_round(&self) -> Option<RoundId> {
        self.round_aliases.last().copied().or(self.checkpoint.as_ref().map(|checkpoint| checkpoint.id))
    }
}
