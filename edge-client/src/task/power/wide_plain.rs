//! Product `Y = A Z` in f32 on a host: the same operations in the same order for each value as on a device, so that all bits
//! are the same. Rows are processed in blocks that stay in the first cache between their projection, for which a vector holds
//! a feature of several rows, and the sums, for which it holds several features of a row.

use alloc::vec::Vec;

use fedspan_protocol::message::PowerRows;
use pulp::{Simd, WithSimd};

use super::PowerCounts;
use super::groups::{FEATURES, LANES_MAX, group, lanes_of, load, order};
use super::row::Row;
use crate::kernel::project::project;
use crate::kernel::vector::dot;
use crate::pace::Pace;
use crate::source::Samples;
use crate::task::Usage;

/// Number of rows of a block with a hundred features, which take half of the first cache.
const BLOCK: usize = 64;

/// Number of values of the rows of a block, if they are not more than one group.
const BLOCK_VALUES: usize = 100 * BLOCK;

/// Largest number of columns whose sums stay in registers.
const COLUMNS: usize = 6;

/// Sums of a product, and memory for a block of rows.
#[derive(Debug, Default)]
pub struct WideSums {
    features: usize,
    width: usize,
    /// Sums: r columns of vectors. The last vector of a column ends with the last feature and overlaps with the one before.
    sums: Vec<f32>,
    /// Rows of a group: d vectors.
    lanes: Vec<f32>,
    /// Scaled projections of a group: r vectors.
    projected: Vec<f32>,
    /// Scaled projections of the usable rows of a block, r values each.
    z: Vec<f32>,
    /// Numbers of the usable rows of a block.
    usable: Vec<usize>,
}

/// Samples and counters of a pass.
pub struct Pass<'a> {
    /// Kind of the rows.
    pub rows: PowerRows,
    /// Basis `Z`, d x r.
    pub basis: &'a [f32],
    /// Scratch memory for a target.
    pub y: &'a mut [f32],
    /// Counts of the rows.
    pub counts: &'a mut PowerCounts,
    /// Numbers of used and unusable rows.
    pub usage: &'a mut Usage,
}

impl WideSums {
    /// Sets all sums of a d x r product to zero. Returns false if the host has no vectors for it, or no memory.
    pub fn start(&mut self, d: usize, r: usize) -> bool {
        let lanes = lanes();
        if lanes < 4 || d < lanes || r == 0 {
            return false;
        }
        (self.features, self.width) = (d, r);
        self.sums.clear();
        let is_resized = resize(&mut self.sums, r * d.next_multiple_of(lanes))
            && resize(&mut self.lanes, d * lanes)
            && resize(&mut self.projected, r * lanes)
            && resize(&mut self.z, r * block(d, lanes));
        self.usable.clear();
        is_resized && self.usable.try_reserve(block(d, lanes)).is_ok()
    }

    /// Adds the rows of the samples of one call of the source.
    pub fn add(&mut self, samples: Samples<'_>, mut pass: Pass<'_>) {
        pulp::Arch::new().dispatch(Blocks { sums: self, samples, pass: &mut pass });
    }

    /// Writes the sums into a d x r matrix.
    pub fn store(&self, matrix: &mut [f32]) {
        let (d, r, lanes) = (self.features, self.width, lanes());
        for (number, column) in self.sums.chunks_exact(d.next_multiple_of(lanes).max(1)).enumerate() {
            for (vector, values) in column.chunks_exact(lanes).enumerate() {
                let first = (vector * lanes).min(d - lanes);
                for (target, sum) in matrix.iter_mut().skip(first * r + number).step_by(r).zip(values) {
                    *target = *sum;
                }
            }
        }
    }
}

/// Resizes to `count` values. Returns false if there is no memory.
fn resize(values: &mut Vec<f32>, count: usize) -> bool {
    let is_reserved = values.try_reserve(count.saturating_sub(values.len())).is_ok();
    if is_reserved {
        values.resize(count, 0.0);
    }
    is_reserved
}

/// Returns the number of rows of a block, whole groups.
fn block(d: usize, lanes: usize) -> usize {
    (BLOCK_VALUES / d.max(1) / lanes * lanes).max(lanes)
}

/// Returns the number of values of the host's vectors.
fn lanes() -> usize {
    struct Lanes;

    impl WithSimd for Lanes {
        type Output = usize;

        #[inline(always)]
        fn with_simd<S: Simd>(self, _simd: S) -> usize {
            if S::F32_LANES <= LANES_MAX { S::F32_LANES } else { 1 }
        }
    }

    pulp::Arch::new().dispatch(Lanes)
}

/// Computation of the blocks of some samples.
struct Blocks<'a, 'b> {
    sums: &'a mut WideSums,
    samples: Samples<'a>,
    pass: &'a mut Pass<'b>,
}

impl WithSimd for Blocks<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { sums, samples, pass } = self;
        let d = sums.features.max(1);
        let (order, rows) = (order(simd), block(d, S::F32_LANES));
        for (number, x) in samples.x.chunks(rows * d).enumerate() {
            sums.usable.clear();
            load(x);
            let mut index = 0;
            for x in x.chunks(S::F32_LANES * d) {
                let count = x.len() / d;
                if 2 * count < S::F32_LANES {
                    for (row, x) in x.chunks_exact(d).enumerate() {
                        let sample = (samples, number * rows + index + row);
                        sums.project_one(x, index + row, sample, pass);
                    }
                } else {
                    sums.project_group(simd, &order, x, index, (samples, number * rows + index), pass);
                }
                index += count;
            }
            sums.accumulate(simd, x);
        }
    }
}

impl WideSums {
    /// Projects row `index` of a block, which is the sample with this number.
    fn project_one(
        &mut self,
        x: &[f32],
        index: usize,
        (samples, number): (Samples<'_>, usize),
        pass: &mut Pass<'_>,
    ) {
        let r = self.width;
        let row = Row::new(pass.rows, dot(x, x, 1), samples.targets, number, pass.y);
        let used = self.usable.len();
        if let (Some(row), Some(z)) = (row, self.z.get_mut(used * r..(used + 1) * r)) {
            project(pass.basis, x, z, Pace::NONE);
            z.iter_mut().for_each(|z| *z = row.scale(*z));
            self.usable.push(index);
        }
        pass.count(row);
    }

    /// Projects a group of rows that begins at row `first` of a block, with the sample of this number.
    #[inline(always)]
    fn project_group<S: Simd>(
        &mut self,
        simd: S,
        order: &[usize; LANES_MAX],
        x: &[f32],
        first: usize,
        (samples, number): (Samples<'_>, usize),
        pass: &mut Pass<'_>,
    ) {
        let (d, r) = (self.features, self.width);
        let Some(group) = group(x, d) else { return };
        let lanes = S::as_mut_simd_f32s(&mut self.lanes).0;
        let fours = d / FEATURES;
        for (four, lanes) in lanes.chunks_exact_mut(FEATURES).enumerate() {
            lanes.copy_from_slice(&lanes_of(simd, &group, four * FEATURES));
        }
        if fours * FEATURES < d
            && let Some(last) = lanes.last_chunk_mut()
        {
            *last = lanes_of(simd, &group, d - FEATURES);
        }
        let projected = S::as_mut_simd_f32s(&mut self.projected).0;
        let mut squared_norms = simd.splat_f32s(0.0);
        let mut column = 0;
        while column < r {
            let count = columns(r - column);
            let (basis, lanes) = (pass.basis, &*lanes);
            let target = projected.get_mut(column..).unwrap_or_default();
            squared_norms = match count {
                1 => project_tile::<S, 1>(simd, lanes, basis, r, column, target),
                2 => project_tile::<S, 2>(simd, lanes, basis, r, column, target),
                3 => project_tile::<S, 3>(simd, lanes, basis, r, column, target),
                4 => project_tile::<S, 4>(simd, lanes, basis, r, column, target),
                5 => project_tile::<S, 5>(simd, lanes, basis, r, column, target),
                _ => project_tile::<S, COLUMNS>(simd, lanes, basis, r, column, target),
            };
            column += count;
        }
        let (mut norms, mut weights) = ([0.0; LANES_MAX], [0.0; LANES_MAX]);
        if let Some(target) = S::as_mut_simd_f32s(&mut norms).0.first_mut() {
            *target = squared_norms;
        }
        let count = x.len() / d.max(1);
        let mut rows = [None; LANES_MAX];
        for ((&row, norm), weight) in order.iter().take(S::F32_LANES).zip(norms).zip(&mut weights) {
            if row < count
                && let Some(target) = rows.get_mut(row)
            {
                *target = Row::new(pass.rows, norm, samples.targets, number + row, pass.y);
                *weight = target.map_or(0.0, |row: Row| row.weight);
            }
        }
        let first_vector = |values: &[f32; LANES_MAX]| S::as_simd_f32s(values).0.first().copied();
        let Some(weights) = first_vector(&weights) else { return };
        let is_clipped = simd.greater_than_f32s(simd.mul_f32s(weights, squared_norms), simd.splat_f32s(1.0));
        for z in projected.iter_mut() {
            let clipped = simd.div_f32s(*z, squared_norms);
            *z = simd.select_f32s(is_clipped, clipped, simd.mul_f32s(*z, weights));
        }
        for (row, of_sample) in rows.into_iter().take(count).enumerate() {
            pass.count(of_sample);
            let used = self.usable.len();
            let lane = order.iter().position(|other| *other == row);
            let target = self.z.get_mut(used * r..(used + 1) * r);
            if let (Some(_), Some(lane), Some(target)) = (of_sample, lane, target) {
                for (target, z) in target.iter_mut().zip(self.projected.chunks_exact(S::F32_LANES)) {
                    *target = z.get(lane).copied().unwrap_or_default();
                }
                self.usable.push(first + row);
            }
        }
    }

    /// Adds the products of the usable rows of a block and their scaled projections.
    #[inline(always)]
    fn accumulate<S: Simd>(&mut self, simd: S, x: &[f32]) {
        let (d, r) = (self.features, self.width);
        let sums = S::as_mut_simd_f32s(&mut self.sums).0;
        let rows = Rows { x, d, z: &self.z, r, usable: &self.usable };
        let vectors = d.div_ceil(S::F32_LANES);
        let mut column = 0;
        while column < r {
            let count = columns(r - column);
            let sums = sums.get_mut(column * vectors..(column + count) * vectors).unwrap_or_default();
            match count {
                1 => rows.add_columns::<S, 8, 1>(simd, column, vectors, sums),
                2 => rows.add_columns::<S, 6, 2>(simd, column, vectors, sums),
                3 => rows.add_columns::<S, 4, 3>(simd, column, vectors, sums),
                4 => rows.add_columns::<S, 3, 4>(simd, column, vectors, sums),
                5 => rows.add_columns::<S, 2, 5>(simd, column, vectors, sums),
                _ => rows.add_columns::<S, 2, COLUMNS>(simd, column, vectors, sums),
            }
            column += count;
        }
    }
}

impl Pass<'_> {
    /// Counts a row; `None` if it is unusable.
    fn count(&mut self, row: Option<Row>) {
        self.usage.count(1, row.is_some());
        (self.counts.rows, self.counts.unusable) = (self.usage.samples, self.usage.skipped);
        let clipped = u32::from(row.is_some_and(Row::is_clipped));
        self.counts.clipped = self.counts.clipped.saturating_add(clipped);
    }
}

/// Returns how many of the remaining columns are computed next.
const fn columns(remaining: usize) -> usize {
    if remaining <= COLUMNS { remaining } else { 4 }
}

/// Computes columns `column..column + C` of the projections of a group, and the squared norms of its rows.
#[inline(always)]
fn project_tile<S: Simd, const C: usize>(
    simd: S,
    lanes: &[S::f32s],
    basis: &[f32],
    r: usize,
    column: usize,
    target: &mut [S::f32s],
) -> S::f32s {
    let mut sums = [simd.splat_f32s(0.0); C];
    let mut squared_norms = simd.splat_f32s(0.0);
    for (x, basis) in lanes.iter().zip(basis.chunks_exact(r)) {
        let Some(basis) = basis.get(column..).and_then(<[f32]>::first_chunk::<C>) else { break };
        squared_norms = simd.add_f32s(squared_norms, simd.mul_f32s(*x, *x));
        for (sum, z) in sums.iter_mut().zip(basis) {
            *sum = simd.add_f32s(*sum, simd.mul_f32s(*x, simd.splat_f32s(*z)));
        }
    }
    if let Some(target) = target.first_chunk_mut() {
        *target = sums;
    }
    squared_norms
}

/// Usable rows of a block with their scaled projections.
struct Rows<'a> {
    x: &'a [f32],
    d: usize,
    z: &'a [f32],
    r: usize,
    usable: &'a [usize],
}

impl Rows<'_> {
    /// Adds `C` columns of products to their sums, `V` vectors of features at a time.
    #[inline(always)]
    fn add_columns<S: Simd, const V: usize, const C: usize>(
        &self,
        simd: S,
        column: usize,
        vectors: usize,
        sums: &mut [S::f32s],
    ) {
        let mut vector = 0;
        while vector + V <= vectors {
            self.add_tile::<S, V, C>(simd, column, vector, vectors, sums);
            vector += V;
        }
        while vector < vectors {
            self.add_tile::<S, 1, C>(simd, column, vector, vectors, sums);
            vector += 1;
        }
    }

    /// Adds products of vectors `vector..vector + V` of features and columns `column..column + C`, one row after the other.
    #[inline(always)]
    fn add_tile<S: Simd, const V: usize, const C: usize>(
        &self,
        simd: S,
        column: usize,
        vector: usize,
        vectors: usize,
        sums: &mut [S::f32s],
    ) {
        let first: [usize; V] =
            core::array::from_fn(|number| ((vector + number) * S::F32_LANES).min(self.d - S::F32_LANES));
        let mut tile = [[simd.splat_f32s(0.0); V]; C];
        for (tile, sums) in tile.iter_mut().zip(sums.chunks_exact(vectors)) {
            let Some(sums) = sums.get(vector..).and_then(|sums| sums.first_chunk()) else { return };
            *tile = *sums;
        }
        for (row, z) in self.usable.iter().zip(self.z.chunks_exact(self.r)) {
            let Some(x) = self.x.get(row * self.d..(row + 1) * self.d) else { break };
            let Some(z) = z.get(column..).and_then(<[f32]>::first_chunk::<C>) else { break };
            let mut lanes = [simd.splat_f32s(0.0); V];
            for (lanes, first) in lanes.iter_mut().zip(first) {
                let Some(x) = x.get(first..first + S::F32_LANES) else { return };
                if let [x] = S::as_simd_f32s(x).0 {
                    *lanes = *x;
                }
            }
            for (tile, z) in tile.iter_mut().zip(z) {
                let z = simd.splat_f32s(*z);
                for (sum, x) in tile.iter_mut().zip(lanes) {
                    *sum = simd.add_f32s(*sum, simd.mul_f32s(x, z));
                }
            }
        }
        for (tile, sums) in tile.iter().zip(sums.chunks_exact_mut(vectors)) {
            if let Some(sums) = sums.get_mut(vector..vector + V) {
                sums.copy_from_slice(tile);
            }
        }
    }
}
