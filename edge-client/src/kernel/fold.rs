//! The triangular way: rows of `[Z | Y]` are folded into `R` and `Q^T Y` by Householder reflections, one a
//! column for all rows of a block. The more rows, the fewer roundings, and the less work for each. The client
//! folds row by row, replayed samples as streamed ones, so that both give the same head to the bit.

use libm::sqrtf;

use super::largest;

/// A column of the block that is smaller than this, absolutely or as a share of its pivot, is taken for
/// zero: its reciprocal or the pivot's share of it would leave the range of f32. It is far below what
/// [`super::rank`] takes for zero, and below the rounding of the pivot.
const NEGLIGIBLE: f32 = 1e-30;
const NEGLIGIBLE_SHARE: f32 = 1e-18;

/// Folds `rows` rows of `[Z | Y]` into `r` (k x k, upper triangle, no negative pivot) and `qty` (k x c).
///
/// `z` holds k columns and `y` c columns, each of the same height, of which the first `rows` values count.
/// Both are used up.
#[inline(never)]
pub fn fold(r: &mut [f32], qty: &mut [f32], z: &mut [f32], y: &mut [f32], k: usize, rows: usize) {
    let (Some(c), Some(height)) = (qty.len().checked_div(k), z.len().checked_div(k)) else { return };
    if c == 0 || height == 0 {
        return;
    }
    let mut later = z;
    for (j, (row, qty)) in r.chunks_exact_mut(k).zip(qty.chunks_exact_mut(c)).enumerate() {
        let Some((column, rest)) = later.split_at_mut_checked(height) else { return };
        later = rest;
        let Some(column) = column.get_mut(..rows) else { return };
        let Some((pivot, row)) = row.get_mut(j..).and_then(<[f32]>::split_first_mut) else { return };
        let Some(reflection) = reflect(pivot, column) else { continue };
        reflection.apply(column, row, later, height);
        reflection.apply(column, qty, y, height);
    }
}

/// `I - tau v v^T` with `v = (top, column)`.
#[derive(Clone, Copy, Debug)]
struct Reflection {
    top: f32,
    tau: f32,
}

/// The reflection that takes `(pivot, column)`, `pivot >= 0`, to `(|(pivot, column)|, 0)`. The pivot becomes
/// that length, the column its part of `v`: scaled, so that nothing overflows or underflows on the way.
/// `None` where the column is negligible.
///
/// The pivot grows by what the column adds to it: formed as the root of a sum it would be rounded down more
/// often than up, and over ten thousand samples that bias costs three digits. For the same reason the
/// reflection is the one that keeps the sign of the pivot: it moves what it is applied to as little as the
/// column is short.
fn reflect(pivot: &mut f32, column: &mut [f32]) -> Option<Reflection> {
    let size = largest(column);
    // Written so that a NaN is left out.
    if !(size > NEGLIGIBLE && size > NEGLIGIBLE_SHARE * *pivot) {
        return None;
    }
    let mut squares = 0.0f32;
    for value in column {
        *value /= size;
        squares += *value * *value;
    }
    let share = *pivot / size;
    let growth = squares / (share + sqrtf(share * share + squares));
    *pivot += growth * size;
    Some(Reflection { top: -growth, tau: 2.0 / (growth * growth + squares) })
}

impl Reflection {
    /// Applies it to the vectors `(tops[i], column i of others)`, where `column` is the rest of `v`.
    fn apply(self, column: &[f32], tops: &mut [f32], others: &mut [f32], height: usize) {
        for (top, other) in tops.iter_mut().zip(others.chunks_exact_mut(height.max(1))) {
            let dot = column.iter().zip(&*other).fold(self.top * *top, |sum, (v, a)| sum + v * a);
            let factor = self.tau * dot;
            *top -= factor * self.top;
            for (a, v) in other.iter_mut().zip(column) {
                *a -= factor * v;
            }
        }
    }
}
