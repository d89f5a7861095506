//! What is written.

use fedspan_protocol::message::RoundId;
use serde::{Deserialize, Serialize};

use crate::journal::Round;
use fedspan_engine::privacy::Account;
use fedspan_engine::{Checkpoint, DeadlineState, DeviceId, Millis, Update};

/// One thing that must not be forgotten.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// A round was opened or committed. Updates of other rounds, and who was out of them, are of no use any more.
    Checkpoint(Checkpoint),
    /// An update counts in the round that was opened under this number.
    Counted(RoundId, DeviceId, Counted),
    /// The open round goes on under another number; what has counted counts.
    Renamed(RoundId),
    /// A device will not answer the open round.
    Out(DeviceId),
    /// The open round waits otherwise than when it was opened.
    Waits(DeadlineState),
    /// What a device has spent.
    Account(DeviceId, Account),
    /// A round was committed.
    Round(Round),
    /// What the campaign's clock says.
    Clock(Millis),
    /// A line of the journal, and which.
    Line(u64, String),
}

/// An update that counts in the open round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// How many had been counted before it.
    pub order: u32,
    /// When it came.
    pub at: Millis,
    /// The update.
    pub update: Update,
}

/// A campaign as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stored {
    /// Identifies the campaign on the wire.
    pub campaign: u64,
    /// The configuration that it was begun with.
    pub configuration: String,
    /// What its clock said when something was last written.
    pub clock: Millis,
    /// Its last opening or commit.
    pub checkpoint: Option<Checkpoint>,
    /// Further numbers of the open round, oldest first.
    pub names: Vec<RoundId>,
    /// What has been counted since, in that order.
    pub updates: Vec<(DeviceId, Counted)>,
    /// Who will not answer the open round, ascending.
    pub out: Vec<DeviceId>,
    /// How the open round waits, if not as when it was opened.
    pub waits: Option<DeadlineState>,
    /// What devices have spent, in order of devices.
    pub accounts: Vec<(DeviceId, Account)>,
    /// The number of the journal's next line.
    pub lines: u64,
}

impl Stored {
    /// The round that is open, under the number with which it was opened.
    #[must_use]
    pub fn open(&self) -> Option<RoundId> {
        let checkpoint = self.checkpoint.as_ref()?;
        checkpoint.open.as_ref().map(|_| checkpoint.id)
    }

    /// The exchange that was opened last.
    #[must_use]
    pub fn last(&self) -> Option<RoundId> {
        self.names.last().copied().or(self.checkpoint.as_ref().map(|checkpoint| checkpoint.id))
    }
}
