//! Batches of a network: samples in random order, copied to adjacent memory.

use core::ops::Range;

use super::sample_order::SampleOrder;
use crate::kernel::all_within;
use crate::memory::{NetworkParts, NetworkShape};
use crate::source::{SampleSource, Targets};

/// Working memory of a network, split into its parts.
pub struct Scratch<'a> {
    /// Input samples, n x d.
    pub inputs: &'a mut [f32],
    /// Outputs of the layers, layer by layer, each with the size of a whole batch.
    pub activations: &'a mut [f32],
    /// Saved values of the layers, in the same order.
    pub saved: &'a mut [f32],
    /// Errors of two layers, each with the size of a whole batch of the widest layer.
    pub errors: (&'a mut [f32], &'a mut [f32]),
    /// Scratch memory of the current layer: the remaining values.
    pub layer_scratch: &'a mut [f32],
}

impl<'a> Scratch<'a> {
    /// Splits `scratch` into its parts.
    pub fn split(shape: NetworkShape, scratch: &'a mut [f32]) -> Self {
        let (width, totals) = (shape.widest(), shape.outputs_before(shape.layers()));
        let (inputs, remaining) = cut(scratch, shape.batch * shape.features);
        let (errors, remaining) = cut(remaining, shape.batch * width);
        let (errors_below, remaining) = cut(remaining, shape.batch * width);
        let (activations, remaining) = cut(remaining, shape.batch * totals.outputs);
        let (saved, layer_scratch) = cut(remaining, shape.batch * totals.saved);
        Self { inputs, activations, saved, errors: (errors, errors_below), layer_scratch }
    }
}

/// Splits off the first `length` values. Returns two empty slices if there are fewer values.
pub fn cut(values: &mut [f32], length: usize) -> (&mut [f32], &mut [f32]) {
    values.split_at_mut_checked(length).unwrap_or_default()
}

/// Returns the class of a usable sample, which has d finite values and a class below C; `None` for other
/// samples.
pub fn usable(shape: NetworkShape, x: &[f32], targets: Targets<'_>, index: usize) -> Option<u8> {
    let Targets::Classes(classes) = targets else { return None };
    let class = classes.get(index).copied().filter(|&class| usize::from(class) < shape.outputs)?;
    (x.len() == shape.features && all_within(x, f32::MAX)).then_some(class)
}

/// Copies the d values of sample `number` into `target`, and returns the sample's class. Returns `None` if
/// the sample is not usable or cannot be read.
pub fn load(
    shape: NetworkShape,
    source: &mut dyn SampleSource,
    number: usize,
    target: &mut [f32],
) -> Option<u8> {
    let samples = source.at(number)?;
    let class = usable(shape, samples.x, samples.targets, 0)?;
    for (target, &value) in target.iter_mut().zip(samples.x) {
        *target = value;
    }
    Some(class)
}

/// Sampler of an epoch, which visits each sample once, in random order.
#[derive(Debug)]
pub struct EpochSampler {
    /// Order of the samples.
    order: SampleOrder,
    /// Position of the next sample in the order.
    position: u32,
}

impl EpochSampler {
    /// Starts an epoch of `count` samples.
    pub fn new(count: u32, seed: u64) -> Self {
        Self { order: SampleOrder::new(count, seed), position: 0 }
    }

    /// Tries the sample numbers in order, and returns the next result of `load` that is not `None`. Returns
    /// `None` at the end of the epoch.
    pub fn next(&mut self, mut load: impl FnMut(usize) -> Option<u8>) -> Option<u8> {
        loop {
            let number = self.order.at(self.position)?;
            self.position += 1;
            if let Some(class) = usize::try_from(number).ok().and_then(&mut load) {
                return Some(class);
            }
        }
    }

    /// Copies the next usable samples, at most `size` and as many as fit, and returns their number. The
    /// number is smaller only at the end of the epoch.
    pub fn gather(
        &mut self,
        parts: &mut NetworkParts<'_>,
        size: usize,
        source: &mut dyn SampleSource,
    ) -> usize {
        let NetworkParts { shape, scratch, classes, .. } = parts;
        let targets = Scratch::split(*shape, scratch).inputs.chunks_exact_mut(shape.features.max(1));
        let mut count = 0;
        for (target, sample_class) in targets.zip(classes.iter_mut()).take(size) {
            let Some(class) = self.next(|number| load(*shape, source, number, target)) else { break };
            *sample_class = class;
            count += 1;
        }
        count
    }
}

/// Returns the range of a layer's activations, for a batch of `size` samples.
pub fn activations_range(shape: NetworkShape, layer: usize, size: usize) -> Range<usize> {
    let start = shape.batch * shape.outputs_before(layer).outputs;
    start..start + size * shape.layer(layer).outputs()
}

/// Returns the range of a layer's saved values.
pub fn saved_range(shape: NetworkShape, layer: usize, size: usize) -> Range<usize> {
    let start = shape.batch * shape.outputs_before(layer).saved;
    start..start + size * shape.layer(layer).saved()
}

/// Returns the range of a layer's pooling indices.
pub fn pool_indices_range(shape: NetworkShape, layer: usize, size: usize) -> Range<usize> {
    let start = shape.batch * shape.outputs_before(layer).pool_indices;
    start..start + size * shape.layer(layer).pool_indices()
}
