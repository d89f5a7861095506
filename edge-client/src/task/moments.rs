//! Device side of the computation of an initial representation from data: one power iteration, or rows of the
//! moment matrix, computed in the buffers of a round.
//!
//! A power iteration multiplies a basis by the moment matrix `(1/m) sum |y|^2 x x^T`. Each pass computes one
//! column, because there is no memory for a second d x k matrix. Initialisation by moments requests rows of
//! the matrix itself (Collins et al. 2021, appendix B.4). The leading direction of the matrix can equal a
//! record, so sending rows requires the feature `reveal-moments`.

use fedspan_protocol::message::{DeclineReason, RoundId};

use super::Usage;
use super::sample_pass::{count, for_each};
use crate::kernel::all_within;
use crate::kernel::gradient::accumulate;
use crate::kernel::vector::{dot, from};
use crate::memory::Parts;
use crate::pace::Pace;
use crate::source::SampleSource;

/// Largest magnitude of a feature or target, so that sums of products of four values stay finite. A sample
/// with a larger value is skipped in the computation of every column and row.
const MAGNITUDE_MAX: f32 = 1e8;

/// Replaces each column `q` of the representation buffer by `(1/m) sum |y|^2 x (x^T q)`.
#[inline(never)]
pub fn power(
    parts: &mut Parts<'_>,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    let (d, k) = (parts.shape.features, parts.shape.width);
    let mut usage = Usage::default();
    for column in 0..k {
        // The first d values of the residual buffer (d x C) hold one column.
        let sum = parts.residual.get_mut(..d).unwrap_or_default();
        sum.fill(0.0);
        usage = for_each(id, source, d, |x, targets, index| {
            if !targets.write(index, parts.y) || !all_usable(x) || !all_usable(parts.y) {
                return false;
            }
            parts.pace.spend(2 * d);
            let projection = dot(x, from(parts.representation, column), k);
            accumulate(sum, x, &[projection * dot(parts.y, parts.y, 1)], Pace::NONE);
            true
        })?;
        if usage.samples == 0 {
            break;
        }
        let scale = 1.0 / count(usage);
        for (q, s) in parts.representation.iter_mut().skip(column).step_by(k).zip(sum.iter()) {
            *q = s * scale;
        }
    }
    Ok(usage)
}

/// Computes rows `first..first + rows` of the upper half of `(1/m) sum |y|^2 x x^T`, row by row, and writes
/// them to the start of the representation buffer.
#[cfg(feature = "reveal-moments")]
#[inline(never)]
pub fn moment_rows(
    parts: &mut Parts<'_>,
    first: usize,
    rows: usize,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    let d = parts.shape.features;
    parts.representation.fill(0.0);
    let usage = for_each(id, source, d, |x, targets, index| {
        if !targets.write(index, parts.y) || !all_usable(x) || !all_usable(parts.y) {
            return false;
        }
        let weight = dot(parts.y, parts.y, 1);
        let mut remaining = &mut *parts.representation;
        for row in first..first + rows {
            let tail = x.get(row..).unwrap_or_default();
            let Some((this_row, following_rows)) = remaining.split_at_mut_checked(tail.len()) else { break };
            accumulate(this_row, tail, &[weight * x.get(row).copied().unwrap_or(0.0)], parts.pace);
            remaining = following_rows;
        }
        true
    })?;
    if usage.samples > 0 {
        let scale = 1.0 / count(usage);
        for value in parts.representation.iter_mut() {
            *value *= scale;
        }
    }
    Ok(usage)
}

/// Returns the number of elements in `rows` rows of the upper half of a d x d matrix, from row `first`.
#[cfg(feature = "reveal-moments")]
pub fn moment_elements(d: usize, first: usize, rows: usize) -> Option<usize> {
    let end = first.checked_add(rows).filter(|&end| end <= d)?;
    Some((first..end).map(|row| d - row).sum())
}

/// Returns true if no value is too large or NaN.
fn all_usable(values: &[f32]) -> bool {
    all_within(values, MAGNITUDE_MAX)
}
