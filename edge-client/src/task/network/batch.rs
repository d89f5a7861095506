//! A batch: samples in a drawn order, copied next to each other.

use core::ops::Range;

use super::sample_order::SampleOrder;
use crate::kernel::all_within;
use crate::memory::{NetworkParts, NetworkShape};
use crate::source::{SampleSource, Targets};

/// Working memory, cut up.
pub struct Scratch<'a> {
    /// n x d.
    pub inputs: &'a mut [f32],
    /// What each layer makes of the batch, one layer after the other, with room for a whole batch each.
    pub activations: &'a mut [f32],
    /// What each layer notes of the batch, in the same way.
    pub saved: &'a mut [f32],
    /// Errors of two layers, with room for a whole batch of the widest.
    pub errors: (&'a mut [f32], &'a mut [f32]),
    /// What a layer needs while it works: all that is left.
    pub layer_scratch: &'a mut [f32],
}

impl<'a> Scratch<'a> {
    /// Cuts up `scratch`.
    pub fn split(shape: NetworkShape, scratch: &'a mut [f32]) -> Self {
        let (width, made) = (shape.widest(), shape.outputs_before(shape.layers()));
        let (inputs, rest) = cut(scratch, shape.batch * shape.features);
        let (one, rest) = cut(rest, shape.batch * width);
        let (other, rest) = cut(rest, shape.batch * width);
        let (activations, rest) = cut(rest, shape.batch * made.outputs);
        let (saved, layer_scratch) = cut(rest, shape.batch * made.saved);
        Self { inputs, activations, saved, errors: (one, other), layer_scratch }
    }
}

/// The first `length` values and the others; nothing where there are fewer.
pub fn cut(values: &mut [f32], length: usize) -> (&mut [f32], &mut [f32]) {
    values.split_at_mut_checked(length).unwrap_or_default()
}

/// Whether a sample can be trained on: d finite values, and a class below C.
pub fn usable(shape: NetworkShape, x: &[f32], targets: Targets<'_>, index: usize) -> Option<u8> {
    let Targets::Classes(classes) = targets else { return None };
    let class = classes.get(index).copied().filter(|&class| usize::from(class) < shape.outputs)?;
    (x.len() == shape.features && all_within(x, f32::MAX)).then_some(class)
}

/// Copies sample `number` into `place`, d values, and returns its class. `None` if it cannot be used, or read.
pub fn load(
    shape: NetworkShape,
    source: &mut dyn SampleSource,
    number: usize,
    place: &mut [f32],
) -> Option<u8> {
    let samples = source.at(number)?;
    let class = usable(shape, samples.x, samples.targets, 0)?;
    for (place, &value) in place.iter_mut().zip(samples.x) {
        *place = value;
    }
    Some(class)
}

/// The next samples of an epoch.
#[derive(Debug)]
pub struct EpochSampler {
    order: SampleOrder,
    place: u32,
}

impl EpochSampler {
    /// The first of an epoch of `count` samples.
    pub fn new(count: u32, seed: u64) -> Self {
        Self { order: SampleOrder::new(count, seed), place: 0 }
    }

    /// What `load` makes of the next sample that it can load, by number. Nothing at the end of the epoch.
    pub fn next(&mut self, mut load: impl FnMut(usize) -> Option<u8>) -> Option<u8> {
        loop {
            let number = self.order.at(self.place)?;
            self.place += 1;
            if let Some(class) = usize::try_from(number).ok().and_then(&mut load) {
                return Some(class);
            }
        }
    }

    /// Copies the next samples, at most `size` and as many as there is room for, and returns how many there are: fewer
    /// only at the end. What cannot be used is passed over.
    pub fn gather(
        &mut self,
        parts: &mut NetworkParts<'_>,
        size: usize,
        source: &mut dyn SampleSource,
    ) -> usize {
        let NetworkParts { shape, scratch, classes, .. } = parts;
        let places = Scratch::split(*shape, scratch).inputs.chunks_exact_mut(shape.features.max(1));
        let mut count = 0;
        for (place, own) in places.zip(classes.iter_mut()).take(size) {
            let Some(class) = self.next(|number| load(*shape, source, number, place)) else { break };
            *own = class;
            count += 1;
        }
        count
    }
}

/// Where the activations of a layer are, of a batch of `size` samples.
pub fn activations_of(shape: NetworkShape, layer: usize, size: usize) -> Range<usize> {
    let start = shape.batch * shape.outputs_before(layer).outputs;
    start..start + size * shape.layer(layer).outputs()
}

/// Where the notes of a layer are, of such a batch.
pub fn saved_of(shape: NetworkShape, layer: usize, size: usize) -> Range<usize> {
    let start = shape.batch * shape.outputs_before(layer).saved;
    start..start + size * shape.layer(layer).saved()
}

/// Where the bytes that a layer notes are, of such a batch.
pub fn pool_indices_of(shape: NetworkShape, layer: usize, size: usize) -> Range<usize> {
    let start = shape.batch * shape.outputs_before(layer).pool_indices;
    start..start + size * shape.layer(layer).pool_indices()
}
