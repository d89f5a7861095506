//! A round that was committed, in one line: what is kept of it for ever, whether or not a journal of arrivals is.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::JournalPhase;
use fedspan_engine::linalg::Matrix;
use fedspan_engine::{DeviceId, Millis, RoundRecord};

/// A committed round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommittedRound {
    /// The exchange, as it is called on the wire: its last number, if it had several.
    pub exchange: u32,
    /// What part of the campaign it belongs to.
    pub phase: JournalPhase,
    /// Which round of that part, from 1.
    pub round: u32,
    /// The participation stage.
    pub stage: u16,
    /// When it was opened, in milliseconds on the campaign's clock.
    pub opened_at: Millis,
    /// When it was closed.
    pub closed_at: Millis,
    /// Who was asked, ascending.
    pub cohort: Vec<DeviceId>,
    /// Who counted, in order of arrival.
    pub participants: Vec<DeviceId>,
    /// Updates rejected while it was open.
    pub rejected: u32,
    /// How many answers it waited for, if it closed with fewer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub short_of: Option<usize>,
    /// How far the representation moved (sine of the largest principal angle), where that is looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<f64>,
    /// What averaging the factors of a product has cost, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interference: Option<f64>,
    /// SHA-256 of the representation after it, as little-endian f64 in column-major order, in hexadecimal digits.
    pub representation: String,
}

impl CommittedRound {
    /// What there is to keep of a round that has led to `representation`.
    #[must_use]
    pub fn new(record: &RoundRecord, representation: &Matrix) -> Self {
        let (phase, round) = JournalPhase::of(record.phase);
        Self {
            exchange: record.id.round,
            phase,
            round,
            stage: record.id.stage,
            opened_at: record.opened_at,
            closed_at: record.closed_at,
            cohort: record.cohort.clone(),
            participants: record.participants.clone(),
            rejected: record.rejected,
            short_of: record.short_of,
            change: record.change,
            interference: record.interference,
            representation: sha256(representation),
        }
    }
}

/// What [`CommittedRound::representation`] says of one.
#[must_use]
pub fn sha256(representation: &Matrix) -> String {
    let mut hash = Sha256::new();
    representation.iter().for_each(|value| hash.update(value.to_le_bytes()));
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
