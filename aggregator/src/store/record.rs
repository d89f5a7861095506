//! What is written.

use fedspan_protocol::message::RoundId;
use serde::{Deserialize, Serialize};

use crate::engine::{Checkpoint, DeviceId, Millis, Update};
use crate::journal::Round;
use crate::privacy::Account;

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
    /// What a device has spent.
    Account(DeviceId, Account),
    /// A round was committed.
    Round(Round),
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
    /// Its last opening or commit.
    pub checkpoint: Option<Checkpoint>,
    /// Further numbers of the open round, oldest first.
    pub names: Vec<RoundId>,
    /// What has been counted since, in that order.
    pub updates: Vec<(DeviceId, Counted)>,
    /// Who will not answer the open round, ascending.
    pub out: Vec<DeviceId>,
    /// What devices have spent, in order of devices.
    pub accounts: Vec<(DeviceId, Account)>,
    /// The number of the journal's next line.
    pub lines: u64,
}

impl Stored {
    /// The last time that it tells of.
    #[must_use]
    pub fn clock(&self) -> Millis {
        let opened = self.checkpoint.as_ref().and_then(|checkpoint| Some(checkpoint.open.as_ref()?.at));
        let counted = self.updates.iter().map(|(_, counted)| counted.at);
        opened.into_iter().chain(counted).max().unwrap_or(0)
    }

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
