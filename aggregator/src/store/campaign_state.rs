//! State of a stored campaign, as read from the database.

use fedspan_protocol::message::RoundId;
use serde::{Deserialize, Serialize};

use fedspan_engine::privacy::Account;
use fedspan_engine::{Checkpoint, CountedUpdate, DeadlineState, DeviceId, Millis};

/// State of a stored campaign.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CampaignState {
    /// Number that identifies the campaign on the wire.
    pub campaign: u64,
    /// Settings with which the campaign was begun.
    pub configuration: String,
    /// Campaign time of the last write.
    pub clock: Millis,
    /// State of the engine at the last opening or commit of a round.
    pub checkpoint: Option<Checkpoint>,
    /// Later ids of the open round, oldest first.
    pub round_aliases: Vec<RoundId>,
    /// Updates counted in the open round, in order of arrival.
    pub updates: Vec<(DeviceId, CountedUpdate)>,
    /// Devices that will not answer the open round, ascending.
    pub excluded: Vec<DeviceId>,
    /// Deadline override of the open round; `None` if it was not extended.
    pub deadline: Option<DeadlineState>,
    /// Privacy accounts, in order of devices.
    pub accounts: Vec<(DeviceId, Account)>,
    /// Number of deadlines that devices have missed in a row, in order of devices.
    pub missed: Vec<(DeviceId, u32)>,
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
