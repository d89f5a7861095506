//! Counter of samples: a wrapper that counts all samples of a source, usable or not. A device with noise
//! reports this count, because the number of usable samples depends on the records.

use fedspan_protocol::message::{DeclineReason, RoundId};

use crate::error::SourceError;
use crate::source::{SampleSource, Samples};

/// Sample source with a counter of the samples in the last pass.
pub struct CountingSource<'a> {
    source: &'a mut dyn SampleSource,
    features: usize,
    /// Number of samples in the current pass.
    samples: u32,
}

impl<'a> CountingSource<'a> {
    /// Wraps a source whose samples have `features` values.
    pub fn new(source: &'a mut dyn SampleSource, features: usize) -> Self {
        Self { source, features, samples: 0 }
    }

    /// Returns the number of samples in the last pass.
    pub fn samples(&self) -> u32 {
        self.samples
    }

    /// Runs a pass over all samples to count them.
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
