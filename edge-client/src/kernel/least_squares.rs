//! The head: `min_W |Z W - Y|^2` from samples seen one by one, without storing them.
//!
//! Two ways. The *normal equations* (`Z^T Z`, `Z^T Y`, Cholesky) are the cheaper and square the condition
//! number; they are trusted only while the pivots stay within [`PIVOT_RATIO`] of each other. Otherwise
//! the *triangular* way is taken: the rows of `[Z | Y]` are folded into `R` and `Q^T Y` ([`super::fold`]),
//! which works at the condition of `Z` itself, and [`super::rank`] solves, at whatever rank there is.

use libm::sqrtf;

use super::fold::fold;
use super::{Four, add_products};

/// Smallest ratio of the squared pivots of a Cholesky factor at which the normal equations are trusted.
/// The pivots flatter: behind a ratio of 1e-2 the condition of `Z` can be 60, and the head off by 3e-4; at
/// 1e-1 it stays within a hundred roundings of f32 of the triangular way (`tests/streaming.rs`).
pub const PIVOT_RATIO: f32 = 1e-1;

/// Smallest squared pivot that is trusted: smaller ones lose digits to underflow. The triangular way
/// takes features of that size for zero ([`super::rank`]), so both ways agree.
const SMALLEST_SQUARE: f32 = 1e-36;

/// Adds one sample to the normal equations: lower triangle of `gram` (k x k) and `rhs` (k x c).
#[inline(never)]
pub fn add_normal(gram: &mut [f32], rhs: &mut [f32], z: &[f32], y: &[f32]) {
    let (k, c) = (z.len(), y.len());
    for (i, (row, &zi)) in gram.chunks_exact_mut(k.max(1)).zip(z).enumerate() {
        for (g, &zj) in row.iter_mut().zip(z).take(i + 1) {
            *g += zi * zj;
        }
    }
    for (row, &zi) in rhs.chunks_exact_mut(c.max(1)).zip(z) {
        for (r, &yc) in row.iter_mut().zip(y) {
            *r += zi * yc;
        }
    }
}

/// Adds four samples: `z` holds k fours, `y` holds c.
#[inline(never)]
pub fn add_normal_four(gram: &mut [f32], rhs: &mut [f32], z: &[Four], y: &[Four]) {
    for ((i, &zi), row) in z.iter().enumerate().zip(gram.chunks_exact_mut(z.len().max(1))) {
        add_products(row, zi, z.get(..=i).unwrap_or_default());
    }
    if let [y] = *y {
        add_products(rhs, y, z);
    } else {
        for (row, &zi) in rhs.chunks_exact_mut(y.len().max(1)).zip(z) {
            add_products(row, zi, y);
        }
    }
}

/// Solves the normal equations in place: `rhs` (k x c) becomes `W`, `gram` its Cholesky factor. Returns
/// false, with both overwritten, where the pivots say that they cannot be trusted.
#[must_use]
#[inline(never)]
pub fn solve_normal(gram: &mut [f32], rhs: &mut [f32], k: usize, c: usize) -> bool {
    let (mut least, mut most) = (f32::INFINITY, 0.0f32);
    for j in 0..k {
        let Some((above, row)) = split_row(gram, k, j) else { return false };
        // Row j of L from the finished rows, then its pivot.
        for i in 0..j {
            let li = above.get(i * k..i * k + k).unwrap_or_default();
            let (done, open) = row.split_at_mut_checked(i).unwrap_or_default();
            let dot = done.iter().zip(li).fold(0.0f32, |sum, (a, b)| sum + a * b);
            if let (Some(value), Some(&pivot)) = (open.first_mut(), li.get(i)) {
                *value = (*value - dot) / pivot;
            }
        }
        let (done, open) = row.split_at_mut_checked(j).unwrap_or_default();
        let squares = done.iter().fold(0.0f32, |sum, a| sum + a * a);
        let Some(pivot) = open.first_mut() else { return false };
        let square = *pivot - squares;
        if square < least {
            least = square;
        }
        if *pivot > most {
            most = *pivot;
        }
        // Written so that a NaN fails too.
        if !(square >= SMALLEST_SQUARE && least >= PIVOT_RATIO * most && most.is_finite()) {
            return false;
        }
        *pivot = sqrtf(square);
    }
    forward(gram, rhs, k, c);
    backward(gram, rhs, k, c);
    true
}

/// `rhs <- L^-1 rhs`.
fn forward(l: &[f32], rhs: &mut [f32], k: usize, c: usize) {
    for (j, row) in l.chunks_exact(k.max(1)).enumerate() {
        let Some((above, own)) = split_row(rhs, c, j) else { return };
        let pivot = row.get(j).copied().unwrap_or(1.0);
        for (output, value) in own.iter_mut().enumerate() {
            let known = above.iter().skip(output).step_by(c);
            let dot = row.iter().zip(known).fold(0.0f32, |sum, (a, b)| sum + a * b);
            *value = (*value - dot) / pivot;
        }
    }
}

/// `rhs <- L^-T rhs`.
fn backward(l: &[f32], rhs: &mut [f32], k: usize, c: usize) {
    for j in (0..k).rev() {
        let pivot = l.get(j * k + j).copied().unwrap_or(1.0);
        for output in 0..c {
            let mut dot = 0.0f32;
            for i in j + 1..k {
                dot += at(l, i * k + j) * at(rhs, i * c + output);
            }
            if let Some(value) = rhs.get_mut(j * c + output) {
                *value = (*value - dot) / pivot;
            }
        }
    }
}

/// Rotates one sample into the triangular form: `r` (k x k, upper triangle) and `qty` (k x c).
/// `z` (k values) and `y` (c values) are used up.
pub fn rotate_in(r: &mut [f32], qty: &mut [f32], z: &mut [f32], y: &mut [f32]) {
    let k = z.len();
    fold(r, qty, z, y, k, 1);
}

/// Largest entry of a head that gradient steps may lead to. With samples of at most 1e12 every prediction
/// then stays inside f32; what is beyond has diverged.
pub const HEAD_MAX: f32 = 1e24;

/// Gradient steps have diverged: an entry is beyond [`HEAD_MAX`], or not a number.
#[must_use]
pub fn has_diverged(head: &[f32]) -> bool {
    // Written so that a NaN counts.
    !head.iter().all(|w| w.abs() <= HEAD_MAX)
}

/// `W <- W - step ((Z^T Z) W - Z^T Y) / m`, `steps` times: the head by gradient descent, from sums alone.
/// `gram` needs its lower triangle only; `scratch` holds k values.
#[inline(never)]
pub fn gradient_steps(
    gram: &[f32],
    rhs: &[f32],
    w: &mut [f32],
    scratch: &mut [f32],
    steps: u16,
    step_over_m: f32,
) {
    let k = scratch.len();
    let Some(c) = rhs.len().checked_div(k) else { return };
    for _ in 0..steps {
        for output in 0..c {
            for (i, value) in scratch.iter_mut().enumerate() {
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

pub(super) fn at(values: &[f32], index: usize) -> f32 {
    values.get(index).copied().unwrap_or(0.0)
}

/// The rows above row `j`, and row `j` itself.
fn split_row(matrix: &mut [f32], cols: usize, j: usize) -> Option<(&[f32], &mut [f32])> {
    let (above, rest) = matrix.split_at_mut_checked(j * cols)?;
    Some((above, rest.get_mut(..cols)?))
}
