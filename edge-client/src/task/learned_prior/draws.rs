//! Newcomers that a device simulates: heads on a few of its samples, under a prior, their correct predictions for the others, and the
//! derivative of their errors by the prior.

use fedspan_protocol::labelled::is_labelled;
use fedspan_protocol::message::{DeclineReason, RoundId};

use super::posterior::{
    self, Factors, add_mean, add_residual_products, column_dot, each_sample, factorised, largest_is_first,
    subtract_prediction,
};
use super::{Buffers, Usage};
use crate::kernel::posterior::solve_columns;
use crate::kernel::vector::{at, dot, from, from_mut, put, subtract};
use crate::memory::Shape;
use crate::pace::Pace;
use crate::source::SampleSource;

/// Numbers of labelled samples of each class; 0 stands for half of them.
const LABELS: [u32; 5] = [1, 2, 5, 10, 0];

/// Number of counters of each class: all samples, samples left in a draw, labels left in a draw.
pub const COUNTERS: usize = 3;

/// Counts the samples of each class. Returns false if targets are not classes, or fewer than two classes occur.
pub fn count_classes(
    buffers: &mut Buffers<'_>,
    shape: Shape,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<bool, DeclineReason> {
    buffers.counters.fill(0.0);
    let mut are_classes = shape.outputs > 1;
    each_sample(buffers, shape, id, source, |buffers, _| match class_of(buffers.y) {
        Some(class) => {
            let count = at(buffers.counters, class) + 1.0;
            put(buffers.counters, class, count);
        }
        None => are_classes = false,
    })?;
    let present = buffers.counters.iter().take(shape.outputs).filter(|count| **count > 0.0).count();
    Ok(are_classes && present > 1)
}

/// Returns the class of a one-hot target.
fn class_of(y: &[f32]) -> Option<usize> {
    let class = y.iter().position(|value| *value == 1.0)?;
    let others = y.iter().filter(|value| **value != 0.0).count();
    (others == 1).then_some(class)
}

/// Fits heads on `draws` draws for each number of labels, and counts the correct predictions for the other samples, and all
/// predictions.
pub fn score(
    buffers: &mut Buffers<'_>,
    shape: Shape,
    factors: Factors,
    draws: u32,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<(u32, u32), DeclineReason> {
    let (mut correct, mut predictions) = (0, 0);
    for (kind, labels) in (0u32..).zip(LABELS) {
        for draw in 0..draws {
            let draw = Draw { labels, number: draw * LABELS.len() as u32 + kind };
            fit_head(buffers, shape, factors, draw, id, source)?;
            add_mean(buffers);
            each_drawn(buffers, shape, draw, id, source, |buffers, x, is_labelled| {
                if !is_labelled {
                    let class = class_of(buffers.y).unwrap_or(0);
                    for (output, value) in buffers.y.iter_mut().enumerate() {
                        *value = column_dot(x, buffers.head, output, shape.outputs);
                    }
                    predictions += 1;
                    correct += u32::from(largest_is_first(buffers.y, class));
                }
            })?;
        }
    }
    Ok((correct, predictions))
}

/// Draw of labelled samples.
#[derive(Clone, Copy)]
pub struct Draw {
    /// Number of labelled samples of each class; 0 stands for half of them.
    pub labels: u32,
    pub number: u32,
}

/// Returns true if a draw of `labels` samples of each class leaves other samples, of at least two classes.
pub fn leaves_others(
    buffers: &mut Buffers<'_>,
    shape: Shape,
    labels: u32,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<bool, DeclineReason> {
    let are_classes = count_classes(buffers, shape, id, source)?;
    begin_draw(buffers, shape, labels);
    let (counts, rest) = buffers.counters.split_at_checked(shape.outputs).unwrap_or_default();
    let wanted = from(rest, shape.outputs);
    Ok(are_classes && counts.iter().zip(wanted).any(|(count, wanted)| count > wanted))
}

/// Computes the means over draws of `(E H^T + H E^T) Q / C` as products and of the squared residual of a target as the first score, and
/// the number of samples of which each is the mean as the second. E is the deviation of the head on the labelled samples from the prior
/// mean, Q the representation, and `H = (A + P)^-1 G` with the derivative G of half the mean squared residual of the other samples by the
/// head. The samples of each class are counted, and the draws [leave other samples](leaves_others).
pub fn newcomer_gradient(
    buffers: &mut Buffers<'_>,
    shape: Shape,
    has_metric: bool,
    (first, draws): (Draw, u32),
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    let Shape { features: d, outputs: c, .. } = shape;
    buffers.products.fill(0.0);
    let (mut usage, mut error, mut samples) = (Usage::default(), 0.0, 0);
    for index in 0..draws {
        let draw = Draw { number: first.number.wrapping_add(index), ..first };
        fit_head(buffers, shape, Factors::one(has_metric), draw, id, source)?;
        buffers.gradient.fill(0.0);
        let mut squares = 0.0;
        samples = 0;
        usage = each_drawn(buffers, shape, draw, id, source, |buffers, x, is_labelled| {
            if is_labelled {
                return;
            }
            samples += 1;
            subtract_prediction(x, buffers.mean, buffers.y);
            subtract_prediction(x, buffers.head, buffers.y);
            for (output, residual) in buffers.y.iter().enumerate() {
                squares += residual * residual;
                subtract(*residual, x, from_mut(buffers.gradient, output), c);
            }
        })?;
        solve_columns(buffers.precision, d, buffers.gradient, c, Pace::NONE);
        let targets = to_f32(samples) * posterior::to_f32(c);
        add_products(buffers, shape, 1.0 / (targets * to_f32(draws)));
        error += squares / (targets * to_f32(draws));
    }
    put(buffers.scores, 0, error);
    put(buffers.scores, 1, to_f32(samples));
    Ok(usage)
}

/// Adds `factor (E H^T + H E^T) Q` to the products, where E is the head's deviation, and H in place of the gradient.
fn add_products(buffers: &mut Buffers<'_>, shape: Shape, factor: f32) {
    let Shape { features: d, width: k, outputs: c } = shape;
    for column in 0..k {
        for (row, value) in buffers.x.iter_mut().enumerate() {
            *value = at(buffers.basis, row * k + column);
        }
        for output in 0..c {
            let (head, gradient) = (from(buffers.head, output), from(buffers.gradient, output));
            let (of_head, of_gradient) = (dot(buffers.x, head, c), dot(buffers.x, gradient, c));
            for row in 0..d {
                let change = at(gradient, row * c) * of_head + at(head, row * c) * of_gradient;
                let sum = at(buffers.products, row * k + column) + factor * change;
                put(buffers.products, row * k + column, sum);
            }
        }
    }
}

/// Fits the deviation from the prior mean of a head on the labelled samples of a draw.
fn fit_head(
    buffers: &mut Buffers<'_>,
    shape: Shape,
    factors: Factors,
    draw: Draw,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<(), DeclineReason> {
    factorised(buffers, shape, factors, |buffers| {
        each_drawn(buffers, shape, draw, id, source, |buffers, x, is_labelled| {
            if is_labelled {
                add_residual_products(buffers, shape, x);
            }
        })
    })?;
    solve_columns(buffers.precision, shape.features, buffers.head, shape.outputs, Pace::NONE);
    Ok(())
}

/// Calls `each` for all usable samples, with whether the draw labels the sample.
fn each_drawn(
    buffers: &mut Buffers<'_>,
    shape: Shape,
    draw: Draw,
    id: RoundId,
    source: &mut dyn SampleSource,
    mut each: impl FnMut(&mut Buffers<'_>, &[f32], bool),
) -> Result<Usage, DeclineReason> {
    begin_draw(buffers, shape, draw.labels);
    let mut number = 0;
    each_sample(buffers, shape, id, source, |buffers, x| {
        let is_labelled = draws_next(buffers, shape, number, draw.number);
        number += 1;
        each(buffers, x, is_labelled);
    })
}

/// Sets the counters of each class to the start of a draw of `labels` samples, or of half of them for 0.
fn begin_draw(buffers: &mut Buffers<'_>, shape: Shape, labels: u32) {
    for class in 0..shape.outputs {
        let count = at(buffers.counters, class);
        let wanted = if labels == 0 { half(count) } else { to_f32(labels).min(count) };
        put(buffers.counters, shape.outputs + class, count);
        put(buffers.counters, 2 * shape.outputs + class, wanted);
    }
}

/// Returns true if the draw labels the next sample, whose target is in `y`.
fn draws_next(buffers: &mut Buffers<'_>, shape: Shape, number: u32, draw: u32) -> bool {
    let Some(class) = class_of(buffers.y) else { return false };
    let (left, wanted) = (shape.outputs + class, 2 * shape.outputs + class);
    let labelled =
        is_labelled(draw, number, to_u32(at(buffers.counters, left)), to_u32(at(buffers.counters, wanted)));
    let rest = at(buffers.counters, left) - 1.0;
    put(buffers.counters, left, rest);
    if labelled {
        let rest = at(buffers.counters, wanted) - 1.0;
        put(buffers.counters, wanted, rest);
    }
    labelled
}

/// Returns half of a count, rounded down.
fn half(count: f32) -> f32 {
    to_f32(to_u32(count) / 2)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts of samples")]
fn to_u32(count: f32) -> u32 {
    count as u32
}

#[allow(clippy::cast_precision_loss, reason = "counts above 2^24 may round")]
fn to_f32(count: u32) -> f32 {
    count as f32
}
