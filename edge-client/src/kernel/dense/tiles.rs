//! Tiles: sums of a few rows and columns at a time that stay in registers, as many as the core has.

use core::ops::Range;

use super::lanes::{One, Vector};

/// A kernel on one set of slices.
pub trait Kernel {
    /// Does the work in tiles of at most `ROWS` rows and `COUNT` vectors, which are `WIDTH` columns or fewer.
    fn run<V: Vector, const ROWS: usize, const COUNT: usize, const WIDTH: usize>(self, v: V);
}

/// A matrix of sums.
pub trait Tiles {
    /// Works out `R` rows from `row` on and `C` vectors of columns from `column` on. They are all there: where
    /// not, nothing comes of it.
    fn tile<V: Vector, const R: usize, const C: usize>(
        &mut self,
        v: V,
        row: usize,
        column: usize,
    ) -> Option<()>;
}

/// Runs a kernel in tiles for a core of few registers, as most microcontrollers have.
#[cfg(not(all(feature = "wide", not(target_os = "none"))))]
#[inline(always)]
pub fn dispatch(kernel: impl Kernel) {
    kernel.run::<One, 2, 4, 4>(One);
}

/// Runs a kernel, compiled for the widest vectors that this machine turns out to have.
#[cfg(all(feature = "wide", not(target_os = "none")))]
#[inline(always)]
pub fn dispatch(kernel: impl Kernel) {
    struct Widest<K>(K);

    impl<K: Kernel> pulp::WithSimd for Widest<K> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: pulp::Simd>(self, simd: S) {
            // Ten vectors of sums hide the latency of an addition, and fit sixteen registers with what they are
            // summed from. Two vectors of sixteen lanes are the most there is.
            self.0.run::<_, 5, 2, 32>(super::lanes::Widest(simd));
        }
    }

    pulp::Arch::new().dispatch(Widest(kernel));
}

/// All tiles of `rows` x `columns`: strips of columns, and down each strip.
#[inline(always)]
pub fn cover<V: Vector, const ROWS: usize, const COUNT: usize>(
    tiles: &mut impl Tiles,
    v: V,
    rows: Range<usize>,
    columns: usize,
) {
    let mut column = 0;
    column = strips::<V, ROWS, COUNT>(tiles, v, &rows, column, columns);
    column = strips::<V, ROWS, 1>(tiles, v, &rows, column, columns);
    if V::LANES > 1 {
        column = strips::<One, ROWS, 2>(tiles, One, &rows, column, columns);
        strips::<One, ROWS, 1>(tiles, One, &rows, column, columns);
    }
}

/// As many strips of `C` vectors as there are. Returns the first column that is left.
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
            // Even tiles: of six rows three and three, for one alone would wait for its own sums.
            let left = rows.end - row;
            let count = left.div_ceil(left.div_ceil(ROWS));
            let done = match count {
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

/// `C` vectors from `first` on.
#[inline(always)]
pub fn load<V: Vector, const C: usize>(v: V, values: &[f32], first: usize) -> Option<[V::Lanes; C]> {
    let values = values.get(first..)?.get(..C * V::LANES)?;
    let mut vectors = [v.splat(0.0); C];
    for (vector, values) in vectors.iter_mut().zip(values.chunks_exact(V::LANES)) {
        *vector = v.load(values)?;
    }
    Some(vectors)
}

/// Writes `C` vectors from `first` on.
#[inline(always)]
pub fn store<V: Vector, const C: usize>(
    v: V,
    values: &mut [f32],
    first: usize,
    vectors: &[V::Lanes; C],
) -> Option<()> {
    let values = values.get_mut(first..)?.get_mut(..C * V::LANES)?;
    for (vector, values) in vectors.iter().zip(values.chunks_exact_mut(V::LANES)) {
        v.store(values, *vector)?;
    }
    Some(())
}

/// `sums += a b`.
#[inline(always)]
pub fn add_scaled<V: Vector, const C: usize>(v: V, sums: &mut [V::Lanes; C], a: f32, b: &[V::Lanes; C]) {
    let a = v.splat(a);
    for (sum, b) in sums.iter_mut().zip(b) {
        *sum = v.add(*sum, v.multiply(a, *b));
    }
}

/// `sums[r] += rows[r][place] b`, for a place that all rows have.
#[inline(always)]
pub fn add_products<V: Vector, const R: usize, const C: usize>(
    v: V,
    sums: &mut [[V::Lanes; C]; R],
    rows: &[&[f32]; R],
    place: usize,
    b: &[V::Lanes; C],
) {
    for (sums, row) in sums.iter_mut().zip(rows) {
        add_scaled(v, sums, row[place], b);
    }
}

/// `R` rows of `length` values each, from `row` on, where rows are `stride` apart.
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
