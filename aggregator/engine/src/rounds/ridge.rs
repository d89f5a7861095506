//! Choice of the ridge of the final heads by the fleet, for devices that join later and label only a few
//! samples of each class.
//!
//! After training, every capable device simulates such newcomers with its own samples. For each ridge of
//! [`GRID`] it reports how many of the remaining samples the head predicts correctly ([`Task::RidgeScores`]).
//! The engine sums the fractions of correct predictions as integers, with equal weight for each device. So
//! the sums depend neither on the order of arrival nor on the devices' sample counts. Every final head uses
//! the ridge with the largest smoothed sum.

use fedspan_protocol::limits::RIDGE_DRAWS;
use fedspan_protocol::limits::RIDGE_SAMPLES_MAX;
use fedspan_protocol::message::{HeadSolve, Task};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};
use serde::{Deserialize, Serialize};

use crate::types::{Request, Tensor};

/// Default ridge, for fleets in which no device has reported scores. In `sim/RESULTS.md`, its accuracy for
/// newcomers with one label per class is within 0.014 of the accuracy of the best ridge of the grid.
pub const DEFAULT_RIDGE: f64 = 0.03;

/// Candidate ridges from 1e-4 to 100, two per decade. Near the best ridge, accuracy changes by about a
/// hundredth from one ridge to the next. Features are about 1 in size (`[data] scale`), so smaller ridges
/// have no effect, and larger ridges shrink the head to zero. Stored campaigns contain the sums without the
/// ridges, so a changed grid must have another number of ridges, or needs another store format.
pub const GRID: Grid = Grid { first: 1e-4, factor: 3.162_277_7, count: 13 };

/// Amount that a device with only correct predictions adds to a sum.
const FULL_SCORE: u64 = 1 << 16;

/// Geometric grid of ridges.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Grid {
    /// Smallest ridge.
    pub first: f32,
    /// Ratio of neighbouring ridges; the product is rounded to binary32 at each step.
    pub factor: f32,
    /// Number of ridges.
    pub count: u8,
}

impl Grid {
    /// Ridges of the grid, ascending.
    pub fn ridges(self) -> impl Iterator<Item = f32> {
        std::iter::successors(Some(self.first), move |ridge| Some(ridge * self.factor))
            .take(self.count.into())
    }
}

/// Sums of the scores that devices have reported for the ridges of [`GRID`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RidgeScores {
    /// Number of samples of each class on which the scored heads are fitted.
    labels_per_class: u16,
    /// Whether the campaign requests scores from devices, or did so before a restart.
    pub(super) is_requested: bool,
    /// Number of devices that have reported scores.
    devices: u64,
    /// For each ridge, the sum of the devices' fractions of correct predictions, in units of 1 / 65536.
    sums: Vec<u64>,
}

/// Chosen ridge, with the scores on which the choice is based.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct ChosenRidge {
    /// Chosen ridge.
    pub ridge: f32,
    /// Number of samples of each class on which the scored heads were fitted.
    pub labels_per_class: u16,
    /// Number of devices that have reported scores; if it is 0, the ridge is the default.
    pub devices: u64,
    /// Ridges of the grid.
    pub ridges: Vec<f32>,
    /// For each ridge of the grid, the mean fraction of correct predictions.
    pub scores: Vec<f64>,
}

impl ChosenRidge {
    /// Whether the ridge is the first or last of the grid and scores better than its neighbour, so that a
    /// better ridge may lie outside the grid.
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        let is_better =
            |pair: Option<(&f64, &f64)>| pair.is_some_and(|(end_score, inner_score)| end_score > inner_score);
        let (first, last) = (self.ridges.first(), self.ridges.last());
        let scores = &self.scores;
        let mut descending = scores.iter().rev();
        first == Some(&self.ridge) && is_better(scores.first().zip(scores.get(1)))
            || last == Some(&self.ridge) && is_better(descending.next().zip(descending.next()))
    }
}

impl RidgeScores {
    /// Creates empty sums for heads fitted on `labels_per_class` samples of each class.
    #[must_use]
    pub fn new(labels_per_class: u16) -> Self {
        let labels_per_class = labels_per_class.max(1);
        Self { labels_per_class, is_requested: true, devices: 0, sums: vec![0; GRID.count.into()] }
    }

    /// Stops requesting scores, which contain no privacy noise. Scores from before a restart are kept.
    #[must_use]
    pub fn without_asking(self) -> Self {
        Self { is_requested: false, ..self }
    }

    /// Request for scores, with the tensors of the request `fit` for final heads.
    #[must_use]
    pub fn request(&self, fit: Request) -> Request {
        let Grid { first, factor, count } = GRID;
        let task = Task::RidgeScores { labels_per_class: self.labels_per_class, first, factor, count };
        let expects = vec![TensorDescriptor::inline(Role::RidgeScores, Encoding::F32, 1, count.into())];
        Request { task, expects, ..fit }
    }

    /// Whether the reported counts are possible: integers from 0 to `samples`, for a possible number of
    /// samples.
    #[must_use]
    pub fn admits(&self, samples: u32, tensors: &[Tensor]) -> bool {
        let max_count = f64::from(samples);
        let is_possible =
            |value: &f32| value.fract() == 0.0 && (0.0..=max_count).contains(&f64::from(*value));
        let [tensor] = tensors else { return false };
        samples <= RIDGE_SAMPLES_MAX * RIDGE_DRAWS
            && tensor.values.len() == self.sums.len()
            && tensor.values.iter().all(is_possible)
    }

    /// Adds the counts of a device, which must satisfy [`Self::admits`]. The sums do not depend on the order
    /// of devices.
    pub fn absorb(&mut self, samples: u32, tensors: &[Tensor]) {
        let [tensor] = tensors else { return };
        let samples = u64::from(samples.max(1));
        self.devices += 1;
        for (sum, value) in self.sums.iter_mut().zip(&tensor.values) {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "admitted")]
            let correct = *value as u64;
            *sum += (correct * FULL_SCORE + samples / 2) / samples;
        }
    }

    /// Ridge with the largest smoothed sum, `s[i - 1] + 2 s[i] + s[i + 1]`, with the end values repeated; in
    /// a tie the largest of these ridges. `None` without scores. Neighbouring ridges have nearly the same
    /// scores, so smoothing reduces the noise of a small number of devices.
    #[must_use]
    pub fn ridge(&self) -> Option<f32> {
        if self.devices == 0 {
            return None;
        }
        let sum_at = |index: usize| self.sums.get(index).copied();
        let smoothed = self.sums.iter().enumerate().map(|(index, sum)| {
            let previous = index.checked_sub(1).and_then(sum_at).unwrap_or(*sum);
            previous + 2 * sum + sum_at(index + 1).unwrap_or(*sum)
        });
        let best = smoothed.zip(GRID.ridges()).max_by_key(|(sum, _)| *sum);
        best.map(|(_, ridge)| ridge)
    }

    /// Replaces the ridge of [`HeadSolve::LeaveOneOut`] by the chosen ridge, if there are scores. Other
    /// solvers are unchanged.
    #[must_use]
    pub fn published(&self, head: HeadSolve) -> HeadSolve {
        match head {
            HeadSolve::LeaveOneOut { fallback_ridge } => {
                HeadSolve::LeaveOneOut { fallback_ridge: self.ridge().unwrap_or(fallback_ridge) }
            }
            head => head,
        }
    }

    /// Chosen ridge with its scores, for status reports. `fallback` is the ridge of fleets without scores.
    #[must_use]
    pub fn chosen(&self, fallback: f32) -> ChosenRidge {
        #[allow(clippy::cast_precision_loss, reason = "sums over fewer than 2^37 devices")]
        let mean = |sum: &u64| *sum as f64 / (FULL_SCORE * self.devices.max(1)) as f64;
        ChosenRidge {
            ridge: self.ridge().unwrap_or(fallback),
            labels_per_class: self.labels_per_class,
            devices: self.devices,
            ridges: GRID.ridges().collect(),
            scores: if self.devices == 0 { Vec::new() } else { self.sums.iter().map(mean).collect() },
        }
    }

    /// State to restore after a restart: the number of devices, then the sums.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "sums over fewer than 2^37 devices")]
    pub fn state(&self) -> Vec<f64> {
        std::iter::once(&self.devices).chain(&self.sums).map(|number| *number as f64).collect()
    }

    /// Restores a state that [`Self::state`] returned. Returns false, and changes nothing, if the values are
    /// not such a state.
    #[must_use]
    pub fn restore(&mut self, state: &[f64]) -> bool {
        let is_integer = |number: &f64| number.fract() == 0.0 && (0.0..=2f64.powi(53)).contains(number);
        if !state.iter().all(is_integer) || state.len() != 1 + self.sums.len() {
            return false;
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole numbers")]
        let mut numbers = state.iter().map(|value| *value as u64);
        let Some(devices) = numbers.next() else { return false };
        self.devices = devices;
        self.sums = numbers.collect();
        true
    }
}
