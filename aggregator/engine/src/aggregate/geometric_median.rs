//! The norm-clipped geometric median of updates: the point whose weighted sum of distances to them is least.
//!
//! Every update is first clipped to the median norm of the round's: as long as less than half of the weight is bad,
//! nothing that the bad ones send makes the result longer than the longest honest update. Then smoothed
//! Weiszfeld iterations as in RFA (Pillutla, Kakade and Harchaoui 2022, Algorithm 2), until they stand still: on one
//! host an iteration costs no message.
//!
//! The smoothing is wide, one median norm: an update that is nearer than that counts as in a mean, one beyond as
//! in the median. With hardly any smoothing the median sticks to whoever sends one vector many times over, as honest
//! gradients of personal tasks point everywhere and the few that agree weigh most (`POISON.md`).

use super::{Weighted, weighted_median};

/// Smallest distance that is divided by, in median norms.
const SMOOTHING: f64 = 1.0;
/// It stands still when it moves less than this, in median norms.
const TOLERANCE: f64 = 1e-9;
/// Iterations at most. It usually stands still after a dozen.
const ITERATIONS: usize = 300;

/// The geometric median of `updates`, each taken as its difference from `center` (zero where that is shorter)
/// and clipped to the median norm of these; the result is again absolute. In the order given, in f64. Zeros
/// without any weight.
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
    // All zero: so is the median.
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

/// Shortens every point to the weighted median of their norms, and gives that.
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

/// One Weiszfeld step: the mean, each point weighed by its weight over its distance.
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

fn norm(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |sum, value| sum + value * value).sqrt()
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).fold(0.0, |sum, (x, y)| sum + (x - y) * (x - y)).sqrt()
}
