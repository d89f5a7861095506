//! Scoring of a network on a set of samples: number of correct predictions and loss.

use fedspan_client::kernel::dense;
use fedspan_client::kernel::frozen::Frozen;
use fedspan_client::kernel::layer::{Layer, LayerBuffers};
use fedspan_client::memory::NetworkShape;
use fedspan_client::pace::Pace;

use crate::data::{Labels, Set};
use crate::evaluate::{Predictions, largest};

/// Largest number of samples in a batch.
const BATCH: usize = 32;

/// Largest number of values that a layer may save for a batch. Exceeded only if a single sample needs more.
const MAX_SAVED_VALUES: usize = 1 << 20;

/// Errors of a network on a set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Errors {
    /// Number of samples.
    pub count: usize,
    /// Number of samples whose class has the largest logit.
    pub correct: usize,
    /// Sum of the cross-entropies of all samples, in nats.
    pub loss: f64,
    /// Predicted classes with their probabilities.
    pub predictions: Predictions,
}

/// Scores a network with the given parameters and frozen layer on a set. The result is empty if the targets
/// of the set are not classes.
#[must_use]
pub fn errors(shape: NetworkShape, frozen: Frozen<'_>, parameters: &[f32], set: &Set) -> Errors {
    let Labels::Classes(classes) = &set.y else { return Errors::default() };
    let mut total = Errors { predictions: Predictions::of(set), ..Errors::default() };
    let (mut layer_inputs, mut layer_outputs) = (Vec::<f32>::new(), Vec::new());
    let mut saved = Vec::new();
    let mut pool_indices = Vec::new();
    let mut scratch = Vec::new();
    // Layers save values for the backward pass. The size of a batch is limited so that these values take a
    // few megabytes.
    let saved_values = |layer| shape.layer(layer).saved() + shape.layer(layer).pool_indices();
    let saved_values: usize = (0..shape.layers()).map(saved_values).max().unwrap_or(0);
    let batch = (MAX_SAVED_VALUES / saved_values.max(1)).clamp(1, BATCH);
    for (x, classes) in set.x.chunks(batch * shape.features).zip(classes.chunks(batch)) {
        for layer in 0..shape.layers() {
            let weights = parameters.get(shape.range(layer..layer + 1)).unwrap_or_default();
            let current = shape.layer(layer);
            layer_outputs.clear();
            layer_outputs.resize(classes.len() * current.outputs(), 0.0);
            saved.resize(saved.len().max(classes.len() * current.saved()), 0.0);
            pool_indices.resize(pool_indices.len().max(classes.len() * current.pool_indices()), 0);
            scratch.resize(scratch.len().max(current.scratch()), 0.0);
            let inputs = if layer == 0 { x } else { &layer_inputs };
            if matches!(current, Layer::Up { .. }) {
                frozen.forward(x, current.outputs(), &mut layer_outputs, Pace::NONE);
            }
            let buffers = LayerBuffers {
                saved: &mut saved,
                pool_indices: &mut pool_indices,
                scratch: &mut scratch,
                pace: Pace::NONE,
            };
            current.forward(inputs, weights, &mut layer_outputs, buffers);
            if layer + 1 < shape.layers() && current.has_relu() {
                dense::relu(&mut layer_outputs);
            }
            std::mem::swap(&mut layer_inputs, &mut layer_outputs);
        }
        for (logits, &class) in layer_inputs.chunks_exact(shape.outputs.max(1)).zip(classes) {
            total.count += 1;
            let predicted = largest(logits);
            total.correct += usize::from(predicted == usize::from(class));
            #[allow(clippy::cast_possible_truncation, reason = "a probability for result files")]
            let probability = libm::exp(-dense::cross_entropy(logits, predicted)) as f32;
            total.predictions.push_class(predicted, probability);
            total.loss += dense::cross_entropy(logits, class.into());
        }
    }
    total
}
