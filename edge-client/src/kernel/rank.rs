//! Least squares from a triangular factor, at whatever rank there is.
//!
//! A factor that is far from singular is solved by substitution. Otherwise its rows are rotated until they are
//! orthogonal (one-sided Jacobi; Demmel and Veselić 1992, Golub and Van Loan, section 8.6.3): `J R = S V^T`
//! holds the right singular vectors, each as long as its singular value, and `J Q` what belongs to them. Those
//! that are too short are left out. No second matrix is needed.
//!
//! **Units.** Folding rows into `R` errs column by column: each column by a fraction of its own size. Therefore the rank
//! is full where `R`, its columns scaled to length one, is far from singular ([`least_squares`]), whatever the units of the
//! columns are. A power of two as a factor of a column changes no decision there and no bit but the exponents of
//! that column's weights.
//!
//! **Bound.** At full rank predictions `Z W` are off by at most `4 n |Y| / s`. `s` is the least singular value of the columns with
//! length one, less what a constant column explains of them. `n^2` sums, over columns, the squares of `(u |z_i| + e d_i) / l_i`: the
//! column's size and rounding `u = 2^-24` (what features have lost before they come here), its distance `d_i` to its first value
//! where a column is constant (else its size) times `e = (sqrt(m + k) + 1) u` (what folding m samples adds), over its
//! length `l_i` without the constant's part. An offset of R deviations so costs `R u / s`. `tests/common/linear.rs` derives it, and
//! `tests/units.rs` and `tests/extremes.rs` hold fits against it; where a prediction could miss it by more, the rank is below k.
//!
//! **Minimum norm.** Below full rank the head is the one of least `sum of (s_i w_i)^2` among those that fit best. `s_i`
//! is 1 for columns that are of comparable size: there it is the plain norm, equal columns share their weight, and no
//! rotation of the columns changes a prediction. A column that is shorter than the longest by a factor of 32 or more is lifted
//! by the power of two `s_i` to a sixteenth up to a thirty-second of it: its directions are not cut for its unit. Where a column is
//! constant, the norm is that of the weights of centred columns ([`ConstantColumn::centre`]), and no offset changes a
//! prediction by more than roundings.

use libm::sqrtf;

use super::constant_column::ConstantColumn;
use super::largest;
use super::vector::{at, dot, from, from_mut, multiply, rotate, solve_row, squares, subtract, take};

/// Singular values under this fraction of the largest are cut: about a hundred roundings of f32.
pub const RANK_CUT: f32 = 1e-5;

/// A largest entry below this is zero.
const SMALLEST: f32 = 1e-18;

/// A column that is shorter than the longest by a factor below 2^5 is not lifted: the exponent 4 as it stands in a float.
const LIFTED: u32 = 127 + 4;

/// The largest lift is below this power of two: squares of shorter columns have no digits to spare.
const LIFT_MAX: u32 = 56;

/// Times that every pair of rows is rotated, at most: the loop ends whatever comes in. It ends by itself, after
/// a pass without a rotation; the last passes converge quadratically.
const SWEEPS: usize = 24;

/// Solves `min |R W - Q|`. `r` is k x k (overwritten), zero below the diagonal but for what `constant` keeps there; `q`
/// is k x c and becomes `W`; `scratch` holds k values and `room` twice as many (k where no column is constant). Returns
/// the numerical rank. Never fails: what cannot be represented (a head beyond f32) becomes zero.
///
/// The rank is k where `|R_i| |row i of R^-1|`, over all i, have squares that sum up to at most `0.25 / RANK_CUT^2`: by
/// that much at most the fractions by which folding errs in each column are amplified. It bounds the condition of `R` with
/// columns of length one, and scales of columns do not change it.
#[inline(never)]
pub fn least_squares(
    r: &mut [f32],
    q: &mut [f32],
    scratch: &mut [f32],
    room: &mut [f32],
    constant: ConstantColumn,
) -> usize {
    let k = scratch.len();
    let Some(c) = q.len().checked_div(k) else { return 0 };
    if constant.zero_rounding_columns(r, k) && is_well_conditioned(r, scratch, None, RANK_CUT) {
        substitute(r, q, k, c);
        constant.restore_weights(r, q, k, c);
        return k;
    }
    let rank = match decompose(r, q, scratch, room, constant) {
        Some(directions) => {
            directions.weigh(q, scratch, 0.0);
            combine(r, q, scratch);
            directions.rank
        }
        None => 0,
    };
    finish(q, rank)
}

/// Solves `min |R W - Q|` for the `W` of least norm, without regard to units: `R` errs by a fraction of its largest column
/// everywhere. Singular values under `cut` times the largest are left out. Otherwise as [`least_squares`].
#[cfg(feature = "i16")]
#[inline(never)]
pub fn minimum_norm(r: &mut [f32], q: &mut [f32], scratch: &mut [f32], cut: f32) -> usize {
    let k = scratch.len();
    let Some(c) = q.len().checked_div(k) else { return 0 };
    let size = sqrtf(dot(r, r, 1));
    if is_well_conditioned(r, scratch, Some(size), cut) {
        substitute(r, q, k, c);
        return k;
    }
    let Some(scale) = shrink(r) else { return finish(q, 0) };
    orthogonalise_rows(r, q, k, c);
    let directions = measure(r, scratch, scale, cut);
    directions.weigh(q, scratch, 0.0);
    combine(r, q, scratch);
    finish(q, directions.rank)
}

/// The rank, if the head is finite; otherwise the head becomes zero.
fn finish(w: &mut [f32], rank: usize) -> usize {
    let finite = w.iter().all(|w| w.is_finite());
    if rank == 0 || !finite {
        w.fill(0.0);
        return 0;
    }
    rank
}

/// True if nothing can be cut. Compares the inverse with the length of each column, or with `size`.
fn is_well_conditioned(r: &[f32], scratch: &mut [f32], size: Option<f32>, cut: f32) -> bool {
    let k = scratch.len();
    let mut sum = 0.0f32;
    for i in 0..k {
        let size = size.unwrap_or_else(|| length(r, k, i));
        // Written so that a NaN is not.
        if !(size >= SMALLEST && size.is_finite()) {
            return false;
        }
        // Solves x R = size e_i, a row of the inverse.
        let mut right = size;
        for j in i..k {
            let (done, place) = scratch.split_at_mut_checked(j).unwrap_or_default();
            let (done, column) = (from(done, i), from(r, i * k + j));
            let Some(pivot) = column.get((j - i) * k) else { return false };
            let value = (right - dot(done, column, k)) / pivot;
            if let [place, ..] = place {
                *place = value;
            }
            sum += value * value;
            right = 0.0;
        }
    }
    sum <= 0.25 / (cut * cut)
}

/// Length of column `i`, down to the diagonal.
fn length(r: &[f32], k: usize, i: usize) -> f32 {
    sqrtf(squares(r.get(..i * k + k).unwrap_or_default(), i, k))
}

/// Rows that are orthogonal directions, and how long they are.
#[derive(Clone, Copy, Debug)]
pub struct Directions {
    /// Directions that are kept.
    pub rank: usize,
    /// Factor of the rows.
    pub scale: f32,
    /// The first row is a constant's: no ridge makes its weight smaller.
    pub first_is_free: bool,
}

/// Turns the rows of the finished `[R | Q]` into orthogonal directions, columns as they came: `r` becomes the factor of
/// `z` in coordinates of directions. `squares` (k values) receives the squared length of each; 0 where it is cut. `None`
/// if all is zero. `room` as in [`least_squares`].
#[inline(never)]
pub fn decompose(
    r: &mut [f32],
    q: &mut [f32],
    squares: &mut [f32],
    room: &mut [f32],
    mut constant: ConstantColumn,
) -> Option<Directions> {
    let k = squares.len();
    let c = q.len().checked_div(k)?;
    let (factors, first) = room.split_at_mut_checked(k)?;
    let first = first.get_mut(..k).unwrap_or_default();
    constant.undo_if_negligible(largest(r), r, k);
    if constant.is_some() {
        constant.centre(r, first, k);
    }
    let scale = shrink(r)?;
    let root = at(r, 0);
    lift(r, factors, SMALLEST * scale);
    orthogonalise_rows(r, q, k, c);
    let mut directions = measure(r, squares, scale, RANK_CUT);
    directions.first_is_free = constant.is_some();
    for (i, factor) in factors.iter().enumerate() {
        multiply(r, i, k, *factor);
    }
    constant.restore_rows(r, first, root / (at(squares, 0) * constant.value()), k);
    Some(directions)
}

/// Makes the largest entry one, so that no square overflows. Returns the factor; `None` if all is zero.
fn shrink(r: &mut [f32]) -> Option<f32> {
    let size = largest(r);
    // Written so that a NaN is zero too.
    if !(size >= SMALLEST && size.is_finite()) {
        return None;
    }
    let scale = 1.0 / size;
    multiply(r, 0, 1, scale);
    Some(scale)
}

/// Lifts columns shorter than the longest by a factor of 32 or more: by the power of two that makes the factor less than
/// 32. Columns below `smallest` stay as they are. `factors` receives the power of each.
fn lift(r: &mut [f32], factors: &mut [f32], smallest: f32) {
    let k = factors.len();
    let mut longest = 0.0f32;
    for (i, place) in factors.iter_mut().enumerate() {
        *place = sqrtf(squares(r, i, k));
        if *place > longest {
            longest = *place;
        }
    }
    for (i, factor) in factors.iter_mut().enumerate() {
        // Biased as in a float: the quotient with all of its digits cut off.
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
pub(super) fn substitute(r: &[f32], q: &mut [f32], k: usize, c: usize) {
    for i in (0..k).rev() {
        let Some((&pivot, row)) = r.get(i * k + i..i * k + k).and_then(<[f32]>::split_first) else { return };
        let (own, later) = from_mut(q, i * c).split_at_mut_checked(c).unwrap_or_default();
        solve_row(row, later, own, pivot);
    }
}

/// Rotates pairs of rows of `[R | Q]` until those of `R` (entries of at most one) are orthogonal.
fn orthogonalise_rows(r: &mut [f32], q: &mut [f32], k: usize, c: usize) {
    #[allow(clippy::cast_precision_loss, reason = "a tolerance")]
    let tolerance = k as f32 * f32::EPSILON;
    for _ in 0..SWEEPS {
        let mut still = true;
        for second in 1..k {
            let (mut above, below) = r.split_at_mut_checked(second * k).unwrap_or_default();
            let (mut q_above, q_below) = q.split_at_mut_checked(second * c).unwrap_or_default();
            let (Some(b), Some(q_b)) = (below.get_mut(..k), q_below.get_mut(..c)) else { return };
            // Not by chunks side by side: what counts those divides, and could divide by zero for all the compiler knows.
            while let (Some(a), Some(q_a)) = (above.split_off_mut(..k), q_above.split_off_mut(..c)) {
                if let Some((sine, half)) = angle(a, b, tolerance) {
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

/// Sine, and tangent of half the angle, of the rotation that makes two rows orthogonal. `None` if they are.
fn angle(a: &[f32], b: &[f32], tolerance: f32) -> Option<(f32, f32)> {
    let (aa, bb, ab) = (dot(a, a, 1), dot(b, b, 1), dot(a, b, 1));
    // A NaN is orthogonal to everything.
    (ab.abs() > tolerance * sqrtf(aa) * sqrtf(bb)).then(|| {
        let cotangent = (bb - aa) / (2.0 * ab);
        let tangent = 1.0 / (cotangent.abs() + sqrtf(cotangent * cotangent + 1.0));
        let tangent = if cotangent < 0.0 { tangent } else { -tangent };
        let cosine = 1.0 / sqrtf(tangent * tangent + 1.0);
        let sine = tangent * cosine;
        (sine, sine / (1.0 + cosine))
    })
}

/// Squared lengths of orthogonal rows, 0 for those under `cut` times the longest.
fn measure(r: &[f32], squares: &mut [f32], scale: f32, cut: f32) -> Directions {
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
        if *square > cut * cut * longest {
            rank += 1;
        } else {
            *square = 0.0;
        }
    }
    Directions { rank, scale, first_is_free: false }
}

impl Directions {
    /// By how much a direction is shortened, under a ridge of `extra` in units of `squares`.
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

    /// Divides what belongs to each direction by its length, shortened by a ridge: `q` becomes the weights of rows.
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

/// `W`, the sum of rows by their weights: in place of the weights.
pub fn combine(r: &[f32], q: &mut [f32], scratch: &mut [f32]) {
    let k = scratch.len().max(1);
    let c = q.len() / k;
    for output in 0..c {
        for (i, share) in scratch.iter_mut().enumerate() {
            *share = take(q, i * c + output);
        }
        for (row, share) in r.chunks_exact(k).zip(scratch.iter()) {
            subtract(-share, row, from_mut(q, output), c);
        }
    }
}
