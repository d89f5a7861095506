//! Fixed-point arithmetic of a noisy product. The arithmetic is exact once a row is rounded to integers, so
//! that the influence of one record on the computed integers is bounded
//! ([`sensitivity`](crate::privacy::sensitivity)). Results are bit-identical on every core and for any order
//! of rows.
//!
//! All buffers hold integers as the bits of floats ([`bit_cast`](super::bit_cast)).

use super::bit_cast::{from_int, to_int};
use crate::pace::Pace;
use crate::privacy::{CERTIFIED, FRACTION};
use crate::task::quantise::{halved, square};

/// The number one in fixed point with 15 fraction bits, the format of rows and bases.
const ONE: i32 = 1 << FRACTION;

/// Largest squared norm of a row: one, in units of 2^-30.
const SQUARE_MAX: u64 = 1 << (2 * FRACTION);

/// Number of attempts to round a row; each attempt uses a smaller scale.
const TRIES: u32 = 11;

/// Converts `v` to units of 2^-15, rounding halves away from zero. NaN becomes 0, and large values saturate.
fn to_fixed(v: f32) -> i32 {
    halved(v * 65_536.0)
}

/// Replaces the values of a basis by integers of magnitude below 2^15.
pub fn round_basis(basis: &mut [f32]) {
    for value in basis {
        *value = from_int(to_fixed(*value).clamp(1 - ONE, ONE - 1));
    }
}

/// Converts a basis of integers back to floats.
pub fn float_basis(basis: &mut [f32]) {
    for value in basis {
        #[allow(clippy::cast_precision_loss, reason = "15 bits")]
        let integer = to_int(*value) as f32;
        *value = integer / 32_768.0;
    }
}

/// Checks the largest absolute row sum of `Zq^T Zq - 2^30 I`. Returns this sum as an error if it exceeds the
/// bound on which the sensitivity is based.
pub fn check_basis(basis: &[f32], r: usize, pace: Pace<'_>) -> Result<(), u64> {
    let mut worst = 0;
    for i in 0..r {
        let mut sum = 0;
        for j in 0..r {
            pace.spend(basis.len() / r);
            let target = if i == j { SQUARE_MAX.cast_signed() } else { 0 };
            sum += (column_dot(basis, r, i, j) - target).unsigned_abs();
        }
        worst = sum.max(worst);
    }
    if worst <= SQUARE_MAX >> CERTIFIED { Ok(()) } else { Err(worst) }
}

/// Returns the dot product of two columns, a sum of fewer than 2^16 products of magnitude below 2^30.
fn column_dot(basis: &[f32], r: usize, i: usize, j: usize) -> i64 {
    basis.chunks_exact(r.max(1)).fold(0, |sum, row| match (row.get(i), row.get(j)) {
        (Some(p), Some(q)) => sum + i64::from(to_int(*p) * to_int(*q)),
        _ => sum,
    })
}

/// Writes the integers of the row `scale x`, of norm at most 1, into `row`. Returns false and writes zeros if rounding makes
/// it too long: see [`fit_row`].
pub fn round_row(row: &mut [f32], x: &[f32], scale: f32) -> bool {
    let fits = fit_row(row, scale, |row, scale| {
        let mut squared_norm = 0;
        for (target, &x) in row.iter_mut().zip(x) {
            let integer = to_fixed(x * scale);
            *target = from_int(integer);
            squared_norm += square(integer);
        }
        squared_norm
    });
    if !fits {
        row.fill(0.0);
    }
    fits
}

/// Rounds a row with `round`, which writes the integers of the row for a scale and returns their squared norm. Checks that
/// the squared norm is at most 2^30; privacy depends only on this check, for any floats. If rounding has made the row too
/// long, tries again with a smaller scale. Returns false if no attempt succeeds.
#[inline(always)]
pub fn fit_row<R: ?Sized>(row: &mut R, mut scale: f32, mut round: impl FnMut(&mut R, f32) -> u64) -> bool {
    // Rounding lengthens a row of a hundred features by at most 2^-17 in two of three cases, and a row of
    // 2^16 features by at most 2^-8. The ten reductions of the scale sum to 2^-7.
    let mut step = 1.0 / 131_072.0;
    for _ in 0..TRIES {
        if round(row, scale) <= SQUARE_MAX {
            return true;
        }
        scale *= 1.0 - step;
        step *= 2.0;
    }
    false
}

/// Computes `p = round(Zq^T q / 2^15)`, the projection of the row.
///
/// By Cauchy-Schwarz a sum, and each partial sum, has a magnitude of at most `|q| |column of Zq|`. The first
/// factor is at most 2^15. The second factor is at most `2^15 sqrt(1 + 2^-10)`, since the diagonal of
/// `Zq^T Zq` is part of the checked row sums. The product is at most `2^30 + 2^19`, which fits 32 bits, even
/// with the half added for rounding.
pub fn project(basis: &[f32], row: &[f32], projected: &mut [f32]) {
    let r = projected.len();
    let (blocks, remainder) = projected.as_chunks_mut::<4>();
    let mut first = 0;
    for block in blocks {
        *block = project_columns(basis, r, first, row);
        first += 4;
    }
    for target in remainder {
        [*target] = project_columns(basis, r, first, row);
        first += 1;
    }
}

/// Computes columns `first..first + W` of the projection, in registers.
fn project_columns<const W: usize>(basis: &[f32], r: usize, first: usize, row: &[f32]) -> [f32; W] {
    let mut sums = [0; W];
    for (values, &q) in basis.chunks_exact(r.max(1)).zip(row) {
        let Some(values) = values.get(first..).and_then(<[f32]>::first_chunk::<W>) else { break };
        for (sum, &z) in sums.iter_mut().zip(values) {
            *sum += to_int(q) * to_int(z);
        }
    }
    sums.map(|sum| from_int((sum + ONE / 2) >> FRACTION))
}

/// Adds `round(q_i p_j / 2^(30 - grid))` to the sums, d x r.
///
/// `|q_i| <= 2^15` and `|p_j| <= 2^15 + 16`, so a product is at most `2^30 + 2^20`, which fits 32 bits, even
/// with the half added for rounding (at most 2^29). A term is then at most `2^grid (1 + 2^-10) + 1/2`, and
/// the sum of n rows with `n 2^grid <= 2^30` is at most `2^30 + 2^20 + 2^29`, which fits 32 bits too.
pub fn accumulate(sums: &mut [f32], row: &[f32], projected: &[f32], grid: u32) {
    let shift = (2 * FRACTION).saturating_sub(grid);
    let half = 1 << shift.saturating_sub(1);
    for (sums, &q) in sums.chunks_exact_mut(projected.len().max(1)).zip(row) {
        let q = to_int(q);
        for (sum, &p) in sums.iter_mut().zip(projected) {
            *sum = from_int(to_int(*sum) + ((q * to_int(p) + half) >> shift));
        }
    }
}
