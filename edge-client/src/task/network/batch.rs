//! A batch: samples in a drawn order, copied next to each other.

use core::ops::Range;

use super::order::Order;
use crate::kernel::all_within;
use crate::memory::{NetworkParts, NetworkShape};
use crate::source::{SampleSource, Targets};

/// Working memory, cut up.
pub struct Scratch<'a> {
    /// n x d.
    pub inputs: &'a mut [f32],
    /// What each layer makes of the batch, one layer after the other, with room for a whole batch each.
    pub activations: &'a mut [f32],
    /// Errors of two layers, with room for a whole batch of the widest.
    pub errors: (&'a mut [f32], &'a mut [f32]),
}

impl<'a> Scratch<'a> {
    /// Cuts up `scratch`.
    pub fn of(shape: NetworkShape, scratch: &'a mut [f32]) -> Self {
        let inputs = (shape.batch * shape.features).min(scratch.len());
        let (inputs, rest) = scratch.split_at_mut(inputs);
        let widest = (0..shape.layers()).map(|layer| shape.layer(layer).1).max().unwrap_or(0);
        let errors = (shape.batch * widest).min(rest.len() / 2);
        let (activations, rest) = rest.split_at_mut(rest.len() - 2 * errors);
        let (one, other) = rest.split_at_mut(errors);
        Self { inputs, activations, errors: (one, other) }
    }
}

/// Whether a sample can be trained on: d finite values, and a class below C.
pub fn usable(shape: NetworkShape, x: &[f32], targets: Targets<'_>, index: usize) -> Option<u8> {
    let Targets::Classes(classes) = targets else { return None };
    let class = classes.get(index).copied().filter(|&class| usize::from(class) < shape.outputs)?;
    (x.len() == shape.features && all_within(x, f32::MAX)).then_some(class)
}

/// The next samples of an epoch.
#[derive(Debug)]
pub struct Draw {
    order: Order,
    place: u32,
}

impl Draw {
    /// The first of an epoch of `count` samples.
    pub fn new(count: u32, seed: u64) -> Self {
        Self { order: Order::new(count, seed), place: 0 }
    }

    /// The next sample's number; nothing at the end of the epoch.
    fn next(&mut self) -> Option<u32> {
        let number = self.order.at(self.place)?;
        self.place += 1;
        Some(number)
    }

    /// The number and the class of the next sample that can be used.
    pub fn usable(&mut self, shape: NetworkShape, source: &mut dyn SampleSource) -> Option<(usize, u8)> {
        loop {
            let Ok(number) = usize::try_from(self.next()?) else { continue };
            let Some(samples) = source.at(number) else { continue };
            if let Some(class) = usable(shape, samples.x, samples.targets, 0) {
                return Some((number, class));
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
        let inputs = Scratch::of(*shape, scratch).inputs;
        let mut count = 0;
        for (place, class) in
            inputs.chunks_exact_mut(shape.features.max(1)).zip(classes.iter_mut()).take(size)
        {
            let Some((number, known)) = self.usable(*shape, source) else { break };
            let Some(samples) = source.at(number).filter(|samples| samples.x.len() == place.len()) else {
                break;
            };
            place.copy_from_slice(samples.x);
            *class = known;
            count += 1;
        }
        count
    }
}

/// Where the activations of a layer are, of a batch of `size` samples.
pub fn activations_of(shape: NetworkShape, layer: usize, size: usize) -> Range<usize> {
    let before: usize = (0..layer).map(|layer| shape.layer(layer).1).sum();
    let start = shape.batch * before;
    start..start + size * shape.layer(layer).1
}
