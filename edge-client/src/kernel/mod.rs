//! Numerical kernels: arithmetic on slices, without generic sizes, state or allocation.
//!
//! The kernels are written for firmware built with `opt-level = "s"`. At that level the compiler does not
//! unroll loops, so critical loops are unrolled by hand, in a form for which the compiler uses post-increment
//! loads. Small code is then also fast (`tests/budgets.toml`).
//!
//! Letters: `d` features, `k` width of the representation, `c` outputs, `m` samples. All matrices are
//! row-major. Every sum runs in a fixed order, so results are bit-identical on every core and for any number
//! of samples per call of a source. Functions for one sample and for four samples add the same products in
//! the same order; the functions for four samples need fewer loads and stores.

pub mod constant_column;
#[cfg(feature = "convolution")]
pub mod convolution;
pub mod dense;
#[cfg(all(feature = "wide", not(target_os = "none")))]
pub mod elementary;
#[cfg(feature = "i16")]
pub mod fixed;
#[cfg(feature = "adapter")]
pub mod frozen;
pub mod gradient;
#[cfg(feature = "network")]
pub mod layer;
pub mod least_squares;
#[cfg(feature = "ridge-choice")]
pub mod leave_one_out;
#[cfg(feature = "learned-prior")]
pub mod posterior;
pub mod project;
pub mod qr_update;
pub mod rank;
#[cfg(feature = "recurrent")]
pub mod recurrent;
pub(crate) mod vector;

#[cfg(feature = "network")]
pub use layer::Layer;

/// Values of four consecutive samples, one per sample; called a *four* in the documentation.
pub type Four = [f32; 4];

/// Returns the largest magnitude, or a NaN if there is one. Compares magnitudes by their bits, which have the
/// same order as their values: this is fast even on cores without floating point.
#[must_use]
#[inline(never)]
pub fn largest(values: &[f32]) -> f32 {
    f32::from_bits(values.iter().fold(0, |max_bits, value| max_bits.max(value.abs().to_bits())))
}

/// Returns true if no magnitude is larger than `limit` and no value is a NaN. Compares bits like [`largest`];
/// the sign of a difference is negative for a value that is too large.
#[must_use]
#[inline(never)]
pub fn all_within(values: &[f32], limit: f32) -> bool {
    let limit = limit.to_bits().cast_signed();
    let beyond = |value: &f32| limit.wrapping_sub(value.abs().to_bits().cast_signed());
    let (fours, remainder) = values.as_chunks();
    let mut sign = 0;
    for [v0, v1, v2, v3] in fours {
        sign |= beyond(v0) | beyond(v1) | beyond(v2) | beyond(v3);
    }
    remainder.iter().fold(sign, |sign, value| sign | beyond(value)) >= 0
}

/// Computes `row[j] += sum of a[s] b[j][s]` over four samples, in their order.
#[inline(never)]
fn add_products(row: &mut [f32], a: Four, b: &[Four]) {
    for (sum, b) in row.iter_mut().zip(b) {
        *sum = add_product(*sum, a, b);
    }
}

/// Computes [`add_products`] for two rows, and loads `b` only once.
#[inline(never)]
fn add_products_to_two(rows: (&mut [f32], &mut [f32]), a: [Four; 2], b: &[Four]) {
    for ((first, second), b) in rows.0.iter_mut().zip(rows.1).zip(b) {
        *first = add_product(*first, a[0], b);
        *second = add_product(*second, a[1], b);
    }
}

/// Computes `sum + sum of a[s] b[s]` over four samples, in their order.
#[inline(always)]
fn add_product(sum: f32, [a0, a1, a2, a3]: Four, [b0, b1, b2, b3]: &Four) -> f32 {
    sum + a0 * b0 + a1 * b1 + a2 * b2 + a3 * b3
}

/// Computes `sums[s] += x[s] factor` for four samples.
#[inline(always)]
pub(crate) fn add_scaled([s0, s1, s2, s3]: &mut Four, [x0, x1, x2, x3]: Four, factor: f32) {
    *s0 += x0 * factor;
    *s1 += x1 * factor;
    *s2 += x2 * factor;
    *s3 += x3 * factor;
}
