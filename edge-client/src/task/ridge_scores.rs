//! Ridge scores. The device simulates a new device with a few labelled samples per class: for each ridge of a
//! grid it fits a head on a random draw of its own samples, and counts the correct predictions on its other
//! samples.
//!
//! Number of passes: one, then for each of [`RIDGE_DRAWS`] draws one and `ceil(ridges / heads)`, where
//! `heads = 1 + (d - 3) / k` is the number of heads that fit the buffers of a round. Number of
//! multiplications: `d k` per sample and pass; for each draw `k C` per sample and ridge, and about
//! `k^3 / 6 + k^2 C` per ridge. No buffer is needed in addition to a workspace; the head in memory is
//! overwritten.

use fedspan_protocol::labelled::is_labelled;
use fedspan_protocol::limits::{RIDGE_DRAWS, RIDGE_SAMPLES_MAX, RIDGES_MAX};
use fedspan_protocol::message::{DeclineReason, RoundId, Task as Wire};
use fedspan_protocol::sqrt::sqrtf;

use super::Usage;
use super::fedrep::copy;
use super::sample_pass::{for_each, project_sample};
use crate::kernel::least_squares::add_normal;
use crate::kernel::project::apply_head;
use crate::kernel::vector::{at, dot, from, from_mut};
use crate::memory::{Parts, Shape};
use crate::source::{SampleSource, Targets};

/// Smallest squared pivot of a Cholesky factor, relative to the largest diagonal entry. Smaller pivots are
/// rounding errors and are replaced by this value, which acts like a larger ridge.
const SMALLEST_PIVOT: f32 = 1e-6;

/// Geometric grid of ridges.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grid {
    /// Number of labelled samples per class.
    pub labels: u32,
    /// First ridge.
    first: f32,
    /// Ratio of neighbouring ridges.
    factor: f32,
    /// Number of ridges.
    pub count: usize,
}

impl Grid {
    /// Returns the grid of a [`Wire::RidgeScores`] task; `None` for other tasks.
    pub fn from_task(task: &Wire) -> Option<Self> {
        match *task {
            Wire::RidgeScores { labels_per_class, first, factor, count } => {
                Some(Self { labels: labels_per_class.into(), first, factor, count: count.into() })
            }
            _ => None,
        }
    }

    /// Returns true if a model of this shape can score the grid: labels are requested, all ridges are finite
    /// and above 0, and the buffers are large enough.
    pub fn is_valid(&self, shape: Shape) -> bool {
        let positive = self.ridges().all(|ridge| ridge > 0.0 && ridge < f32::INFINITY);
        let room = shape.features >= 3 && shape.features * shape.outputs >= self.count;
        self.labels > 0 && (1..=RIDGES_MAX).contains(&self.count) && positive && room
    }

    /// Returns the ridges of the grid, in order.
    fn ridges(&self) -> impl Iterator<Item = f32> {
        let factor = self.factor;
        core::iter::successors(Some(self.first), move |ridge| Some(ridge * factor)).take(self.count)
    }
}

/// Number of counters per class: all samples, remaining samples of the current draw, and remaining labels of
/// the draw.
const COUNTS: usize = 3;

/// Scores the ridges of a grid: writes the number of correct predictions of each ridge to the start of the
/// residual buffer. The returned usage counts the predictions.
///
/// # Errors
/// [`DeclineReason::Task`] if the targets are not classes, [`DeclineReason::NoSamples`] if no prediction can
/// be scored: fewer than two classes, or no sample in addition to the labelled ones.
#[inline(never)]
pub fn run(
    parts: &mut Parts<'_>,
    grid: Grid,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    let classes = parts.shape.outputs;
    parts.residual.fill(0.0);
    let mut known = true;
    let skipped = each_sample(parts, id, source, |parts, class, _| match class {
        Some(class) => put_value(parts.residual, class, at(parts.residual, class) + 1.0),
        None => known = false,
    })?;
    if !known {
        return Err(DeclineReason::Task);
    }
    let present = parts.residual.iter().take(classes).filter(|count| **count > 0.0).count();
    if present < 2 {
        return Err(DeclineReason::NoSamples);
    }
    let mut right = [0; RIDGES_MAX];
    let group_size = 1 + heads_in_residual(parts.shape);
    let mut tried = 0;
    for draw in 0..RIDGE_DRAWS {
        let labelled = add_labelled(parts, grid, draw, id, source)?;
        let mut ridge = grid.first;
        let mut unlabelled = 0;
        for right in right.get_mut(..grid.count).unwrap_or_default().chunks_mut(group_size) {
            for index in 0..right.len() {
                solve_head(parts, ridge * labelled, index);
                ridge *= grid.factor;
            }
            unlabelled = score_heads(parts, grid, draw, right, id, source)?;
        }
        tried += unlabelled;
    }
    if tried == 0 {
        return Err(DeclineReason::NoSamples);
    }
    parts.residual.fill(0.0);
    for (target, right) in parts.residual.iter_mut().zip(right).take(grid.count) {
        *target = exact(right);
    }
    Ok(Usage { samples: tried, skipped })
}

/// Runs one pass: projects every usable sample into `parts.z`, and calls `each` with its class (`None` for
/// regression) and its number. Returns the number of skipped samples.
fn each_sample(
    parts: &mut Parts<'_>,
    id: RoundId,
    source: &mut dyn SampleSource,
    mut each: impl FnMut(&mut Parts<'_>, Option<usize>, u32),
) -> Result<u32, DeclineReason> {
    let mut number = 0;
    let usage = for_each(id, source, parts.shape.features, |x, targets, index| {
        let used = number < RIDGE_SAMPLES_MAX && project_sample(parts, x, targets, index);
        if used {
            let class = match targets {
                Targets::Classes(classes) => classes.get(index).map(|class| usize::from(*class)),
                Targets::Values(_) => None,
            };
            each(parts, class, number);
            number += 1;
        }
        used
    })?;
    Ok(usage.skipped)
}

/// Starts a draw: resets the counters of remaining samples and labels.
fn begin_draw(parts: &mut Parts<'_>, labels: u32) {
    let classes = parts.shape.outputs;
    for class in 0..classes {
        let count = at(parts.residual, class);
        put_value(parts.residual, classes + class, count);
        put_value(parts.residual, 2 * classes + class, count.min(exact(labels)));
    }
}

/// Returns true if the draw labels the next sample, whose class is `class`.
fn is_labelled_next(parts: &mut Parts<'_>, class: usize, number: u32, draw: u32) -> bool {
    let classes = parts.shape.outputs;
    let (samples_left, labels_needed) =
        (at(parts.residual, classes + class), at(parts.residual, 2 * classes + class));
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts below 2^24")]
    let count = |value: f32| value as u32;
    let labelled = is_labelled(draw, number, count(samples_left), count(labels_needed));
    put_value(parts.residual, classes + class, samples_left - 1.0);
    if labelled {
        put_value(parts.residual, 2 * classes + class, labels_needed - 1.0);
    }
    labelled
}

/// Sums `Z^T Z` and `Z^T Y` over a draw's labelled samples, and returns the number of these samples.
fn add_labelled(
    parts: &mut Parts<'_>,
    grid: Grid,
    draw: u32,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<f32, DeclineReason> {
    begin_draw(parts, grid.labels);
    parts.factor.fill(0.0);
    parts.rhs.fill(0.0);
    let mut labelled = 0.0;
    each_sample(parts, id, source, |parts, class, number| {
        if let Some(class) = class
            && is_labelled_next(parts, class, number, draw)
        {
            let (k, c) = (parts.shape.width, parts.shape.outputs);
            parts.pace.spend(k * (k / 2 + c + 1));
            add_normal(parts.factor, parts.rhs, parts.z, parts.y);
            labelled += 1.0;
        }
    })?;
    Ok(labelled)
}

/// Returns the number of heads that fit the residual buffer after the counters.
fn heads_in_residual(Shape { features, width, .. }: Shape) -> usize {
    features.saturating_sub(COUNTS).checked_div(width).unwrap_or(0)
}

/// Returns head `index` of a group: the first is in the model's head, the others follow the
/// counters.
fn head_of<'a>(head: &'a mut [f32], residual: &'a mut [f32], outputs: usize, index: usize) -> &'a mut [f32] {
    let size = head.len();
    match index.checked_sub(1) {
        None => head,
        Some(index) => {
            from_mut(residual, COUNTS * outputs + index * size).get_mut(..size).unwrap_or_default()
        }
    }
}

/// Computes head `index` of a group: `(Z^T Z + extra I)^-1 Z^T Y`. The normal equations are
/// preserved: the transposed Cholesky factor is stored above their diagonal, and its diagonal in `parts.z`.
#[inline(never)]
fn solve_head(parts: &mut Parts<'_>, extra: f32, index: usize) {
    let Parts { shape, head, factor, rhs, residual, z, pace, .. } = parts;
    let (k, c) = (shape.width, shape.outputs);
    let largest = (0..k).map(|j| at(factor, j * k + j)).fold(0.0, f32::max);
    let smallest_pivot = SMALLEST_PIVOT * (largest + extra);
    for j in 0..k {
        pace.spend(j * (j + 1) / 2 + 4 * k);
        for i in 0..j {
            let value = (at(factor, j * k + i) - column_product(factor, k, i, i, j)) / at(z, i);
            put_value(factor, i * k + j, value);
        }
        let square = at(factor, j * k + j) + extra - column_product(factor, k, j, j, j);
        put_value(z, j, sqrtf(square.max(smallest_pivot)));
    }
    let w = head_of(head, residual, c, index);
    copy(w, rhs);
    for j in 0..k {
        for output in 0..c {
            pace.spend(2 * k);
            let above = (0..j).map(|i| at(factor, i * k + j) * at(w, i * c + output)).sum::<f32>();
            put_value(w, j * c + output, (at(w, j * c + output) - above) / at(z, j));
        }
    }
    for j in (0..k).rev() {
        let row = from(factor, j * k).get(j + 1..k).unwrap_or_default();
        for output in 0..c {
            let below = dot(row, from(w, (j + 1) * c + output), c);
            put_value(w, j * c + output, (at(w, j * c + output) - below) / at(z, j));
        }
    }
}

/// Returns the dot product of columns `i` and `j` of a k x k matrix, over the first `rows` rows.
fn column_product(matrix: &[f32], k: usize, rows: usize, i: usize, j: usize) -> f32 {
    (0..rows).map(|row| at(matrix, row * k + i) * at(matrix, row * k + j)).sum()
}

/// Runs one pass over the unlabelled samples of a draw: adds the number of correct predictions of each head
/// of a group to `right`. Returns the number of unlabelled samples.
fn score_heads(
    parts: &mut Parts<'_>,
    grid: Grid,
    draw: u32,
    right: &mut [u32],
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<u32, DeclineReason> {
    begin_draw(parts, grid.labels);
    let mut tried = 0;
    each_sample(parts, id, source, |parts, class, number| {
        let Some(class) = class.filter(|class| !is_labelled_next(parts, *class, number, draw)) else {
            return;
        };
        tried += 1;
        let Parts { shape, head, residual, z, y, pace, .. } = parts;
        for (index, right) in right.iter_mut().enumerate() {
            pace.spend(shape.outputs * (shape.width + 2));
            apply_head(head_of(head, residual, shape.outputs, index), z, y);
            *right += u32::from(is_first_largest(y, class));
        }
    })?;
    Ok(tried)
}

/// Returns true if `index` is the first index of the largest value. Returns false if the value at `index` is
/// NaN.
fn is_first_largest(values: &[f32], index: usize) -> bool {
    let score = at(values, index);
    let beats = |(other, value): (usize, &f32)| if other < index { *value < score } else { *value <= score };
    score.is_finite() && values.iter().enumerate().all(beats)
}

/// Writes a value, or nothing if the index is out of range.
fn put_value(values: &mut [f32], index: usize, value: f32) {
    if let Some(old) = values.get_mut(index) {
        *old = value;
    }
}

/// Converts a count below 2^24, exactly.
fn exact(count: u32) -> f32 {
    #[allow(clippy::cast_precision_loss, reason = "counts are below 2^24")]
    let exact = count as f32;
    exact
}
