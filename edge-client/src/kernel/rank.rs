//! Minimum-norm least squares from a triangular factor, at whatever rank there is.
//!
//! A factor that is far from singular is solved by substitution. Otherwise its rows are rotated until they are
//! orthogonal (one-sided Jacobi; Demmel and Veselić 1992, Golub and Van Loan, section 8.6.3): `J R = S V^T`
//! holds the right singular vectors, each as long as its singular value, and `J Q` what belongs to them. Those
//! that are too short are left out. No second matrix is needed.

use libm::sqrtf;

use super::largest;
use super::vector::{dot, from, from_mut, rotate, subtract};

/// Singular values under this fraction of the largest are cut: about a hundred roundings of f32.
pub const RANK_CUT: f32 = 1e-5;

/// A largest entry below this is zero.
const SMALLEST: f32 = 1e-18;

/// Times that every pair of rows is rotated, at most: the loop ends whatever comes in. It ends by itself, after
/// a pass without a rotation; the last passes converge quadratically.
const SWEEPS: usize = 24;

/// Solves `min |R W - Q|` for the `W` of least norm. `r` is k x k, zero below the diagonal (overwritten), `q` is
/// k x c and becomes `W`; `scratch` holds k values. Singular values under `cut` times the largest are left out.
/// Returns the numerical rank. Never fails: what cannot be
/// represented (a head beyond f32) becomes zero.
#[inline(never)]
pub fn minimum_norm(r: &mut [f32], q: &mut [f32], scratch: &mut [f32], cut: f32) -> usize {
    let k = scratch.len();
    let Some(c) = q.len().checked_div(k) else { return 0 };
    if is_well_conditioned(r, scratch, cut) {
        substitute(r, q, k, c);
        return k;
    }
    let size = largest(r);
    // Written so that a NaN is zero too.
    if !(size >= SMALLEST && size.is_finite()) {
        q.fill(0.0);
        return 0;
    }
    let scale = 1.0 / size;
    for value in r.iter_mut() {
        *value *= scale;
    }
    orthogonalise_rows(r, q, k, c);
    let rank = combine(r, q, scratch, scale, cut);
    if q.iter().any(|w| !w.is_finite()) {
        q.fill(0.0);
        return 0;
    }
    rank
}

/// True if nothing can be cut: `|R| |R^-1|` bounds the quotient of any two singular values. (Frobenius norms; the
/// inverse of a triangle, column by column.)
fn is_well_conditioned(r: &[f32], scratch: &mut [f32], cut: f32) -> bool {
    let k = scratch.len();
    let mut inverse_squares = 0.0f32;
    for column in 0..k {
        // Solves R x = e_column; what is below is zero.
        let mut right = 1.0;
        for i in (0..=column).rev() {
            let row = r.get(i * k + i..i * k + column + 1).unwrap_or_default();
            let Some((pivot, row)) = row.split_first() else { return false };
            let Some((value, later)) = from_mut(scratch, i).split_first_mut() else { return false };
            *value = row.iter().zip(later).fold(right, |sum, (a, x)| sum - a * *x) / pivot;
            inverse_squares += *value * *value;
            right = 0.0;
        }
    }
    // Written so that a NaN is not.
    inverse_squares <= 1.0 / (SMALLEST * SMALLEST) && dot(r, r, 1) * inverse_squares <= 0.25 / (cut * cut)
}

/// Solves `R W = Q` in place.
pub(super) fn substitute(r: &[f32], q: &mut [f32], k: usize, c: usize) {
    for i in (0..k).rev() {
        let Some((&pivot, row)) = r.get(i * k + i..i * k + k).and_then(<[f32]>::split_first) else { return };
        let (own, later) = from_mut(q, i * c).split_at_mut_checked(c).unwrap_or_default();
        for (output, value) in own.iter_mut().enumerate() {
            *value = (*value - dot(row, from(later, output), c)) / pivot;
        }
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

/// `W = V S^-1 (J Q)` from `S V^T` (scaled) and `J Q`, without the small singular values. Returns how many are
/// left.
fn combine(r: &[f32], q: &mut [f32], scratch: &mut [f32], scale: f32, cut: f32) -> usize {
    let k = scratch.len();
    let c = q.len().checked_div(k).unwrap_or(0);
    let mut longest = 0.0;
    for row in r.chunks_exact(k) {
        let square = dot(row, row, 1);
        if square > longest {
            longest = square;
        }
    }
    let mut rank = 0;
    for (row, q) in r.chunks_exact(k).zip(q.chunks_exact_mut(c.max(1))) {
        let square = dot(row, row, 1);
        let kept = square > cut * cut * longest;
        rank += usize::from(kept);
        let weight = if kept { scale / square } else { 0.0 };
        for value in q {
            *value *= weight;
        }
    }
    for output in 0..c {
        for (share, value) in scratch.iter_mut().zip(from_mut(q, output).iter_mut().step_by(c)) {
            *share = *value;
            *value = 0.0;
        }
        for (row, share) in r.chunks_exact(k).zip(scratch.iter()) {
            subtract(-share, row, from_mut(q, output), c);
        }
    }
    rank
}
