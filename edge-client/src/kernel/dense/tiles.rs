//! Tiles: sums of a few rows and columns at a time that stay in registers, as many as the core has.

use core::ops::Range;

/// A kernel on one set of slices.
pub trait Kernel {
    /// Works out all tiles, of at most `ROWS` x `WIDTH`: with [`cover`], or in pieces that fit a cache.
    fn run<const ROWS: usize, const WIDTH: usize>(self);
}

/// A matrix of sums.
pub trait Tiles {
    /// Works out `R` rows from `row` on and `C` columns from `column` on. They are all there.
    fn tile<const R: usize, const C: usize>(&mut self, row: usize, column: usize);
}

/// Tiles of a core with few registers, as most microcontrollers have. Below eight lanes a host gets them too.
#[inline(always)]
fn run_narrow(kernel: impl Kernel) {
    kernel.run::<2, 4>();
}

/// Runs a kernel.
#[cfg(not(all(feature = "wide", not(target_os = "none"))))]
#[inline(always)]
pub fn dispatch(kernel: impl Kernel) {
    run_narrow(kernel);
}

/// Runs a kernel, compiled for the widest vectors that this machine turns out to have.
#[cfg(all(feature = "wide", not(target_os = "none")))]
#[inline(always)]
pub fn dispatch(kernel: impl Kernel) {
    pulp::Arch::new().dispatch(Widest(kernel));
}

#[cfg(all(feature = "wide", not(target_os = "none")))]
struct Widest<K>(K);

#[cfg(all(feature = "wide", not(target_os = "none")))]
impl<K: Kernel> pulp::WithSimd for Widest<K> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        // Ten sums of eight lanes: enough to hide the latency of an addition, and they fit 16 registers with what
        // they are summed from.
        if S::F32_LANES < 8 { run_narrow(self.0) } else { self.0.run::<5, 16>() }
    }
}

/// All tiles of `rows` x `columns`: strips of columns, and down each strip.
#[inline(always)]
pub fn cover<const ROWS: usize, const WIDTH: usize>(
    tiles: &mut impl Tiles,
    rows: Range<usize>,
    columns: usize,
) {
    let mut column = 0;
    column = strips::<ROWS, WIDTH, 16>(tiles, &rows, column, columns);
    column = strips::<ROWS, WIDTH, 8>(tiles, &rows, column, columns);
    column = strips::<ROWS, WIDTH, 4>(tiles, &rows, column, columns);
    if WIDTH > 4 {
        column = strips::<ROWS, WIDTH, 2>(tiles, &rows, column, columns);
    }
    strips::<ROWS, WIDTH, 1>(tiles, &rows, column, columns);
}

/// As many strips of `C` columns as there are. Returns the first column that is left.
#[inline(always)]
fn strips<const ROWS: usize, const WIDTH: usize, const C: usize>(
    tiles: &mut impl Tiles,
    rows: &Range<usize>,
    mut column: usize,
    columns: usize,
) -> usize {
    while C <= WIDTH && column + C <= columns {
        let mut row = rows.start;
        while row < rows.end {
            // Even tiles: of six rows three and three, for one alone would wait for its own sums.
            let left = rows.end - row;
            let count = left.div_ceil(left.div_ceil(ROWS));
            match count {
                5 if ROWS >= 5 => tiles.tile::<5, C>(row, column),
                4 if ROWS >= 4 => tiles.tile::<4, C>(row, column),
                3 if ROWS >= 3 => tiles.tile::<3, C>(row, column),
                2 if ROWS >= 2 => tiles.tile::<2, C>(row, column),
                _ => tiles.tile::<1, C>(row, column),
            }
            row += count;
        }
        column += C;
    }
    column
}

/// `C` values from `first` on, if they are there.
#[inline(always)]
pub fn run_of<const C: usize>(values: &[f32], first: usize) -> Option<&[f32; C]> {
    values.get(first..)?.first_chunk()
}

/// The same, to change.
#[inline(always)]
pub fn run_of_mut<const C: usize>(values: &mut [f32], first: usize) -> Option<&mut [f32; C]> {
    values.get_mut(first..)?.first_chunk_mut()
}

/// `R` rows of `length` values each that start at `row`, where rows are `stride` apart.
#[inline(always)]
pub fn rows_of<const R: usize>(
    values: &[f32],
    row: usize,
    stride: usize,
    length: usize,
) -> Option<[&[f32]; R]> {
    let mut rows = [&[][..]; R];
    for (r, slot) in rows.iter_mut().enumerate() {
        *slot = values.get((row + r) * stride..)?.get(..length)?;
    }
    Some(rows)
}

/// `sums[r][c] += rows[r][place] b[c]`, for a place that all rows have.
#[inline(always)]
pub fn add_products<const R: usize, const C: usize>(
    sums: &mut [[f32; C]; R],
    rows: &[&[f32]; R],
    place: usize,
    b: &[f32; C],
) {
    for (sums, row) in sums.iter_mut().zip(rows) {
        add_scaled(sums, row[place], b);
    }
}

/// `sums[c] += a b[c]`.
#[inline(always)]
pub fn add_scaled<const C: usize>(sums: &mut [f32; C], a: f32, b: &[f32; C]) {
    for (sum, b) in sums.iter_mut().zip(b) {
        *sum += a * b;
    }
}
