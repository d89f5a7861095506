//! Choice of the final heads' ridge by the fleet, for devices that join later and label only a few samples of
//! each class.
//!
//! After training, every capable device simulates such a newcomer on its own samples. For each ridge of
//! [`GRID`] it reports how many of the remaining samples the head predicts correctly ([`Task::RidgeScores`]).
//! The engine sums the fractions of correct predictions as integers, with equal weight for each device, so
//! that the sums depend neither on the order of arrival nor on sample counts. Every final head uses the ridge
//! with the largest sum.

use fedspan_protocol::limits::RIDGE_DRAWS;
use fedspan_protocol::limits::RIDGE_SAMPLES_MAX;
use fedspan_protocol::message::{HeadSolve, Task};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};
use serde::Serialize;

use crate::types::{Request, Tensor};

/// Default ridge, for fleets in which no device has reported scores. In `sim/RESULTS.md`, newcomers with one
/// label per class reach with it an accuracy within 0.014 of that with the best ridge of the grid.
pub const DEFAULT_RIDGE: f64 = 0.03;

/// Ridges from 1e-4 to 100, two per decade: near the best one, accuracy changes by about a hundredth from one
/// to the next. Features are about 1 in size (`[data] scale`), so smaller ridges have no effect and larger
/// ones shrink the head to nothing. Stores keep the sums without the ridges: another grid must have another
/// number of ridges, or needs another store format.
pub const GRID: Grid = Grid { first: 1e-4, factor: 3.162_277_7, count: 13 };

/// Units that a device with only correct predictions adds to a sum.
const WHOLE: u64 = 1 << 16;

/// Geometric grid of ridges.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Grid {
    /// Smallest ridge.
    pub first: f32,
    /// Ratio of neighbours; the product is rounded to binary32 at each step.
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
    labels_per_class: u16,
    /// Whether devices are asked for scores, or were before a restart.
    pub(super) asked: bool,
    /// Number of devices that have reported scores.
    devices: u64,
    /// For each ridge, the sum of the devices' fractions of correct predictions, in units of 1 / 65536.
    sums: Vec<u64>,
}

/// The chosen ridge and the scores behind the choice.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChosenRidge {
    /// Chosen ridge.
    pub ridge: f32,
    /// Number of samples of each class on which the scored heads were fitted.
    pub labels_per_class: u16,
    /// Number of devices that have reported scores; with 0 the ridge is the default.
    pub devices: u64,
    /// Ridges of the grid.
    pub ridges: Vec<f32>,
    /// For each ridge of the grid, the mean fraction of correct predictions.
    pub scores: Vec<f64>,
}

impl ChosenRidge {
    /// Whether the ridge is an end of the grid and scores better than its neighbour, so that a better one may
    /// lie beyond the grid.
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        let better = |pair: Option<(&f64, &f64)>| pair.is_some_and(|(end, inner)| end > inner);
        let (first, last) = (self.ridges.first(), self.ridges.last());
        let scores = &self.scores;
        let mut back = scores.iter().rev();
        first == Some(&self.ridge) && better(scores.first().zip(scores.get(1)))
            || last == Some(&self.ridge) && better(back.next().zip(back.next()))
    }
}

impl RidgeScores {
    /// Creates empty sums for heads fitted on `labels_per_class` samples of each class.
    #[must_use]
    pub fn new(labels_per_class: u16) -> Self {
        let labels_per_class = labels_per_class.max(1);
        Self { labels_per_class, asked: true, devices: 0, sums: vec![0; GRID.count.into()] }
    }

    /// Stops asking devices for scores, which carry no noise. Scores from before a restart stay.
    #[must_use]
    pub fn without_asking(self) -> Self {
        Self { asked: false, ..self }
    }

    /// Request for scores, on the tensors of the final heads.
    #[must_use]
    pub fn request(&self, fit: Request) -> Request {
        let Grid { first, factor, count } = GRID;
        let task = Task::RidgeScores { labels_per_class: self.labels_per_class, first, factor, count };
        let expects = vec![TensorDescriptor::inline(Role::RidgeScores, Encoding::F32, 1, count.into())];
        Request { task, expects, ..fit }
    }

    /// Whether the counts are possible for `samples` samples: whole numbers from 0 to that.
    #[must_use]
    pub fn admits(&self, samples: u32, tensors: &[Tensor]) -> bool {
        let most = f64::from(samples);
        let possible = |value: &f32| value.fract() == 0.0 && (0.0..=most).contains(&f64::from(*value));
        let [tensor] = tensors else { return false };
        samples <= RIDGE_SAMPLES_MAX * RIDGE_DRAWS
            && tensor.values.len() == self.sums.len()
            && tensor.values.iter().all(possible)
    }

    /// Adds the counts of a device, which must have been admitted. The order of devices does not matter.
    pub fn absorb(&mut self, samples: u32, tensors: &[Tensor]) {
        let [tensor] = tensors else { return };
        let samples = u64::from(samples.max(1));
        self.devices += 1;
        for (sum, value) in self.sums.iter_mut().zip(&tensor.values) {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "admitted")]
            let right = *value as u64;
            *sum += (right * WHOLE + samples / 2) / samples;
        }
    }

    /// Ridge with the largest smoothed sum, `s[i - 1] + 2 s[i] + s[i + 1]`, with the end values repeated; the
    /// larger ridge of equals. Neighbouring ridges score nearly the same, and smoothing keeps the noise of a
    /// few devices from looking like a peak.
    #[must_use]
    pub fn ridge(&self) -> Option<f32> {
        if self.devices == 0 {
            return None;
        }
        let at = |place: usize| self.sums.get(place).copied();
        let smoothed = self.sums.iter().enumerate().map(|(place, own)| {
            let before = place.checked_sub(1).and_then(at).unwrap_or(*own);
            before + 2 * own + at(place + 1).unwrap_or(*own)
        });
        let best = smoothed.zip(GRID.ridges()).max_by_key(|(sum, _)| *sum);
        best.map(|(_, ridge)| ridge)
    }

    /// Head solver of the final heads, with the chosen ridge.
    #[must_use]
    pub fn published(&self, head: HeadSolve) -> HeadSolve {
        match head {
            HeadSolve::LeaveOneOut { fallback_ridge: otherwise } => {
                HeadSolve::LeaveOneOut { fallback_ridge: self.ridge().unwrap_or(otherwise) }
            }
            other => other,
        }
    }

    /// The choice and its scores, for status reports; `otherwise` is the ridge for fleets without scores.
    #[must_use]
    pub fn chosen(&self, otherwise: f32) -> ChosenRidge {
        #[allow(clippy::cast_precision_loss, reason = "sums over fewer than 2^37 devices")]
        let mean = |sum: &u64| *sum as f64 / (WHOLE * self.devices.max(1)) as f64;
        ChosenRidge {
            ridge: self.ridge().unwrap_or(otherwise),
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

    /// Restores [`Self::state`]. Returns false, with nothing changed, if the values are not such a state.
    #[must_use]
    pub fn restore(&mut self, state: &[f64]) -> bool {
        let whole = |number: &f64| number.fract() == 0.0 && (0.0..=2f64.powi(53)).contains(number);
        if !state.iter().all(whole) || state.len() != 1 + self.sums.len() {
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
