//! Geometric median of norm-clipped updates: the point with the smallest weighted sum of distances to the
//! updates.
//!
//! First, every update is clipped to the median norm of the round. If bad updates have less than half of the
//! weight, the norm of the result is therefore at most the norm of the longest honest update. Second, the
//! median is computed by smoothed Weiszfeld iterations as in RFA (Pillutla, Kakade and Harchaoui 2022,
//! Algorithm 2). The iterations run until convergence; they need no messages, since the server has all
//! updates.
//!
//! The smoothing radius is one median norm: updates within this distance act as in a mean, and updates beyond
//! it as in a median. With a small radius, the median would equal the vector of an attacker that sends the
//! same vector from many devices: honest gradients of personal tasks point in all directions, so equal
//! vectors have the largest influence (`POISON.md`).

use super::rule::{AggregationRule, NamedRule};
use super::{Weighted, weighted_median};
use crate::reader::{Problem, Section};

/// Geometric median of updates clipped to the median norm of the round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GeometricMedian;

impl NamedRule for GeometricMedian {
    const NAME: &'static str = "geometric-median";
    const SUMMARY: &'static str = "geometric median of updates clipped to the median norm of the round";

    fn read(_section: &Section<'_>) -> Result<Self, Problem> {
        Ok(Self)
    }
}

impl AggregationRule for GeometricMedian {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn combine(&self, updates: &[Weighted<'_>], center: &[f64], out: &mut [f64]) {
        out.copy_from_slice(&geometric_median(updates, center));
    }
}

/// Smoothing radius, in median norms. Weights are divided by distances of at least this radius.
const SMOOTHING: f64 = 1.0;
/// Step length at which the iteration stops, in median norms.
const TOLERANCE: f64 = 1e-9;
/// Maximum number of iterations; about a dozen are usual.
const ITERATIONS: usize = 300;

/// Geometric median of `updates`. The differences of the updates from `center` (extended by zeros) are
/// clipped to the median of their norms, and `center` is added to the median of the clipped differences.
/// Computed in f64, in the given order. If no update has a weight, the result is `center`.
#[must_use]
pub fn geometric_median(updates: &[Weighted<'_>], center: &[f64]) -> Vec<f64> {
    let length = updates.first().map_or(center.len(), |update| update.values.len());
    let at = |index: usize| center.get(index).copied().unwrap_or(0.0);
    let mut points: Vec<(f64, Vec<f64>)> = updates
        .iter()
        .filter(|update| update.weight > 0.0)
        .map(|update| {
            let values = update.values.iter().enumerate().map(|(index, v)| f64::from(*v) - at(index));
            (update.weight, values.collect())
        })
        .collect();
    let radius = clip(&mut points);
    let mut median = mean(&points, length);
    // A median norm of zero clips every point to zero.
    if radius > 0.0 {
        for _ in 0..ITERATIONS {
            let next = reweighted(&points, &median, SMOOTHING * radius);
            let moved = distance(&next, &median);
            median = next;
            if moved <= TOLERANCE * radius {
                break;
            }
        }
    }
    median.iter().enumerate().map(|(index, value)| value + at(index)).collect()
}

/// Clips every point to the weighted median of the norms, and returns that median.
fn clip(points: &mut [(f64, Vec<f64>)]) -> f64 {
    let norms: Vec<f64> = points.iter().map(|(_, values)| norm(values)).collect();
    let weighed = norms.iter().zip(points.iter()).map(|(norm, (weight, _))| (*norm, *weight)).collect();
    let radius = weighted_median(weighed);
    for (norm, (_, values)) in norms.iter().zip(points.iter_mut()) {
        if *norm > radius {
            let factor = radius / norm;
            for value in values.iter_mut() {
                *value *= factor;
            }
        }
    }
    radius
}

/// One Weiszfeld step: the mean of the points with their weights divided by their distances from `from`,
/// which are bounded below by `least`.
fn reweighted(points: &[(f64, Vec<f64>)], from: &[f64], least: f64) -> Vec<f64> {
    let mut sum = vec![0.0; from.len()];
    let mut total = 0.0;
    for (weight, values) in points {
        let share = weight / distance(values, from).max(least);
        for (sum, value) in sum.iter_mut().zip(values) {
            *sum += share * value;
        }
        total += share;
    }
    for sum in &mut sum {
        *sum /= total;
    }
    sum
}

/// Weighted mean of points of `length` values; zeros if no point has a weight.
fn mean(points: &[(f64, Vec<f64>)], length: usize) -> Vec<f64> {
    let mut sum = vec![0.0; length];
    let mut total = 0.0;
    for (weight, values) in points {
        for (sum, value) in sum.iter_mut().zip(values) {
            *sum += weight * value;
        }
        total += weight;
    }
    if total > 0.0 {
        for sum in &mut sum {
            *sum /= total;
        }
    }
    sum
}

/// Euclidean norm.
fn norm(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |sum, value| sum + value * value).sqrt()
}

/// Euclidean distance.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).fold(0.0, |sum, (x, y)| sum + (x - y) * (x - y)).sqrt()
}
