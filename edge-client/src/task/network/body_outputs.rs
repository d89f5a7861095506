//! Outputs of a network's body as a sample source: the samples of a linear model that acts on them.

use fedspan_protocol::message::{DeclineReason, RoundId};

use super::batch::{Scratch, activations_range, load};
use super::forward::forward;
use super::{body_cache, epochs};
use crate::error::SourceError;
use crate::memory::NetworkParts;
use crate::source::{SampleSource, Samples, Targets};
use crate::task::Usage;

/// Sample source whose samples are the outputs of a network's body, with a 1 behind them that stands for the bias of the last layer.
/// Samples of the network's source that are not usable become values that are not finite, which a linear model skips.
pub struct BodyOutputs<'a> {
    parts: NetworkParts<'a>,
    source: &'a mut dyn SampleSource,
    /// Numbers of samples.
    usage: Usage,
    /// Number of samples, usable or not.
    total: usize,
    /// Whether the outputs of all samples are in the body cache.
    is_cached: bool,
    position: usize,
    /// Number of usable samples before this position.
    usable: u32,
    /// Whether each pass until now had as many usable samples as were counted.
    is_consistent: bool,
    class: [u8; 1],
}

impl<'a> BodyOutputs<'a> {
    /// Reads all samples once, to count them and to fill the body cache if it is large enough.
    ///
    /// # Errors
    /// [`DeclineReason::Device`] if the source fails or allows no random access, [`DeclineReason::NoSamples`] without a usable sample.
    pub fn new(
        mut parts: NetworkParts<'a>,
        id: RoundId,
        source: &'a mut dyn SampleSource,
    ) -> Result<Self, DeclineReason> {
        let usage = epochs::count(parts.shape, id, source)?;
        if usage.samples == 0 {
            return Err(DeclineReason::NoSamples);
        }
        if source.at(0).is_none() {
            return Err(DeclineReason::Device);
        }
        let total = usage.samples.saturating_add(usage.skipped);
        let is_cached = body_cache::fill(&mut parts, total, source);
        let total = usize::try_from(total).unwrap_or(usize::MAX);
        let (position, usable, is_consistent, class) = (0, 0, true, [0]);
        Ok(Self { parts, source, usage, total, is_cached, position, usable, is_consistent, class })
    }

    /// Returns the numbers of samples.
    ///
    /// # Errors
    /// [`DeclineReason::Device`] if a pass had another number of usable samples than were counted, because the source has failed or
    /// has returned other samples. What was computed from that pass is wrong.
    pub fn usage(&self) -> Result<Usage, DeclineReason> {
        if self.is_consistent { Ok(self.usage) } else { Err(DeclineReason::Device) }
    }
}

impl SampleSource for BodyOutputs<'_> {
    fn rewind(&mut self, id: RoundId) -> Result<(), SourceError> {
        (self.position, self.usable) = (0, 0);
        if self.is_cached { Ok(()) } else { self.source.rewind(id) }
    }

    fn next(&mut self) -> Option<Samples<'_>> {
        if self.position >= self.total {
            self.is_consistent &= self.usable == self.usage.samples;
            return None;
        }
        let shape = self.parts.shape;
        let last = shape.layers() - 1;
        let width = shape.layer(last).inputs();
        // The outputs of the last layer follow, so there is room for one more value.
        let first = activations_range(shape, last - 1, 1).start;
        let range = first..first + width + 1;
        let class = if self.is_cached {
            let cache = self.parts.body_cache.chunks_exact(width + 1).nth(self.position)?;
            let activations = Scratch::split(shape, self.parts.scratch).activations;
            for (target, &value) in activations.get_mut(range.clone())?.iter_mut().zip(cache) {
                *target = value;
            }
            u8::try_from(cache.last()?.to_bits()).ok()
        } else {
            let inputs = Scratch::split(shape, self.parts.scratch).inputs.get_mut(..shape.features)?;
            let class = load(shape, self.source, self.position, inputs);
            forward(&mut self.parts, 1, 0);
            class
        };
        self.position += 1;
        self.usable += u32::from(class.is_some());
        self.class = [class.unwrap_or(u8::MAX)];
        let activations = Scratch::split(shape, self.parts.scratch).activations;
        let outputs = activations.get_mut(range)?;
        *outputs.last_mut()? = if class.is_some() { 1.0 } else { f32::NAN };
        Some(Samples { x: outputs, targets: Targets::Classes(&self.class) })
    }
}
