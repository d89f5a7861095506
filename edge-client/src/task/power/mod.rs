//! FedPower on one device (Guo et al. 2024, Algorithms 1 to 3): power iterations with the device's own
//! `A = (1/s) M^T M`, where M has s rows of norm 1 at most.
//!
//! The basis `Z` is where the round's tensor comes in, the product `Y = A Z` is summed in the second d x k of the
//! memory, and nothing else is of that size: between two iterations `Y` is copied over `Z` and made orthonormal there.
//! `plain` is in f32; `private` hides each product in noise.

#[cfg(feature = "privacy")]
mod bit_cast;
#[cfg(feature = "privacy")]
mod fixed_point;
mod plain;
#[cfg(feature = "privacy")]
pub mod private;
mod row;

use fedspan_protocol::message::{DeclineReason, PowerRows, PowerUpload, RoundId, Task as Wire};
use fedspan_protocol::orthonormal::orthonormalise;

use super::Usage;
use super::fedrep::copy;
use crate::memory::Parts;
use crate::source::SampleSource;

/// What the last FedPower round did with its rows, pass by pass the same. It is for the firmware and never leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PowerCounts {
    /// Rows that were counted: with noise those that could not be used as well.
    pub rows: u32,
    /// Rows of norm over 1, which were scaled to norm 1.
    pub clipped: u32,
    /// Rows that were left out: not finite, of a squared norm that overflows, without a target where one is needed.
    pub unusable: u32,
    /// Rows after as many as the settings of the noise allow, which were not looked at.
    pub beyond: u32,
}

impl PowerCounts {
    /// Of no rows yet.
    pub const NOTHING: Self = Self { rows: 0, clipped: 0, unusable: 0, beyond: 0 };
}

/// What a round asks for.
#[derive(Clone, Copy, Debug)]
pub struct PowerRequest {
    iterations: u16,
    rows: PowerRows,
    upload: PowerUpload,
}

impl PowerRequest {
    /// That of a FedPower task; `None` for others.
    pub fn from_task(task: &Wire) -> Option<Self> {
        match *task {
            Wire::FedPower { iterations, rows, upload, .. } => Some(Self { iterations, rows, upload }),
            _ => None,
        }
    }

    /// Whether it can be carried out here.
    pub fn is_valid(self) -> bool {
        let known = matches!(self.rows, PowerRows::Features | PowerRows::Weighted)
            && matches!(
                self.upload,
                PowerUpload::Product | PowerUpload::ProductAndBasis | PowerUpload::Basis
            );
        self.iterations > 0 && known
    }
}

/// A whole round: `Y` of the last iteration (or its orthonormal factor) in the second buffer, the `Z` it was computed
/// from in the first.
#[inline(never)]
pub fn run(
    parts: &mut Parts<'_>,
    request: PowerRequest,
    counts: &mut PowerCounts,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    let mut usage = Usage::default();
    for iteration in 0..request.iterations {
        if iteration > 0 {
            next_basis(parts)?;
        }
        usage = plain::product(parts, request.rows, counts, id, source)?;
        if usage.samples == 0 {
            return Err(DeclineReason::NoSamples);
        }
    }
    finish(parts, request.upload)?;
    Ok(usage)
}

/// `Z <- orthonormal factor of Y`.
fn next_basis(parts: &mut Parts<'_>) -> Result<(), DeclineReason> {
    copy(parts.representation, parts.extra_matrix.as_deref().unwrap_or_default());
    orthonormal(parts.representation, parts.shape.width)
}

/// What is sent is in the second buffer.
fn finish(parts: &mut Parts<'_>, upload: PowerUpload) -> Result<(), DeclineReason> {
    match (upload, &mut parts.extra_matrix) {
        (PowerUpload::Basis, Some(product)) => orthonormal(product, parts.shape.width),
        _ => Ok(()),
    }
}

/// The orthonormal factor, in place. A product of deficient rank has none: a column of it would be divided by zero.
fn orthonormal(product: &mut [f32], width: usize) -> Result<(), DeclineReason> {
    orthonormalise(product, width).map_err(|_| DeclineReason::UpdateNonFinite)
}
