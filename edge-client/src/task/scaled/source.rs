//! Sample source that scales the samples of another source as they are read.

use fedspan_protocol::message::RoundId;

use crate::error::SourceError;
use crate::source::{SampleSource, Samples};

/// Number of samples scaled at once, which is the number that passes process together.
pub const ROWS: usize = 4;

/// Shift and factor of each feature.
#[derive(Clone, Copy, Debug)]
pub struct Scale<'a> {
    /// Value subtracted from each feature, d values.
    pub shift: &'a [f32],
    /// Factor of each feature after the subtraction, d values.
    pub factor: &'a [f32],
}

impl<'a> Scale<'a> {
    /// Splits a tensor into its two rows.
    pub fn from_rows(values: &'a [f32], features: usize) -> Self {
        let (shift, factor) = values.split_at_checked(features).unwrap_or_default();
        Self { shift, factor }
    }

    /// Scales samples of d values each.
    #[inline(never)]
    pub fn apply(&self, x: &[f32], out: &mut [f32]) {
        let d = self.shift.len().max(1);
        for (x, out) in x.chunks(d).zip(out.chunks_mut(d)) {
            for (((target, value), shift), factor) in out.iter_mut().zip(x).zip(self.shift).zip(self.factor) {
                *target = (value - shift) * factor;
            }
        }
    }
}

/// Sample source that applies a scale.
pub struct ScaledSource<'a> {
    source: &'a mut dyn SampleSource,
    scale: Scale<'a>,
    /// Memory for [`ROWS`] samples.
    rows: &'a mut [f32],
    /// Number of the next sample of the pass.
    next: usize,
    /// True if the source allows random access.
    by_number: bool,
    /// True if the source returned more samples at once than the memory holds.
    failed: bool,
}

impl<'a> ScaledSource<'a> {
    /// Wraps `source` with `scale` and memory for [`ROWS`] samples.
    pub fn new(source: &'a mut dyn SampleSource, scale: Scale<'a>, rows: &'a mut [f32]) -> Self {
        Self { source, scale, rows, next: 0, by_number: true, failed: false }
    }

    /// Returns true if samples were lost; results computed from this source must then be discarded.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Starts a pass after the source was rewound. `again` rewinds the source once more if a sample had to be
    /// read.
    fn start_pass(
        &mut self,
        again: impl FnOnce(&mut dyn SampleSource) -> Result<(), SourceError>,
    ) -> Result<(), SourceError> {
        if self.failed {
            return Err(SourceError::Device);
        }
        self.next = 0;
        self.by_number = self.source.samples_from(0, 1).is_some();
        if self.by_number {
            return Ok(());
        }
        // The source is empty, or does not allow random access.
        let room = self.rows.len();
        let fits = self.source.next().is_none_or(|samples| samples.x.len() <= room);
        if !fits {
            return Err(SourceError::Device);
        }
        again(self.source)
    }
}

/// Scales samples into `rows`. Returns `None` if the memory is too small.
fn scaled<'a>(scale: &Scale<'_>, samples: Samples<'a>, rows: &'a mut [f32]) -> Option<Samples<'a>> {
    let x = rows.get_mut(..samples.x.len())?;
    scale.apply(samples.x, x);
    Some(Samples { x, targets: samples.targets })
}

impl SampleSource for ScaledSource<'_> {
    fn rewind(&mut self, id: RoundId) -> Result<(), SourceError> {
        self.source.rewind(id)?;
        self.start_pass(|source| source.rewind(id))
    }

    fn rewind_for_head(&mut self, id: RoundId) -> Result<bool, SourceError> {
        if !self.source.rewind_for_head(id)? {
            return Ok(false);
        }
        self.start_pass(|source| source.rewind_for_head(id).map(|_| ()))?;
        Ok(true)
    }

    fn at(&mut self, index: usize) -> Option<Samples<'_>> {
        let Self { source, scale, rows, .. } = self;
        scaled(scale, source.at(index)?, rows)
    }

    fn samples_from(&mut self, index: usize, max_samples: usize) -> Option<Samples<'_>> {
        let Self { source, scale, rows, .. } = self;
        scaled(scale, source.samples_from(index, max_samples.min(ROWS))?, rows)
    }

    fn next(&mut self) -> Option<Samples<'_>> {
        let Self { source, scale, rows, next, by_number, failed } = self;
        let samples = if *by_number { source.samples_from(*next, ROWS)? } else { source.next()? };
        *next += samples.x.len().checked_div(scale.shift.len())?;
        *failed |= samples.x.len() > rows.len();
        scaled(scale, samples, rows)
    }
}
