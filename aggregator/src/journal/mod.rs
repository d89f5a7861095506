//! The journal of arrivals, `arrivals.jsonl` in the state directory: one JSON object a line, appended as things happen,
//! enough to run every decision of a campaign again. `JOURNAL.md` beside the sources describes it for other programs.
//!
//! [`JournalRecorder`] watches an engine and says what there is to tell; [`Journal`] writes it; [`read`] reads it back. The
//! simulator uses the same scribe, so that a decision is told in the same words wherever it was made.

mod committed_round;
mod file;
mod read;
mod recorder;

use serde::{Deserialize, Serialize};

pub use committed_round::{CommittedRound, sha256};
pub use file::{FILE, Journal};
pub use read::{JournalError, parse, read};
pub use recorder::JournalRecorder;
pub(crate) use recorder::digest;

use fedspan_engine::{DeviceId, Millis, Phase};

/// One line. Times are milliseconds on the server's clock, which begins anew when the server does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum JournalEntry {
    /// A campaign began.
    Began(Server),
    /// A server went on with the campaign of the lines before.
    Resumed(Server),
    /// A round was opened.
    Opened(Opened),
    /// An answer was judged.
    Answered(Answered),
    /// A round was committed.
    Committed(Committed),
}

/// Who writes the lines that follow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// The exchange after which it goes on, 0 for a new campaign. What the lines before tell of later ones was lost
    /// with the server that wrote them.
    pub after: u32,
    /// How many devices the first round waits for.
    pub expected: usize,
    /// The campaign's settings, a line each: [`crate::config::Fleet::fingerprint`].
    pub configuration: String,
}

/// A round was opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// When.
    pub at: Millis,
    /// The exchange, as it is called on the wire.
    pub round: u32,
    /// It is a round that was open already, and goes on under another number: the exchange that it was called before. What
    /// counted under that counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continues: Option<u32>,
    /// What part of the campaign it belongs to.
    pub phase: JournalPhase,
    /// Which round of that part, from 1.
    pub number: u32,
    /// The participation stage.
    pub stage: u16,
    /// How many answers complete it.
    pub target: usize,
    /// How many samples complete it with fewer answers, where the policy goes by samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// Who was asked, ascending. A round that finds too few may ask more later.
    pub cohort: Vec<DeviceId>,
}

/// An answer was judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answered {
    /// When.
    pub at: Millis,
    /// The exchange that it answers.
    pub round: u32,
    /// Whose it is.
    pub device: DeviceId,
    /// What became of it.
    pub outcome: Outcome,
    /// Why, where it was rejected or declined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A round was committed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    /// When.
    pub at: Millis,
    /// The exchange.
    pub round: u32,
    /// Who counted, in order of arrival.
    pub participants: Vec<DeviceId>,
    /// CRC-32C of the representation after it, as little-endian f64 in column-major order; eight hexadecimal digits.
    pub representation: String,
}

/// The parts of a campaign that have rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JournalPhase {
    /// The start learns from data.
    Start,
    /// Training.
    Training,
    /// Devices fit their heads; never committed.
    Heads,
    /// Devices score ridges for final heads.
    Ridge,
}

impl JournalPhase {
    /// The part of a phase in which a round is open, and the number within it.
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

/// What became of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It counts.
    Counted,
    /// It had been counted already.
    Duplicate,
    /// The round was over.
    Late,
    /// It does not count.
    Rejected,
    /// The device will not answer.
    Declined,
}

impl JournalEntry {
    /// The exchange that it tells of.
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
