//! FedPower on one device (Guo et al. 2024, Algorithms 1 to 3): power iterations with the device's matrix
//! `A = (1/s) M^T M`, where M has s rows of norm at most 1.
//!
//! The basis `Z` is in the buffer of the round's tensor, and the product `Y = A Z` is summed in the memory's
//! second d x k matrix. No other buffer has that size: between two iterations `Y` is copied to the buffer of
//! `Z` and orthonormalised in place. `plain` computes in f32; `private` adds noise to each product.

#[cfg(all(feature = "privacy", feature = "wide", target_arch = "x86_64", not(target_os = "none")))]
mod avx2;
#[cfg(feature = "privacy")]
mod bit_cast;
#[cfg(feature = "privacy")]
mod fixed_point;
#[cfg(all(feature = "wide", not(target_os = "none")))]
mod groups;
#[cfg(all(feature = "privacy", feature = "wide", not(target_os = "none")))]
mod integer_columns;
#[cfg(all(feature = "privacy", feature = "wide", not(target_os = "none")))]
mod integer_rows;
mod plain;
#[cfg(feature = "privacy")]
pub mod private;
mod row;
#[cfg(feature = "privacy")]
mod row_sums;
#[cfg(all(feature = "wide", not(target_os = "none")))]
mod wide_plain;
#[cfg(all(feature = "privacy", feature = "wide", not(target_os = "none")))]
mod wide_row_sums;

use fedspan_protocol::message::{DeclineReason, PowerRows, PowerUpload, RoundId, Task as Wire};
use fedspan_protocol::orthonormal::orthonormalise_in_parts;

use super::Usage;
use super::fedrep::copy;
use crate::memory::Parts;
use crate::pace::Pace;
use crate::source::SampleSource;

/// Row counts of the last FedPower round, for use by the firmware. Every pass has the same counts, and they
/// are never sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PowerCounts {
    /// Number of rows used. With noise this includes unusable rows.
    pub rows: u32,
    /// Number of rows of norm over 1, which were scaled to norm 1.
    pub clipped: u32,
    /// Number of unusable rows: not finite, with an overflowing squared norm, or without a required target.
    pub unusable: u32,
    /// Number of rows beyond the limit of the privacy settings, which were ignored.
    pub beyond: u32,
}

impl PowerCounts {
    /// Counts before the first row.
    pub const NOTHING: Self = Self { rows: 0, clipped: 0, unusable: 0, beyond: 0 };
}

/// Parameters of a FedPower round.
#[derive(Clone, Copy, Debug)]
pub struct PowerRequest {
    iterations: u16,
    rows: PowerRows,
    upload: PowerUpload,
}

impl PowerRequest {
    /// Returns the parameters of a FedPower task; `None` for other tasks.
    pub fn from_task(task: &Wire) -> Option<Self> {
        match *task {
            Wire::FedPower { iterations, rows, upload, .. } => Some(Self { iterations, rows, upload }),
            _ => None,
        }
    }

    /// Returns true if this firmware supports the parameters.
    pub fn is_valid(self) -> bool {
        let known = matches!(self.rows, PowerRows::Features | PowerRows::Weighted)
            && matches!(
                self.upload,
                PowerUpload::Product | PowerUpload::ProductAndBasis | PowerUpload::Basis
            );
        self.iterations > 0 && known
    }
}

/// Computes a whole round. Afterwards the second matrix holds `Y` of the last iteration (or its orthonormal
/// factor), and the first matrix holds the `Z` from which `Y` was computed.
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

/// Computes `Z <- orthonormal factor of Y`.
fn next_basis(parts: &mut Parts<'_>) -> Result<(), DeclineReason> {
    copy(parts.representation, parts.extra_matrix.as_deref().unwrap_or_default());
    orthonormal(parts.representation, parts.shape.width, parts.pace)
}

/// Completes the upload in the second matrix.
fn finish(parts: &mut Parts<'_>, upload: PowerUpload) -> Result<(), DeclineReason> {
    match (upload, &mut parts.extra_matrix) {
        (PowerUpload::Basis, Some(product)) => orthonormal(product, parts.shape.width, parts.pace),
        _ => Ok(()),
    }
}

/// Replaces a product by its orthonormal factor. Fails for a rank-deficient product.
fn orthonormal(product: &mut [f32], width: usize, pace: Pace<'_>) -> Result<(), DeclineReason> {
    orthonormalise_in_parts(product, width, &mut |work| pace.spend(work))
        .map_err(|_| DeclineReason::UpdateNonFinite)
}
