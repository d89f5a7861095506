//! Minimum-norm least squares from a triangular factor, at whatever rank there is: a complete
//! orthogonal decomposition (Golub and Van Loan, section 5.5; LAPACK xGELSY) of a k x k matrix, in place.

use libm::sqrtf;

use super::largest;
use super::vector::{at, dot, from, from_mut, reflect, set};

/// Columns whose pivot is under this fraction of the largest are cut: about a hundred roundings of f32.
pub const RANK_CUT: f32 = 1e-5;

/// Shorter columns are zero: their squares would leave the range of f32.
const SMALLEST: f32 = 1e-18;

/// Solves `min |R W - Q|` for the `W` of least norm. `r` is k x k (overwritten), `q` is k x c and
/// becomes `W`; `order` and `scratch` hold k values. Returns the numerical rank. Never fails: what
/// cannot be represented (a head beyond f32) becomes zero.
#[inline(never)]
pub fn minimum_norm(r: &mut [f32], q: &mut [f32], order: &mut [u16], scratch: &mut [f32]) -> usize {
    minimum_norm_cut(r, q, order, scratch, RANK_CUT)
}

/// The same with another cut.
pub(super) fn minimum_norm_cut(
    r: &mut [f32],
    q: &mut [f32],
    order: &mut [u16],
    scratch: &mut [f32],
    cut: f32,
) -> usize {
    let k = order.len();
    let Some(c) = q.len().checked_div(k) else { return 0 };
    if is_well_conditioned(r, scratch, cut) {
        substitute(r, q, k, c, k);
        return k;
    }
    for (place, index) in order.iter_mut().zip(0u16..) {
        *place = index;
    }
    let rank = pivoted_qr(r, q, order, scratch, c, cut);
    compress_rows(r, k, rank, scratch);
    // R11 y = Q^T q, then W = P Z^T [y; 0].
    substitute(r, q, k, c, rank);
    from_mut(q, rank * c).fill(0.0);
    if rank < k {
        for i in 0..rank {
            recall(r, k, rank, i, scratch);
            let tau = at(r, rank * k + i);
            for output in 0..c {
                reflect(tau, from(scratch, i), from_mut(q, i * c + output), c);
            }
        }
    }
    unpermute(q, order, c);
    if q.iter().any(|w| !w.is_finite()) {
        q.fill(0.0);
        return 0;
    }
    rank
}

/// True if no column can be cut: `|R| |R^-1|` bounds the quotient of any two pivots, whichever is first and
/// last. (Frobenius norms; the inverse of a triangle, column by column, is cheaper than a pivoted QR.)
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

/// Solves `R11 W = Q` for the leading `rank` rows, in place.
#[inline(never)]
pub(super) fn substitute(r: &[f32], q: &mut [f32], k: usize, c: usize, rank: usize) {
    for i in (0..rank).rev() {
        let Some((&pivot, row)) = r.get(i * k + i..i * k + rank).and_then(<[f32]>::split_first) else {
            return;
        };
        let (own, later) = from_mut(q, i * c).split_at_mut_checked(c).unwrap_or_default();
        for (output, value) in own.iter_mut().enumerate() {
            *value = (*value - dot(row, from(later, output), c)) / pivot;
        }
    }
}

/// Householder QR with column pivoting of `r` (k x k), applied to `q` (k x c) as well. Stops at the first
/// pivot below `cut` of the first one and returns the number of columns taken. What is below the
/// diagonal is not cleared.
fn pivoted_qr(r: &mut [f32], q: &mut [f32], order: &mut [u16], v: &mut [f32], c: usize, cut: f32) -> usize {
    let k = order.len();
    let mut first_pivot = 0.0f32;
    for step in 0..k {
        let (mut best, mut longest) = (step, -1.0f32);
        for column in step..k {
            let length = length(from(r, step * k + column), k);
            if length > longest {
                (best, longest) = (column, length);
            }
        }
        if step == 0 {
            first_pivot = longest;
        }
        // Written so that a NaN is cut too.
        if !(longest > cut * first_pivot && longest >= SMALLEST && longest.is_finite()) {
            return step;
        }
        exchange(order, best, step);
        for row in r.chunks_exact_mut(k) {
            exchange(row, best, step);
        }
        let v = from_mut(v, step);
        for (v, x) in v.iter_mut().zip(from(r, step * k + step).iter().step_by(k)) {
            *v = *x;
        }
        let (alpha, v0) = reflector(at(v, 0), longest);
        set(v, 0, v0);
        // |v|^2 / 2 = -alpha v0.
        let tau = 1.0 / (-alpha * v0);
        set(r, step * k + step, alpha);
        for column in step + 1..k {
            reflect(tau, v, from_mut(r, step * k + column), k);
        }
        for output in 0..c {
            reflect(tau, v, from_mut(q, step * c + output), c);
        }
    }
    k
}

/// The reflection that takes a vector with this first element and length to `alpha e1`: `alpha`, of the
/// opposite sign, and the first element of `v = x - alpha e1`.
fn reflector(first: f32, length: f32) -> (f32, f32) {
    let alpha = if first > 0.0 { -length } else { length };
    (alpha, first - alpha)
}

/// Reduces `[R11 R12]` (rank x k) to `[T 0]` by reflections from the right. Row `i` keeps its reflector
/// `(1, v)` with `v` in place of its part of R12, and row `rank`, which is not needed any more, its factor.
fn compress_rows(r: &mut [f32], k: usize, rank: usize, scratch: &mut [f32]) {
    if rank == k {
        return;
    }
    for i in (0..rank).rev() {
        recall(r, k, rank, i, scratch);
        let head = at(r, i * k + i);
        set(scratch, i, head);
        let (alpha, v0) = reflector(head, length(from(scratch, i), 1));
        let tau = -v0 / alpha;
        for value in r.get_mut(i * k + rank..(i + 1) * k).unwrap_or_default() {
            *value /= v0;
        }
        recall(r, k, rank, i, scratch);
        set(r, i * k + i, alpha);
        set(r, rank * k + i, tau);
        for row in 0..i {
            reflect(tau, from(scratch, i), from_mut(r, row * k + i), 1);
        }
    }
}

/// The reflector of row `i`: `v[i] = 1`, then zeros, then what the row keeps from column `rank` on.
#[inline(never)]
fn recall(r: &[f32], k: usize, rank: usize, i: usize, v: &mut [f32]) {
    v.fill(0.0);
    set(v, i, 1.0);
    for (v, &kept) in from_mut(v, rank).iter_mut().zip(from(r, i * k + rank)) {
        *v = kept;
    }
}

/// Length of the vector `x[i step]`, scaled so that squares stay in range.
#[inline(never)]
fn length(x: &[f32], step: usize) -> f32 {
    let elements = || x.iter().step_by(step.max(1));
    let size = elements().fold(0.0, |size, x| largest(&[size, *x]));
    if size == 0.0 || !size.is_finite() {
        return size;
    }
    size * sqrtf(elements().fold(0.0, |sum, x| sum + (x / size) * (x / size)))
}

/// Moves row `i` of `w` (k x c) to row `order[i]`, following the cycles of the permutation.
fn unpermute(w: &mut [f32], order: &mut [u16], c: usize) {
    for i in 0..order.len() {
        loop {
            let target = order.get(i).map_or(i, |&t| usize::from(t));
            if target == i || target >= order.len() {
                break;
            }
            for column in 0..c {
                exchange(w, i * c + column, target * c + column);
            }
            exchange(order, i, target);
        }
    }
}

/// `swap` that ignores an index out of range instead of panicking.
#[inline(never)]
fn exchange<T: Copy>(values: &mut [T], i: usize, j: usize) {
    if let (Some(&a), Some(&b)) = (values.get(i), values.get(j)) {
        if let Some(place) = values.get_mut(i) {
            *place = b;
        }
        if let Some(place) = values.get_mut(j) {
            *place = a;
        }
    }
}
