//! Body cache: the outputs of the body for each sample, computed once for all epochs of the head. The cache
//! has one row per sample, with the class after the outputs.

use super::batch::{EpochSampler, Scratch, activations_range, load};
use super::forward::forward;
use crate::memory::NetworkParts;
use crate::source::SampleSource;

/// Bits stored as the class of an unusable sample, which are those of a NaN. For other samples the bits are
/// the class number.
const NO_CLASS: u32 = u32::MAX;

/// Fills the cache. Returns false, with undefined content, if the cache is too small.
pub fn fill(parts: &mut NetworkParts<'_>, total: u32, source: &mut dyn SampleSource) -> bool {
    let shape = parts.shape;
    let last = shape.layers() - 1;
    let width = shape.layer(last).inputs();
    let length = width.saturating_add(1);
    let Ok(total) = usize::try_from(total) else { return false };
    if total.checked_mul(length).is_none_or(|values| values > parts.body_cache.len()) {
        return false;
    }
    let mut first = 0;
    while first < total {
        let inputs = Scratch::split(shape, parts.scratch).inputs.chunks_exact_mut(shape.features.max(1));
        let rows = parts.body_cache.chunks_exact_mut(length).take(total).skip(first);
        let mut size = 0;
        for (row, x) in rows.zip(inputs) {
            // The outputs of unusable samples are computed too, but such samples are never drawn.
            let class = load(shape, source, first + size, x).map_or(NO_CLASS, u32::from);
            if let Some(target) = row.last_mut() {
                *target = f32::from_bits(class);
            }
            size += 1;
        }
        if size == 0 {
            return false;
        }
        forward(parts, size, 0);
        let outputs =
            Scratch::split(shape, parts.scratch).activations.get(activations_range(shape, last - 1, size));
        let rows = parts.body_cache.chunks_exact_mut(length).skip(first);
        for (row, outputs) in rows.zip(outputs.unwrap_or_default().chunks_exact(width.max(1))) {
            copy(row, outputs);
        }
        first += size;
    }
    true
}

/// Gathers the next samples like [`EpochSampler::gather`], but copies the body's outputs instead of the
/// samples.
pub fn gather(draw: &mut EpochSampler, parts: &mut NetworkParts<'_>, size: usize) -> usize {
    let NetworkParts { shape, scratch, body_cache, classes, .. } = parts;
    let last = shape.layers() - 1;
    let width = shape.layer(last).inputs();
    let targets = activations_range(*shape, last - 1, shape.batch);
    let targets = Scratch::split(*shape, scratch).activations.get_mut(targets).unwrap_or_default();
    let mut count = 0;
    for (target, sample_class) in targets.chunks_exact_mut(width.max(1)).zip(classes.iter_mut()).take(size) {
        let load = |number: usize| {
            let row = body_cache.get(number * (width + 1)..)?.get(..width + 1)?;
            let class = u8::try_from(row.last()?.to_bits()).ok()?;
            copy(target, row);
            Some(class)
        };
        let Some(class) = draw.next(load) else { break };
        *sample_class = class;
        count += 1;
    }
    count
}

/// Copies values up to the end of the shorter slice.
fn copy(target: &mut [f32], values: &[f32]) {
    for (target, &value) in target.iter_mut().zip(values) {
        *target = value;
    }
}
