//! Product `Y = A Z` with noise: sums of integers, to which discrete Gaussian noise is added before they are
//! converted to floats.
//!
//! The upload, and whether there is one, depends on a record only through the noisy sums. Every row is
//! counted, with any content; an unusable row adds zero to the sums. The number of rows and failures of the
//! source are public.

use fedspan_protocol::message::{DeclineReason, RoundId};

use super::bit_cast::to_int;
use super::fixed_point::{check_basis, float_basis, round_basis};
use super::row_sums::{RowSums, Rules};
use super::{PowerCounts, PowerRequest, finish, next_basis};
use crate::memory::Parts;
use crate::pace::Pace;
use crate::privacy::{NOISE_WORK, Seed, Variance, noise};
use crate::source::SampleSource;
use crate::task::Usage;

/// Noise of a round's products.
#[derive(Debug)]
pub struct Noise {
    /// Seed of the round.
    pub seed: Seed,
    /// Variance in squared units of the grid.
    pub variance: Variance,
    /// Exponent of the grid `2^-grid`.
    pub grid: u32,
    /// Maximum number of samples that are used.
    pub rows_max: u32,
}

/// Computes a whole round like [`super::run`]. The returned usage counts all used rows. After an error the
/// buffers of the upload are zeroed. Scratch buffers, which contain the last row, are always zeroed.
#[inline(never)]
pub fn run(
    parts: &mut Parts<'_>,
    request: PowerRequest,
    noise: &Noise,
    counts: &mut PowerCounts,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    let result = iterate(parts, request, noise, counts, id, source);
    for scratch in [&mut *parts.residual, parts.z, parts.y] {
        scratch.fill(0.0);
    }
    if result.is_err() {
        parts.representation.fill(0.0);
        parts.extra_matrix.as_deref_mut().unwrap_or_default().fill(0.0);
    }
    result
}

/// Runs all iterations of a round.
fn iterate(
    parts: &mut Parts<'_>,
    request: PowerRequest,
    noise: &Noise,
    counts: &mut PowerCounts,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    let (mut usage, mut coordinate) = (Usage::default(), 0);
    let rules = Rules { rows: request.rows, rows_max: noise.rows_max, grid: noise.grid };
    let mut sums = RowSums::new(request.iterations);
    for iteration in 0..request.iterations {
        if iteration > 0 {
            next_basis(parts)?;
        }
        round_basis(parts.representation);
        check_basis(parts.representation, parts.shape.width, parts.pace).map_err(not_orthonormal)?;
        usage = sums.compute(parts, rules, counts, id, source)?;
        if usage.samples == 0 {
            return Err(DeclineReason::NoSamples);
        }
        coordinate = add_noise(
            parts.extra_matrix.as_deref_mut().unwrap_or_default(),
            noise,
            coordinate,
            usage,
            parts.pace,
        );
    }
    float_basis(parts.representation);
    finish(parts, request.upload)?;
    Ok(usage)
}

/// Replaces each sum by `(sum + noise) / (2^grid s)`. Each number of each iteration has its own coordinate.
/// Returns the next unused coordinate.
fn add_noise(sums: &mut [f32], settings: &Noise, mut coordinate: u64, usage: Usage, pace: Pace<'_>) -> u64 {
    // All factors are powers of two, except the public number of rows, so there is a single rounding.
    #[allow(clippy::cast_precision_loss, reason = "noisy values may round")]
    let units = (1u64 << settings.grid) as f32 * usage.samples as f32;
    for sum in sums {
        pace.spend(NOISE_WORK);
        // The sum has 31 bits, and the noise 34 bits.
        let noisy = i64::from(to_int(*sum)) + noise(&settings.seed, coordinate, &settings.variance);
        #[allow(clippy::cast_precision_loss, reason = "noisy values may round")]
        let value = noisy as f32 / units;
        *sum = value;
        coordinate += 1;
    }
    coordinate
}

/// Converts a row sum in units of 2^-30 to the reason of a decline.
fn not_orthonormal(row_sum: u64) -> DeclineReason {
    #[allow(clippy::cast_precision_loss, reason = "for a message")]
    let error = row_sum as f32 / (1u32 << 30) as f32;
    DeclineReason::NotOrthonormal { error }
}
