//! Arithmetic on slices: no generics on sizes, no state, no allocation.
//!
//! They live here as plain functions so that they are compiled in *this* crate: a firmware built with
//! `opt-level = "s"` keeps them fast with one line in its `Cargo.toml`. What is called from outside is not
//! inlined, because inside of a small function it would be compiled small.
//!
//! Letters: `d` features, `k` width of the representation, `c` outputs, `m` samples. All matrices are
//! row-major. Every sum runs in a fixed order, so the bits are the same on every core and for every way
//! in which a source hands out its samples. What is there for one sample and for four adds the same
//! products in the same order; four need fewer loads and stores.

#[cfg(feature = "i16")]
pub mod fixed;
pub mod fold;
pub mod gradient;
pub mod least_squares;
pub mod project;
pub mod rank;
pub(crate) mod vector;

/// One value of each of four consecutive samples.
pub type Four = [f32; 4];

/// The largest magnitude, or a NaN if there is one: the bits of floats without sign are in the order of
/// their values, and comparing those is quick on cores without floating point too.
#[must_use]
pub fn largest(values: &[f32]) -> f32 {
    f32::from_bits(values.iter().fold(0, |most, value| most.max(value.abs().to_bits())))
}

/// True if no magnitude is larger than `most`, and none of the values is a NaN. By their bits, as [`largest`]:
/// the sign of a difference remembers that one was too large.
#[must_use]
#[inline(never)]
pub fn all_within(values: &[f32], most: f32) -> bool {
    let most = most.to_bits().cast_signed();
    values.iter().fold(0, |sign, value| sign | most.wrapping_sub(value.abs().to_bits().cast_signed())) >= 0
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

fn add_product(sum: f32, a: Four, b: &Four) -> f32 {
    a.iter().zip(b).fold(sum, |sum, (a, b)| sum + a * b)
}
