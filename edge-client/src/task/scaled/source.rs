//! Samples that are scaled as they are read.

use fedspan_protocol::message::RoundId;

use crate::error::SourceError;
use crate::source::{SampleSource, Samples};

/// Samples that are scaled at once: as many as passes take together.
pub const ROWS: usize = 4;

/// What is subtracted from each feature, and what it is multiplied by then.
#[derive(Clone, Copy, Debug)]
pub struct Scale<'a> {
    /// d values.
    pub shift: &'a [f32],
    /// d values.
    pub factor: &'a [f32],
}

impl<'a> Scale<'a> {
    /// The two rows of a tensor.
    pub fn of(values: &'a [f32], features: usize) -> Self {
        let (shift, factor) = values.split_at_checked(features).unwrap_or_default();
        Self { shift, factor }
    }

    /// Writes samples of d values each, one after the other.
    #[inline(never)]
    pub fn apply(&self, x: &[f32], out: &mut [f32]) {
        let d = self.shift.len().max(1);
        for (x, out) in x.chunks(d).zip(out.chunks_mut(d)) {
            for (((place, value), shift), factor) in out.iter_mut().zip(x).zip(self.shift).zip(self.factor) {
                *place = (value - shift) * factor;
            }
        }
    }
}

/// Another source, scaled.
pub struct ScaledSource<'a> {
    source: &'a mut dyn SampleSource,
    scale: Scale<'a>,
    /// [`ROWS`] samples.
    rows: &'a mut [f32],
    /// The next sample of the pass.
    next: usize,
    /// The source hands out samples by their number.
    by_number: bool,
    /// More samples came at once than there is room for.
    failed: bool,
}

impl<'a> ScaledSource<'a> {
    /// Samples of `source` under `scale`, with room for [`ROWS`] of them.
    pub fn new(source: &'a mut dyn SampleSource, scale: Scale<'a>, rows: &'a mut [f32]) -> Self {
        Self { source, scale, rows, next: 0, by_number: true, failed: false }
    }

    /// What was computed from these samples is of no use: not all of them were read.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// A pass has begun.
    fn begun(
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
        // Nothing at all, or a source of passes.
        let room = self.rows.len();
        let fits = self.source.next().is_none_or(|samples| samples.x.len() <= room);
        if !fits {
            return Err(SourceError::Device);
        }
        again(self.source)
    }
}

/// Scales what came into the rows that there are.
fn scaled<'a>(scale: &Scale<'_>, samples: Samples<'a>, rows: &'a mut [f32]) -> Option<Samples<'a>> {
    let x = rows.get_mut(..samples.x.len())?;
    scale.apply(samples.x, x);
    Some(Samples { x, targets: samples.targets })
}

impl SampleSource for ScaledSource<'_> {
    fn rewind(&mut self, id: RoundId) -> Result<(), SourceError> {
        self.source.rewind(id)?;
        self.begun(|source| source.rewind(id))
    }

    fn rewind_for_head(&mut self, id: RoundId) -> Result<bool, SourceError> {
        if !self.source.rewind_for_head(id)? {
            return Ok(false);
        }
        self.begun(|source| source.rewind_for_head(id).map(|_| ()))?;
        Ok(true)
    }

    fn at(&mut self, index: usize) -> Option<Samples<'_>> {
        let Self { source, scale, rows, .. } = self;
        scaled(scale, source.at(index)?, rows)
    }

    fn samples_from(&mut self, index: usize, most: usize) -> Option<Samples<'_>> {
        let Self { source, scale, rows, .. } = self;
        scaled(scale, source.samples_from(index, most.min(ROWS))?, rows)
    }

    fn next(&mut self) -> Option<Samples<'_>> {
        let Self { source, scale, rows, next, by_number, failed } = self;
        let samples = if *by_number { source.samples_from(*next, ROWS)? } else { source.next()? };
        *next += samples.x.len().checked_div(scale.shift.len())?;
        *failed |= samples.x.len() > rows.len();
        scaled(scale, samples, rows)
    }
}
