//! Convolutional layer with max pooling, computed in strips. A strip is the part of an image that one row of
//! outputs depends on.
//!
//! Sums continue from strip to strip, so the results are bit-identical to those of whole images. Rows at the
//! lower edge that do not fill a pooling window are skipped: they have no outputs, and their errors are zero.

#[cfg(all(feature = "wide", not(target_os = "none")))]
mod direct;
#[cfg(all(feature = "wide", not(target_os = "none")))]
mod sparse;

use core::ops::Range;

use super::super::convolution::{Convolution, MaxPooling};
use super::super::dense;
use super::{ForwardPass, Gradient, LayerBuffers, Step};

/// Convolutional layer, or its restriction to a strip.
#[derive(Clone, Copy)]
pub struct Filters {
    pub convolution: Convolution,
    pub pooling: MaxPooling,
}

impl Filters {
    /// Returns the size of the scratch memory: the gradient, and for one strip the patches and the filters'
    /// outputs.
    pub const fn scratch(&self) -> usize {
        let strip = self.strip().convolution;
        strip.layer() + strip.positions() * strip.patch() + strip.outputs()
    }

    /// Returns the layer that computes one row of outputs from a strip.
    const fn strip(&self) -> Self {
        let rows = self.pooling.rows;
        Self {
            convolution: self.convolution.strip(rows),
            pooling: MaxPooling { height: rows, ..self.pooling },
        }
    }

    /// Returns the ranges of the strips in an image, one for each row of outputs.
    fn strips(&self) -> impl Iterator<Item = Range<usize>> {
        let Self { convolution, pooling } = *self;
        let next = pooling.rows * convolution.stride.max(1) * convolution.width * convolution.channels;
        let length = self.strip().convolution.inputs();
        (0..pooling.out_height()).map(move |row| row * next..row * next + length)
    }

    /// Computes [`super::Layer::forward`].
    pub fn forward(&self, x: &[f32], weights: &[f32], out: &mut [f32], room: LayerBuffers<'_>) {
        let LayerBuffers { pool_indices, scratch, pace, .. } = room;
        let strip = self.strip();
        let FilterScratch {
            unpooled,
            #[cfg(not(all(feature = "wide", not(target_os = "none"))))]
            patches,
            ..
        } = FilterScratch::split(strip.convolution, scratch);
        let row = strip.pooling.outputs().max(1);
        let outputs = self.pooling.outputs().max(1);
        let outputs = out.chunks_exact_mut(outputs).zip(pool_indices.chunks_exact_mut(outputs));
        for (image, (out, pool_indices)) in x.chunks_exact(self.convolution.inputs().max(1)).zip(outputs) {
            let rows = out.chunks_exact_mut(row).zip(pool_indices.chunks_exact_mut(row));
            for (range, (out, pool_indices)) in self.strips().zip(rows) {
                let image = image.get(range).unwrap_or_default();
                #[cfg(not(all(feature = "wide", not(target_os = "none"))))]
                strip.convolution.forward(image, weights, patches, unpooled, pace);
                #[cfg(all(feature = "wide", not(target_os = "none")))]
                direct::forward(strip.convolution, image, weights, unpooled, pace);
                pace.spend(unpooled.len());
                strip.pooling.forward(unpooled, out, pool_indices);
            }
        }
    }

    /// Computes [`super::Layer::backward`].
    pub fn backward(
        &self,
        forward_pass: ForwardPass<'_>,
        delta: &[f32],
        weights: &mut [f32],
        below: Option<&mut [f32]>,
        gradient: Gradient<'_>,
    ) {
        let ForwardPass { x, room: LayerBuffers { pool_indices, scratch, pace, .. }, .. } = forward_pass;
        let strip = self.strip();
        let FilterScratch { sums, patches, unpooled } = FilterScratch::split(strip.convolution, scratch);
        let (mut sums, step) = match gradient {
            Gradient::Unused => (None, None),
            Gradient::Added(sums) => (Some(sums), None),
            Gradient::Step(step) => {
                sums.fill(0.0);
                (Some(sums), Some(step))
            }
        };
        #[cfg(all(feature = "wide", not(target_os = "none")))]
        let mut below = below;
        // The strips are left out if a host has computed the layer without them.
        #[cfg(all(feature = "wide", not(target_os = "none")))]
        let x = match sparse::backward(
            self,
            [x, delta, weights],
            pool_indices,
            below.as_deref_mut(),
            sums.as_deref_mut(),
            pace,
        ) {
            true => &[],
            false => x,
        };
        let row = strip.pooling.outputs().max(1);
        let (inputs, outputs) = (self.convolution.inputs().max(1), self.pooling.outputs().max(1));
        let mut below = below.map(|below| below.chunks_exact_mut(inputs));
        let outputs = delta.chunks_exact(outputs).zip(pool_indices.chunks_exact(outputs));
        for (image, (delta, pool_indices)) in x.chunks_exact(inputs).zip(outputs) {
            let mut below = below.as_mut().and_then(Iterator::next);
            if let Some(errors) = &mut below {
                errors.fill(0.0);
            }
            let rows = delta.chunks_exact(row).zip(pool_indices.chunks_exact(row));
            for (range, (delta, pool_indices)) in self.strips().zip(rows) {
                strip.pooling.backward(delta, pool_indices, unpooled);
                if let Some(sums) = &mut sums {
                    let image = image.get(range.clone()).unwrap_or_default();
                    strip.convolution.patches(image, patches);
                    dense::add_gradient(patches, unpooled, strip.convolution.filters, sums, pace);
                }
                // The patches are not needed after this step, so their memory holds the errors.
                if let Some(errors) = below.as_mut().and_then(|errors| errors.get_mut(range)) {
                    pace.spend(patches.len());
                    strip.convolution.add_errors(unpooled, weights, patches, errors, pace);
                }
            }
            if let Some(errors) = below {
                dense::relu_errors(image, errors);
            }
        }
        if let (Some(sums), Some(step)) = (sums, step) {
            pace.spend(3 * sums.len());
            step.apply(sums, weights);
        }
    }
}

/// Scratch memory of the layer.
struct FilterScratch<'a> {
    /// Gradient of the layer.
    sums: &'a mut [f32],
    /// Patches of a strip.
    patches: &'a mut [f32],
    /// Outputs of the filters before pooling.
    unpooled: &'a mut [f32],
}

impl<'a> FilterScratch<'a> {
    /// Splits the scratch memory.
    fn split(strip: Convolution, scratch: &'a mut [f32]) -> Self {
        let (sums, remaining) = scratch.split_at_mut_checked(strip.layer()).unwrap_or_default();
        let patches = strip.positions() * strip.patch();
        let (patches, remaining) = remaining.split_at_mut_checked(patches).unwrap_or_default();
        Self { sums, patches, unpooled: remaining.get_mut(..strip.outputs()).unwrap_or_default() }
    }
}

impl Step<'_> {
    /// Takes the step along a gradient. Overwrites the gradient.
    fn apply(self, gradient: &mut [f32], weights: &mut [f32]) {
        let Self { momentum, velocity, size } = self;
        if let Some(velocity) = velocity.filter(|_| momentum > 0.0) {
            for (velocity, sum) in velocity.iter_mut().zip(gradient.iter_mut()) {
                *velocity = momentum * *velocity + *sum;
                *sum = *velocity;
            }
        }
        for (weight, sum) in weights.iter_mut().zip(gradient) {
            *weight -= size * *sum;
        }
    }
}
