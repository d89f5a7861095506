//! A round's batches for whoever takes other steps than [`Network`](super::Network): simulated devices, to compare.

use fedspan_protocol::message::{DeclineReason, Descent, RoundId};

use super::batch::EpochSampler;
use super::{capabilities, epochs, sample_order};
use crate::memory::{NetworkParts, NetworkShape};
use crate::source::SampleSource;
use crate::task::Usage;

/// The batches of a round's epochs: those that a [`Network`](super::Network) with the same seed takes, in its order.
#[derive(Debug)]
pub struct Batches {
    usage: Usage,
    size: usize,
    /// For the order of the next epoch.
    seed: u64,
    draw: EpochSampler,
    /// Samples of this epoch so far.
    drawn: u32,
}

impl Batches {
    /// Whether a network of this shape, with memory for momentum, takes such steps.
    #[must_use]
    pub fn fit(shape: NetworkShape, descent: Descent) -> bool {
        capabilities::is_valid_descent(shape, descent, true)
    }

    /// Counts the samples of round `id`. `seed` is that of the network, batches have `size` samples.
    ///
    /// # Errors
    /// [`DeclineReason::Device`] if the source fails, or cannot give samples in any order; [`DeclineReason::NoSamples`] if
    /// none can be used.
    pub fn new(
        shape: NetworkShape,
        id: RoundId,
        seed: u64,
        size: u16,
        source: &mut dyn SampleSource,
    ) -> Result<Self, DeclineReason> {
        let usage = epochs::count(shape, id, source)?;
        if usage.samples == 0 {
            return Err(DeclineReason::NoSamples);
        }
        if source.at(0).is_none() {
            return Err(DeclineReason::Device);
        }
        let (seed, draw) = (sample_order::round_seed(seed, id), EpochSampler::new(0, 0));
        Ok(Self { usage, size: usize::from(size), seed, draw, drawn: 0 })
    }

    /// What can be used of the round's samples.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Begins the next epoch.
    pub fn begin_epoch(&mut self) {
        self.seed = sample_order::splitmix64(self.seed);
        self.draw = EpochSampler::new(self.usage.samples.saturating_add(self.usage.skipped), self.seed);
        self.drawn = 0;
    }

    /// Copies the epoch's next batch into memory and returns of how many samples it is. At the end of the epoch that is 0,
    /// and the batch before stays in memory.
    ///
    /// # Errors
    /// [`DeclineReason::Device`] if the epoch ends before all samples have come.
    pub fn next(
        &mut self,
        parts: &mut NetworkParts<'_>,
        source: &mut dyn SampleSource,
    ) -> Result<usize, DeclineReason> {
        let count = self.draw.gather(parts, self.size, source);
        self.drawn = self.drawn.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
        if count == 0 && self.drawn != self.usage.samples {
            return Err(DeclineReason::Device);
        }
        Ok(count)
    }
}

/// Adds `scale` times the gradient of the summed cross-entropy of the batch in memory, `size` samples, to `sums`, which has
/// a place for each parameter. False if it is not finite: then `sums` is of no use.
#[must_use]
pub fn add_gradient(parts: &mut NetworkParts<'_>, size: usize, scale: f32, sums: &mut [f32]) -> bool {
    epochs::forward(parts, size, 0);
    epochs::add_gradient(parts, size, scale, sums)
}
