//! Posterior of a head under a prior: passes over the samples, and the quantities of a round that are computed from them.
//!
//! All precisions are in units of the noise's. With the prior precision P, the samples' `A = X^T X` and the residual products
//! `R = X^T (Y - X M)`, the head's deviation from the mean is `E = (A + P)^-1 R`, and the covariance of each of its columns is the
//! noise's variance times `(A + P)^-1`.

use fedspan_protocol::message::{DeclineReason, GeometricGrid, RoundId};

use super::Buffers;
use crate::kernel::all_within;
use crate::kernel::posterior::{
    add_diagonal, add_outer, factorise, largest_diagonal, packed_len, solve_columns, solve_lower, solve_upper,
};
use crate::kernel::vector::{at, dot, from, from_mut, put, squares};
use crate::memory::Shape;
use crate::pace::Pace;
use crate::source::{SampleSource, Targets};
use crate::task::Usage;
use crate::task::sample_pass::{MAGNITUDE_MAX, for_each};

/// Prior of a fit: the variances in memory times factors.
#[derive(Clone, Copy)]
pub struct Factors {
    /// Whether the metric is the one in memory, otherwise the identity.
    pub has_metric: bool,
    /// Factor of the variances of the representation's columns.
    pub span: f32,
    /// Factor of the variance of all other directions.
    pub floor: f32,
}

impl Factors {
    /// The prior in memory.
    pub const fn one(has_metric: bool) -> Self {
        Self { has_metric, span: 1.0, floor: 1.0 }
    }
}

/// Ridge that is added first where the precision has no exact factor, relative to its largest diagonal element.
const LEAST_RIDGE: f32 = 1e-6;

/// Ratio of neighbouring ridges.
const RIDGE_STEP: f32 = 100.0;

/// Sums of one pass, in addition to the precision and the residual products.
pub struct Pass {
    pub usage: Usage,
    /// Sum of squared residuals of the prior mean.
    pub squares: f32,
}

/// Returns the product of a sample with column `output` of a d x `outputs` matrix.
pub fn column_dot(x: &[f32], matrix: &[f32], output: usize, outputs: usize) -> f32 {
    dot(x, from(matrix, output), outputs)
}

/// Writes `L^-1 x` to `out`.
pub fn whiten(factor: &[f32], x: &[f32], out: &mut [f32]) {
    for (target, value) in out.iter_mut().zip(x) {
        *target = *value;
    }
    solve_lower(factor, x.len(), out, 1, Pace::NONE);
}

/// Sets the precision to that of the prior: `T / f - Q diag(w) Q^T` with `w_j = a_j / (f (a_j + f))`, where T is the metric, and Q the
/// representation in its units. `span` and `floor` multiply the variances.
fn set_prior(buffers: &mut Buffers<'_>, shape: Shape, Factors { has_metric, span, floor }: Factors) {
    let Shape { features: d, width: k, .. } = shape;
    let floor = floor * at(buffers.variances, k);
    if has_metric {
        for (target, value) in buffers.precision.iter_mut().zip(buffers.metric.iter()) {
            *target = value / floor;
        }
    } else {
        buffers.precision.fill(0.0);
        add_diagonal(buffers.precision, d, 1.0 / floor);
    }
    for column in 0..k {
        let variance = span * at(buffers.variances, column);
        if variance > 0.0 {
            for (row, target) in buffers.x.iter_mut().enumerate() {
                *target = at(buffers.basis, row * k + column);
            }
            add_outer(buffers.precision, buffers.x, -variance / (floor * (variance + floor)));
        }
    }
}

/// Computes the factor of the posterior's precision, and the residual products: sets the prior, and calls `add`, which adds samples.
/// Where rounding errors exceed the prior, as with features of very different sizes, a ridge is added until the factor is exact, and
/// `add` is called again; this acts like a narrower prior. Returns the value of `add` and the log determinant.
///
/// # Errors
/// Errors of `add`; [`DeclineReason::UpdateNonFinite`] if there is no factor with any ridge.
pub fn factorised<T>(
    buffers: &mut Buffers<'_>,
    shape: Shape,
    factors: Factors,
    mut add: impl FnMut(&mut Buffers<'_>) -> Result<T, DeclineReason>,
) -> Result<(T, f32), DeclineReason> {
    let d = shape.features;
    let mut ridge = 0.0;
    loop {
        set_prior(buffers, shape, factors);
        buffers.head.fill(0.0);
        let value = add(buffers)?;
        let largest = largest_diagonal(buffers.precision, d);
        add_diagonal(buffers.precision, d, ridge);
        if let Some(log_determinant) = factorise(buffers.precision, d, Pace::NONE) {
            return Ok((value, log_determinant));
        }
        // The condition is negated so that a NaN ends the search.
        if !(ridge < largest && largest.is_finite()) {
            return Err(DeclineReason::UpdateNonFinite);
        }
        ridge = (RIDGE_STEP * ridge).max(LEAST_RIDGE * largest);
    }
}

/// Adds the samples to the precision and the residual products.
fn add_samples(
    buffers: &mut Buffers<'_>,
    shape: Shape,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<Pass, DeclineReason> {
    let mut total = 0.0;
    let usage = each_sample(buffers, shape, id, source, |buffers, x| {
        add_residual_products(buffers, shape, x);
        total += squares(buffers.y, 0, 1);
    })?;
    if usage.samples == 0 {
        return Err(DeclineReason::NoSamples);
    }
    Ok(Pass { usage, squares: total })
}

/// Adds a sample, whose target is in `y`, to the precision and the residual products. Replaces the target by its residual.
pub fn add_residual_products(buffers: &mut Buffers<'_>, shape: Shape, x: &[f32]) {
    add_outer(buffers.precision, x, 1.0);
    subtract_prediction(x, buffers.mean, buffers.y);
    for (row, &value) in buffers.head.chunks_exact_mut(shape.outputs.max(1)).zip(x) {
        for (sum, residual) in row.iter_mut().zip(buffers.y.iter()) {
            *sum += value * residual;
        }
    }
}

/// Runs one pass: calls `each` with every usable sample, whose target is in `y`.
pub fn each_sample(
    buffers: &mut Buffers<'_>,
    shape: Shape,
    id: RoundId,
    source: &mut dyn SampleSource,
    mut each: impl FnMut(&mut Buffers<'_>, &[f32]),
) -> Result<Usage, DeclineReason> {
    for_each(id, source, shape.features, |x, targets: Targets<'_>, index| {
        let is_usable = x.len() == shape.features
            && targets.write(index, buffers.y)
            && all_within(x, MAGNITUDE_MAX)
            && all_within(buffers.y, MAGNITUDE_MAX);
        if is_usable {
            each(buffers, x);
        }
        is_usable
    })
}

/// Subtracts from `y` the prediction of a d x C matrix.
pub fn subtract_prediction(x: &[f32], matrix: &[f32], y: &mut [f32]) {
    let outputs = y.len();
    for (output, value) in y.iter_mut().enumerate() {
        *value -= column_dot(x, matrix, output, outputs);
    }
}

/// Computes the means over the samples: second moments in the precision, cross moments in the head.
pub fn pooled_moments(
    buffers: &mut Buffers<'_>,
    shape: Shape,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    buffers.precision.fill(0.0);
    buffers.mean.fill(0.0);
    buffers.head.fill(0.0);
    let Pass { usage, .. } = add_samples(buffers, shape, id, source)?;
    let samples = count(usage);
    for value in buffers.precision.iter_mut().chain(buffers.head.iter_mut()) {
        *value /= samples;
    }
    Ok(usage)
}

/// Fits the posterior: the factor of the precision, and the head's deviation from the mean.
pub fn fit(
    buffers: &mut Buffers<'_>,
    shape: Shape,
    has_metric: bool,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    let add = |buffers: &mut Buffers<'_>| add_samples(buffers, shape, id, source);
    let (Pass { usage, .. }, _) = factorised(buffers, shape, Factors::one(has_metric), add)?;
    solve_columns(buffers.precision, shape.features, buffers.head, shape.outputs, Pace::NONE);
    Ok(usage)
}

/// Adds the prior mean to the deviation from it. Returns false if a value is not finite.
pub fn add_mean(buffers: &mut Buffers<'_>) -> bool {
    for (value, mean) in buffers.head.iter_mut().zip(buffers.mean.iter()) {
        *value += mean;
    }
    all_within(buffers.head, f32::MAX)
}

/// Computes head moments `(E E^T / C + K) B` in place of the representation, and the head sums, where K is the noise's variance
/// times the inverse precision. The head is fitted afterwards.
pub fn head_moments(
    buffers: &mut Buffers<'_>,
    shape: Shape,
    has_metric: bool,
    noise: f32,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    let Shape { features: d, width: k, outputs: c } = shape;
    let usage = fit(buffers, shape, has_metric, id, source)?;
    let outputs = ratio(1.0, c);
    for column in 0..k {
        for output in 0..c {
            let product: f32 = (0..d)
                .map(|row| at(buffers.basis, row * k + column) * at(buffers.head, row * c + output))
                .sum();
            put(buffers.y, output, product * outputs);
        }
        let target = from_mut(buffers.basis, column);
        solve_lower(buffers.precision, d, target, k, Pace::NONE);
        solve_upper(buffers.precision, d, target, k, Pace::NONE);
        for row in 0..d {
            let deviations = dot(buffers.y, from(buffers.head, row * c), 1);
            let value = noise * at(target, row * k) + deviations;
            put(target, row * k, value);
        }
    }
    // With e = E^T x and the residual r of the posterior mean: sum of e r = E^T P E, and x^T (A + P)^-1 x sums to the trace of
    // A (A + P)^-1.
    let (mut distance, mut residuals, mut trace) = (0.0, 0.0, 0.0);
    each_sample(buffers, shape, id, source, |buffers, x| {
        subtract_prediction(x, buffers.mean, buffers.y);
        for (output, y) in buffers.y.iter().enumerate() {
            let deviation = column_dot(x, buffers.head, output, c);
            let residual = y - deviation;
            distance += deviation * residual;
            residuals += residual * residual;
        }
        whiten(buffers.precision, x, buffers.x);
        trace += squares(buffers.x, 0, 1);
    })?;
    let sums = [
        distance * outputs + noise * (ratio(1.0, 1) * to_f32(d) - trace),
        residuals + to_f32(c) * noise * trace,
        count(usage),
    ];
    for (target, sum) in buffers.scores.iter_mut().zip(sums) {
        *target = sum;
    }
    Ok(usage)
}

/// Computes the evidence for a grid of priors: for each the squared residuals `|Y - X M|^2 - R^T (A + P)^-1 R` and the log
/// determinant of `A + P`, and a place for a third value; then the number of samples.
pub fn evidence(
    buffers: &mut Buffers<'_>,
    shape: Shape,
    has_metric: bool,
    (spans, floors): (GeometricGrid, GeometricGrid),
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    let Shape { features: d, outputs: c, .. } = shape;
    buffers.scores.fill(0.0);
    let mut usage = Usage::default();
    let mut number = 0;
    for span in spans.values() {
        for floor in floors.values() {
            let add = |buffers: &mut Buffers<'_>| add_samples(buffers, shape, id, source);
            let factors = Factors { has_metric, span, floor };
            let (pass, log_determinant) = factorised(buffers, shape, factors, add)?;
            usage = pass.usage;
            let mut explained = 0.0;
            for output in 0..c {
                let column = from_mut(buffers.head, output);
                solve_lower(buffers.precision, d, column, c, Pace::NONE);
                explained += squares(column, 0, c);
            }
            put(buffers.scores, number, (pass.squares - explained).max(0.0));
            put(buffers.scores, number + 1, log_determinant);
            number += 3;
        }
    }
    put(buffers.scores, number, count(usage));
    Ok(usage)
}

/// Returns true if `index` is the first index of the largest value, which is not a NaN.
pub fn largest_is_first(values: &[f32], index: usize) -> bool {
    let score = at(values, index);
    let beats = |(other, value): (usize, &f32)| if other < index { *value < score } else { *value <= score };
    score.is_finite() && values.iter().enumerate().all(beats)
}

/// Counts the usable samples in one pass without arithmetic.
///
/// # Errors
/// [`DeclineReason::NoSamples`] without a usable sample, [`DeclineReason::Device`] if the source fails.
pub fn count_samples(
    buffers: &mut Buffers<'_>,
    shape: Shape,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<(), DeclineReason> {
    match each_sample(buffers, shape, id, source, |_, _| {})?.samples {
        0 => Err(DeclineReason::NoSamples),
        _ => Ok(()),
    }
}

/// Returns true if no value to send is infinite or NaN.
pub fn are_finite(values: &[f32]) -> bool {
    all_within(values, f32::MAX)
}

/// Returns true if a packed d x d metric has a positive diagonal.
pub fn is_metric(metric: &[f32], d: usize) -> bool {
    metric.len() == packed_len(d) && (0..d).all(|i| at(metric, packed_len(i + 1) - 1) > 0.0)
}

fn count(usage: Usage) -> f32 {
    crate::task::sample_pass::count(usage)
}

#[allow(clippy::cast_precision_loss, reason = "a number of features or outputs")]
pub fn to_f32(number: usize) -> f32 {
    number as f32
}

fn ratio(numerator: f32, denominator: usize) -> f32 {
    numerator / to_f32(denominator.max(1))
}
