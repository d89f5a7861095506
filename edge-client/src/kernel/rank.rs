//! Minimum-norm least squares from a triangular factor, at whatever rank there is: a complete
//! orthogonal decomposition (Golub and Van Loan, section 5.5; LAPACK xGELSY) of a k x k matrix, in place.

use libm::sqrtf;

use super::least_squares::at;

/// Columns whose pivot is under this fraction of the largest are cut: about a hundred roundings of f32.
pub const RANK_CUT: f32 = 1e-5;

/// Shorter columns are zero: their squares would leave the range of f32.
const SMALLEST: f32 = 1e-18;

/// Solves `min |R W - Q|` for the `W` of least norm. `r` is k x k (overwritten), `q` is k x c and
/// becomes `W`; `order` and `scratch` hold k values. Returns the numerical rank. Never fails: what
/// cannot be represented (a head beyond f32) becomes zero.
#[inline(never)]
pub fn minimum_norm(r: &mut [f32], q: &mut [f32], order: &mut [u16], scratch: &mut [f32]) -> usize {
    let k = order.len();
    let Some(c) = q.len().checked_div(k) else { return 0 };
    for (place, index) in order.iter_mut().zip(0u16..) {
        *place = index;
    }
    if is_well_conditioned(r, scratch) {
        substitute(r, q, k, c, k);
        return k;
    }
    let rank = pivoted_qr(r, q, order, k, c);
    compress_rows(r, k, rank, scratch);
    // R11 y = Q^T q, then W = P Z^T [y; 0].
    substitute(r, q, k, c, rank);
    for value in q.iter_mut().skip(rank * c) {
        *value = 0.0;
    }
    for i in 0..rank {
        let tau = at(scratch, i);
        for output in 0..c {
            let mut dot = at(q, i * c + output);
            for j in rank..k {
                dot += at(r, i * k + j) * at(q, j * c + output);
            }
            set(q, i * c + output, at(q, i * c + output) - tau * dot);
            for j in rank..k {
                set(q, j * c + output, at(q, j * c + output) - tau * dot * at(r, i * k + j));
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
fn is_well_conditioned(r: &[f32], scratch: &mut [f32]) -> bool {
    let k = scratch.len();
    let squares = r.iter().fold(0.0f32, |sum, a| sum + a * a);
    let mut inverse_squares = 0.0f32;
    for column in 0..k {
        // Solves R x = e_column; what is below is zero.
        for i in (0..=column).rev() {
            let row = r.get(i * k..i * k + column + 1).unwrap_or_default();
            let Some((known, open)) = row.get(i..).and_then(<[f32]>::split_first) else { return false };
            let Some((value, later)) = scratch.get_mut(i..).and_then(<[f32]>::split_first_mut) else {
                return false;
            };
            let right = if i == column { 1.0 } else { 0.0 };
            *value = (right - open.iter().zip(&*later).fold(0.0f32, |sum, (a, b)| sum + a * b)) / known;
            inverse_squares += *value * *value;
        }
    }
    // Written so that a NaN is not.
    inverse_squares <= 1.0 / (SMALLEST * SMALLEST)
        && squares * inverse_squares <= 0.25 / (RANK_CUT * RANK_CUT)
}

/// Solves `R11 W = Q` for the leading `rank` rows, in place.
fn substitute(r: &[f32], q: &mut [f32], k: usize, c: usize, rank: usize) {
    for output in 0..c {
        for i in (0..rank).rev() {
            let mut value = at(q, i * c + output);
            for j in i + 1..rank {
                value -= at(r, i * k + j) * at(q, j * c + output);
            }
            set(q, i * c + output, value / at(r, i * k + i));
        }
    }
}

/// Householder QR with column pivoting of `r` (k x k), applied to `q` (k x c) as well. Stops at the first
/// pivot below [`RANK_CUT`] of the first one and returns the number of columns taken.
fn pivoted_qr(r: &mut [f32], q: &mut [f32], order: &mut [u16], k: usize, c: usize) -> usize {
    let mut first_pivot = 0.0f32;
    for step in 0..k {
        let (mut best, mut longest) = (step, -1.0f32);
        for column in step..k {
            let norm = column_norm(r, k, step, column);
            if norm > longest {
                (best, longest) = (column, norm);
            }
        }
        if step == 0 {
            first_pivot = longest;
        }
        // Written so that a NaN is cut too.
        if !(longest > RANK_CUT * first_pivot && longest >= SMALLEST && longest.is_finite()) {
            return step;
        }
        if best != step {
            for row in 0..k {
                exchange(r, row * k + best, row * k + step);
            }
            exchange(order, best, step);
        }
        // v = x - alpha e1 with alpha of the opposite sign, kept below the diagonal while it is applied.
        let head = at(r, step * k + step);
        let alpha = if head > 0.0 { -longest } else { longest };
        let v0 = head - alpha;
        // |v|^2 / 2 = -alpha v0.
        let tau = 1.0 / (-alpha * v0);
        for column in step + 1..k {
            let mut dot = v0 * at(r, step * k + column);
            for row in step + 1..k {
                dot += at(r, row * k + step) * at(r, row * k + column);
            }
            let factor = dot * tau;
            set(r, step * k + column, at(r, step * k + column) - factor * v0);
            for row in step + 1..k {
                let v = at(r, row * k + step);
                set(r, row * k + column, at(r, row * k + column) - factor * v);
            }
        }
        for column in 0..c {
            let mut dot = v0 * at(q, step * c + column);
            for row in step + 1..k {
                dot += at(r, row * k + step) * at(q, row * c + column);
            }
            let factor = dot * tau;
            set(q, step * c + column, at(q, step * c + column) - factor * v0);
            for row in step + 1..k {
                let v = at(r, row * k + step);
                set(q, row * c + column, at(q, row * c + column) - factor * v);
            }
        }
        set(r, step * k + step, alpha);
        for row in step + 1..k {
            set(r, row * k + step, 0.0);
        }
    }
    k
}

/// Reduces `[R11 R12]` (rank x k) to `[T 0]` by reflections from the right. Row `i` keeps its reflector
/// `(1, v)` with `v` in place of its part of R12, and the reflector's factor in `tau[i]`.
fn compress_rows(r: &mut [f32], k: usize, rank: usize, tau: &mut [f32]) {
    tau.fill(0.0);
    if rank == k {
        return;
    }
    for i in (0..rank).rev() {
        let head = at(r, i * k + i);
        let mut largest = head.abs();
        for j in rank..k {
            largest = greater(largest, at(r, i * k + j).abs());
        }
        let mut squares = (head / largest) * (head / largest);
        let mut tail = 0.0f32;
        for j in rank..k {
            let value = at(r, i * k + j) / largest;
            tail += value * value;
        }
        if tail == 0.0 {
            for j in rank..k {
                set(r, i * k + j, 0.0);
            }
            continue;
        }
        squares += tail;
        let norm = largest * sqrtf(squares);
        let alpha = if head > 0.0 { -norm } else { norm };
        let v0 = head - alpha;
        for j in rank..k {
            set(r, i * k + j, at(r, i * k + j) / v0);
        }
        let factor = -v0 / alpha;
        set(tau, i, factor);
        set(r, i * k + i, alpha);
        for row in 0..i {
            let mut dot = at(r, row * k + i);
            for j in rank..k {
                dot += at(r, row * k + j) * at(r, i * k + j);
            }
            let scaled = factor * dot;
            set(r, row * k + i, at(r, row * k + i) - scaled);
            for j in rank..k {
                set(r, row * k + j, at(r, row * k + j) - scaled * at(r, i * k + j));
            }
        }
    }
}

/// Length of column `column` from row `first` down, scaled so that squares stay in range.
fn column_norm(r: &[f32], k: usize, first: usize, column: usize) -> f32 {
    let mut largest = 0.0f32;
    for row in first..k {
        let value = at(r, row * k + column).abs();
        if value.is_nan() {
            return value;
        }
        largest = greater(largest, value);
    }
    if largest == 0.0 || !largest.is_finite() {
        return largest;
    }
    let mut sum = 0.0f32;
    for row in first..k {
        let value = at(r, row * k + column) / largest;
        sum += value * value;
    }
    largest * sqrtf(sum)
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

fn set(values: &mut [f32], index: usize, value: f32) {
    if let Some(place) = values.get_mut(index) {
        *place = value;
    }
}

fn greater(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}
