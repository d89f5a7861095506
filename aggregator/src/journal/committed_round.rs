//! Record of a committed round: one line of JSON, which the store keeps for every round even if no journal is
//! kept.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::JournalPhase;
use fedspan_engine::linalg::Matrix;
use fedspan_engine::{DeviceId, Millis, RoundRecord};

/// Record of a committed round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommittedRound {
    /// Id of the round on the wire; the last id if the round was renumbered.
    pub exchange: u32,
    /// Phase of the campaign.
    pub phase: JournalPhase,
    /// Number of the round within its phase, from 1.
    pub round: u32,
    /// Participation stage.
    pub stage: u16,
    /// Campaign time at which the round was opened, in ms.
    pub opened_at: Millis,
    /// Campaign time at which the round was closed, in ms.
    pub closed_at: Millis,
    /// Devices that were selected for the round, in ascending order.
    pub cohort: Vec<DeviceId>,
    /// Devices whose updates counted, in order of arrival.
    pub participants: Vec<DeviceId>,
    /// Number of updates that were rejected while the round was open.
    pub rejected: u32,
    /// Number of updates that would have completed the round; `None` if the round was completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub short_of: Option<usize>,
    /// Change of the representation in the round (sine of the largest principal angle); `None` unless the
    /// participation policy or the stop rule measures the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<f64>,
    /// Interference: the error of averaging the factors of a product one by one; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interference: Option<f64>,
    /// SHA-256 of the representation after the round, as little-endian f64 in column-major order, in
    /// hexadecimal.
    pub representation: String,
}

impl CommittedRound {
    /// Creates the record of a round whose result is `representation`.
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

/// Returns the digest stored in [`CommittedRound::representation`].
#[must_use]
pub fn sha256(representation: &Matrix) -> String {
    let mut hash = Sha256::new();
    representation.iter().for_each(|value| hash.update(value.to_le_bytes()));
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
