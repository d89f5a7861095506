//! Solver of the least-squares head, `min_W |Z W - Y|^2`, from samples that are read one by one and not
//! stored.
//!
//! There are two methods. The *normal equations* (`Z^T Z`, `Z^T Y`, Cholesky) are cheaper but square the
//! condition number. Their result is used only if every squared pivot is within [`Limits`] of its
//! diagonal element, a ratio that does not depend on units. Otherwise the *triangular* method adds the rows
//! of `[Z | Y]` to a factor `R` and to `Q^T Y` ([`super::qr_update`]), with the condition number of `Z`
//! itself, and [`super::rank`] solves the system at any rank.

use fedspan_protocol::sqrt::sqrtf;

use super::vector::{at, dot, from, from_mut, solve_row, squares, subtract};
use super::{Four, add_products, add_products_to_two};
use crate::pace::Pace;

/// Limits within which the normal equations are used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Smallest ratio of a squared Cholesky pivot to the diagonal element of the matrix: the part of a column that earlier
    /// columns do not explain. It does not depend on units.
    pub pivot_ratio: f32,
    /// Largest amplification of errors: the sum over columns of the squared norm of a row of the inverse factor times the squared
    /// length of its column. It is at least k, and does not depend on units.
    pub amplification: f32,
}

impl Limits {
    /// Limits of a device that solves the other problems by the triangular method. Heads within them predict the training targets
    /// with an error of at most 1e-4 of the norm of the targets (`tests/full_rank_heads.rs`). Pivots alone do not bound the error:
    /// the triangular factors of Kahan (1966) have large pivots at any condition.
    pub const WITH_TRIANGULAR: Self = Self { pivot_ratio: 1e-1, amplification: 1e3 };

    /// Limits of a device without the triangular method, which declines the other problems: an error of at most 1e-3.
    pub const ALONE: Self = Self { pivot_ratio: 1e-4, amplification: 1e4 };
}

/// Smallest squared pivot that is used: smaller pivots lose digits to underflow. The triangular method treats
/// features of that size as zero ([`super::rank`]), so the two methods agree.
pub(crate) const SMALLEST_SQUARE: f32 = 1e-36;

/// Adds one sample to the normal equations: the lower triangle of `gram` (k x k), and `rhs` (k x c).
#[inline(never)]
pub fn add_normal(gram: &mut [f32], rhs: &mut [f32], z: &[f32], y: &[f32]) {
    let (k, c) = (z.len().max(1), y.len().max(1));
    for (i, (gram, (rhs, &zi))) in gram.chunks_exact_mut(k).zip(rhs.chunks_exact_mut(c).zip(z)).enumerate() {
        subtract(-zi, z.get(..=i).unwrap_or_default(), gram, 1);
        subtract(-zi, y, rhs, 1);
    }
}

/// Adds four samples to the normal equations: `z` holds k fours, `y` holds c. Processes two rows of `gram` at
/// a time, up to the diagonal of the second row, so one element above the diagonal is written too.
#[inline(never)]
pub fn add_normal_four(gram: &mut [f32], rhs: &mut [f32], z: &[Four], y: &[Four]) {
    let k = z.len().max(1);
    let (pairs, last) = z.as_chunks::<2>();
    let mut rows = gram.chunks_exact_mut(2 * k);
    for (i, (&pair, rows)) in pairs.iter().zip(&mut rows).enumerate() {
        let rows = rows.split_at_mut_checked(k).unwrap_or_default();
        add_products_to_two(rows, pair, z.get(..2 * i + 2).unwrap_or_default());
    }
    if let [last] = *last {
        add_products(rows.into_remainder(), last, z);
    }
    if let [y] = *y {
        add_products(rhs, y, z);
    } else {
        for (row, &zi) in rhs.chunks_exact_mut(y.len().max(1)).zip(z) {
            add_products(row, zi, y);
        }
    }
}

/// Solves the normal equations in place: `rhs` (k x c) becomes `W`, and `gram` its Cholesky factor; `scratch` holds k values.
/// Returns false if a limit is exceeded; all arguments are then overwritten.
#[must_use]
#[inline(never)]
pub fn solve_normal(
    gram: &mut [f32],
    rhs: &mut [f32],
    scratch: &mut [f32],
    limits: Limits,
    pace: Pace<'_>,
) -> bool {
    let k = scratch.len();
    let Some(c) = rhs.len().checked_div(k) else { return true };
    for j in 0..k {
        pace.spend(j * (j + 1) / 2 + 2 * j + 4);
        let Some((above, row)) = gram.split_at_mut_checked(j * k) else { return false };
        // Computes row j of L from the finished rows, then its pivot.
        for i in 0..j {
            forward_substitute_row(from(above, i * k), row, 1, i);
        }
        let Some((done, [pivot, ..])) = row.split_at_mut_checked(j) else { return false };
        let square = *pivot - dot(done, done, 1);
        // The condition is negated so that a NaN fails too.
        if !(square >= SMALLEST_SQUARE && square >= limits.pivot_ratio * *pivot && pivot.is_finite()) {
            return false;
        }
        *pivot = sqrtf(square);
    }
    if !is_within(gram, scratch, limits.amplification, pace) {
        return false;
    }
    for j in 0..k {
        pace.spend((j + 2) * c);
        forward_substitute_row(from(gram, j * k), rhs, c, j);
    }
    for j in (0..k).rev() {
        pace.spend((j + 2) * c);
        backward_substitute_row(from(gram, j * k), rhs, c, j);
    }
    true
}

/// Returns true if the amplification of the lower factor `l` is at most `limit`.
fn is_within(l: &[f32], scratch: &mut [f32], limit: f32, pace: Pace<'_>) -> bool {
    let k = scratch.len();
    let mut sum = 0.0;
    for i in 0..k {
        pace.spend(k + (k - i) * (k - i + 1) / 2 + 4 * (k - i));
        let column = from(l, i * k).get(..=i).unwrap_or_default();
        // Solves L x = e_i for x, without the entries before i, which are zero.
        let mut right = 1.0;
        for j in i..k {
            let (done, target) = scratch.split_at_mut_checked(j).unwrap_or_default();
            let row = from(l, j * k + i);
            let value = (right - dot(from(done, i), row, 1)) / at(row, j - i);
            if let [target, ..] = target {
                *target = value;
            }
            right = 0.0;
        }
        sum += dot(column, column, 1) * squares(scratch, i, 1);
    }
    // The condition is false for a NaN.
    sum <= limit
}

/// Computes row `j` of `rhs <- L^-1 rhs` from the rows above it and from row `j` of `L`.
fn forward_substitute_row(l: &[f32], rhs: &mut [f32], c: usize, j: usize) {
    let Some(((l, &[pivot, ..]), (above, from_row))) =
        l.split_at_checked(j).zip(rhs.split_at_mut_checked(j * c))
    else {
        return;
    };
    solve_row(l, above, from_row.get_mut(..c).unwrap_or_default(), pivot);
}

/// Computes row `j` of `rhs <- L^-T rhs`, and subtracts its contribution from the rows above it.
fn backward_substitute_row(l: &[f32], rhs: &mut [f32], c: usize, j: usize) {
    let Some(((l, &[pivot, ..]), (above, from_row))) =
        l.split_at_checked(j).zip(rhs.split_at_mut_checked(j * c))
    else {
        return;
    };
    for (output, value) in from_row.iter_mut().take(c).enumerate() {
        *value /= pivot;
        subtract(*value, l, from_mut(above, output), c);
    }
}

/// Largest entry of a head after gradient steps. With samples of at most 1e12 every prediction then stays in
/// the range of f32; larger entries mean that the steps diverge.
pub const HEAD_MAX: f32 = 1e24;

/// Returns true if gradient steps have diverged: an entry is beyond [`HEAD_MAX`], or NaN.
#[must_use]
pub fn has_diverged(head: &[f32]) -> bool {
    // The condition is negated so that a NaN counts as divergence.
    !head.iter().all(|w| w.abs() <= HEAD_MAX)
}

/// Takes `steps` gradient steps `W <- W - step ((Z^T Z) W - Z^T Y) / m` on the head, using only the sums.
/// `gram` needs only its lower triangle; `scratch` holds k values.
#[inline(never)]
pub fn gradient_steps(
    gram: &[f32],
    rhs: &[f32],
    w: &mut [f32],
    scratch: &mut [f32],
    steps: u16,
    step_over_m: f32,
    pace: Pace<'_>,
) {
    let k = scratch.len();
    let Some(c) = rhs.len().checked_div(k) else { return };
    for _ in 0..steps {
        for output in 0..c {
            for (i, value) in scratch.iter_mut().enumerate() {
                pace.spend(k + 2);
                let mut dot = 0.0f32;
                for j in 0..k {
                    let (low, high) = if j < i { (j, i) } else { (i, j) };
                    dot += at(gram, high * k + low) * at(w, j * c + output);
                }
                *value = dot - at(rhs, i * c + output);
            }
            for (i, value) in scratch.iter().enumerate() {
                if let Some(weight) = w.get_mut(i * c + output) {
                    *weight -= step_over_m * value;
                }
            }
        }
    }
}
