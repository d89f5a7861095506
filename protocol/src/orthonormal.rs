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
    for i in 0..cols {
        let mut first = 0;
        while first <= i {
            // Four dot products at a time, which load each element of column i once.
            let mut dots = [0.0; 4];
            let count = if first + 3 <= i {
                dots = column_dots(b, cols, i, first);
                4
            } else {
                dots[0] = column_dot(b, cols, i, first);
                1
            };
            for (j, dot) in (first..).zip(dots).take(count) {
                let target = if i == j { 1.0 } else { 0.0 };
                let error = (dot - target).abs();
                // `f32::max` would discard a NaN.
                if error.is_nan() {
                    return error;
                }
                worst = worst.max(error);
            }
            first += count;
        }
    }
    worst
}

/// Returns the dot products of column `i` with the columns `first..first + 4`, each in the order of [`column_dot`].
#[inline(never)]
fn column_dots(b: &[f32], cols: usize, i: usize, first: usize) -> [f32; 4] {
    let [mut d0, mut d1, mut d2, mut d3] = [0.0f32; 4];
    for row in b.chunks_exact(cols.max(1)) {
        let four = row.get(first..).and_then(<[f32]>::first_chunk::<4>);
        let (Some(p), Some([q0, q1, q2, q3])) = (row.get(i), four) else { break };
        d0 += p * q0;
        d1 += p * q1;
        d2 += p * q2;
        d3 += p * q3;
    }
    [d0, d1, d2, d3]
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
