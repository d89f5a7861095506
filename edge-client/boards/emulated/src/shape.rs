//! The shape that is measured: by feature, since its sizes are types.

#[cfg(any(
    all(feature = "shape-32-4-32", feature = "shape-20-2-20"),
    all(feature = "shape-32-4-32", feature = "shape-64-4-32"),
    all(feature = "shape-32-4-32", feature = "shape-128-8-32"),
    all(feature = "shape-20-2-20", feature = "shape-64-4-32"),
    all(feature = "shape-20-2-20", feature = "shape-128-8-32"),
    all(feature = "shape-64-4-32", feature = "shape-128-8-32"),
))]
compile_error!("one shape at a time");

/// d, k, m, and how many updates are run: each measured to a few instructions.
const CHOSEN: (usize, usize, usize, u32) = if cfg!(feature = "shape-128-8-32") {
    (128, 8, 32, 16)
} else if cfg!(feature = "shape-64-4-32") {
    (64, 4, 32, 32)
} else if cfg!(feature = "shape-32-4-32") {
    (32, 4, 32, 64)
} else {
    (20, 2, 20, 64)
};

/// `d`, length of a sample.
pub const D: usize = CHOSEN.0;
/// `k`, width of the representation.
pub const K: usize = CHOSEN.1;
/// `m`, samples.
pub const M: usize = CHOSEN.2;
/// Updates in one measurement.
pub const REPEATS: u32 = CHOSEN.3;
