//! Journal of a campaign: the file `arrivals.jsonl` in the state directory, with one JSON object per line,
//! from which every decision of the campaign can be replayed. `JOURNAL.md` in the crate specifies the format
//! for other programs.
//!
//! [`JournalEntry::of`] converts records of the engine into entries, [`Journal`] writes entries, and [`read`]
//! reads them back. The simulator uses the same conversion, so its entries of a decision equal those of the
//! server.

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
    /// A server resumed the campaign of the preceding entries.
    Resumed(Server),
    /// A round was opened.
    Opened(Opened),
    /// An update was counted or rejected, or a device declined the round.
    Answered(Answered),
    /// A round was committed.
    Committed(Committed),
    /// The deadline of the open round has passed. Only if the configuration has `patience`.
    Deadline(DeadlinePassed),
    /// Rounds do not wait for a device any more, because it has missed too many deadlines.
    #[serde(rename = "not_awaited")]
    NotAwaited(Awaited),
    /// Rounds wait for a device again.
    Awaited(Awaited),
}

/// Start of the server that wrote the following entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// Id of the last opened round of the stored campaign; 0 for a new campaign.
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
    /// Previous id of an open round that was renumbered. Updates that were counted under the previous id stay
    /// counted.
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
    /// Number of samples that completes the round even with fewer updates; `None` unless the participation
    /// policy counts samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// Devices that are selected for the round, in ascending order. More devices may be selected later if too
    /// few answer.
    pub cohort: Vec<DeviceId>,
}

/// Answer of a device to a round: an update or a decline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answered {
    /// Time of arrival.
    pub at: Millis,
    /// Round id that the device answers.
    pub round: u32,
    /// Device that answers.
    pub device: DeviceId,
    /// Outcome of the answer.
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

/// Deadline of a round that has passed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadlinePassed {
    /// Time at which the deadline passed.
    pub at: Millis,
    /// Id of the round.
    pub round: u32,
}

/// Change of whether rounds wait for a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Awaited {
    /// Time of the change.
    pub at: Millis,
    /// Id of the round that was opened last.
    pub round: u32,
    /// The device.
    pub device: DeviceId,
}

/// Phase of a campaign that has rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JournalPhase {
    /// Computation of the initial model from data.
    Start,
    /// Training.
    Training,
    /// Fitting of heads on the devices; such a round is never committed.
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
    /// The same update was counted before.
    Duplicate,
    /// The round was over.
    Late,
    /// The update was rejected.
    Rejected,
    /// The device declined the round.
    Declined,
}

impl JournalEntry {
    /// Returns the round id of the entry; `None` for the start of a server.
    #[must_use]
    pub fn round(&self) -> Option<u32> {
        match self {
            Self::Began(_) | Self::Resumed(_) => None,
            Self::Opened(opened) => Some(opened.round),
            Self::Answered(answered) => Some(answered.round),
            Self::Committed(committed) => Some(committed.round),
            Self::Deadline(deadline) => Some(deadline.round),
            Self::NotAwaited(awaited) | Self::Awaited(awaited) => Some(awaited.round),
        }
    }
}
