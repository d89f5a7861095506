//! Columns of a basis of integers and of the sums of its products on a host.
//!
//! Sums of integers do not depend on their order, so the columns of the basis and of the sums are stored one after the
//! other, which is the order in which vectors of integers are loaded.

use alloc::vec::Vec;

use pulp::NullaryFnOnce;
use zeroize::Zeroize;

#[cfg(target_arch = "x86_64")]
use super::avx2::Block;
use super::bit_cast::{from_int, to_int};
use super::integer_rows::{ONE, WORD, Word, words};
use crate::privacy::FRACTION;

/// Sums of [`WORD`] features.
pub type Sums = [i32; WORD];

/// Columns of a basis and of the sums of its products.
pub struct Columns {
    features: usize,
    /// Basis, r columns of words. Its integers are below 2^15.
    basis: Vec<Word>,
    /// Sums, r columns.
    sums: Vec<Sums>,
    /// Projections of the rows of a block with a constant, r for each row.
    pairs: Vec<i32>,
    /// Number of bits by which a product is rounded.
    shift: u32,
}

impl Columns {
    /// Transposes a d x r basis of integers, for blocks of at most `rows` rows. Returns `None` if there is no memory.
    pub fn new(basis: &[f32], d: usize, r: usize, grid: u32, rows: usize) -> Option<Self> {
        let (mut columns, mut sums, mut pairs) = (Vec::new(), Vec::new(), Vec::new());
        let words = words(d);
        columns.try_reserve_exact(words * r).ok()?;
        sums.try_reserve_exact(words * r).ok()?;
        pairs.try_reserve_exact(rows * r).ok()?;
        sums.resize(words * r, [0; WORD]);
        pairs.resize(rows * r, 0);
        columns.resize(words * r, [0; WORD]);
        for (number, column) in columns.chunks_exact_mut(words.max(1)).enumerate() {
            let values = basis.iter().skip(number).step_by(r.max(1));
            #[allow(clippy::cast_possible_truncation, reason = "below 2^15")]
            for (target, &value) in column.as_flattened_mut().iter_mut().zip(values) {
                *target = to_int(value) as i16;
            }
        }
        let shift = (2 * FRACTION).saturating_sub(grid);
        Some(Self { features: d, basis: columns, sums, pairs, shift })
    }

    /// Adds rows: for each row its projection `p_j = round(z_j^T q / 2^15)`, and then `round(q_i p_j / 2^shift)`. The bounds of
    /// [`project`](super::fixed_point::project) and [`accumulate`](super::fixed_point::accumulate) hold for any order of the
    /// terms.
    pub fn add(&mut self, rows: &[Word]) {
        #[cfg(target_arch = "x86_64")]
        if let Some(simd) = pulp::x86::V3::try_new() {
            let Self { features, basis, sums, pairs, shift } = self;
            let words = words(*features).max(1);
            let block = Block { rows, words, basis, sums, pairs, shift: *shift };
            if block.add(simd) {
                return;
            }
        }
        pulp::Arch::new().dispatch(OneByOne { columns: self, rows });
    }

    /// Adds `count` rows of zeros with [`ONE`] at `feature`. Their sum has the bounds of the sum of any rows.
    pub fn add_units(&mut self, feature: usize, count: u32) {
        let words = words(self.features).max(1);
        let half = 1 << self.shift.saturating_sub(1);
        for (column, sums) in self.basis.chunks_exact(words).zip(self.sums.chunks_exact_mut(words)) {
            let (z, sum) = (column.as_flattened().get(feature), sums.as_flattened_mut().get_mut(feature));
            let (Some(&z), Some(sum)) = (z, sum) else { continue };
            *sum += count.cast_signed() * ((ONE * i32::from(z) + half) >> self.shift);
        }
    }

    /// Writes the sums into a d x r matrix, as the bits of floats.
    pub fn store(&self, matrix: &mut [f32]) {
        let words = words(self.features).max(1);
        let r = self.sums.len() / words;
        for (number, column) in self.sums.chunks_exact(words).enumerate() {
            let targets = matrix.iter_mut().skip(number).step_by(r.max(1));
            for (target, &sum) in targets.zip(column.as_flattened()) {
                *target = from_int(sum);
            }
        }
    }
}

/// Addition of one row after the other.
struct OneByOne<'a> {
    columns: &'a mut Columns,
    rows: &'a [Word],
}

impl NullaryFnOnce for OneByOne<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Columns { features, basis, sums, shift, .. } = self.columns;
        let (words, half) = (words(*features).max(1), 1 << shift.saturating_sub(1));
        for row in self.rows.chunks_exact(words) {
            let row = row.as_flattened();
            for (column, sums) in basis.chunks_exact(words).zip(sums.chunks_exact_mut(words)) {
                let mut dot = 0;
                for (&z, &q) in column.as_flattened().iter().zip(row) {
                    dot += i32::from(z) * i32::from(q);
                }
                let p = (dot + ONE / 2) >> FRACTION;
                for (sum, &q) in sums.as_flattened_mut().iter_mut().zip(row) {
                    *sum += (i32::from(q) * p + half) >> *shift;
                }
            }
        }
    }
}

impl Drop for Columns {
    fn drop(&mut self) {
        self.sums.as_flattened_mut().zeroize();
        self.pairs.as_mut_slice().zeroize();
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use alloc::vec;

    use super::*;

    /// Row of norm one at most, or minus one at the first feature.
    fn row(state: &mut u64, d: usize, is_unit: bool) -> Vec<Word> {
        let mut next = || {
            *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (*state >> 40) as f64 / f64::from(1 << 24) - 0.5
        };
        let values: Vec<f64> = (0..d).map(|_| next()).collect();
        let norm = values.iter().map(|value| value * value).sum::<f64>().sqrt();
        let mut row = vec![[0; WORD]; words(d)];
        for (target, value) in row.as_flattened_mut().iter_mut().zip(values) {
            *target = if is_unit { 0 } else { (value / norm * 32_700.0) as i16 };
        }
        if is_unit {
            row[0][0] = i16::MIN;
        }
        row
    }

    #[test]
    fn avx2_adds_the_integers_of_portable_code() {
        let Some(simd) = pulp::x86::V3::try_new() else { return };
        let mut state = 1;
        for case in 0..200 {
            let (d, r, rows) = ([1, 3, 15, 16, 17, 40, 100][case % 7], 1 + case % 8, 1 + case % 64);
            let shift = 15 + case as u32 % 16;
            let mut basis: Vec<f32> = vec![];
            for i in 0..d {
                for j in 0..r {
                    let z = row(&mut state, d, false)[0][0] / 2 + i16::from(i == j);
                    basis.push(from_int(z.into()));
                }
            }
            let mut block = Vec::new();
            for number in 0..rows {
                block.extend(row(&mut state, d, number % 11 == 3));
            }
            let columns = || Columns::new(&basis, d, r, 30 - shift, 64).unwrap();
            let (mut portable, mut with_avx2) = (columns(), columns());
            OneByOne { columns: &mut portable, rows: &block }.call();
            let Columns { basis, sums, pairs, .. } = &mut with_avx2;
            let added = Block { rows: &block, words: words(d), basis, sums, pairs, shift }.add(simd);
            assert!(added, "case {case}");
            assert_eq!(with_avx2.sums, portable.sums, "case {case}: d={d} r={r} rows={rows} shift={shift}");
        }
    }

    /// The projection of a row onto an equal column is about 2^15.
    #[test]
    fn avx2_adds_nothing_if_a_projection_does_not_fit() {
        let Some(simd) = pulp::x86::V3::try_new() else { return };
        let basis = [-32_767, 260].map(from_int);
        let mut columns = Columns::new(&basis, 2, 1, 13, 64).unwrap();
        let mut block = vec![[0; WORD]; 9];
        (block[8][0], block[8][1]) = (-32_767, 260);
        let Columns { basis, sums, pairs, shift, .. } = &mut columns;
        assert!(!Block { rows: &block, words: 1, basis, sums, pairs, shift: *shift }.add(simd));
        assert_eq!(columns.sums, [[0; WORD]]);
        columns.add(&block);
        let p = (32_767 * 32_767 + 260 * 260 + ONE / 2) >> FRACTION;
        assert_eq!(p, ONE);
        let rounded = |q: i32| (q * p + (1 << 16)) >> 17;
        assert_eq!(columns.sums[0][..2], [rounded(-32_767), rounded(260)]);
    }
}
