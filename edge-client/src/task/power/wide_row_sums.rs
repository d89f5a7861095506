//! Integer sums of a noisy product on a host: the same integers as one row at a time on a device, computed with the
//! host's vectors from rows that stay in memory for all iterations of a round.
//!
//! Sums of integers do not depend on their order, so the columns of the basis and of the sums are stored one after the
//! other, which is the order in which vectors of integers are loaded.

use alloc::vec::Vec;

use fedspan_protocol::message::{DeclineReason, RoundId};
use zeroize::Zeroize;

use super::PowerCounts;
use super::bit_cast::{from_int, to_int};
use super::fixed_point::fit_row;
use super::row::Row;
use super::row_sums::{Rules, sum_rows};
use crate::memory::Parts;
use crate::privacy::FRACTION;
use crate::source::{SampleSource, Samples};
use crate::task::Usage;
use crate::task::quantise::LARGEST;

/// Largest number of bytes of rows that are kept for the next iterations of a round.
const KEPT_MAX: usize = 64 << 20;

/// Number of rows that are summed together: with a hundred features they fill a quarter of the first cache.
const BLOCK: usize = 64;

/// Number of rows whose squared norms are computed together, to hide the latency of additions.
const LANES: usize = 8;

/// The number one in fixed point. Of the integers of a row only this one does not fit 16 bits.
const ONE: i32 = 1 << FRACTION;

/// Sums of the iterations of a round.
pub struct RowSums {
    /// Number of iterations after the current one.
    remaining: u16,
    /// Blocks of at most [`BLOCK`] rows of d integers: all rows of the round if they are kept, otherwise those that are
    /// not summed yet. A block never grows, so no copy of its rows is left in memory.
    blocks: Vec<Vec<i16>>,
    /// For each feature the number of rows that consist of zeros and [`ONE`] at this feature.
    units: Vec<u32>,
    /// Result of the first iteration, if the rows are kept.
    kept: Option<(Usage, PowerCounts)>,
}

impl RowSums {
    /// Creates the sums of a round of `iterations` passes.
    pub const fn new(iterations: u16) -> Self {
        Self { remaining: iterations, blocks: Vec::new(), units: Vec::new(), kept: None }
    }

    /// Computes the sums of one iteration: `s A Z` in units of the grid, in the second matrix.
    pub fn compute(
        &mut self,
        parts: &mut Parts<'_>,
        rules: Rules,
        counts: &mut PowerCounts,
        id: RoundId,
        source: &mut dyn SampleSource,
    ) -> Result<Usage, DeclineReason> {
        self.remaining = self.remaining.saturating_sub(1);
        let (d, r) = (parts.shape.features, parts.shape.width);
        let Some(mut columns) = Columns::new(parts.representation, d, r, rules.grid) else {
            return sum_rows(parts, rules, counts, id, source);
        };
        let usage = match self.kept {
            Some((usage, of_first)) => {
                *counts = of_first;
                usage
            }
            None => match self.read(parts, rules, counts, id, source, &mut columns)? {
                Some(usage) => usage,
                None => return sum_rows(parts, rules, counts, id, source),
            },
        };
        self.blocks.iter().for_each(|rows| columns.add(rows));
        self.units.iter().enumerate().for_each(|(feature, &count)| columns.add_units(feature, count));
        if self.kept.is_none() {
            self.clear();
        }
        columns.store(parts.extra_matrix.as_deref_mut().ok_or(DeclineReason::Task)?);
        Ok(usage)
    }

    /// Reads the samples of a pass into rows. Sums the rows whenever a block is full, unless they are kept. Returns `None`
    /// if there is no memory.
    fn read(
        &mut self,
        parts: &mut Parts<'_>,
        rules: Rules,
        counts: &mut PowerCounts,
        id: RoundId,
        source: &mut dyn SampleSource,
        columns: &mut Columns,
    ) -> Result<Option<Usage>, DeclineReason> {
        let d = parts.shape.features.max(1);
        let Some(row) = parts.residual.get_mut(..d) else { return Err(DeclineReason::Task) };
        *counts = PowerCounts::NOTHING;
        source.rewind(id).map_err(|_| DeclineReason::Device)?;
        let mut keeps = self.remaining > 0;
        while let Some(Samples { x, targets }) = source.next() {
            let count = x.len() / d;
            let used = count.min((rules.rows_max - counts.rows) as usize);
            counts.beyond = counts.beyond.saturating_add(u32::try_from(count - used).unwrap_or(u32::MAX));
            #[allow(clippy::cast_possible_truncation, reason = "at most `rows_max`")]
            let used_rows = used as u32;
            counts.rows += used_rows;
            for (group, x) in x.get(..used * d).unwrap_or_default().chunks(LANES * d).enumerate() {
                parts.pace.spend(3 * x.len());
                let norms = squared_norms(x, d);
                for (lane, (x, norm)) in x.chunks_exact(d).zip(norms).enumerate() {
                    let of_sample = Row::new(rules.rows, norm, targets, group * LANES + lane, parts.y);
                    let Some(of_sample) = of_sample.filter(|row_of| round_row(row, x, row_of.factor()))
                    else {
                        counts.unusable += 1;
                        continue;
                    };
                    counts.clipped += u32::from(of_sample.is_clipped());
                    parts.pace.spend(2 * d * parts.shape.width);
                    if !self.push(row) {
                        return Ok(None);
                    }
                }
                keeps &= self.blocks.len() <= KEPT_MAX / (2 * BLOCK * d);
                if !keeps && self.blocks.last().is_some_and(|rows| rows.len() >= BLOCK * d) {
                    self.blocks.iter().for_each(|rows| columns.add(rows));
                    self.blocks.iter_mut().for_each(empty);
                    self.blocks.truncate(1);
                }
            }
        }
        let usage = Usage { samples: counts.rows, skipped: 0 };
        self.kept = keeps.then_some((usage, *counts));
        Ok(Some(usage))
    }

    /// Appends a row. Returns false if there is no memory.
    fn push(&mut self, row: &[f32]) -> bool {
        if let Some(feature) = row.iter().position(|&value| to_int(value) == ONE) {
            if self.units.is_empty() && self.units.try_reserve_exact(row.len()).is_ok() {
                self.units.resize(row.len(), 0);
            }
            let Some(count) = self.units.get_mut(feature) else { return false };
            *count += 1;
            return true;
        }
        if self.blocks.last().is_none_or(|rows| rows.len() >= BLOCK * row.len()) {
            let mut rows = Vec::new();
            if rows.try_reserve_exact(BLOCK * row.len()).is_err() || self.blocks.try_reserve(1).is_err() {
                return false;
            }
            self.blocks.push(rows);
        }
        let Some(rows) = self.blocks.last_mut() else { return false };
        #[allow(clippy::cast_possible_truncation, reason = "from -2^15 to 2^15 - 1")]
        rows.extend(row.iter().map(|&value| to_int(value) as i16));
        true
    }

    /// Overwrites and removes all rows.
    fn clear(&mut self) {
        self.blocks.iter_mut().for_each(empty);
        self.blocks.clear();
        self.units.as_mut_slice().zeroize();
        self.units.clear();
    }
}

/// Overwrites and removes the rows of a block.
fn empty(rows: &mut Vec<i16>) {
    rows.as_mut_slice().zeroize();
    rows.clear();
}

impl Drop for RowSums {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Computes the squared norms of up to [`LANES`] samples, each in ascending order of features.
fn squared_norms(x: &[f32], d: usize) -> [f32; LANES] {
    let mut sums = [0.0; LANES];
    let (mut samples, mut remaining) = ([&[][..]; LANES], x.chunks_exact(d));
    samples.iter_mut().zip(&mut remaining).for_each(|(sample, x)| *sample = x);
    let [x0, x1, x2, x3, x4, x5, x6, x7] = samples;
    if x7.is_empty() {
        for (sum, sample) in sums.iter_mut().zip(samples) {
            *sum = sample.iter().fold(0.0, |sum, value| sum + value * value);
        }
        return sums;
    }
    // Written out: with a loop over the samples the compiler checks the length of each for every feature.
    let halves = x0.iter().zip(x1).zip(x2).zip(x3).zip(x4.iter().zip(x5).zip(x6).zip(x7));
    for ((((x0, x1), x2), x3), (((x4, x5), x6), x7)) in halves {
        for (sum, value) in sums.iter_mut().zip([x0, x1, x2, x3, x4, x5, x6, x7]) {
            *sum += value * value;
        }
    }
    sums
}

/// Writes the row of a sample with the host's vectors. The integers are those of [`round_row`](super::fixed_point::round_row).
fn round_row(row: &mut [f32], x: &[f32], scale: f32) -> bool {
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            fit_row(row, scale, |row, scale| {
                // Two loops, since the compiler does not vectorise one that adds 64 bits to every 32.
                for (target, &x) in row.iter_mut().zip(x) {
                    *target = from_int(to_fixed(x * scale));
                }
                let squares = row.iter().map(|&value| i64::from(to_int(value)) * i64::from(to_int(value)));
                squares.sum::<i64>().unsigned_abs()
            })
        },
    )
}

/// Converts `v` to units of 2^-15 with operations that are vector instructions, which a cast from a float is not. Rounds
/// halves away from zero; NaN becomes 0, and large values saturate.
#[inline(always)]
fn to_fixed(v: f32) -> i32 {
    /// Adding it to a smaller number rounds the number to an integer, in the low bits of the sum.
    const INTEGERS: f32 = 8_388_608.0;
    #[allow(clippy::cast_precision_loss, reason = "17 bits")]
    let largest = (2 * LARGEST - 1) as f32;
    let doubled = (v * 65_536.0).abs();
    let limited = if doubled < largest { doubled } else { largest };
    let limited = if v.is_nan() { 0.0 } else { limited };
    let sum = limited + INTEGERS;
    let rounded_up = i32::from(sum - INTEGERS > limited);
    let truncated = to_int(sum) - to_int(INTEGERS) - rounded_up;
    // All bits of the sign.
    let sign = to_int(v) >> 31;
    ((truncated + 1) >> 1 ^ sign) - sign
}

/// Columns of a basis and of the sums of its products.
struct Columns {
    features: usize,
    /// Basis, r x d. Its integers are below 2^15.
    basis: Vec<i16>,
    /// Sums, r x d.
    sums: Vec<i32>,
    /// Number of bits by which a product is rounded.
    shift: u32,
}

impl Columns {
    /// Transposes a d x r basis of integers. Returns `None` if there is no memory.
    fn new(basis: &[f32], d: usize, r: usize, grid: u32) -> Option<Self> {
        let (mut columns, mut sums) = (Vec::new(), Vec::new());
        columns.try_reserve_exact(d * r).ok()?;
        sums.try_reserve_exact(d * r).ok()?;
        sums.resize(d * r, 0);
        for column in 0..r {
            let column = basis.iter().skip(column).step_by(r);
            #[allow(clippy::cast_possible_truncation, reason = "below 2^15")]
            columns.extend(column.map(|&value| to_int(value) as i16));
        }
        Some(Self { features: d, basis: columns, sums, shift: (2 * FRACTION).saturating_sub(grid) })
    }

    /// Adds rows, n x d: for each row its projection `p_j = round(z_j^T q / 2^15)`, and then `round(q_i p_j / 2^shift)`. The
    /// bounds of [`project`](super::fixed_point::project) and [`accumulate`](super::fixed_point::accumulate) hold for any
    /// order of the terms.
    fn add(&mut self, rows: &[i16]) {
        let Self { features: d, basis, sums, shift } = self;
        let (d, shift) = ((*d).max(1), *shift);
        pulp::Arch::new().dispatch(
            #[inline(always)]
            || {
                for row in rows.chunks_exact(d) {
                    for (column, sums) in basis.chunks_exact(d).zip(sums.chunks_exact_mut(d)) {
                        let dot: i32 =
                            column.iter().zip(row).map(|(&z, &q)| i32::from(z) * i32::from(q)).sum();
                        let p = (dot + ONE / 2) >> FRACTION;
                        let half = 1 << shift.saturating_sub(1);
                        for (sum, &q) in sums.iter_mut().zip(row) {
                            *sum += (i32::from(q) * p + half) >> shift;
                        }
                    }
                }
            },
        );
    }

    /// Adds `count` rows of zeros with [`ONE`] at `feature`. Their sum has the bounds of the sum of any rows.
    fn add_units(&mut self, feature: usize, count: u32) {
        let d = self.features.max(1);
        let half = 1 << self.shift.saturating_sub(1);
        for (column, sums) in self.basis.chunks_exact(d).zip(self.sums.chunks_exact_mut(d)) {
            let (Some(&z), Some(sum)) = (column.get(feature), sums.get_mut(feature)) else { continue };
            *sum += count.cast_signed() * ((ONE * i32::from(z) + half) >> self.shift);
        }
    }

    /// Writes the sums into a d x r matrix, as the bits of floats.
    fn store(&self, matrix: &mut [f32]) {
        let d = self.features.max(1);
        let r = self.sums.len() / d;
        for (number, column) in self.sums.chunks_exact(d).enumerate() {
            for (target, &sum) in matrix.iter_mut().skip(number).step_by(r.max(1)).zip(column) {
                *target = from_int(sum);
            }
        }
    }
}

impl Drop for Columns {
    fn drop(&mut self) {
        self.sums.as_mut_slice().zeroize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::quantise::halved;

    fn assert_equal(bits: u32) {
        let v = f32::from_bits(bits);
        assert_eq!(to_fixed(v), halved(v * 65_536.0), "{v:e}");
    }

    #[test]
    fn rounding_with_vectors_is_the_rounding_of_devices() {
        for bits in (0..=u32::MAX).step_by(4_099) {
            assert_equal(bits);
        }
        // All numbers near a half of a unit, and near the largest integer.
        for integer in -65_540i32..=65_540 {
            let near = f32::to_bits((integer as f32 + 0.5) / 32_768.0);
            (near - 3..=near + 3).for_each(assert_equal);
        }
        for special in [0.0, -0.0, f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MIN_POSITIVE] {
            assert_equal(special.to_bits());
        }
    }

    #[test]
    #[ignore = "half a minute: all floats"]
    fn rounding_with_vectors_is_the_rounding_of_devices_for_every_float() {
        (0..=u32::MAX).for_each(assert_equal);
    }
}
