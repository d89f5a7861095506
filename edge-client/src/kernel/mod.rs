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

pub mod fold;
pub mod gradient;
pub mod least_squares;
pub mod project;
pub mod rank;

/// One value of each of four consecutive samples.
pub type Four = [f32; 4];

/// The largest magnitude, or a NaN if there is one: the bits of floats without sign are in the order of
/// their values, and comparing those is quick on cores without floating point too.
#[must_use]
pub fn largest(values: &[f32]) -> f32 {
    f32::from_bits(values.iter().fold(0, |most, value| most.max(value.abs().to_bits())))
}

/// `row[j] += sum of a[s] b[j][s]` over four samples, in their order.
#[inline(never)]
fn add_products(row: &mut [f32], a: Four, b: &[Four]) {
    for (sum, b) in row.iter_mut().zip(b) {
        *sum = a.iter().zip(b).fold(*sum, |sum, (a, b)| sum + a * b);
    }
}
