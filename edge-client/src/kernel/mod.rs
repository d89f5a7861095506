//! Arithmetic on slices: no generics on sizes, no state, no allocation.
//!
//! They are written for a firmware built with `opt-level = "s"`: what the compiler would unroll at 3 is written out,
//! because at "s" it leaves a loop a loop, and the loops are such that it finds loads that step on by themselves. So
//! small is fast (`tests/budgets.toml`).
//!
//! Letters: `d` features, `k` width of the representation, `c` outputs, `m` samples. All matrices are
//! row-major. Every sum runs in a fixed order, so the bits are the same on every core and for every way
//! in which a source hands out its samples. What is there for one sample and for four adds the same
//! products in the same order; four need fewer loads and stores.

pub mod constant_column;
#[cfg(feature = "convolution")]
pub mod convolution;
pub mod dense;
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
pub mod project;
pub mod qr_update;
pub mod rank;
#[cfg(feature = "recurrent")]
pub mod recurrent;
pub(crate) mod vector;

#[cfg(feature = "network")]
pub use layer::Layer;

/// One value of each of four consecutive samples.
pub type Four = [f32; 4];

/// The largest magnitude, or a NaN if there is one: the bits of floats without sign are in the order of
/// their values, and comparing those is quick on cores without floating point too.
#[must_use]
#[inline(never)]
pub fn largest(values: &[f32]) -> f32 {
    f32::from_bits(values.iter().fold(0, |most, value| most.max(value.abs().to_bits())))
}

/// True if no magnitude is larger than `most`, and none of the values is a NaN. By their bits, as [`largest`]:
/// the sign of a difference remembers that one was too large.
#[must_use]
#[inline(never)]
pub fn all_within(values: &[f32], most: f32) -> bool {
    let most = most.to_bits().cast_signed();
    let beyond = |value: &f32| most.wrapping_sub(value.abs().to_bits().cast_signed());
    let (fours, rest) = values.as_chunks();
    let mut sign = 0;
    for [v0, v1, v2, v3] in fours {
        sign |= beyond(v0) | beyond(v1) | beyond(v2) | beyond(v3);
    }
    rest.iter().fold(sign, |sign, value| sign | beyond(value)) >= 0
}

/// `row[j] += sum of a[s] b[j][s]` over four samples, in their order.
#[inline(never)]
fn add_products(row: &mut [f32], a: Four, b: &[Four]) {
    for (sum, b) in row.iter_mut().zip(b) {
        *sum = add_product(*sum, a, b);
    }
}

/// The same for two rows, which loads `b` once.
#[inline(never)]
fn add_products_to_two(rows: (&mut [f32], &mut [f32]), a: [Four; 2], b: &[Four]) {
    for ((first, second), b) in rows.0.iter_mut().zip(rows.1).zip(b) {
        *first = add_product(*first, a[0], b);
        *second = add_product(*second, a[1], b);
    }
}

/// `sum + sum of a[s] b[s]` over four samples, in their order.
#[inline(always)]
fn add_product(sum: f32, [a0, a1, a2, a3]: Four, [b0, b1, b2, b3]: &Four) -> f32 {
    sum + a0 * b0 + a1 * b1 + a2 * b2 + a3 * b3
}

/// `sums[s] += x[s] factor` for four samples.
#[inline(always)]
pub(crate) fn add_scaled([s0, s1, s2, s3]: &mut Four, [x0, x1, x2, x3]: Four, factor: f32) {
    *s0 += x0 * factor;
    *s1 += x1 * factor;
    *s2 += x2 * factor;
    *s3 += x3 * factor;
}
