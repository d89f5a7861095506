//! The ridge of final heads, chosen by the fleet: for devices that come later and label a few samples of each class.
//!
//! Once training is over, every device that can plays such a device on its own samples and says, for each ridge of
//! [`GRID`], how many of the other samples the head got right ([`Task::RidgeScores`]). The shares of right ones are added
//! up as whole numbers, each device like any other, so that the sums depend neither on the order of answers nor on who has
//! the most samples. The ridge with the largest sum is published with every final head.

use fedspan_protocol::limits::RIDGE_DRAWS;
use fedspan_protocol::limits::RIDGE_SAMPLES_MAX;
use fedspan_protocol::message::{HeadSolve, Task};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};
use serde::Serialize;

use crate::types::{Request, Tensor};

/// Default of the ridge that is published where no device has scored any. Where `sim/RESULTS.md` measures newcomers with one label a class, their
/// accuracy with it is within 0.014 of that with the best ridge of the grid.
pub const DEFAULT_RIDGE: f64 = 0.03;

/// Ridges from 1e-4 to 100, two a decade: near the best, accuracy changes by about a hundredth from one to the next. Features are
/// about 1 in size (`[data] scale`), so that smaller ridges act like none and larger ones leave nothing of a head. Stores keep sums
/// of scores without the ridges: another grid needs another number of these, or another format of stores.
pub const GRID: Grid = Grid { first: 1e-4, factor: 3.162_277_7, count: 13 };

/// Units of a whole share: a device that got everything right adds as many.
const WHOLE: u64 = 1 << 16;

/// A geometric grid of ridges.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Grid {
    /// The smallest.
    pub first: f32,
    /// Each further one is the one before times this, in binary32.
    pub factor: f32,
    /// How many.
    pub count: u8,
}

impl Grid {
    /// The ridges, ascending.
    pub fn ridges(self) -> impl Iterator<Item = f32> {
        std::iter::successors(Some(self.first), move |ridge| Some(ridge * self.factor))
            .take(self.count.into())
    }
}

/// What devices have said of the ridges of [`GRID`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RidgeScores {
    labels_per_class: u16,
    /// Devices are asked, or were.
    pub(super) asked: bool,
    /// Devices that count.
    devices: u64,
    /// For each ridge the sum of their shares of right predictions, in units of 1 / 65536.
    sums: Vec<u64>,
}

/// What was chosen, and of what.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChosenRidge {
    /// The published ridge.
    pub ridge: f32,
    /// Samples of each class that the heads were fitted on.
    pub labels_per_class: u16,
    /// Devices that have scored; with none the ridge is the default.
    pub devices: u64,
    /// The grid.
    pub ridges: Vec<f32>,
    /// For each of its ridges the mean share of right predictions.
    pub scores: Vec<f64>,
}

impl ChosenRidge {
    /// The ridge is an end of the grid, and better than the one beside it: a better one may be beyond.
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
    /// Nobody has said anything. Heads are fitted on so many samples of each class.
    #[must_use]
    pub fn new(labels_per_class: u16) -> Self {
        let labels_per_class = labels_per_class.max(1);
        Self { labels_per_class, asked: true, devices: 0, sums: vec![0; GRID.count.into()] }
    }

    /// The same of a fleet that is not asked, because scores have no noise. What was said before it was so stays.
    #[must_use]
    pub fn unasked(self) -> Self {
        Self { asked: false, ..self }
    }

    /// What devices are asked, on the tensors of the final heads.
    #[must_use]
    pub fn request(&self, fit: Request) -> Request {
        let Grid { first, factor, count } = GRID;
        let task = Task::RidgeScores { labels_per_class: self.labels_per_class, first, factor, count };
        let expects = vec![TensorDescriptor::inline(Role::RidgeScores, Encoding::F32, 1, count.into())];
        Request { task, expects, ..fit }
    }

    /// Whether a device can have counted this on so many samples: whole numbers, none of them larger than that.
    #[must_use]
    pub fn admits(&self, samples: u32, tensors: &[Tensor]) -> bool {
        let most = f64::from(samples);
        let possible = |value: &f32| value.fract() == 0.0 && (0.0..=most).contains(&f64::from(*value));
        let [tensor] = tensors else { return false };
        samples <= RIDGE_SAMPLES_MAX * RIDGE_DRAWS
            && tensor.values.len() == self.sums.len()
            && tensor.values.iter().all(possible)
    }

    /// Adds what a device has said, which is admitted. The order does not matter.
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

    /// The ridge with the largest sum, smoothed over its neighbours in the grid: `s[i - 1] + 2 s[i] + s[i + 1]`, the ends continued.
    /// Neighbours hardly differ in truth, and the noise of a few devices does not pass for a peak. Of equals the larger.
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

    /// How final heads are fitted with it.
    #[must_use]
    pub fn published(&self, head: HeadSolve) -> HeadSolve {
        match head {
            HeadSolve::LeaveOneOut { fallback_ridge: otherwise } => {
                HeadSolve::LeaveOneOut { fallback_ridge: self.ridge().unwrap_or(otherwise) }
            }
            other => other,
        }
    }

    /// For people and other programs; `otherwise` is what is published where no device has scored any.
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

    /// Everything, to be kept over a restart.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "sums over fewer than 2^37 devices")]
    pub fn state(&self) -> Vec<f64> {
        std::iter::once(&self.devices).chain(&self.sums).map(|number| *number as f64).collect()
    }

    /// Puts [`Self::state`] back. False, with nothing changed, if it is none.
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
