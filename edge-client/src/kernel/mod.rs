//! Arithmetic on slices: no generics on sizes, no state, no allocation.
//!
//! They live here as plain functions so that they are compiled in *this* crate: a firmware built with
//! `opt-level = "s"` keeps them fast with one line in its `Cargo.toml`.
//!
//! Letters: `d` features, `k` width of the representation, `c` outputs, `m` samples. All matrices are
//! row-major. Every sum runs in a fixed order, so the bits are the same on every core and for every way
//! in which a source hands out its samples.

pub mod gradient;
pub mod least_squares;
pub mod project;
pub mod rank;
