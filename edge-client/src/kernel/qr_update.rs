//! QR updates: rows of `[Z | Y]` are added to `R` and `Q^T Y` by orthogonal transformations. Householder
//! reflections, one per column, add eight rows at a time, with fewer roundings and less work per row; Givens
//! rotations add a single row where the memory for eight rows is missing.
//!
//! The growth of a pivot is computed and added to the pivot. A pivot computed as the root of a sum would be
//! rounded down more often than up, a bias that costs three digits over ten thousand samples. For the same
//! reason a reflection keeps the sign of the pivot, and a rotation is computed from half its angle: a short
//! column then changes the vectors little.

use fedspan_protocol::sqrt::sqrtf;

use super::vector::rotate;
use super::{Four, add_product, add_scaled};
use crate::memory::Eight;
use crate::pace::Pace;

/// Size below which columns of a block count as zero: their reciprocal would leave the range of f32. The size
/// is far below the zero threshold of [`super::rank`].
const NEGLIGIBLE: f32 = 1e-30;
/// Size relative to the pivot below which columns of a block count as zero: their share of the pivot would
/// leave the range of f32. The size is below the rounding of the pivot.
const NEGLIGIBLE_SHARE: f32 = 1e-18;

/// Adds eight rows of `[Z | Y]` to `r` (k x k, upper triangle, no negative pivot) and `qty` (k x c). Rows of
/// zeros change nothing.
///
/// `z` holds the k columns of the block and `y` the c columns of targets. Both are overwritten.
#[inline(never)]
pub fn add_eight_rows(r: &mut [f32], qty: &mut [f32], z: &mut [Eight], y: &mut [Eight], pace: Pace<'_>) {
    let (k, c) = (z.len().max(1), y.len().max(1));
    let mut later = z;
    // Not zipped: for a zip the compiler counts the chunks by a division, and cannot prove that the divisor
    // is nonzero.
    let mut qty = qty.chunks_exact_mut(c);
    for (j, row) in r.chunks_exact_mut(k).enumerate() {
        let Some(qty) = qty.next() else { return };
        let Some((column, remaining)) = later.split_first_mut() else { return };
        later = remaining;
        pace.spend(18 * (k - j + c) + 8);
        let Some((pivot, row)) = row.get_mut(j..).and_then(<[f32]>::split_first_mut) else { return };
        let [low, high] = split_halves(column);
        // An upper bound of the largest magnitude, which is cheaper to compute than the maximum.
        let size = sum_magnitudes(low) + sum_magnitudes(high);
        if is_negligible(size, *pivot) {
            continue;
        }
        let scale = 1.0 / size;
        let column = [scale_four(low, scale), scale_four(high, scale)];
        let squares = dot(0.0, &column, &column);
        let growth = pivot_growth(*pivot * scale, squares);
        *pivot += growth * size;
        let reflection = Reflection { top: -growth, column, tau: 2.0 / (growth * growth + squares) };
        for (tops, others) in [(row, &mut *later), (qty, &mut *y)] {
            reflection.apply(tops, others);
        }
    }
}

/// Adds one row: `z` has k values, `y` has c values, and both are overwritten.
#[inline(never)]
pub fn add_row(r: &mut [f32], qty: &mut [f32], z: &mut [f32], y: &mut [f32], pace: Pace<'_>) {
    let (k, c) = (z.len().max(1), y.len().max(1));
    let mut later = z;
    // Not zipped: for a zip the compiler counts the chunks by a division, and cannot prove that the divisor
    // is nonzero.
    let mut qty = qty.chunks_exact_mut(c);
    for (j, row) in r.chunks_exact_mut(k).enumerate() {
        let Some(qty) = qty.next() else { return };
        let Some((value, remaining)) = later.split_first_mut() else { return };
        later = remaining;
        pace.spend(4 * (k - j + c) + 8);
        let Some((pivot, row)) = row.get_mut(j..).and_then(<[f32]>::split_first_mut) else { return };
        let size = value.abs();
        if is_negligible(size, *pivot) {
            continue;
        }
        let half = pivot_growth(*pivot / size, 1.0);
        *pivot += half * size;
        let half = half.copysign(*value);
        let sine = 2.0 * half / (half * half + 1.0);
        rotate(sine, half, row, later);
        rotate(sine, half, qty, y);
    }
}

/// Returns true for negligible values. The condition is negated so that a NaN is negligible.
fn is_negligible(size: f32, pivot: f32) -> bool {
    !(size > NEGLIGIBLE && size > NEGLIGIBLE_SHARE * pivot)
}

/// Returns the growth of a pivot when a column with this sum of squares is added.
fn pivot_growth(pivot: f32, squares: f32) -> f32 {
    squares / (pivot + sqrtf(pivot * pivot + squares))
}

/// Reflection `I - tau v v^T` with `v = (top, column)`: maps `(pivot, column)`, `pivot >= 0`, to
/// `(|(pivot, column)|, 0)`.
#[derive(Clone, Copy, Debug)]
struct Reflection {
    /// First element of `v`.
    top: f32,
    /// Other elements of `v`.
    column: [Four; 2],
    /// Factor of the reflection.
    tau: f32,
}

impl Reflection {
    /// Applies the reflection to the vectors `(tops[i], others[i])`.
    #[inline(always)]
    fn apply(&self, tops: &mut [f32], others: &mut [Eight]) {
        for (top, other) in tops.iter_mut().zip(others) {
            let [mut low, mut high] = split_halves(other);
            let factor = self.tau * dot(self.top * *top, &self.column, &[low, high]);
            *top -= factor * self.top;
            add_scaled(&mut low, self.column[0], -factor);
            add_scaled(&mut high, self.column[1], -factor);
            let ([l0, l1, l2, l3], [h0, h1, h2, h3]) = (low, high);
            *other = [l0, l1, l2, l3, h0, h1, h2, h3];
        }
    }
}

/// Splits eight values into the first and the last four.
#[inline(always)]
fn split_halves(&[v0, v1, v2, v3, v4, v5, v6, v7]: &Eight) -> [Four; 2] {
    [[v0, v1, v2, v3], [v4, v5, v6, v7]]
}

/// Returns the sum of the magnitudes.
#[inline(always)]
fn sum_magnitudes([v0, v1, v2, v3]: Four) -> f32 {
    v0.abs() + v1.abs() + v2.abs() + v3.abs()
}

/// Multiplies four values by `scale`.
#[inline(always)]
fn scale_four([v0, v1, v2, v3]: Four, scale: f32) -> Four {
    [v0 * scale, v1 * scale, v2 * scale, v3 * scale]
}

/// Computes `sum + sum of a[i] b[i]`.
#[inline(always)]
fn dot(sum: f32, [a0, a1]: &[Four; 2], [b0, b1]: &[Four; 2]) -> f32 {
    add_product(add_product(sum, *a0, b0), *a1, b1)
}
