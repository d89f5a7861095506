//! Forward pass of a batch through the layers of a network.

use super::batch::{Scratch, activations_range, cut, pool_indices_range, saved_range};
#[cfg(feature = "adapter")]
use crate::kernel::Layer;
use crate::kernel::dense;
use crate::kernel::layer::LayerBuffers;
use crate::memory::{NetworkParts, NetworkShape};

/// Computes the outputs of layer `first` and all later layers, for the first `size` samples of the batch in
/// memory. The last activations are the logits.
pub fn forward(parts: &mut NetworkParts<'_>, size: usize, first: usize) {
    #[cfg(feature = "adapter")]
    let frozen = parts.frozen;
    let NetworkParts { shape, parameters, scratch, pool_indices, pace, .. } = parts;
    let Scratch { inputs, activations, saved, layer_scratch, .. } = Scratch::split(*shape, scratch);
    let last = shape.layers() - 1;
    for number in first..=last {
        let layer = shape.layer(number);
        let weights = parameters.get(shape.range(number..number + 1)).unwrap_or_default();
        let room = LayerBuffers {
            saved: saved.get_mut(saved_range(*shape, number, size)).unwrap_or_default(),
            pool_indices: pool_indices.get_mut(pool_indices_range(*shape, number, size)).unwrap_or_default(),
            scratch: layer_scratch,
            pace: *pace,
        };
        let (below, outputs) = cut(activations, activations_range(*shape, number, size).start);
        let x = inputs_of(*shape, number, size, inputs, below);
        if let Some(out) = outputs.get_mut(..size * layer.outputs()) {
            #[cfg(feature = "adapter")]
            if matches!(layer, Layer::Up { .. }) {
                let samples = inputs.get(..size * shape.features).unwrap_or_default();
                frozen.forward(samples, layer.outputs(), out, *pace);
            }
            layer.forward(x, weights, out, room);
            if number < last && layer.has_relu() {
                dense::relu(out);
            }
        }
    }
}

/// Returns the inputs of a layer for a batch: the samples, or the outputs of the layer below.
pub fn inputs_of<'a>(
    shape: NetworkShape,
    layer: usize,
    size: usize,
    inputs: &'a [f32],
    activations: &'a [f32],
) -> &'a [f32] {
    let x = match layer {
        0 => inputs.get(..size * shape.features),
        _ => activations.get(activations_range(shape, layer - 1, size)),
    };
    x.unwrap_or_default()
}
