//! Epochs of stochastic gradient descent on some layers of a network, with the other layers fixed.

use core::ops::Range;

use fedspan_protocol::limits::{PLATEAU_DIVISOR, PLATEAU_INTERVAL};
use fedspan_protocol::message::{DeclineReason, Descent, RoundId};

use super::batch::{EpochSampler, Scratch, activations_range, pool_indices_range, saved_range, usable};
use super::forward::{forward, inputs_of};
use super::{body_cache, sample_order};
use crate::kernel::dense;
use crate::kernel::layer::{ForwardPass, Gradient, LayerBuffers, Step};
use crate::memory::{NetworkParts, NetworkShape};
use crate::source::SampleSource;
use crate::task::Usage;
use crate::task::sample_pass::for_each;

/// Consecutive epochs that train the same layers, starting from a velocity of zero.
#[derive(Clone, Debug)]
pub struct Phase {
    /// Layers that are trained.
    pub layers: Range<usize>,
    /// Number of epochs.
    pub epochs: u16,
    /// True if training ends when the loss stops decreasing.
    pub until_plateau: bool,
}

impl Phase {
    /// Returns true if the phase trains a layer.
    pub fn is_active(&self) -> bool {
        self.epochs > 0 && !self.layers.is_empty()
    }
}

/// Counts the usable and skipped samples of a round.
pub fn count(
    shape: NetworkShape,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    for_each(id, source, shape.features, |x, targets, index| usable(shape, x, targets, index).is_some())
}

/// Runs the phases over samples that have been counted. `seed` determines the order of the samples.
///
/// # Errors
/// [`DeclineReason::Device`] if an epoch does not draw all samples, because the source has failed or returns
/// other samples than before; [`DeclineReason::UpdateNonFinite`] if the loss is not finite. The layers then
/// keep their current values.
pub fn run(
    parts: &mut NetworkParts<'_>,
    phases: &[Phase],
    descent: Descent,
    usage: Usage,
    mut seed: u64,
    source: &mut dyn SampleSource,
) -> Result<(), DeclineReason> {
    let total = usage.samples.saturating_add(usage.skipped);
    for phase in phases.iter().filter(|phase| phase.is_active()) {
        if let Some(velocity) = parts.velocity.get_mut(parts.shape.range(phase.layers.clone())) {
            velocity.fill(0.0);
        }
        let cached = phase.layers.start > 0
            && phase.layers.start + 1 == parts.shape.layers()
            && body_cache::fill(parts, total, source);
        let mut before = f32::INFINITY;
        for epoch in 1..=phase.epochs {
            let compares = phase.until_plateau && epoch.is_multiple_of(PLATEAU_INTERVAL);
            let mut loss = 0.0;
            seed = sample_order::splitmix64(seed);
            let mut draw = EpochSampler::new(total, seed);
            let mut drawn = 0usize;
            loop {
                let size = usize::from(descent.batch);
                let size = if cached {
                    body_cache::gather(&mut draw, parts, size)
                } else {
                    draw.gather(parts, size, source)
                };
                if size == 0 {
                    break;
                }
                drawn += size;
                forward(parts, size, if cached { phase.layers.start } else { 0 });
                if compares {
                    loss += batch_loss(parts, size);
                }
                if !take_step(parts, size, &phase.layers, descent) {
                    return Err(DeclineReason::UpdateNonFinite);
                }
            }
            if u32::try_from(drawn) != Ok(usage.samples) {
                return Err(DeclineReason::Device);
            }
            if compares {
                // The condition is negated so that a NaN counts as no decrease.
                let falls = loss < before * (1.0 - 1.0 / f32::from(PLATEAU_DIVISOR));
                if !falls {
                    break;
                }
                before = loss;
            }
        }
    }
    Ok(())
}

/// Returns the summed cross-entropy of a batch after [`forward`].
fn batch_loss(parts: &mut NetworkParts<'_>, size: usize) -> f32 {
    let NetworkParts { shape, scratch, classes, pace, .. } = parts;
    let logits = activations_range(*shape, shape.layers() - 1, size);
    let logits = Scratch::split(*shape, scratch).activations.get(logits).unwrap_or_default();
    let mut loss = 0.0;
    for (logits, &class) in logits.chunks_exact(shape.outputs.max(1)).zip(classes.iter()) {
        pace.spend(dense::EXP_WORK * (logits.len() + 2));
        let max_logit = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum = logits.iter().fold(0.0, |sum, &logit| sum + libm::expf(logit - max_logit));
        loss += libm::logf(sum) + (max_logit - logits.get(usize::from(class)).copied().unwrap_or(f32::NAN));
    }
    loss
}

/// Takes one step along the gradient of the mean loss of a batch, after [`forward`]. Returns false if the
/// gradient is not finite.
fn take_step(parts: &mut NetworkParts<'_>, size: usize, trained: &Range<usize>, descent: Descent) -> bool {
    let velocity = core::mem::take(&mut parts.velocity);
    #[allow(clippy::cast_precision_loss, reason = "a batch is far below 2^24")]
    let scale = 1.0 / size as f32;
    let finite = backward(parts, size, scale, trained, &mut Target::Step(velocity, descent));
    parts.velocity = velocity;
    finite
}

/// Adds `scale` times the gradient of the summed loss of a batch to `sums`, after [`forward`]. Returns false
/// if the gradient is not finite.
pub fn add_gradient(parts: &mut NetworkParts<'_>, size: usize, scale: f32, sums: &mut [f32]) -> bool {
    let all_layers = 0..parts.shape.layers();
    backward(parts, size, scale, &all_layers, &mut Target::Sums(sums))
}

/// Destination of the gradients of all layers.
enum Target<'a> {
    /// Sums to which the gradients are added.
    Sums(&'a mut [f32]),
    /// Step of gradient descent. The velocity covers all layers, or is empty.
    Step(&'a mut [f32], Descent),
}

impl Target<'_> {
    /// Returns the destination of the layer with this range of parameters.
    fn layer(&mut self, range: Range<usize>) -> Gradient<'_> {
        match self {
            Self::Sums(sums) => Gradient::Added(sums.get_mut(range).unwrap_or_default()),
            Self::Step(velocity, Descent { step_size, momentum, .. }) => {
                let velocity = velocity.get_mut(range);
                Gradient::Step(Step { momentum: *momentum, velocity, size: *step_size })
            }
        }
    }
}

/// Propagates the errors of a batch, times `scale`, back to the first of the layers `trained`, and passes the
/// gradients of these layers to the target. Must be called after [`forward`]. Returns false if the errors are
/// not finite.
fn backward(
    parts: &mut NetworkParts<'_>,
    size: usize,
    scale: f32,
    trained: &Range<usize>,
    target: &mut Target<'_>,
) -> bool {
    let NetworkParts { shape, parameters, scratch, classes, pool_indices, pace, .. } = parts;
    let Scratch { inputs, activations, saved, errors: (mut current, mut below), layer_scratch } =
        Scratch::split(*shape, scratch);
    let last = shape.layers() - 1;
    let logits = activations.get(activations_range(*shape, last, size)).unwrap_or_default();
    let (Some(errors), Some(classes)) = (current.get_mut(..logits.len()), classes.get(..size)) else {
        return false;
    };
    for (error, &logit) in errors.iter_mut().zip(logits) {
        *error = logit;
    }
    if !dense::softmax_errors(errors, classes, scale, *pace) {
        return false;
    }
    for number in (trained.start..=last).rev() {
        let layer = shape.layer(number);
        let range = shape.range(number..number + 1);
        let (Some(errors), Some(weights)) =
            (current.get(..size * layer.outputs()), parameters.get_mut(range.clone()))
        else {
            return false;
        };
        let x = inputs_of(*shape, number, size, inputs, activations);
        let room = LayerBuffers {
            saved: saved.get_mut(saved_range(*shape, number, size)).unwrap_or_default(),
            pool_indices: pool_indices.get_mut(pool_indices_range(*shape, number, size)).unwrap_or_default(),
            scratch: layer_scratch,
            pace: *pace,
        };
        let out = below.get_mut(..size * layer.inputs()).filter(|_| number > trained.start);
        let gradient = if trained.contains(&number) { target.layer(range) } else { Gradient::Unused };
        let forward_pass = ForwardPass {
            x,
            #[cfg(feature = "recurrent")]
            after_relu: number > 0 && shape.layer(number - 1).has_relu(),
            room,
        };
        layer.backward(forward_pass, errors, weights, out, gradient);
        core::mem::swap(&mut current, &mut below);
    }
    true
}
