//! Journal: `arrivals.jsonl` in the state directory, one JSON object a line, appended as events happen, from
//! which every decision of a campaign can be replayed. `JOURNAL.md` in the crate describes it for other
//! programs.
//!
//! [`JournalEntry::of`] makes entries of an engine's records, [`Journal`] writes them, [`read`] reads them back.
//! The simulator makes its entries in the same way, so that entries of the same decision are equal.

mod committed_round;
mod entry;
mod file;
mod read;

use serde::{Deserialize, Serialize};

pub use committed_round::{CommittedRound, sha256};
pub(crate) use entry::digest;
pub use file::{FILE, Journal};
pub use read::{JournalError, parse, read};

use fedspan_engine::{DeviceId, Millis, Phase};

/// Journal entry. Times are campaign times in ms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum JournalEntry {
    /// A campaign was begun.
    Began(Server),
    /// A server resumed the campaign of the entries before.
    Resumed(Server),
    /// A round was opened.
    Opened(Opened),
    /// An update was judged or declined.
    Answered(Answered),
    /// A round was committed.
    Committed(Committed),
}

/// Server that wrote the entries that follow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// Round id after which the campaign continues, 0 for a new one. Entries above about later rounds were lost
    /// with the server that wrote them.
    pub after: u32,
    /// Number of devices that the first round waits for.
    pub expected: usize,
    /// Settings of the campaign, one line each: [`crate::config::Fleet::fingerprint`].
    pub configuration: String,
}

/// Opening of a round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// Time of the opening.
    pub at: Millis,
    /// Id of the round on the wire.
    pub round: u32,
    /// Previous id if an open round was renumbered; updates counted under it stay counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continues: Option<u32>,
    /// Phase of the campaign.
    pub phase: JournalPhase,
    /// Number of the round within its phase, from 1.
    pub number: u32,
    /// Participation stage.
    pub stage: u16,
    /// Number of updates that complete the round.
    pub target: usize,
    /// Number of samples that complete the round with fewer updates, if the policy counts samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// Devices that are asked, ascending. More may be asked later if too few answer.
    pub cohort: Vec<DeviceId>,
}

/// Judgement of an update, or a decline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answered {
    /// Time of arrival.
    pub at: Millis,
    /// Round id that the device answers.
    pub round: u32,
    /// Device that answers.
    pub device: DeviceId,
    /// Outcome for the device.
    pub outcome: Outcome,
    /// Reason of a rejection or decline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Commit of a round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    /// Time of the commit.
    pub at: Millis,
    /// Id of the round.
    pub round: u32,
    /// Devices whose updates counted, in order of arrival.
    pub participants: Vec<DeviceId>,
    /// CRC-32C of the representation after the round, as little-endian f64 in column-major order; eight
    /// hexadecimal digits.
    pub representation: String,
}

/// Phase of a campaign that has rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JournalPhase {
    /// Computation of the initial model from data.
    Start,
    /// Training.
    Training,
    /// Fitting of heads on the devices; never committed.
    Heads,
    /// Scoring of ridges for final heads.
    Ridge,
}

impl JournalPhase {
    /// Returns the phase of an open round and the round's number within it.
    #[must_use]
    pub fn of(phase: Phase) -> (Self, u32) {
        match phase {
            Phase::Start(number) => (Self::Start, number),
            Phase::Train(number) => (Self::Training, number),
            Phase::RidgeScores => (Self::Ridge, 1),
            _ => (Self::Heads, 1),
        }
    }
}

/// Outcome of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The update counts.
    Counted,
    /// The update was counted before.
    Duplicate,
    /// The round was over.
    Late,
    /// The update was rejected.
    Rejected,
    /// The device declined the round.
    Declined,
}

impl JournalEntry {
    /// Returns the round id that the entry concerns.
    #[must_use]
    pub fn round(&self) -> Option<u32> {
        match self {
            Self::Began(_) | Self::Resumed(_) => None,
            Self::Opened(opened) => Some(opened.round),
            Self::Answered(answered) => Some(answered.round),
            Self::Committed(committed) => Some(committed.round),
        }
    }
}
