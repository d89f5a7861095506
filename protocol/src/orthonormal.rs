//! Orthonormal columns: a check of orthonormality, and the f32 QR factorisation that devices and servers run.
//!
//! A representation sent as i8 is not orthonormal after decoding. Both sides must use a bit-identical `B`, so
//! decoding includes this factorisation, and `SPEC.md` specifies it.
//!
//! The factorisation uses only `+ - * /` and a correctly rounded square root, in a fixed order, so its result
//! is bit-identical on every core.

use crate::Error;
use crate::sqrt::sqrtf;

/// Number of rows of a tile that are processed between two announcements of work.
const PIECE: usize = 64;

/// Returns `max |B^T B - I|` over all pairs of columns. `b` is row-major, rows x `cols`. The result is not
/// finite if a value of `b` is not finite.
#[must_use]
pub fn orthonormality_error(b: &[f32], cols: usize) -> f32 {
    orthonormality_error_in_parts(b, cols, &mut |_| {})
}

/// Computes [`orthonormality_error`], the same bits, and announces each part of the work before it begins: `spend` is called
/// with its number of multiply-accumulates (at most 1024, or one per row of `b`), and may pause.
#[must_use]
pub fn orthonormality_error_in_parts(b: &[f32], cols: usize, spend: &mut dyn FnMut(usize)) -> f32 {
    let mut worst = 0.0f32;
    // Tiles of 4 x 4 dot products load each element of `b` once for four of them. Each dot product is a sum in the order of
    // rows, as in `column_dot`.
    let tiled = cols - cols % 4;
    for i in (0..tiled).step_by(4) {
        let mut dots = Triangle::default();
        for b in b.chunks((PIECE * cols).max(1)) {
            spend(10 * PIECE);
            dots.add(b, cols, i);
        }
        worst = larger(worst, dots.error());
        for j in (0..i).step_by(4) {
            let mut dots = [[0.0f32; 4]; 4];
            for b in b.chunks((PIECE * cols).max(1)) {
                spend(16 * PIECE);
                add_square(&mut dots, b, cols, i, j);
            }
            worst = dots.as_flattened().iter().fold(worst, |worst, dot| larger(worst, dot.abs()));
        }
    }
    for i in tiled..cols {
        for j in 0..=i {
            let target = if i == j { 1.0 } else { 0.0 };
            spend(b.len() / cols);
            worst = larger(worst, (column_dot(b, cols, i, j) - target).abs());
        }
    }
    worst
}

/// Returns the larger one of two errors. `f32::max` would discard a NaN.
fn larger(a: f32, b: f32) -> f32 {
    if b.is_nan() || b > a { b } else { a }
}

/// Returns the columns `first..first + 4` of a row.
#[inline(always)]
fn four_of(row: &[f32], first: usize) -> Option<&[f32; 4]> {
    row.get(first..).and_then(<[f32]>::first_chunk::<4>)
}

/// Adds the products of the columns `i..i + 4` with the columns `j..j + 4`, which are others, over some rows.
#[inline(never)]
fn add_square(dots: &mut [[f32; 4]; 4], b: &[f32], cols: usize, i: usize, j: usize) {
    let [mut d0, mut d1, mut d2, mut d3] = *dots;
    for row in b.chunks_exact(cols.max(1)) {
        let (Some([p0, p1, p2, p3]), Some(q)) = (four_of(row, i), four_of(row, j)) else { break };
        add_scaled(&mut d0, q, *p0);
        add_scaled(&mut d1, q, *p1);
        add_scaled(&mut d2, q, *p2);
        add_scaled(&mut d3, q, *p3);
    }
    *dots = [d0, d1, d2, d3];
}

/// Adds `factor q` to the sums.
#[inline(always)]
fn add_scaled(sums: &mut [f32; 4], [q0, q1, q2, q3]: &[f32; 4], factor: f32) {
    let [s0, s1, s2, s3] = sums;
    *s0 += factor * q0;
    *s1 += factor * q1;
    *s2 += factor * q2;
    *s3 += factor * q3;
}

/// Dot products among four columns.
#[derive(Default)]
struct Triangle {
    /// Squared norms.
    norms: [f32; 4],
    /// Products of different columns: 10, 20, 21, 30, 31, 32.
    others: [f32; 6],
}

impl Triangle {
    /// Adds the products of the columns `i..i + 4` over some rows.
    #[inline(never)]
    fn add(&mut self, b: &[f32], cols: usize, i: usize) {
        let [mut d00, mut d11, mut d22, mut d33] = self.norms;
        let [mut d10, mut d20, mut d21, mut d30, mut d31, mut d32] = self.others;
        for row in b.chunks_exact(cols.max(1)) {
            let Some([p0, p1, p2, p3]) = four_of(row, i) else { break };
            d00 += p0 * p0;
            d10 += p1 * p0;
            d11 += p1 * p1;
            d20 += p2 * p0;
            d21 += p2 * p1;
            d22 += p2 * p2;
            d30 += p3 * p0;
            d31 += p3 * p1;
            d32 += p3 * p2;
            d33 += p3 * p3;
        }
        self.norms = [d00, d11, d22, d33];
        self.others = [d10, d20, d21, d30, d31, d32];
    }

    /// Returns the largest error: of the squared norms from 1, and of the other products from 0.
    fn error(&self) -> f32 {
        let norms = self.norms.iter().fold(0.0, |worst, norm| larger(worst, (norm - 1.0).abs()));
        self.others.iter().fold(norms, |worst, dot| larger(worst, dot.abs()))
    }
}

/// Replaces `b` (row-major, rows x `cols`, rows >= `cols`) by the orthonormal factor of its thin QR
/// factorisation with a positive diagonal of R. Modified Gram-Schmidt is run twice, which gives
/// orthonormality up to rounding (Giraud, Langou and Rozloznik 2005).
///
/// # Errors
/// [`Error::RankDeficient`] if less than 1e-6 of a column's norm remains, or if the norm is not finite; `b`
/// is then partly overwritten.
pub fn orthonormalise(b: &mut [f32], cols: usize) -> Result<(), Error> {
    orthonormalise_in_parts(b, cols, &mut |_| {})
}

/// Computes [`orthonormalise`], the same bits, and announces each part of the work before it begins: `spend` is called with
/// its number of multiply-accumulates (at most 3 per row of `b`), and may pause.
///
/// # Errors
/// The errors of [`orthonormalise`].
pub fn orthonormalise_in_parts(
    b: &mut [f32],
    cols: usize,
    spend: &mut dyn FnMut(usize),
) -> Result<(), Error> {
    let rows = b.len().checked_div(cols).unwrap_or(0);
    for j in 0..cols {
        spend(rows);
        let before = column_dot(b, cols, j, j);
        for _ in 0..2 {
            for i in 0..j {
                spend(2 * rows);
                let r = column_dot(b, cols, i, j);
                for row in b.chunks_exact_mut(cols) {
                    let q = row.get(i).copied().unwrap_or(0.0);
                    if let Some(v) = row.get_mut(j) {
                        *v -= r * q;
                    }
                }
            }
        }
        // A division costs about two multiply-accumulates.
        spend(3 * rows);
        let after = column_dot(b, cols, j, j);
        // The condition is negated so that a NaN fails too. 1e-12 is the square of 1e-6.
        if !(after > before * 1e-12 && after.is_finite() && after >= f32::MIN_POSITIVE) {
            return Err(Error::RankDeficient { column: j });
        }
        let norm = sqrtf(after);
        for row in b.chunks_exact_mut(cols) {
            if let Some(v) = row.get_mut(j) {
                *v /= norm;
            }
        }
    }
    Ok(())
}

/// Returns the dot product of columns `i` and `j`.
fn column_dot(b: &[f32], cols: usize, i: usize, j: usize) -> f32 {
    b.chunks_exact(cols.max(1)).fold(0.0, |sum, row| match (row.get(i), row.get(j)) {
        (Some(p), Some(q)) => sum + p * q,
        _ => sum,
    })
}
