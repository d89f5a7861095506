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

use super::Weighted;
use super::rule::{AggregationRule, NamedRule};
use super::steps::{Steps, add_scaled, from_center};
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
    let steps = Steps::clipped(updates, center, 0.5);
    let mut median = steps.mean(&vec![1.0; steps.points.len()]);
    // A median norm of zero clips every point to zero.
    if steps.radius > 0.0 {
        for _ in 0..ITERATIONS {
            let next = reweighted(&steps.points, &median, SMOOTHING * steps.radius);
            let moved = distance(&next, &median);
            median = next;
            if moved <= TOLERANCE * steps.radius {
                break;
            }
        }
    }
    from_center(&median, center)
}

/// One Weiszfeld step: the mean of the points with their weights divided by their distances from `from`,
/// which are bounded below by `least`.
fn reweighted(points: &[(f64, Vec<f64>)], from: &[f64], least: f64) -> Vec<f64> {
    let mut sum = vec![0.0; from.len()];
    let mut total = 0.0;
    for (weight, values) in points {
        let share = weight / distance(values, from).max(least);
        add_scaled(&mut sum, share, values);
        total += share;
    }
    for sum in &mut sum {
        *sum /= total;
    }
    sum
}

/// Euclidean distance.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).fold(0.0, |sum, (x, y)| sum + (x - y) * (x - y)).sqrt()
}
