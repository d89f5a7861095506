//! Adaptive schedule of doubling participation: estimates, from the rounds so far alone, for how many updates
//! the next round should wait.
//!
//! A round with the first `n` of `N` updates takes the arrival time `T_n` of the last of these updates,
//! communication included. It reduces the squared distance `D^2` to the best model that the fleet can reach:
//! `D^2 <- (1 - a)^2 D^2 + v / n` (SRPFL, equation 199), with a contraction `a` and the variance `v` of one
//! device's step. The time to any target is shortest if every round maximises `(D^2 a (2 - a) - v / n) / T_n`
//! (equation 200 in squared distances), which depends neither on the target nor on the number of rounds. Four
//! quantities are estimated:
//!
//! * `T_n`: the mean of the observed arrival times of rank `n`. The first round waits for all devices.
//! * `v`: the variance between the devices' steps in a round.
//! * `a` and `D^2`: the step `z` of the model is `a` times its error `E` plus noise, and the error becomes
//!   `E - z`. For each `a` of a grid this is a Kalman filter with one unknown matrix, and the filters are
//!   weighted by how well they predict the steps. A high quantile of `a` is used: if `a` is too large, the
//!   estimated distance is too small, which leads to full participation, and that is safe.
//! * The ratio of the contraction with the devices of the present stage to the contraction with all devices.
//!   Speed may be correlated with data, so the fastest devices may cover the directions of the representation
//!   unevenly ([`Coverage`]).
//!
//! The estimates assume fresh noise in each round and similar devices. If neither holds, the model could fit
//! a few fast devices alone for any number of rounds. So rounds that do not wait for all devices have a
//! budget: together they may take as long as [`BUDGET`] rounds with all devices. This bounds the loss against
//! full participation, for any data.
//!
//! Steps are computed from the model before and after a round, so they have the same meaning for every
//! algorithm. Steps of a representation are in tangent coordinates, since only its span matters. Devices send
//! nothing in addition to their updates.

use super::coverage::Coverage;
use super::model_motion::ModelPoint;
use super::{ClosedRound, UpdateArrival};
use crate::linalg::{Matrix, from_f32, product_transposed};

/// Largest contraction of the grid.
const LARGEST: f64 = 0.5;
/// Ratio of neighbouring contractions of the grid.
const RATIO: f64 = 0.8;
/// Number of contractions of the grid.
const GRID: usize = 20;
/// Prior median of the contraction. The prior is log-normal with a standard deviation of 1 of the logarithm.
const EXPECTED: f64 = 0.1;
/// Quantile of the contraction that serves as the estimate.
const QUANTILE: f64 = 0.9;
/// Factor by which a round may take longer than the best one in order to wait for more devices, since an
/// additional round costs more.
const FREE: f64 = 1.2;

/// Time budget of rounds that do not wait for all devices, in mean durations of rounds that do.
const BUDGET: f64 = 10.0;

/// Estimates of the adaptive schedule from the rounds so far.
#[derive(Clone, Debug)]
pub struct Adaptive {
    /// Number of rounds observed.
    rounds: u32,
    /// Total time of the rounds that did not wait for all devices, in milliseconds.
    spent: f64,
    /// Observations by rank of arrival.
    ranks: Vec<Rank>,
    round: Round,
    /// Sums over rounds: of `n` times the variance between the devices' steps, scaled to the model's step,
    /// and of `n`.
    variance: (f64, f64),
    filters: Vec<Filter>,
    coverage: Coverage,
}

/// Sums over rounds of the observations at one rank of arrival.
#[derive(Clone, Copy, Debug, Default)]
struct Rank {
    /// Sum of the arrival times, in milliseconds.
    time: f64,
    /// Sum of the sample counts of this update and all updates before it in its round.
    samples: f64,
    /// Number of observed rounds.
    count: f64,
}

/// Observations of the open round.
#[derive(Clone, Debug, Default)]
struct Round {
    /// Number of invited devices.
    invited: usize,
    answers: usize,
    /// Samples of all updates so far.
    samples: f64,
    /// Model before the round.
    origin: Option<ModelPoint>,
    /// Number of steps read from the updates.
    steps: usize,
    /// Sum of the steps `G`, and sum of `G^T G`.
    sum: Option<(Matrix, Matrix)>,
    /// Sum of the squared lengths of the steps.
    squares: f64,
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

impl Adaptive {
    /// Creates estimates without observations.
    pub fn new() -> Self {
        Self {
            rounds: 0,
            spent: 0.0,
            ranks: Vec::new(),
            round: Round::default(),
            variance: (0.0, 0.0),
            filters: Vec::new(),
            coverage: Coverage::default(),
        }
    }

    /// Chooses the level for which the next round waits, and returns its index in `levels`. These are numbers
    /// of updates in ascending order; the last is the number of all devices. `current` is the index of the
    /// present level. The result is at least `current`, except after the first round, which waits for all
    /// devices.
    pub fn choose(&self, levels: &[usize], current: usize) -> usize {
        let full_level = levels.len().saturating_sub(1);
        if self.rounds == 0 {
            return full_level;
        }
        // The first round only measured arrival times. The stages begin after it, with the first level.
        let first_level = if self.rounds == 1 { 0 } else { current };
        let Some((a, distance)) = self.estimate() else { return full_level };
        let variance = self.variance.0 / self.variance.1;
        let time = |level: usize| levels.get(level).and_then(|n| self.mean_arrival(*n));
        let Some(full_time) = time(full_level).filter(|time| *time > 0.0) else { return full_level };
        if self.spent >= BUDGET * full_time {
            return full_level;
        }
        let rates = levels.iter().enumerate().skip(first_level).filter_map(|(level, &n)| {
            let time = time(level)?.max(f64::MIN_POSITIVE * full_time);
            let a = if level == current { a * self.coverage.factor(n) } else { a };
            Some((level, (distance * a * (2.0 - a) - variance / n as f64) / time))
        });
        let best = rates.fold(None, |best: Option<(usize, f64)>, (level, rate)| match best {
            Some((_, best_rate)) if best_rate >= rate => best,
            _ => Some((level, rate)),
        });
        let best = best.filter(|(_, rate)| *rate > 0.0).map_or(full_level, |(level, _)| level);
        let Some(longest) = time(best).map(|time| FREE * time) else { return full_level };
        let is_nearly_free = |level: &usize| time(*level).is_some_and(|time| time <= longest);
        (best..levels.len()).filter(is_nearly_free).max().unwrap_or(best)
    }

    /// Number of first updates that together have had `samples` samples on average; the number of observed
    /// ranks if no number of updates reaches this count.
    pub fn answers_with(&self, samples: u64) -> usize {
        let enough = |rank: &Rank| rank.count > 0.0 && rank.samples >= samples as f64 * rank.count;
        self.ranks.iter().position(enough).map_or(self.ranks.len(), |index| index + 1)
    }

    /// Begins a round with `invited` devices.
    pub fn open(&mut self, invited: usize) {
        self.ranks.resize(invited.max(self.ranks.len()), Rank::default());
        self.round = Round { invited, ..Round::default() };
    }

    /// Begins a stage: discards the coverage observed in the stage before.
    pub fn begin_stage(&mut self) {
        self.coverage.begin();
    }

    /// Observes the next update of the open round.
    pub fn counted(&mut self, answer: &UpdateArrival<'_>) {
        self.round.samples = answer.samples as f64;
        self.record_arrival(self.round.answers, answer.elapsed.as_u64() as f64);
        self.round.answers += 1;
        let (d, k) = answer.model.shape();
        let Some(tensor) = answer.tensors.first().filter(|tensor| tensor.values.len() == d * k) else {
            return;
        };
        if self.round.answers == 1 {
            self.round.origin = ModelPoint::new(answer.model, tensor.role);
        }
        let Some(origin) = &self.round.origin else { return };
        let Some(step) = origin.step(&from_f32(d, k, &tensor.values), tensor.role) else { return };
        self.round.steps += 1;
        self.round.squares += step.norm_squared();
        let gram = product_transposed(&step, &step);
        match &mut self.round.sum {
            Some((steps, grams)) => {
                *steps += step;
                *grams += gram;
            }
            None => self.round.sum = Some((step, gram)),
        }
    }

    /// Observes the step of the model at the end of a round.
    pub fn closed(&mut self, closed: &ClosedRound<'_>) {
        // Updates that the round did not receive would have arrived at its end at the earliest.
        for rank in self.round.answers..closed.short_of.unwrap_or(0).min(self.ranks.len()) {
            self.record_arrival(rank, closed.elapsed.as_u64() as f64);
        }
        self.rounds = self.rounds.saturating_add(1);
        if self.round.answers < self.round.invited && closed.short_of.is_none() {
            self.spent += closed.elapsed.as_u64() as f64;
        }
        let Some((sum, gram)) = self.round.sum.take() else { return };
        let Some(origin) = &self.round.origin else { return };
        let Some(model_after) = origin.with_model(closed.model) else { return };
        let Some(step) = origin.step_to(&model_after) else { return };
        self.coverage.add(gram, self.round.steps, self.round.answers == self.round.invited);
        let n = self.round.steps as f64;
        let mean = sum / n;
        let length = mean.norm_squared();
        if !(length > 0.0 && length.is_finite()) {
            return;
        }
        let scale = mean.dot(&step) / length;
        let variance_between =
            if n > 1.0 { (self.round.squares / n - length).max(0.0) * n / (n - 1.0) } else { 0.0 };
        self.variance.0 += n * variance_between * scale * scale;
        self.variance.1 += n;
        if self.filters.is_empty() {
            self.filters = grid().map(|a| Filter::new(a, origin.expected_distance(&step, a))).collect();
        }
        let noise = self.variance.0 / self.variance.1 / n;
        let factor = self.coverage.factor(self.round.answers);
        for filter in &mut self.filters {
            filter.update(&step, noise, factor, &model_after);
        }
    }

    /// State for checkpoints: the sums, and the distance and weight of each filter. The estimated errors are
    /// omitted, since the next steps determine them again.
    pub fn state(&self) -> Vec<f64> {
        let coverage = self.coverage.state();
        let lengths = [self.ranks.len(), self.filters.len(), coverage.len()].map(|length| length as f64);
        let head = [f64::from(self.rounds), self.spent, self.variance.0, self.variance.1];
        let ranks = self.ranks.iter().flat_map(|rank| [rank.time, rank.samples, rank.count]);
        let filters = self.filters.iter().flat_map(|filter| [filter.distance, filter.weight]);
        lengths.into_iter().chain(head).chain(ranks).chain(filters).chain(coverage).collect()
    }

    /// Restores a state that [`Self::state`] returned; `None` if the values are not such a state.
    pub fn restored(state: &[f64]) -> Option<Self> {
        let (&[ranks, filters, coverage_len, rounds, spent, sum, weight], values) =
            state.split_first_chunk::<7>()?;
        if state.iter().any(|value| !value.is_finite()) || ![0.0, GRID as f64].contains(&filters) {
            return None;
        }
        let integer = |value: f64, max: f64| {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and in range")]
            (value.fract() == 0.0 && (0.0..=max).contains(&value)).then_some(value as usize)
        };
        let filters = integer(filters, GRID as f64)?;
        let rounds = u32::try_from(integer(rounds, u32::MAX.into())?).ok()?;
        let (ranks, values) =
            values.split_at_checked(integer(ranks, values.len() as f64)?.checked_mul(3)?)?;
        let (filters, coverage) = values.split_at_checked(2 * filters)?;
        if integer(coverage_len, values.len() as f64)? != coverage.len() {
            return None;
        }
        let rank = |sums: &[f64; 3]| Rank { time: sums[0], samples: sums[1], count: sums[2] };
        let filter = |(pair, a): (&[f64; 2], f64)| Filter {
            a,
            error: None,
            variance: 0.0,
            distance: pair[0],
            weight: pair[1],
        };
        Some(Self {
            rounds,
            spent,
            variance: (sum, weight),
            ranks: ranks.as_chunks().0.iter().map(rank).collect(),
            filters: filters.as_chunks().0.iter().zip(grid()).map(filter).collect(),
            coverage: Coverage::restored(coverage)?,
            ..Self::new()
        })
    }

    /// Adds the arrival of an update at time `time` to the sums of its rank.
    fn record_arrival(&mut self, rank: usize, time: f64) {
        if let Some(rank) = self.ranks.get_mut(rank) {
            rank.time += time;
            rank.samples += self.round.samples;
            rank.count += 1.0;
        }
    }

    /// Mean arrival time of the `n`-th update. For a rank that was never observed (for example, because the
    /// fleet has grown), returns the time of the last observed rank before it.
    fn mean_arrival(&self, n: usize) -> Option<f64> {
        let ranks = self.ranks.get(..n).unwrap_or(&self.ranks);
        ranks.iter().rfind(|rank| rank.count > 0.0).map(|rank| rank.time / rank.count)
    }

    /// Estimated contraction and squared distance; `None` before the first observed step.
    fn estimate(&self) -> Option<(f64, f64)> {
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
}

/// Grid of contractions, descending.
fn grid() -> impl Iterator<Item = f64> {
    std::iter::successors(Some(LARGEST), |a| Some(a * RATIO)).take(GRID)
}

impl Filter {
    /// Creates a filter for the contraction `a` with a prior squared distance.
    fn new(a: f64, distance: f64) -> Self {
        let log_ratio = libm::log(a / EXPECTED);
        Self { a, error: None, variance: 0.0, distance, weight: -0.5 * log_ratio * log_ratio }
    }

    /// Observes one step of the model, whose noise has the expected squared length `noise`. `factor` scales
    /// the contraction; `model_after` is the model after the step.
    fn update(&mut self, step: &Matrix, noise: f64, factor: f64, model_after: &ModelPoint) {
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
        // The weight must stay finite, since `restored` rejects other values.
        self.weight = self.weight.max(f64::MIN / 2.0);
        error += innovation * gain - step;
        let error = model_after.project(error);
        self.variance *= 1.0 - gain * a;
        // The recursion is an upper bound, so that a noisy filter cannot make a stage arbitrarily long.
        let remaining = 1.0 - a * factor;
        let recursion = remaining * remaining * self.distance + noise;
        let estimated = error.norm_squared() + elements * self.variance;
        self.distance = recursion.min(estimated).max(f64::MIN_POSITIVE);
        self.error = Some(error);
    }
}
