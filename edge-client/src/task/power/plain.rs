//! Product `Y = A Z` in f32, without noise. Samples are processed four at a time if the source returns that
//! many at once; the sums and their order are the same for any number of samples per call.

use fedspan_protocol::message::{DeclineReason, PowerRows, RoundId};

use super::PowerCounts;
use super::row::Row;
#[cfg(all(feature = "wide", not(target_os = "none")))]
use super::wide_plain::{self, WideSums};
use crate::kernel::Four;
use crate::kernel::gradient::{accumulate, accumulate_four};
use crate::kernel::project::{project, project_four};
use crate::memory::Parts;
use crate::pace::Pace;
use crate::source::{SampleSource, Samples, Targets};
use crate::task::Usage;
use crate::task::sample_pass::{count, rows_of_four};

/// Largest width for which the fours are on the stack; for larger widths a k x k buffer is large enough.
const FEW: usize = 3;

/// Computes `Y` into the second matrix. `Y` is zero if no sample is usable.
#[inline(never)]
pub fn product(
    parts: &mut Parts<'_>,
    rows: PowerRows,
    counts: &mut PowerCounts,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    let Some(sums) = parts.extra_matrix.as_deref_mut() else { return Err(DeclineReason::Task) };
    sums.fill(0.0);
    *counts = PowerCounts::NOTHING;
    source.rewind(id).map_err(|_| DeclineReason::Device)?;
    #[cfg(all(feature = "wide", not(target_os = "none")))]
    let mut wide = WideSums::default();
    #[cfg(all(feature = "wide", not(target_os = "none")))]
    let is_wide = parts.pace.is_none() && wide.start(parts.shape.features, parts.shape.width);
    let mut few = [[0.0; 4]; FEW];
    let k = parts.shape.width;
    let fours = if k <= FEW { &mut few[..] } else { parts.factor.as_chunks_mut().0 };
    let mut pass = Pass {
        rows,
        basis: parts.representation,
        sums,
        features: parts.shape.features,
        fours: fours.get_mut(..k).unwrap_or_default(),
        z: parts.z,
        y: parts.y,
        counts,
        usage: Usage::default(),
        pace: parts.pace,
    };
    while let Some(samples) = source.next() {
        #[cfg(all(feature = "wide", not(target_os = "none")))]
        if is_wide {
            let Pass { rows, basis, .. } = pass;
            let (y, counts, usage) = (&mut *pass.y, &mut *pass.counts, &mut pass.usage);
            wide.add(samples, wide_plain::Pass { rows, basis, y, counts, usage });
            continue;
        }
        pass.take(samples);
    }
    let usage = pass.usage;
    #[cfg(all(feature = "wide", not(target_os = "none")))]
    if is_wide {
        wide.store(sums);
    }
    if usage.samples > 0 {
        let scale = 1.0 / count(usage);
        for value in sums.iter_mut() {
            *value *= scale;
        }
    }
    Ok(usage)
}

/// State of a pass.
struct Pass<'a> {
    rows: PowerRows,
    /// Basis `Z`.
    basis: &'a [f32],
    /// Sum that becomes `Y`.
    sums: &'a mut [f32],
    features: usize,
    /// Projections of four samples, k fours.
    fours: &'a mut [Four],
    z: &'a mut [f32],
    y: &'a mut [f32],
    counts: &'a mut PowerCounts,
    usage: Usage,
    pace: Pace<'a>,
}

impl Pass<'_> {
    /// Processes the samples of one call of the source.
    fn take(&mut self, samples: Samples<'_>) {
        let Samples { x: mut remaining, targets } = samples;
        let d = self.features.max(1);
        let mut index = 0;
        loop {
            if let Some((x, after)) = remaining.split_at_checked(4 * d)
                && self.take_four(x, targets, index)
            {
                remaining = after;
                index += 4;
            } else if let Some((x, after)) = remaining.split_at_checked(d) {
                remaining = after;
                self.take_one(x, targets, index);
                index += 1;
            } else {
                return;
            }
        }
    }

    /// Processes four samples. Returns false and changes nothing if the samples must be processed one by one.
    fn take_four(&mut self, x: &[f32], targets: Targets<'_>, index: usize) -> bool {
        let Some(x) = rows_of_four(x, self.features) else { return false };
        self.pace.spend(4 * self.features);
        let mut rows = [Row::default(); 4];
        for ((number, row), x) in rows.iter_mut().enumerate().zip(x) {
            let Some(sample_row) = Row::from_sample(self.rows, x, targets, index + number, self.y) else {
                return false;
            };
            *row = sample_row;
        }
        project_four(self.basis, x, self.fours, self.pace);
        for four in self.fours.iter_mut() {
            for (z, row) in four.iter_mut().zip(rows) {
                *z = row.scale(*z);
            }
        }
        accumulate_four(self.sums, x, self.fours, self.pace);
        for row in rows {
            self.count_used(row);
        }
        true
    }

    /// Processes one sample.
    fn take_one(&mut self, x: &[f32], targets: Targets<'_>, index: usize) {
        let Some(row) = Row::from_sample(self.rows, x, targets, index, self.y) else {
            self.usage.count(1, false);
            self.counts.unusable = self.usage.skipped;
            return;
        };
        self.pace.spend(self.features);
        project(self.basis, x, self.z, self.pace);
        for z in self.z.iter_mut() {
            *z = row.scale(*z);
        }
        accumulate(self.sums, x, self.z, self.pace);
        self.count_used(row);
    }

    /// Counts a used row.
    fn count_used(&mut self, row: Row) {
        self.usage.count(1, true);
        self.counts.rows = self.usage.samples;
        let clipped = u32::from(row.is_clipped());
        self.counts.clipped = self.counts.clipped.saturating_add(clipped);
    }
}
