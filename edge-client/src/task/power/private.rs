//! Product `Y = A Z` with noise: sums of integers, to which discrete Gaussian noise is added before they are
//! converted to floats.
//!
//! The upload, and whether there is one, depends on a record only through the noisy sums. Every row is
//! counted, with any content; an unusable row adds zero to the sums. The number of rows and failures of the
//! source are public.

use fedspan_protocol::message::{DeclineReason, PowerRows, RoundId};

use super::bit_cast::to_int;
use super::fixed_point::{accumulate, check_basis, float_basis, project, round_basis, round_row};
use super::row::Row;
use super::{PowerCounts, PowerRequest, finish, next_basis};
use crate::memory::Parts;
use crate::pace::Pace;
use crate::privacy::{NOISE_WORK, Seed, Variance, noise};
use crate::source::{SampleSource, Targets};
use crate::task::Usage;
use crate::task::sample_pass::for_each;

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
    for iteration in 0..request.iterations {
        if iteration > 0 {
            next_basis(parts)?;
        }
        round_basis(parts.representation);
        check_basis(parts.representation, parts.shape.width, parts.pace).map_err(not_orthonormal)?;
        usage = sum_rows(parts, request.rows, noise, counts, id, source)?;
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

/// Runs a pass: computes `s A Z` in units of the grid, in the second matrix.
fn sum_rows(
    parts: &mut Parts<'_>,
    rows: PowerRows,
    noise: &Noise,
    counts: &mut PowerCounts,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    let d = parts.shape.features;
    let Some(sums) = parts.extra_matrix.as_deref_mut() else { return Err(DeclineReason::Task) };
    // The first d values of the buffer of `S` (d x C) hold a row.
    let Some(row) = parts.residual.get_mut(..d) else { return Err(DeclineReason::Task) };
    sums.fill(0.0);
    *counts = PowerCounts::NOTHING;
    let (basis, z, y, pace) = (&*parts.representation, &mut *parts.z, &mut *parts.y, parts.pace);
    let mut usage = for_each(id, source, d, |x, targets, index| {
        if counts.rows >= noise.rows_max {
            counts.beyond = counts.beyond.saturating_add(1);
            return false;
        }
        counts.rows += 1;
        pace.spend(3 * d);
        match make_row(row, rows, x, targets, index, y) {
            Some(clipped) => {
                counts.clipped += u32::from(clipped);
                pace.spend(2 * d * z.len());
                project(basis, row, z);
                accumulate(sums, row, z, noise.grid);
            }
            None => counts.unusable += 1,
        }
        true
    })?;
    usage.skipped = 0;
    Ok(usage)
}

/// Writes the row of a sample. Returns true if the row was clipped, and `None` if the sample is not usable.
fn make_row(
    row: &mut [f32],
    rows: PowerRows,
    x: &[f32],
    targets: Targets<'_>,
    index: usize,
    y: &mut [f32],
) -> Option<bool> {
    let of_sample = Row::from_sample(rows, x, targets, index, y)?;
    round_row(row, x, of_sample.factor()).then_some(of_sample.is_clipped())
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
