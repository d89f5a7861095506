//! Which tiles a kernel works in: sums of a few rows and columns at a time that stay in registers.

/// A kernel on one set of slices. `ROWS` and `WIDTH` are the largest tile, 1 to 5 rows and 4, 8 or 16 columns.
pub trait Kernel {
    /// Does the work.
    fn run<const ROWS: usize, const WIDTH: usize>(self);
}

/// Runs a kernel in tiles for a core of few registers.
#[inline(always)]
pub fn dispatch(kernel: impl Kernel) {
    kernel.run::<2, 4>();
}
