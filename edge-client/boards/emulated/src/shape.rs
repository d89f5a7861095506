//! Shape of the measured model, selected by a Cargo feature because the sizes are const generics.

#[cfg(any(
    all(feature = "shape-32-4-32", feature = "shape-20-2-20"),
    all(feature = "shape-32-4-32", feature = "shape-64-4-32"),
    all(feature = "shape-32-4-32", feature = "shape-128-8-32"),
    all(feature = "shape-20-2-20", feature = "shape-64-4-32"),
    all(feature = "shape-20-2-20", feature = "shape-128-8-32"),
    all(feature = "shape-64-4-32", feature = "shape-128-8-32"),
))]
compile_error!("one shape at a time");

/// `d`, `k`, `m`, and the number of measured updates, which is large enough that the error of the mean is a
/// few instructions.
const CHOSEN: (usize, usize, usize, u32) = if cfg!(feature = "shape-128-8-32") {
    (128, 8, 32, 16)
} else if cfg!(feature = "shape-64-4-32") {
    (64, 4, 32, 32)
} else if cfg!(feature = "shape-32-4-32") {
    (32, 4, 32, 64)
} else {
    (20, 2, 20, 64)
};

/// `d`, the number of features per sample.
pub const D: usize = CHOSEN.0;
/// `k`, the width of the representation.
pub const K: usize = CHOSEN.1;
/// `m`, the number of samples.
pub const M: usize = CHOSEN.2;
/// Number of measured updates.
pub const REPEATS: u32 = CHOSEN.3;
