//! How many samples there are, whatever is in them: what a device reports from which nothing may leave that depends on
//! a record.

use fedspan_protocol::message::{DeclineReason, RoundId};

use crate::error::SourceError;
use crate::source::{SampleSource, Samples};

/// Another source, and how many samples it has handed out in the last pass.
pub struct CountingSource<'a> {
    source: &'a mut dyn SampleSource,
    features: usize,
    samples: u32,
}

impl<'a> CountingSource<'a> {
    /// Nothing has been handed out yet. A sample has so many features.
    pub fn new(source: &'a mut dyn SampleSource, features: usize) -> Self {
        Self { source, features, samples: 0 }
    }

    /// Samples in the last pass.
    pub fn samples(&self) -> u32 {
        self.samples
    }

    /// A pass over all samples for their number alone.
    ///
    /// # Errors
    /// [`DeclineReason::Device`] if the source fails.
    pub fn count_all(&mut self, id: RoundId) -> Result<(), DeclineReason> {
        self.rewind(id).map_err(|_| DeclineReason::Device)?;
        while self.next().is_some() {}
        Ok(())
    }
}

impl SampleSource for CountingSource<'_> {
    fn rewind(&mut self, id: RoundId) -> Result<(), SourceError> {
        self.samples = 0;
        self.source.rewind(id)
    }

    fn rewind_for_head(&mut self, id: RoundId) -> Result<bool, SourceError> {
        self.samples = 0;
        self.source.rewind_for_head(id)
    }

    fn next(&mut self) -> Option<Samples<'_>> {
        let samples = self.source.next()?;
        let count = samples.x.len().checked_div(self.features).unwrap_or(0);
        self.samples = self.samples.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
        Some(samples)
    }
}
