//! The triangular way: rows of `[Z | Y]` are folded into `R` and `Q^T Y` by Householder reflections, one a
//! column for all rows of a block. The more rows, the fewer roundings, and the less work for each.

use libm::sqrtf;

use super::largest;

/// A column of the block that is smaller than this, absolutely or as a share of its pivot, is taken for
/// zero: its reciprocal or the pivot's share of it would leave the range of f32. It is far below what
/// [`super::rank`] takes for zero, and below the rounding of the pivot.
const NEGLIGIBLE: f32 = 1e-30;
const NEGLIGIBLE_SHARE: f32 = 1e-18;

/// Folds `H` rows of `[Z | Y]` into `r` (k x k, upper triangle, no negative pivot) and `qty` (k x c). Rows of
/// zeros change nothing.
///
/// `z` holds k columns of the block and `y` c. Both are used up.
#[inline(never)]
pub fn fold<const H: usize>(r: &mut [f32], qty: &mut [f32], z: &mut [[f32; H]], y: &mut [[f32; H]]) {
    let (k, c) = (z.len().max(1), y.len().max(1));
    let mut later = z;
    for (j, (row, qty)) in r.chunks_exact_mut(k).zip(qty.chunks_exact_mut(c)).enumerate() {
        let Some((column, rest)) = later.split_first_mut() else { return };
        later = rest;
        let Some((pivot, row)) = row.get_mut(j..).and_then(<[f32]>::split_first_mut) else { return };
        let Some(reflection) = reflect(pivot, column) else { continue };
        for (tops, others) in [(row, &mut *later), (qty, &mut *y)] {
            reflection.apply(tops, others);
        }
    }
}

/// `I - tau v v^T` with `v = (top, column)`.
#[derive(Clone, Copy, Debug)]
struct Reflection<const H: usize> {
    top: f32,
    column: [f32; H],
    tau: f32,
}

/// The reflection that takes `(pivot, column)`, `pivot >= 0`, to `(|(pivot, column)|, 0)`. The pivot becomes
/// that length. Scaled, so that nothing overflows or underflows on the way. `None` where the column is
/// negligible.
///
/// The pivot grows by what the column adds to it: formed as the root of a sum it would be rounded down more
/// often than up, and over ten thousand samples that bias costs three digits. For the same reason the
/// reflection is the one that keeps the sign of the pivot: it moves what it is applied to as little as the
/// column is short.
fn reflect<const H: usize>(pivot: &mut f32, column: &[f32; H]) -> Option<Reflection<H>> {
    let size = largest(column);
    // Written so that a NaN is left out.
    if !(size > NEGLIGIBLE && size > NEGLIGIBLE_SHARE * *pivot) {
        return None;
    }
    let scale = 1.0 / size;
    let column = column.map(|value| value * scale);
    let squares = column.iter().fold(0.0f32, |sum, value| sum + value * value);
    let share = *pivot * scale;
    let growth = squares / (share + sqrtf(share * share + squares));
    *pivot += growth * size;
    Some(Reflection { top: -growth, column, tau: 2.0 / (growth * growth + squares) })
}

impl<const H: usize> Reflection<H> {
    /// Applies it to the vectors `(tops[i], others[i])`.
    fn apply(&self, tops: &mut [f32], others: &mut [[f32; H]]) {
        for (top, other) in tops.iter_mut().zip(others) {
            let dot = self.column.iter().zip(&*other).fold(self.top * *top, |sum, (v, a)| sum + v * a);
            let factor = self.tau * dot;
            *top -= factor * self.top;
            for (a, v) in other.iter_mut().zip(&self.column) {
                *a -= factor * v;
            }
        }
    }
}
