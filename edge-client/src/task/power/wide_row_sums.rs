//! Integer sums of a noisy product on a host: the same integers as one row at a time on a device, computed with the
//! host's vectors from rows that stay in memory for all iterations of a round.

use alloc::vec::Vec;

use fedspan_protocol::message::{DeclineReason, RoundId};
use zeroize::Zeroize;

use super::PowerCounts;
use super::groups::load;
use super::integer_columns::Columns;
use super::integer_rows::{Conversion, Converted, ROWS, WORD, Word, words};
use super::row_sums::{Rules, sum_rows};
use crate::memory::Parts;
use crate::source::{SampleSource, Samples};
use crate::task::Usage;

/// Largest number of bytes of rows that are kept for the next iterations of a round.
const KEPT_MAX: usize = 64 << 20;

/// Largest number of rows that are summed together: with a hundred features they fill a quarter of the first cache.
const BLOCK: usize = 4 * ROWS;

/// Sums of the iterations of a round.
pub struct RowSums {
    /// Number of iterations after the current one.
    remaining: u16,
    /// Blocks of at most [`BLOCK`] rows: all rows of the round if they are kept, otherwise those that are not summed yet. A
    /// block never grows, so no copy of its rows is left in memory.
    blocks: Vec<Vec<Word>>,
    /// For each feature the number of rows that consist of zeros and the number one at this feature.
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
        let columns = Columns::new(parts.representation, d, r, rules.grid, BLOCK);
        let Some(mut columns) = columns.filter(|_| parts.pace.is_none() && d > 0) else {
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
        *counts = PowerCounts::NOTHING;
        source.rewind(id).map_err(|_| DeclineReason::Device)?;
        let mut keeps = self.remaining > 0;
        self.clear();
        if self.units.try_reserve_exact(d).is_err() {
            return Ok(None);
        }
        self.units.resize(d, 0);
        while let Some(Samples { x, targets }) = source.next() {
            let count = x.len() / d;
            let used = count.min((rules.rows_max - counts.rows) as usize);
            counts.beyond = counts.beyond.saturating_add(u32::try_from(count - used).unwrap_or(u32::MAX));
            #[allow(clippy::cast_possible_truncation, reason = "at most `rows_max`")]
            let used_rows = used as u32;
            counts.rows += used_rows;
            for (block, x) in x.get(..used * d).unwrap_or_default().chunks(BLOCK * d).enumerate() {
                load(x);
                for (group, x) in x.chunks(ROWS * d).enumerate() {
                    let Some(rows) = room(&mut self.blocks, x.len() / d, d, columns, &mut keeps) else {
                        return Ok(None);
                    };
                    let (first, y) = (block * BLOCK + group * ROWS, &mut *parts.y);
                    let units = &mut *self.units;
                    let conversion = Conversion { kind: rules.rows, x, d, targets, first, y, rows, units };
                    let Converted { clipped, unusable } = conversion.run();
                    counts.clipped += clipped;
                    counts.unusable += unusable;
                }
            }
        }
        let usage = Usage { samples: counts.rows, skipped: 0 };
        self.kept = keeps.then_some((usage, *counts));
        Ok(Some(usage))
    }

    /// Overwrites and removes all rows.
    fn clear(&mut self) {
        self.blocks.iter_mut().for_each(empty);
        self.blocks.clear();
        self.units.as_mut_slice().zeroize();
        self.units.clear();
    }
}

/// Returns the memory of the rows that follow, with room for `count` more. Sums the rows before if they are not kept; they
/// are no longer kept if they take too much memory. Returns `None` if there is no memory.
fn room<'a>(
    blocks: &'a mut Vec<Vec<Word>>,
    count: usize,
    d: usize,
    columns: &mut Columns,
    keeps: &mut bool,
) -> Option<&'a mut Vec<Word>> {
    let is_full = |rows: &Vec<Word>| rows.capacity() - rows.len() < count * words(d);
    if blocks.last().is_none_or(is_full) {
        *keeps &= blocks.len() < KEPT_MAX / (size_of::<Word>() * BLOCK * words(d));
        if !*keeps {
            blocks.iter().for_each(|rows| columns.add(rows));
            blocks.iter_mut().skip(1).for_each(empty);
            blocks.truncate(1);
            blocks.iter_mut().for_each(Vec::clear);
        }
        if *keeps || blocks.is_empty() {
            let mut rows = Vec::new();
            rows.try_reserve_exact(BLOCK * words(d)).ok()?;
            blocks.try_reserve(1).ok()?;
            blocks.push(rows);
        }
    }
    blocks.last_mut()
}

/// Overwrites and removes the rows of a block, and what is left of rows that were removed before.
fn empty(rows: &mut Vec<Word>) {
    rows.resize(rows.capacity(), [0; WORD]);
    rows.as_flattened_mut().zeroize();
    rows.clear();
}

impl Drop for RowSums {
    fn drop(&mut self) {
        self.clear();
    }
}
