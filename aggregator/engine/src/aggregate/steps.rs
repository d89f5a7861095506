//! Updates as steps from a center, clipped to a quantile of the norms of the round: the input of the robust
//! rules.

use super::{Weighted, weighted_median, weighted_quantile};

/// Steps of the devices that have a weight, in the order of devices.
pub(super) struct Steps {
    /// Weight and step of each device.
    pub points: Vec<(f64, Vec<f64>)>,
    /// Number of values of a step.
    pub length: usize,
    /// Largest norm after clipping, which is the quantile of the norms before it.
    pub radius: f64,
}

impl Steps {
    /// Differences of `updates` from `center` (extended by zeros), clipped to the norm that this fraction of the
    /// weight does not exceed. Devices without a weight are left out.
    pub fn clipped(updates: &[Weighted<'_>], center: &[f64], fraction: f64) -> Self {
        let length = updates.first().map_or(center.len(), |update| update.values.len());
        let mut points: Vec<(f64, Vec<f64>)> = updates
            .iter()
            .filter(|update| update.weight > 0.0)
            .map(|update| {
                let values =
                    update.values.iter().enumerate().map(|(index, v)| f64::from(*v) - at(center, index));
                (update.weight, values.collect())
            })
            .collect();
        let radius = clip(&mut points, fraction);
        Self { points, length, radius }
    }

    /// Directions of the steps as seen from their coordinate-wise weighted median: the differences, scaled to
    /// norm 1. A step that equals the median has the direction zero.
    pub fn directions(&self) -> Self {
        let mut points = self.points.clone();
        for coordinate in 0..self.length {
            let values = self.points.iter().map(|(weight, step)| (at(step, coordinate), *weight)).collect();
            let median = weighted_median(values);
            for (_, step) in &mut points {
                if let Some(value) = step.get_mut(coordinate) {
                    *value -= median;
                }
            }
        }
        for (_, step) in &mut points {
            normalize(step);
        }
        Self { points, ..*self }
    }

    /// Weighted mean of the steps, with the weight of each device multiplied by its factor in `kept`. Zeros
    /// if no device has a weight.
    pub fn mean(&self, kept: &[f64]) -> Vec<f64> {
        let mut sum = vec![0.0; self.length];
        let mut total = 0.0;
        for ((weight, values), kept) in self.points.iter().zip(kept) {
            add_scaled(&mut sum, weight * kept, values);
            total += weight * kept;
        }
        if total > 0.0 {
            for sum in &mut sum {
                *sum /= total;
            }
        }
        sum
    }
}

/// Adds a step to a center that is extended by zeros.
pub(super) fn from_center(step: &[f64], center: &[f64]) -> Vec<f64> {
    step.iter().enumerate().map(|(index, value)| value + at(center, index)).collect()
}

/// Value of a vector that is extended by zeros.
fn at(values: &[f64], index: usize) -> f64 {
    values.get(index).copied().unwrap_or(0.0)
}

/// Clips every point to a weighted quantile of the norms, and returns that quantile.
fn clip(points: &mut [(f64, Vec<f64>)], fraction: f64) -> f64 {
    let norms: Vec<f64> = points.iter().map(|(_, values)| norm(values)).collect();
    let weighed = norms.iter().zip(points.iter()).map(|(norm, (weight, _))| (*norm, *weight)).collect();
    let radius = weighted_quantile(weighed, fraction);
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

/// Adds `factor * values` to `sum`.
pub(super) fn add_scaled(sum: &mut [f64], factor: f64, values: &[f64]) {
    for (sum, value) in sum.iter_mut().zip(values) {
        *sum += factor * value;
    }
}

/// Inner product.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).fold(0.0, |sum, (x, y)| sum + x * y)
}

/// Euclidean norm.
pub(super) fn norm(values: &[f64]) -> f64 {
    dot(values, values).sqrt()
}

/// Scales a vector to norm 1. Returns false, and leaves it unchanged, if its norm is zero or not finite.
pub(super) fn normalize(values: &mut [f64]) -> bool {
    let norm = norm(values);
    if !(norm > 0.0 && norm.is_finite()) {
        return false;
    }
    for value in values.iter_mut() {
        *value /= norm;
    }
    true
}
