//! What the body makes of each sample, computed once for all epochs of the head.

use super::batch::{Draw, Scratch, activations_of};
use super::epochs::forward;
use crate::memory::NetworkParts;
use crate::source::SampleSource;

/// Fills the memory for them. False, with nothing of use in it, if there is not enough.
pub fn keep(parts: &mut NetworkParts<'_>, total: u32, source: &mut dyn SampleSource) -> bool {
    let shape = parts.shape;
    let last = shape.layers() - 1;
    let (width, _) = shape.layer(last);
    let Ok(total) = usize::try_from(total) else { return false };
    if total.checked_mul(width).is_none_or(|values| values > parts.kept.len()) {
        return false;
    }
    for first in (0..total).step_by(shape.batch) {
        let size = shape.batch.min(total - first);
        let inputs = Scratch::of(shape, parts.scratch).inputs;
        for (number, x) in (first..first + size).zip(inputs.chunks_exact_mut(shape.features.max(1))) {
            match source.at(number) {
                Some(samples) if samples.x.len() == x.len() => x.copy_from_slice(samples.x),
                // Never drawn.
                _ => x.fill(0.0),
            }
        }
        forward(parts, size, 0);
        let NetworkParts { scratch, kept, .. } = parts;
        let outputs = Scratch::of(shape, scratch).activations.get(activations_of(shape, last - 1, size));
        if let (Some(place), Some(outputs)) = (kept.get_mut(first * width..(first + size) * width), outputs) {
            place.copy_from_slice(outputs);
        }
    }
    true
}

/// As [`Draw::gather`], with what the body makes of the samples in place of them.
pub fn gather(
    draw: &mut Draw,
    parts: &mut NetworkParts<'_>,
    size: usize,
    source: &mut dyn SampleSource,
) -> usize {
    let NetworkParts { shape, scratch, kept, classes, .. } = parts;
    let last = shape.layers() - 1;
    let (width, _) = shape.layer(last);
    let places = activations_of(*shape, last - 1, shape.batch);
    let places = Scratch::of(*shape, scratch).activations.get_mut(places).unwrap_or_default();
    let mut count = 0;
    for (place, class) in places.chunks_exact_mut(width.max(1)).zip(classes.iter_mut()).take(size) {
        let Some((number, known)) = draw.usable(*shape, source) else { break };
        let Some(row) = kept.get(number * width..(number + 1) * width) else { break };
        place.copy_from_slice(row);
        *class = known;
        count += 1;
    }
    count
}
