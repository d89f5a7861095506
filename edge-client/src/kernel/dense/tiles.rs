//! Tiling of the dense kernels: the sums of a few rows and columns, as many as the core has registers, are
//! computed together.

use core::ops::Range;

use super::simd::{Fours, One, Vector};

/// Kernel of a dense layer, with its slices.
pub trait Kernel {
    /// Computes the kernel in tiles of at most `ROWS` rows and `COUNT` vectors, which are at most `WIDTH`
    /// columns.
    fn run<V: Vector, const ROWS: usize, const COUNT: usize, const WIDTH: usize>(self, v: V);
}

/// Matrix of sums that can be computed tile by tile.
pub trait Tiles {
    /// Computes the tile of `R` rows and `C` vectors of columns whose first element is at (`row`, `column`).
    /// Returns `None` if a slice is too short.
    fn tile<V: Vector, const R: usize, const C: usize>(
        &mut self,
        v: V,
        row: usize,
        column: usize,
    ) -> Option<()>;
}

/// Runs a kernel in tiles for a core with few registers and no vectors.
#[inline(always)]
fn run_narrow(kernel: impl Kernel) {
    kernel.run::<_, 1, 1, 4>(Fours);
}

/// Runs a kernel.
#[cfg(not(all(feature = "wide", not(target_os = "none"))))]
#[inline(always)]
pub fn dispatch(kernel: impl Kernel) {
    run_narrow(kernel);
}

/// Runs a kernel, compiled for the widest vectors of this machine.
#[cfg(all(feature = "wide", not(target_os = "none")))]
#[inline(always)]
pub fn dispatch(kernel: impl Kernel) {
    struct Widest<K>(K);

    impl<K: Kernel> pulp::WithSimd for Widest<K> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: pulp::Simd>(self, simd: S) {
            if S::F32_LANES < Fours::LANES {
                return run_narrow(self.0);
            }
            let v = super::simd::Widest(simd);
            if S::F32_LANES >= 16 {
                // Processors with vectors of sixteen lanes have 32 registers.
                return self.0.run::<_, 5, 4, 64>(v);
            }
            // Ten vectors of sums hide the latency of an addition, and fit sixteen registers together with
            // their operands. Two vectors have at most 16 columns.
            self.0.run::<_, 5, 2, 16>(v);
        }
    }

    pulp::Arch::new().dispatch(Widest(kernel));
}

/// Covers `rows` x `columns` with tiles: strip of columns by strip of columns, from the first row to the
/// last.
#[inline(always)]
pub fn cover<V: Vector, const ROWS: usize, const COUNT: usize>(
    tiles: &mut impl Tiles,
    v: V,
    rows: Range<usize>,
    columns: usize,
) {
    let mut column = 0;
    if COUNT > 1 {
        column = strips::<V, ROWS, COUNT>(tiles, v, &rows, column, columns);
    }
    column = strips::<V, ROWS, 1>(tiles, v, &rows, column, columns);
    if V::LANES > Fours::LANES {
        column = strips::<Fours, ROWS, 2>(tiles, Fours, &rows, column, columns);
        column = strips::<Fours, ROWS, 1>(tiles, Fours, &rows, column, columns);
    }
    if COUNT > 1 {
        column = strips::<One, ROWS, 2>(tiles, One, &rows, column, columns);
    }
    strips::<One, ROWS, 1>(tiles, One, &rows, column, columns);
}

/// Processes as many strips of `C` vectors as fit. Returns the first remaining column.
#[inline(always)]
fn strips<V: Vector, const ROWS: usize, const C: usize>(
    tiles: &mut impl Tiles,
    v: V,
    rows: &Range<usize>,
    mut column: usize,
    columns: usize,
) -> usize {
    while column + C * V::LANES <= columns {
        let mut row = rows.start;
        while row < rows.end {
            // Balances the heights of tiles, such as six rows as three and three: a tile of one row would
            // wait for its own sums.
            let rows_left = rows.end - row;
            let count = rows_left.div_ceil(rows_left.div_ceil(ROWS));
            let done = match count {
                6 if ROWS >= 6 => tiles.tile::<V, 6, C>(v, row, column),
                5 if ROWS >= 5 => tiles.tile::<V, 5, C>(v, row, column),
                4 if ROWS >= 4 => tiles.tile::<V, 4, C>(v, row, column),
                3 if ROWS >= 3 => tiles.tile::<V, 3, C>(v, row, column),
                2 if ROWS >= 2 => tiles.tile::<V, 2, C>(v, row, column),
                _ => tiles.tile::<V, 1, C>(v, row, column),
            };
            if done.is_none() {
                return columns;
            }
            row += count;
        }
        column += C * V::LANES;
    }
    column
}

// Loops over a tile are `while` loops: at `opt-level = "s"` the compiler removes those with one iteration,
// but not chains of iterators.

/// Loads `C` vectors from index `first` on.
#[inline(always)]
pub fn load<V: Vector, const C: usize>(v: V, values: &[f32], first: usize) -> Option<[V::Lanes; C]> {
    let values = values.get(first..)?.get(..C * V::LANES)?;
    let mut vectors = [v.splat(0.0); C];
    let mut c = 0;
    while c < C {
        vectors[c] = v.load(values.get(c * V::LANES..)?)?;
        c += 1;
    }
    Some(vectors)
}

/// Stores `C` vectors from index `first` on.
#[inline(always)]
pub fn store<V: Vector, const C: usize>(
    v: V,
    values: &mut [f32],
    first: usize,
    vectors: &[V::Lanes; C],
) -> Option<()> {
    let values = values.get_mut(first..)?.get_mut(..C * V::LANES)?;
    let mut c = 0;
    while c < C {
        v.store(values.get_mut(c * V::LANES..)?, vectors[c])?;
        c += 1;
    }
    Some(())
}

/// Computes `sums += a b`.
#[inline(always)]
pub fn add_scaled<V: Vector, const C: usize>(v: V, sums: &mut [V::Lanes; C], a: f32, b: &[V::Lanes; C]) {
    let a = v.splat(a);
    let mut c = 0;
    while c < C {
        sums[c] = v.add(sums[c], v.multiply(a, b[c]));
        c += 1;
    }
}

/// Computes `sums[r] += rows[r][index] b`.
#[inline(always)]
pub fn add_products<V: Vector, const R: usize, const C: usize>(
    v: V,
    sums: &mut [[V::Lanes; C]; R],
    rows: &[&[f32]; R],
    index: usize,
    b: &[V::Lanes; C],
) -> Option<()> {
    let mut r = 0;
    while r < R {
        add_scaled(v, &mut sums[r], *rows[r].get(index)?, b);
        r += 1;
    }
    Some(())
}

/// Returns `R` rows of `length` values each, from `row` on, with `stride` values between rows.
#[inline(always)]
pub fn rows_of<const R: usize>(
    values: &[f32],
    row: usize,
    stride: usize,
    length: usize,
) -> Option<[&[f32]; R]> {
    let mut rows = [&[][..]; R];
    let mut r = 0;
    while r < R {
        rows[r] = values.get((row + r) * stride..)?.get(..length)?;
        r += 1;
    }
    Some(rows)
}

/// Loads a tile of `R` x `C` vectors, with `stride` values between rows.
#[inline(always)]
pub fn load_tile<V: Vector, const R: usize, const C: usize>(
    v: V,
    values: &[f32],
    first: usize,
    stride: usize,
) -> Option<[[V::Lanes; C]; R]> {
    let mut tile = [[v.splat(0.0); C]; R];
    let mut r = 0;
    while r < R {
        tile[r] = load(v, values, first + r * stride)?;
        r += 1;
    }
    Some(tile)
}

/// Stores a tile of `R` x `C` vectors, with `stride` values between rows.
#[inline(always)]
pub fn store_tile<V: Vector, const R: usize, const C: usize>(
    v: V,
    values: &mut [f32],
    first: usize,
    stride: usize,
    tile: &[[V::Lanes; C]; R],
) -> Option<()> {
    let mut r = 0;
    while r < R {
        store(v, values, first + r * stride, &tile[r])?;
        r += 1;
    }
    Some(())
}
