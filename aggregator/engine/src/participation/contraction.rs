//! Estimate of the contraction `a` of a model per round, and of its squared distance `D^2` to the best model.
//!
//! The step `z` of the model is `a` times its error `E` plus noise, and the error becomes `E - z`. For each `a` of
//! a grid this is a Kalman filter with one unknown matrix, and the filters are weighted by how well they
//! predict the steps.

use super::model_motion::ModelPoint;
use super::round_steps::ModelStep;
use crate::linalg::Matrix;

/// Prior median of the contraction. The prior is log-normal with a standard deviation of 1 of the logarithm.
const EXPECTED: f64 = 0.1;
/// Ratio of neighbouring contractions of a grid.
const RATIO: f64 = 0.8;
/// Quantile of the contraction that serves as the estimate. It is high, since a contraction that is too large
/// gives a distance that is too small, which leads to rounds with more devices.
const QUANTILE: f64 = 0.9;

/// Grid of contractions, descending from the largest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grid {
    /// Largest contraction.
    pub largest: f64,
    /// Number of contractions.
    pub count: usize,
}

/// Filters for all contractions of a grid.
#[derive(Clone, Debug)]
pub struct Contraction {
    grid: Grid,
    filters: Vec<Filter>,
}

/// Kalman filter of the error for one contraction `a`.
#[derive(Clone, Debug)]
struct Filter {
    a: f64,
    /// Estimated error, d x k. `None` before the first step, when only its length is estimated.
    error: Option<Matrix>,
    /// Variance of each element of the error.
    variance: f64,
    /// Estimated squared distance to the best model.
    distance: f64,
    /// Logarithm of the filter's weight.
    weight: f64,
}

/// Progress of a step in the direction of the best model, in comparison with a step of all devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Component of the expected step along that of all devices, as a multiple of the latter; 1 if the devices
    /// are like the others.
    pub along: f64,
    /// Squared length of the expected step, as a multiple of that of all devices.
    pub squared: f64,
}

impl Progress {
    /// Progress of all devices, or of devices that are like the others.
    pub const FULL: Self = Self { along: 1.0, squared: 1.0 };

    /// Factor of the squared distance that a step with the contraction `a` leaves, without noise.
    pub fn remaining(self, a: f64) -> f64 {
        (1.0 - 2.0 * a * self.along + a * a * self.squared).max(0.0)
    }
}

impl Contraction {
    /// Creates an estimate without observations.
    pub fn new(grid: Grid) -> Self {
        Self { grid, filters: Vec::new() }
    }

    /// Contractions of the grid, descending.
    fn values(grid: Grid) -> impl Iterator<Item = f64> {
        std::iter::successors(Some(grid.largest), |a| Some(a * RATIO)).take(grid.count)
    }

    /// Observes a step of the model, whose noise has the expected squared length `noise`. `remaining` is the
    /// factor of the squared distance that such a step leaves, for a contraction.
    pub fn update(&mut self, observed: &ModelStep, noise: f64, remaining: impl Fn(f64) -> f64) {
        let ModelStep { origin, model_after, step, .. } = observed;
        if self.filters.is_empty() {
            let filter = |a| Filter::new(a, origin.expected_distance(step, a));
            self.filters = Self::values(self.grid).map(filter).collect();
        }
        for filter in &mut self.filters {
            filter.update(step, noise, remaining(filter.a), model_after);
        }
    }

    /// Estimated contraction and squared distance; `None` before the first observed step.
    pub fn estimate(&self) -> Option<(f64, f64)> {
        let max_weight = self.filters.iter().map(|filter| filter.weight).fold(f64::NEG_INFINITY, f64::max);
        let share = |filter: &Filter| libm::exp(filter.weight - max_weight);
        let total: f64 = self.filters.iter().map(share).sum();
        // The quantile is searched from the smallest contraction up. Logarithms are interpolated between grid
        // points.
        let mut below = 0.0;
        let mut last: Option<(&Filter, f64)> = None;
        for filter in self.filters.iter().rev() {
            let share = share(filter) / total;
            let middle = below + share / 2.0;
            if middle >= QUANTILE {
                let Some((lower, lower_middle)) = last else { return Some((filter.a, filter.distance)) };
                let fraction = (QUANTILE - lower_middle) / (middle - lower_middle);
                let interpolate =
                    |x: f64, y: f64| libm::exp(libm::log(x) + fraction * (libm::log(y) - libm::log(x)));
                return Some((interpolate(lower.a, filter.a), interpolate(lower.distance, filter.distance)));
            }
            below += share;
            last = Some((filter, middle));
        }
        last.map(|(filter, _)| (filter.a, filter.distance))
    }

    /// Number of values of the state: none, or two for each contraction of the grid.
    pub fn state_len(&self) -> usize {
        2 * self.filters.len()
    }

    /// State for checkpoints: the distance and weight of each filter. The estimated errors are omitted, since
    /// the next steps determine them again.
    pub fn state(&self) -> impl Iterator<Item = f64> + '_ {
        self.filters.iter().flat_map(|filter| [filter.distance, filter.weight])
    }

    /// Restores a state that [`Self::state`] returned for the same grid; `None` if the number of values is
    /// another.
    pub fn restored(grid: Grid, state: &[f64]) -> Option<Self> {
        if state.is_empty() {
            return Some(Self::new(grid));
        }
        let filter = |(pair, a): (&[f64; 2], f64)| Filter {
            a,
            error: None,
            variance: 0.0,
            distance: pair[0],
            weight: pair[1],
        };
        let (pairs, rest) = state.as_chunks();
        (rest.is_empty() && pairs.len() == grid.count)
            .then(|| Self { grid, filters: pairs.iter().zip(Self::values(grid)).map(filter).collect() })
    }
}

impl Filter {
    /// Creates a filter for the contraction `a` with a prior squared distance.
    fn new(a: f64, distance: f64) -> Self {
        let log_ratio = libm::log(a / EXPECTED);
        Self { a, error: None, variance: 0.0, distance, weight: -0.5 * log_ratio * log_ratio }
    }

    /// Observes one step of the model, whose noise has the expected squared length `noise`, and which leaves
    /// the factor `remaining` of the squared distance; `model_after` is the model after the step.
    fn update(&mut self, step: &Matrix, noise: f64, remaining: f64, model_after: &ModelPoint) {
        let (d, k) = step.shape();
        let elements = model_after.degrees_of_freedom();
        let a = self.a;
        let mut error = self.error.take().unwrap_or_else(|| {
            self.variance = self.distance / elements;
            Matrix::zeros(d, k)
        });
        // With a single update per round the noise cannot be estimated, so the rounding to f32 is its lower
        // bound.
        let rounding = step.norm_squared() * f64::from(f32::EPSILON * f32::EPSILON) / elements;
        let predicted = (a * a * self.variance + noise / elements).max(rounding).max(f64::MIN_POSITIVE);
        let gain = self.variance * a / predicted;
        let innovation = step - &error * a;
        self.weight -= 0.5 * (elements * libm::log(predicted) + innovation.norm_squared() / predicted);
        // The weight must stay finite, since restoring a checkpoint rejects other values.
        self.weight = self.weight.max(f64::MIN / 2.0);
        error += innovation * gain - step;
        let error = model_after.project(error);
        self.variance *= 1.0 - gain * a;
        // The recursion is an upper bound, so that a noisy filter cannot make a stage arbitrarily long.
        let recursion = remaining * self.distance + noise;
        let estimated = error.norm_squared() + elements * self.variance;
        self.distance = recursion.min(estimated).max(f64::MIN_POSITIVE);
        self.error = Some(error);
    }
}
