//! Least-squares solver for a triangular factor, with rank detection.
//!
//! A factor far from singular is solved by substitution. Otherwise the rows of the factor are rotated until
//! they are orthogonal (one-sided Jacobi; Demmel and Veselić 1992, Golub and Van Loan, section 8.6.3): the
//! rows of `J R = S V^T` are then the right singular vectors times their singular values, and `J Q` the
//! corresponding right-hand sides. Rows that are too short are cut: they count as zero. The method needs no
//! second matrix.
//!
//! **Units.** The error of adding rows to `R` is, for each column, a fraction of the column's own size. The
//! rank is therefore full if `R`, with columns scaled to length one, is far from singular
//! ([`least_squares`]), for any units of the columns. Multiplying a column by a power of two changes no
//! decision, and changes only the exponents of that column's weights.
//!
//! **Bound.** At full rank the error of predictions `Z W` is at most `4 n |Y| / s`. Here `s` is the least
//! singular value of the columns scaled to length one, without the part that a constant column explains.
//! `n^2` is the sum over columns of the squares of `(u |z_i| + e d_i) / l_i`: the column's size times the
//! rounding `u = 2^-24` of the features, plus the column's distance `d_i` to its first value (its size, if no
//! column is constant) times the error `e = (sqrt(m + k) + 1) u` of adding m samples, divided by the column's
//! length `l_i` without the constant's part. An offset of R deviations therefore costs `R u / s`.
//! `tests/common/linear.rs` derives the bound, and `tests/units.rs` and `tests/extremes.rs` check fits
//! against it; if a prediction could exceed the bound, the rank is below k.
//!
//! **Minimum norm.** Below full rank the head is, among the heads that fit best, the one with the least
//! `sum of (s_i w_i)^2`. If all columns have comparable size, every `s_i` is 1 and the sum is the squared
//! norm: equal columns get equal weights, and a rotation of the columns changes no prediction. A column
//! shorter than the longest by a factor of 32 or more is lifted by a power of two `s_i` to between a
//! thirty-second and a sixteenth of the longest, so that its directions are not cut because of its unit. With
//! a constant column the norm is that of the weights of centred columns ([`ConstantColumn::centre`]), and an
//! offset changes predictions only by roundings.

use fedspan_protocol::sqrt::sqrtf;

use super::constant_column::ConstantColumn;
use super::largest;
use super::vector::{at, dot, from, from_mut, multiply, rotate, solve_row, squares, subtract, take};
use crate::pace::Pace;

/// Fraction of the largest singular value below which singular values are cut: about a hundred roundings of
/// f32.
pub const RANK_CUT: f32 = 1e-5;

/// Smallest value of a nonzero matrix's largest entry.
const SMALLEST: f32 = 1e-18;

/// Biased exponent of 2^4. A column shorter than the longest by a factor below 2^5 is not lifted.
const LIFTED: u32 = 127 + 4;

/// Upper bound on the exponent of a lift: the squares of shorter columns underflow.
const LIFT_MAX: u32 = 56;

/// Maximum number of sweeps over all pairs of rows, so that the loop ends for any input. Normally the loop
/// ends after a sweep without a rotation; the last sweeps converge quadratically.
const SWEEPS: usize = 24;

/// Solves `min |R W - Q|`. `r` is k x k (overwritten), zero below the diagonal except for the values of
/// `constant`; `q` is k x c and becomes `W`; `scratch` holds k values; `room` holds 2 k values, or k if no
/// column is constant. Returns the numerical rank. Never fails: a head beyond the range of f32 becomes zero.
///
/// The rank is k if the sum over i of the squares of `|R_i| |row i of R^-1|` is at most `0.25 / RANK_CUT^2`.
/// This sum bounds the amplification of the relative errors of each column, and the condition number of `R`
/// with columns of length one; the sum does not depend on the scales of columns.
#[inline(never)]
pub fn least_squares(
    r: &mut [f32],
    q: &mut [f32],
    scratch: &mut [f32],
    room: &mut [f32],
    constant: ConstantColumn,
    pace: Pace<'_>,
) -> usize {
    let k = scratch.len();
    let Some(c) = q.len().checked_div(k) else { return 0 };
    if constant.zero_rounding_columns(r, k) && is_well_conditioned(r, scratch, None, RANK_CUT, pace) {
        substitute(r, q, k, c, pace);
        constant.restore_weights(r, q, k, c);
        return k;
    }
    let rank = match decompose(r, q, scratch, room, constant, pace) {
        Some(directions) => {
            directions.weigh(q, scratch, 0.0);
            combine(r, q, scratch, pace);
            directions.rank
        }
        None => 0,
    };
    finish(q, rank)
}

/// Solves `min |R W - Q|` for the `W` of least norm without regard to units, for an `R` whose entries all
/// have an error relative to the largest column. Singular values below `cutoff` times the largest are cut.
/// The arguments and the result are otherwise those of [`least_squares`].
#[cfg(feature = "i16")]
#[inline(never)]
pub fn minimum_norm(r: &mut [f32], q: &mut [f32], scratch: &mut [f32], cutoff: f32, pace: Pace<'_>) -> usize {
    let k = scratch.len();
    let Some(c) = q.len().checked_div(k) else { return 0 };
    if full_rank(r, q, scratch, cutoff, pace) {
        return k;
    }
    let Some(scale) = scale_to_one(r) else { return finish(q, 0) };
    orthogonalise_rows(r, q, k, c, pace);
    let directions = measure_rows(r, scratch, scale, cutoff);
    directions.weigh(q, scratch, 0.0);
    combine(r, q, scratch, pace);
    finish(q, directions.rank)
}

/// Computes [`minimum_norm`] if no singular value has to be cut. Returns false otherwise; the head is then not computed.
#[cfg(feature = "i16")]
#[inline(never)]
pub fn full_rank(r: &[f32], q: &mut [f32], scratch: &mut [f32], cutoff: f32, pace: Pace<'_>) -> bool {
    let k = scratch.len();
    let Some(c) = q.len().checked_div(k) else { return false };
    let is_full = is_well_conditioned(r, scratch, Some(sqrtf(dot(r, r, 1))), cutoff, pace);
    if is_full {
        substitute(r, q, k, c, pace);
    }
    is_full
}

/// Returns the rank if the head is finite; otherwise sets the head to zero.
fn finish(w: &mut [f32], rank: usize) -> usize {
    let finite = w.iter().all(|w| w.is_finite());
    if rank == 0 || !finite {
        w.fill(0.0);
        return 0;
    }
    rank
}

/// Returns true if no direction must be cut. Multiplies the inverse by the length of each column, or by
/// `size` if given.
fn is_well_conditioned(
    r: &[f32],
    scratch: &mut [f32],
    size: Option<f32>,
    cutoff: f32,
    pace: Pace<'_>,
) -> bool {
    let k = scratch.len();
    let mut sum = 0.0f32;
    for i in 0..k {
        let size = size.unwrap_or_else(|| column_length(r, k, i));
        // The condition is negated so that a NaN fails.
        if !(size >= SMALLEST && size.is_finite()) {
            return false;
        }
        pace.spend(k + (k - i) * (k - i + 1) / 2 + 4 * (k - i));
        // Solves x R = size e_i for x, a row of the inverse times `size`.
        let mut right = size;
        for j in i..k {
            let (done, target) = scratch.split_at_mut_checked(j).unwrap_or_default();
            let (done, column) = (from(done, i), from(r, i * k + j));
            let Some(pivot) = column.get((j - i) * k) else { return false };
            let value = (right - dot(done, column, k)) / pivot;
            if let [target, ..] = target {
                *target = value;
            }
            sum += value * value;
            right = 0.0;
        }
    }
    sum <= 0.25 / (cutoff * cutoff)
}

/// Returns the length of column `i`, down to the diagonal.
fn column_length(r: &[f32], k: usize, i: usize) -> f32 {
    sqrtf(squares(r.get(..i * k + k).unwrap_or_default(), i, k))
}

/// Orthogonal directions and their lengths.
#[derive(Clone, Copy, Debug)]
pub struct Directions {
    /// Number of directions that are not cut.
    pub rank: usize,
    /// Factor by which the rows were scaled.
    pub scale: f32,
    /// True if the first row is the direction of a constant column, whose weight has no ridge.
    pub first_is_free: bool,
}

/// Turns the rows of the finished `[R | Q]` into orthogonal directions of the original columns: `r` then maps
/// `z` to coordinates of directions. `squares` (k values) receives their squared lengths, or 0 for directions
/// that are cut. Returns `None` if the matrix is zero. `room` has the size stated in [`least_squares`].
#[inline(never)]
pub fn decompose(
    r: &mut [f32],
    q: &mut [f32],
    squares: &mut [f32],
    room: &mut [f32],
    mut constant: ConstantColumn,
    pace: Pace<'_>,
) -> Option<Directions> {
    let k = squares.len();
    let c = q.len().checked_div(k)?;
    let (factors, first) = room.split_at_mut_checked(k)?;
    let first = first.get_mut(..k).unwrap_or_default();
    constant.undo_if_negligible(largest(r), r, k);
    if constant.is_some() {
        constant.centre(r, first, k);
    }
    let scale = scale_to_one(r)?;
    let root = at(r, 0);
    lift_short_columns(r, factors, SMALLEST * scale);
    orthogonalise_rows(r, q, k, c, pace);
    let mut directions = measure_rows(r, squares, scale, RANK_CUT);
    directions.first_is_free = constant.is_some();
    for (i, factor) in factors.iter().enumerate() {
        multiply(r, i, k, *factor);
    }
    constant.restore_rows(r, first, root / (at(squares, 0) * constant.value()), k);
    Some(directions)
}

/// Scales the largest entry to one, so that no square overflows. Returns the factor; `None` if the matrix is
/// zero.
fn scale_to_one(r: &mut [f32]) -> Option<f32> {
    let size = largest(r);
    // The condition is negated so that a NaN counts as zero.
    if !(size >= SMALLEST && size.is_finite()) {
        return None;
    }
    let scale = 1.0 / size;
    multiply(r, 0, 1, scale);
    Some(scale)
}

/// Lifts columns shorter than the longest by a factor of 32 or more, by the power of two that makes the
/// factor less than 32. Columns shorter than `smallest` are not changed. `factors` receives the power of two
/// of each column.
fn lift_short_columns(r: &mut [f32], factors: &mut [f32], smallest: f32) {
    let k = factors.len();
    let mut longest = 0.0f32;
    for (i, factor) in factors.iter_mut().enumerate() {
        *factor = sqrtf(squares(r, i, k));
        if *factor > longest {
            longest = *factor;
        }
    }
    for (i, factor) in factors.iter_mut().enumerate() {
        // Biased exponent of the quotient of the lengths.
        let exponent = (longest / *factor).to_bits() >> 23;
        let counts = *factor >= smallest && (LIFTED + 1..LIFTED + LIFT_MAX).contains(&exponent);
        *factor = 1.0;
        if counts {
            *factor = f32::from_bits((exponent - LIFTED + 127) << 23);
            multiply(r, i, k, *factor);
        }
    }
}

/// Solves `R W = Q` in place.
pub(super) fn substitute(r: &[f32], q: &mut [f32], k: usize, c: usize, pace: Pace<'_>) {
    for i in (0..k).rev() {
        pace.spend((k - i + 2) * c);
        let Some((&pivot, row)) = r.get(i * k + i..i * k + k).and_then(<[f32]>::split_first) else { return };
        let (right_side, later) = from_mut(q, i * c).split_at_mut_checked(c).unwrap_or_default();
        solve_row(row, later, right_side, pivot);
    }
}

/// Rotates pairs of rows of `[R | Q]` until the rows of `R` (entries of at most one) are orthogonal.
fn orthogonalise_rows(r: &mut [f32], q: &mut [f32], k: usize, c: usize, pace: Pace<'_>) {
    #[allow(clippy::cast_precision_loss, reason = "a tolerance may round")]
    let tolerance = k as f32 * f32::EPSILON;
    for _ in 0..SWEEPS {
        let mut still = true;
        for second in 1..k {
            let (mut above, below) = r.split_at_mut_checked(second * k).unwrap_or_default();
            let (mut q_above, q_below) = q.split_at_mut_checked(second * c).unwrap_or_default();
            let (Some(b), Some(q_b)) = (below.get_mut(..k), q_below.get_mut(..c)) else { return };
            // Not zipped: for zipped chunks the compiler counts them by a division, and cannot prove that the
            // divisor is nonzero.
            while let (Some(a), Some(q_a)) = (above.split_off_mut(..k), q_above.split_off_mut(..c)) {
                pace.spend(7 * k + 4 * c + 16);
                if let Some((sine, half)) = rotation_angle(a, b, tolerance) {
                    rotate(sine, half, a, b);
                    rotate(sine, half, q_a, q_b);
                    still = false;
                }
            }
        }
        if still {
            return;
        }
    }
}

/// Returns the sine, and the tangent of half the angle, of the rotation that makes two rows orthogonal.
/// Returns `None` if the rows are orthogonal.
fn rotation_angle(a: &[f32], b: &[f32], tolerance: f32) -> Option<(f32, f32)> {
    let (aa, bb, ab) = (dot(a, a, 1), dot(b, b, 1), dot(a, b, 1));
    // A NaN counts as orthogonal.
    (ab.abs() > tolerance * sqrtf(aa) * sqrtf(bb)).then(|| {
        let cotangent = (bb - aa) / (2.0 * ab);
        let tangent = 1.0 / (cotangent.abs() + sqrtf(cotangent * cotangent + 1.0));
        let tangent = if cotangent < 0.0 { tangent } else { -tangent };
        let cosine = 1.0 / sqrtf(tangent * tangent + 1.0);
        let sine = tangent * cosine;
        (sine, sine / (1.0 + cosine))
    })
}

/// Computes the squared lengths of orthogonal rows; 0 for rows shorter than `cutoff` times the longest.
fn measure_rows(r: &[f32], squares: &mut [f32], scale: f32, cutoff: f32) -> Directions {
    let k = squares.len().max(1);
    let mut longest = 0.0f32;
    for (row, square) in r.chunks_exact(k).zip(&mut *squares) {
        *square = dot(row, row, 1);
        if *square > longest {
            longest = *square;
        }
    }
    let mut rank = 0;
    for square in squares {
        if *square > cutoff * cutoff * longest {
            rank += 1;
        } else {
            *square = 0.0;
        }
    }
    Directions { rank, scale, first_is_free: false }
}

impl Directions {
    /// Returns the shrinkage factor of a direction under a ridge of `extra`, in units of `squares`.
    #[must_use]
    pub fn share(&self, number: usize, square: f32, extra: f32) -> f32 {
        if square == 0.0 {
            0.0
        } else if number == 0 && self.first_is_free {
            1.0
        } else {
            square / (square + extra)
        }
    }

    /// Divides the right-hand side of each direction by its squared length plus the ridge: `q` becomes the
    /// weights of the rows.
    pub fn weigh(&self, q: &mut [f32], squares: &[f32], extra: f32) {
        let c = q.len().checked_div(squares.len()).unwrap_or(0);
        for (number, (q, &square)) in q.chunks_exact_mut(c.max(1)).zip(squares).enumerate() {
            let free = extra == 0.0 || (number == 0 && self.first_is_free);
            let weight =
                if square == 0.0 { 0.0 } else { self.scale / if free { square } else { square + extra } };
            multiply(q, 0, 1, weight);
        }
    }
}

/// Replaces the weights of the rows in `q` by `W`, the weighted sum of the rows.
pub fn combine(r: &[f32], q: &mut [f32], scratch: &mut [f32], pace: Pace<'_>) {
    let k = scratch.len().max(1);
    let c = q.len() / k;
    for output in 0..c {
        for (i, share) in scratch.iter_mut().enumerate() {
            *share = take(q, i * c + output);
        }
        for (row, share) in r.chunks_exact(k).zip(scratch.iter()) {
            pace.spend(k);
            subtract(-share, row, from_mut(q, output), c);
        }
    }
}
