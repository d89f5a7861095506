//! Newcomers that a device simulates: heads on a few of its samples, under a prior, and their correct predictions for the others.

use fedspan_protocol::labelled::is_labelled;
use fedspan_protocol::message::{DeclineReason, RoundId};

use super::Buffers;
use super::posterior::{
    Factors, add_mean, add_residual_products, column_dot, each_sample, factorised, largest_is_first,
};
use crate::kernel::posterior::solve_columns;
use crate::kernel::vector::{at, put};
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
            let draw = draw * LABELS.len() as u32 + kind;
            factorised(buffers, shape, factors, |buffers| {
                begin_draw(buffers, shape, labels);
                let mut number = 0;
                each_sample(buffers, shape, id, source, |buffers, x| {
                    if draws_next(buffers, shape, number, draw) {
                        add_residual_products(buffers, shape, x);
                    }
                    number += 1;
                })
            })?;
            solve_columns(buffers.precision, shape.features, buffers.head, shape.outputs, Pace::NONE);
            add_mean(buffers);
            begin_draw(buffers, shape, labels);
            let mut number = 0;
            each_sample(buffers, shape, id, source, |buffers, x| {
                let class = class_of(buffers.y).unwrap_or(0);
                if !draws_next(buffers, shape, number, draw) {
                    for (output, value) in buffers.y.iter_mut().enumerate() {
                        *value = column_dot(x, buffers.head, output, shape.outputs);
                    }
                    predictions += 1;
                    correct += u32::from(largest_is_first(buffers.y, class));
                }
                number += 1;
            })?;
        }
    }
    Ok((correct, predictions))
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
