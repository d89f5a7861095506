//! Rows: the units that are written to the store, and the campaign that is read back.

use fedspan_protocol::message::RoundId;
use serde::{Deserialize, Serialize};

use crate::journal::CommittedRound;
use fedspan_engine::linalg::Matrix;
use fedspan_engine::privacy::Account;
use fedspan_engine::{Checkpoint, CountedUpdate, DeadlineState, DeviceId, Millis, Record};

/// Unit that is written to the store.
#[derive(Clone, Debug, PartialEq)]
pub enum Row {
    /// What the engine has recorded. A checkpoint removes updates, aliases, exclusions and deadline of earlier
    /// rounds.
    Engine(Record),
    /// Committed round.
    Round(CommittedRound),
    /// Time of the campaign clock.
    Clock(Millis),
    /// Journal line with its number.
    JournalEntry(u64, String),
}

impl Row {
    /// Returns the row of an engine's record, if a restart needs it. `representation` is the engine's.
    #[must_use]
    pub fn of(record: Record, representation: &Matrix) -> Option<Self> {
        match record {
            Record::Committed(round) => Some(Self::Round(CommittedRound::new(&round, representation))),
            Record::Counted(..)
            | Record::Excluded(_)
            | Record::Reinvited(_)
            | Record::Renumbered(_)
            | Record::Deadline(_)
            | Record::Account(..)
            | Record::Checkpoint(_) => Some(Self::Engine(record)),
            Record::Answered(..) | Record::Declined(..) | Record::Opened(_) | Record::Failed(_) => None,
        }
    }
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
