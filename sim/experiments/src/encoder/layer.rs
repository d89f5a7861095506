//! Transformer layer with low-rank adapters: forward and backward pass.

use fedspan_client::kernel::dense;
use fedspan_client::pace::Pace;

use super::adapter::{Adapter, Target};
use super::attention::{Rows, attend, attend_errors};
use super::low_rank::Factors;
use super::model::{Dense, Layer};
use super::pointwise::{NormCache, gelu, normalize, normalize_errors};

/// Activations of the forward pass that the backward pass needs.
#[derive(Debug)]
pub struct LayerCache {
    x: Vec<f32>,
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    /// Outputs of the down factors of the query's and the value's adapter, n x r each.
    low: [Vec<f32>; 2],
    /// Attention weights, as returned by [`attend`].
    weights: Vec<f32>,
    attention_norm: NormCache,
    slopes: Vec<f32>,
    output_norm: NormCache,
}

/// Layer with the adapters of its projections, and the layout of a batch.
#[derive(Clone, Copy, Debug)]
pub struct AdaptedLayer<'a> {
    /// Frozen weights of the layer.
    pub layer: &'a Layer,
    /// Adapter factors of all layers.
    pub adapter: &'a Adapter,
    /// Index of the layer, from 0.
    pub number: usize,
    /// Layout of the batch.
    pub rows: Rows<'a>,
    /// Constant added to the variance in layer normalisations.
    pub epsilon: f32,
}

impl<'a> AdaptedLayer<'a> {
    /// Adapter factors of one projection of this layer.
    fn factors(&self, target: Target) -> Factors<'a> {
        let Adapter { rank, hidden, values, .. } = self.adapter;
        let [down, up] = self.adapter.factors(self.number, target);
        Factors {
            down: &values[down],
            up: &values[up],
            rank: *rank,
            hidden: *hidden,
            scale: self.adapter.scale(),
        }
    }

    /// Forward pass from the activations `x` (n x d) to the output (n x d). The returned [`LayerCache`] is
    /// complete only if `keep` is true; otherwise it must not be used for a backward pass.
    pub fn forward(&self, x: Vec<f32>, keep: bool) -> (Vec<f32>, LayerCache) {
        let layer = self.layer;
        let mut query = linear(&x, &layer.query);
        let key = linear(&x, &layer.key);
        let mut value = linear(&x, &layer.value);
        let low = [
            self.factors(Target::Query).add(&x, &mut query),
            self.factors(Target::Value).add(&x, &mut value),
        ];
        let (mixed, weights) = attend(self.rows, &query, &key, &value);
        let mut middle = linear(&mixed, &layer.attention_output);
        add_to(&mut middle, &x);
        let attention_norm = normalize(&mut middle, &layer.attention_norm, self.epsilon);
        let mut wide = linear(&middle, &layer.feed_up);
        let slopes = gelu(&mut wide, keep);
        let mut output = linear(&wide, &layer.feed_down);
        add_to(&mut output, &middle);
        let output_norm = normalize(&mut output, &layer.output_norm, self.epsilon);
        (output, LayerCache { x, query, key, value, low, weights, attention_norm, slopes, output_norm })
    }

    /// Backward pass: computes the gradient with respect to the input from `errors`, the gradient with
    /// respect to the output (n x d each). The first layer skips this computation, because no trained
    /// parameter precedes it. Adds the gradients of the adapter factors to `gradient`, which is as long as
    /// the adapter's values.
    pub fn backward(&self, mut errors: Vec<f32>, cache: &LayerCache, gradient: &mut [f32]) -> Vec<f32> {
        let layer = self.layer;
        normalize_errors(&mut errors, &cache.output_norm, &layer.output_norm);
        let mut wide = linear_backward(&errors, &layer.feed_down);
        wide.iter_mut().zip(&cache.slopes).for_each(|(error, slope)| *error *= slope);
        add_to(&mut errors, &linear_backward(&wide, &layer.feed_up));
        normalize_errors(&mut errors, &cache.attention_norm, &layer.attention_norm);
        let mixed = linear_backward(&errors, &layer.attention_output);
        let qkv = [&*cache.query, &*cache.key, &*cache.value];
        let [query, key, value] = attend_errors(self.rows, qkv, &cache.weights, &mixed);
        let first = self.number == 0;
        if !first {
            for (part, frozen) in [(&query, &layer.query), (&key, &layer.key), (&value, &layer.value)] {
                add_to(&mut errors, &linear_backward(part, frozen));
            }
        }
        let adapted = [(Target::Query, &query, &cache.low[0]), (Target::Value, &value, &cache.low[1])];
        for (target, part, low) in adapted {
            let [down, up] = self.adapter.factors(self.number, target);
            // The up factor directly follows the down factor.
            let (down, up) = gradient[down.start..up.end].split_at_mut(down.len());
            let below = (!first).then_some(&mut *errors);
            self.factors(target).backward(&cache.x, low, part, [down, up], below);
        }
        errors
    }
}

/// Forward pass of a linear layer with bias.
fn linear(x: &[f32], dense: &Dense) -> Vec<f32> {
    let inputs = dense.layer.len() / dense.outputs - 1;
    let mut out = vec![0.0; x.len() / inputs * dense.outputs];
    dense::forward(x, &dense.layer, dense.outputs, &mut out, Pace::NONE);
    out
}

/// Backward pass of a linear layer: gradient with respect to the input.
fn linear_backward(errors: &[f32], dense: &Dense) -> Vec<f32> {
    let inputs = dense.layer.len() / dense.outputs - 1;
    let mut out = vec![0.0; errors.len() / dense.outputs * inputs];
    dense::backward_linear(errors, &dense.layer, dense.outputs, &mut out, Pace::NONE);
    out
}

/// Adds `summand` to `sum`, elementwise.
fn add_to(sum: &mut [f32], summand: &[f32]) {
    sum.iter_mut().zip(summand).for_each(|(sum, summand)| *sum += summand);
}
