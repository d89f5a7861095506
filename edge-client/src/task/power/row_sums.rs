//! Integer sums of a noisy product, one row at a time in the memory of the device.

use fedspan_protocol::message::{DeclineReason, PowerRows, RoundId};

use super::PowerCounts;
use super::fixed_point::{accumulate, project, round_row};
use super::row::Row;
use crate::memory::Parts;
use crate::source::{SampleSource, Targets};
use crate::task::Usage;
use crate::task::sample_pass::for_each;

#[cfg(all(feature = "wide", not(target_os = "none")))]
pub use super::wide_row_sums::RowSums;

/// Rules by which samples become rows and sums.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Kind of the rows.
    pub rows: PowerRows,
    /// Maximum number of samples that are used.
    pub rows_max: u32,
    /// Exponent of the grid `2^-grid` of the sums.
    pub grid: u32,
}

/// Sums of the iterations of a round.
#[cfg(not(all(feature = "wide", not(target_os = "none"))))]
pub struct RowSums;

#[cfg(not(all(feature = "wide", not(target_os = "none"))))]
impl RowSums {
    /// Creates the sums of a round of `iterations` passes.
    #[inline(always)]
    pub const fn new(_iterations: u16) -> Self {
        Self
    }

    /// Computes the sums of one iteration: see [`sum_rows`].
    #[inline(always)]
    pub fn compute(
        &mut self,
        parts: &mut Parts<'_>,
        rules: Rules,
        counts: &mut PowerCounts,
        id: RoundId,
        source: &mut dyn SampleSource,
    ) -> Result<Usage, DeclineReason> {
        sum_rows(parts, rules, counts, id, source)
    }
}

/// Runs a pass: computes `s A Z` in units of the grid, in the second matrix.
pub fn sum_rows(
    parts: &mut Parts<'_>,
    rules: Rules,
    counts: &mut PowerCounts,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    let d = parts.shape.features;
    let Some(sums) = parts.extra_matrix.as_deref_mut() else { return Err(DeclineReason::Task) };
    // The first d values of the buffer of `S` (d x C) hold a row.
    let Some(row) = parts.residual.get_mut(..d) else { return Err(DeclineReason::Task) };
    sums.fill(0.0);
    *counts = PowerCounts::NOTHING;
    let (basis, z, y, pace) = (&*parts.representation, &mut *parts.z, &mut *parts.y, parts.pace);
    let mut usage = for_each(id, source, d, |x, targets, index| {
        if counts.rows >= rules.rows_max {
            counts.beyond = counts.beyond.saturating_add(1);
            return false;
        }
        counts.rows += 1;
        pace.spend(3 * d);
        match make_row(row, rules.rows, x, targets, index, y) {
            Some(clipped) => {
                counts.clipped += u32::from(clipped);
                pace.spend(2 * d * z.len());
                project(basis, row, z);
                accumulate(sums, row, z, rules.grid);
            }
            None => counts.unusable += 1,
        }
        true
    })?;
    usage.skipped = 0;
    Ok(usage)
}

/// Writes the row of a sample. Returns true if the row was clipped, and `None` if the sample is not usable.
fn make_row(
    row: &mut [f32],
    rows: PowerRows,
    x: &[f32],
    targets: Targets<'_>,
    index: usize,
    y: &mut [f32],
) -> Option<bool> {
    let of_sample = Row::from_sample(rows, x, targets, index, y)?;
    round_row(row, x, of_sample.factor()).then_some(of_sample.is_clipped())
}
