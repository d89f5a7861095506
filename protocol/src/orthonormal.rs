//! Orthonormal columns: a check of orthonormality, and the f32 QR factorisation that devices and servers run.
//!
//! A representation sent as i8 is not orthonormal after decoding. Both sides must use a bit-identical `B`, so
//! decoding includes this factorisation, and `SPEC.md` specifies it.
//!
//! The factorisation uses only `+ - * /` and a correctly rounded square root, in a fixed order, so its result
//! is bit-identical on every core.

use crate::Error;

/// Returns `max |B^T B - I|` over all pairs of columns. `b` is row-major, rows x `cols`. The result is not
/// finite if a value of `b` is not finite.
#[must_use]
pub fn orthonormality_error(b: &[f32], cols: usize) -> f32 {
    let mut worst = 0.0f32;
    // Tiles of 4 x 4 dot products load each element of `b` once for four of them. Each dot product is a sum in the order of
    // rows, as in `column_dot`.
    let tiled = cols - cols % 4;
    for i in (0..tiled).step_by(4) {
        worst = larger(worst, triangle(b, cols, i));
        for j in (0..i).step_by(4) {
            worst = larger(worst, square(b, cols, i, j));
        }
    }
    for i in tiled..cols {
        for j in 0..=i {
            let target = if i == j { 1.0 } else { 0.0 };
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

/// Returns the largest absolute dot product of a column of `i..i + 4` with one of `j..j + 4`, which are others.
#[inline(never)]
fn square(b: &[f32], cols: usize, i: usize, j: usize) -> f32 {
    let [mut d0, mut d1, mut d2, mut d3] = [[0.0f32; 4]; 4];
    for row in b.chunks_exact(cols.max(1)) {
        let (Some([p0, p1, p2, p3]), Some(q)) = (four_of(row, i), four_of(row, j)) else { break };
        add_scaled(&mut d0, q, *p0);
        add_scaled(&mut d1, q, *p1);
        add_scaled(&mut d2, q, *p2);
        add_scaled(&mut d3, q, *p3);
    }
    [d0, d1, d2, d3].as_flattened().iter().fold(0.0, |worst, dot| larger(worst, dot.abs()))
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

/// Returns the largest error among the columns `i..i + 4`: of their squared norms from 1, and of their dot products from 0.
#[inline(never)]
fn triangle(b: &[f32], cols: usize, i: usize) -> f32 {
    let [mut d00, mut d11, mut d22, mut d33] = [0.0f32; 4];
    let [mut d10, mut d20, mut d21, mut d30, mut d31, mut d32] = [0.0f32; 6];
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
    let norms = [d00, d11, d22, d33].map(|norm| (norm - 1.0).abs());
    let others = [d10, d20, d21, d30, d31, d32].map(f32::abs);
    norms.into_iter().chain(others).fold(0.0, larger)
}

/// Replaces `b` (row-major, rows x `cols`, rows >= `cols`) by the orthonormal factor of its thin QR
/// factorisation with a positive diagonal of R. Modified Gram-Schmidt is run twice, which gives
/// orthonormality up to rounding (Giraud, Langou and Rozloznik 2005).
///
/// # Errors
/// [`Error::RankDeficient`] if less than 1e-6 of a column's norm remains, or if the norm is not finite; `b`
/// is then partly overwritten.
pub fn orthonormalise(b: &mut [f32], cols: usize) -> Result<(), Error> {
    for j in 0..cols {
        let before = column_dot(b, cols, j, j);
        for _ in 0..2 {
            for i in 0..j {
                let r = column_dot(b, cols, i, j);
                for row in b.chunks_exact_mut(cols) {
                    let q = row.get(i).copied().unwrap_or(0.0);
                    if let Some(v) = row.get_mut(j) {
                        *v -= r * q;
                    }
                }
            }
        }
        let after = column_dot(b, cols, j, j);
        // The condition is negated so that a NaN fails too. 1e-12 is the square of 1e-6.
        if !(after > before * 1e-12 && after.is_finite() && after >= f32::MIN_POSITIVE) {
            return Err(Error::RankDeficient { column: j });
        }
        let norm = libm::sqrtf(after);
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
