//! Shape of the measured model, selected by a Cargo feature because the sizes are const generics.

/// Number of chosen shapes.
const CHOICES: usize = cfg!(feature = "shape-20-2-20") as usize
    + cfg!(feature = "shape-32-4-32") as usize
    + cfg!(feature = "shape-57-8-35") as usize
    + cfg!(feature = "shape-64-4-32") as usize
    + cfg!(feature = "shape-128-8-32") as usize;

const _: () = assert!(CHOICES <= 1, "one shape at a time");

/// `d`, `k`, `C`, `m`, and the number of measured updates, which is large enough that the error of the mean is a
/// few instructions.
const CHOSEN: (usize, usize, usize, usize, u32) = if cfg!(feature = "shape-128-8-32") {
    (128, 8, 1, 32, 16)
} else if cfg!(feature = "shape-57-8-35") {
    (57, 8, 7, 35, 16)
} else if cfg!(feature = "shape-64-4-32") {
    (64, 4, 1, 32, 32)
} else if cfg!(feature = "shape-32-4-32") {
    (32, 4, 1, 32, 64)
} else {
    (20, 2, 1, 20, 64)
};

/// `d`, the number of features per sample.
pub const D: usize = CHOSEN.0;
/// `k`, the width of the representation.
pub const K: usize = CHOSEN.1;
/// `C`, the number of outputs.
pub const C: usize = CHOSEN.2;
/// `m`, the number of samples.
pub const M: usize = CHOSEN.3;
/// Number of measured updates.
pub const REPEATS: u32 = CHOSEN.4;
