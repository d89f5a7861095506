//! Batches of a round for custom training steps, with which simulated devices train baselines.

use fedspan_protocol::message::{DeclineReason, Descent, RoundId};

use super::batch::EpochSampler;
use super::forward::forward;
use super::{capabilities, epochs, sample_order};
use crate::memory::{NetworkParts, NetworkShape};
use crate::source::SampleSource;
use crate::task::Usage;

/// Iterator over the batches of a round's epochs, in the order of a [`Network`](super::Network) with the same
/// seed.
#[derive(Debug)]
pub struct Batches {
    /// Numbers of usable and skipped samples of the round.
    usage: Usage,
    /// Number of samples in a batch.
    size: usize,
    /// Seed of the next epoch's order.
    seed: u64,
    /// Sampler of the current epoch.
    draw: EpochSampler,
    /// Number of samples drawn in the current epoch.
    drawn: u32,
}

impl Batches {
    /// Returns true if a network of this shape, with memory for momentum, supports these SGD parameters.
    #[must_use]
    pub fn fit(shape: NetworkShape, descent: Descent) -> bool {
        capabilities::is_valid_descent(shape, descent, true)
    }

    /// Counts the samples of round `id`. `seed` is the seed of the network, and batches have `size` samples.
    ///
    /// # Errors
    /// [`DeclineReason::Device`] if the source fails or does not allow random access;
    /// [`DeclineReason::NoSamples`] if no sample is usable.
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

    /// Returns the numbers of usable and skipped samples of the round.
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

    /// Copies the next batch of the epoch into memory and returns its number of samples. At the end of the
    /// epoch returns 0, and the last batch remains in memory.
    ///
    /// # Errors
    /// [`DeclineReason::Device`] if the epoch ends before all samples were drawn.
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

/// Adds `scale` times the gradient of the summed cross-entropy of the batch in memory (`size` samples) to
/// `sums`, which has the length of the parameters. Returns false if the gradient is not finite; `sums` must
/// then be discarded.
#[must_use]
pub fn add_gradient(parts: &mut NetworkParts<'_>, size: usize, scale: f32, sums: &mut [f32]) -> bool {
    forward(parts, size, 0);
    epochs::add_gradient(parts, size, scale, sums)
}
