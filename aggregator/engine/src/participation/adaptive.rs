//! Adaptive number of updates to wait for, estimated from the rounds so far alone.
//!
//! A round with the first `n` of `N` updates takes the arrival time `T_n` of the last of them, communication
//! included, and shrinks the squared distance `D^2` to the best model that the fleet can reach:
//! `D^2 <- (1 - a)^2 D^2 + v / n` (SRPFL, equation 199), with a contraction `a` and a variance `v` of one
//! device's step. The least time to any target means the largest `(D^2 a (2 - a) - v / n) / T_n` at each
//! moment (equation 200 in squared distances); neither target nor horizon enters. So four things are
//! estimated.
//!
//! * `T_n`: the mean of the observed arrival times of rank `n`. The first round waits for all devices.
//! * `v`: the variance between the devices' steps in a round.
//! * `a` and `D^2`: the step `z` of the model is `a` times its error `E` plus noise, and the error becomes
//!   `E - z`. For each `a` of a grid that is a Kalman filter with one unknown matrix, and the filters are
//!   weighted by how well they predict the steps. A high quantile of `a` is used: too large a contraction
//!   means too small a distance, which leads to full participation, and that is safe.
//! * The ratio of the contraction with the devices of the present stage to that with all devices, since the
//!   fast ones may cover the directions of the representation unevenly ([`Coverage`]): speed may be
//!   correlated with the data.
//!
//! The estimates assume fresh noise in each round and similar devices. If neither holds, a few devices may
//! learn what fits them alone, without end. So rounds that do not wait for all devices have a budget:
//! together they may take as long as [`BUDGET`] rounds that do. This bounds the loss against full
//! participation, for any data.
//!
//! Steps are taken from the model before and after a round, so they mean the same for every algorithm; steps
//! of a representation are in tangent coordinates, as only its span matters. Devices reveal nothing beyond
//! their updates.

use super::coverage::Coverage;
use super::model_motion::ModelPoint;
use super::{ClosedRound, UpdateArrival};
use crate::linalg::{Matrix, from_f32, product_transposed};

/// Grid of contractions: the largest, the ratio of neighbours, and their number.
const LARGEST: f64 = 0.5;
const RATIO: f64 = 0.8;
const GRID: usize = 20;
/// Prior median of the contraction, of a log-normal distribution with deviation 1; it corresponds to a step
/// of about an eighth.
const EXPECTED: f64 = 0.1;
/// Quantile of the contraction that is used.
const QUANTILE: f64 = 0.9;
/// Factor by which waiting may take longer for the sake of more devices, since a round too many costs more.
const FREE: f64 = 1.2;

/// Time budget of rounds that do not wait for all devices, in mean rounds that do.
const BUDGET: f64 = 10.0;

/// Estimates from the rounds so far.
#[derive(Clone, Debug)]
pub struct Adaptive {
    /// Number of rounds observed.
    rounds: u32,
    /// Total time of the rounds that did not wait for all devices.
    spent: f64,
    /// Observations by rank of arrival.
    ranks: Vec<Rank>,
    round: Round,
    /// Sums over rounds: `n` times the variance between steps in the scale of the model, and `n`.
    variance: (f64, f64),
    filters: Vec<Filter>,
    coverage: Coverage,
}

/// Sums over rounds of the observations at one rank of arrival.
#[derive(Clone, Copy, Debug, Default)]
struct Rank {
    /// Arrival times.
    time: f64,
    /// Samples of this update and all before it.
    samples: f64,
    count: f64,
}

/// Observations of the open round.
#[derive(Clone, Debug, Default)]
struct Round {
    /// Number of invited devices.
    asked: usize,
    answers: usize,
    samples: f64,
    origin: Option<ModelPoint>,
    /// Steps read from the updates: their number, then sum and sum of `G^T G`, and sum of squared lengths.
    steps: usize,
    sum: Option<(Matrix, Matrix)>,
    squares: f64,
}

/// Kalman filter of the error for one contraction `a`.
#[derive(Clone, Debug)]
struct Filter {
    a: f64,
    /// Estimated error, d x k, and the variance of each of its elements. `None` before the first step, when
    /// only its length is known.
    error: Option<Matrix>,
    variance: f64,
    /// Squared distance.
    distance: f64,
    /// Logarithm of the weight.
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

    /// Index of the level for which the next round waits. `levels` are numbers of updates, ascending, the
    /// last being all devices. The result is at least `now`, except after the first round, which waits for
    /// all devices.
    pub fn choose(&self, levels: &[usize], now: usize) -> usize {
        let all = levels.len().saturating_sub(1);
        if self.rounds == 0 {
            return all;
        }
        // The first round only measured arrival times: the stages begin after it.
        let from = if self.rounds == 1 { 0 } else { now };
        let Some((a, distance)) = self.estimate() else { return all };
        let variance = self.variance.0 / self.variance.1;
        let time = |level: usize| levels.get(level).and_then(|n| self.time(*n));
        let Some(whole) = time(all).filter(|time| *time > 0.0) else { return all };
        if self.spent >= BUDGET * whole {
            return all;
        }
        let rates = levels.iter().enumerate().skip(from).filter_map(|(level, &n)| {
            let time = time(level)?.max(f64::MIN_POSITIVE * whole);
            let a = if level == now { a * self.coverage.factor(n) } else { a };
            Some((level, (distance * a * (2.0 - a) - variance / n as f64) / time))
        });
        let best = rates.fold(None, |best: Option<(usize, f64)>, (level, rate)| match best {
            Some((_, most)) if most >= rate => best,
            _ => Some((level, rate)),
        });
        let best = best.filter(|(_, rate)| *rate > 0.0).map_or(all, |(level, _)| level);
        let Some(longest) = time(best).map(|time| FREE * time) else { return all };
        let free = |level: &usize| time(*level).is_some_and(|time| time <= longest);
        (best..levels.len()).filter(free).max().unwrap_or(best)
    }

    /// Number of first updates that have had `samples` samples on average; the number of observed ranks if
    /// none reach that.
    pub fn answers_with(&self, samples: u64) -> usize {
        let enough = |rank: &Rank| rank.count > 0.0 && rank.samples >= samples as f64 * rank.count;
        self.ranks.iter().position(enough).map_or(self.ranks.len(), |index| index + 1)
    }

    /// Begins a round with `asked` invited devices.
    pub fn open(&mut self, asked: usize) {
        self.ranks.resize(asked.max(self.ranks.len()), Rank::default());
        self.round = Round { asked, ..Round::default() };
    }

    /// Begins a stage.
    pub fn begin_stage(&mut self) {
        self.coverage.begin();
    }

    /// Observes the next update.
    pub fn counted(&mut self, answer: &UpdateArrival<'_>) {
        self.round.samples = answer.samples as f64;
        self.arrived(self.round.answers, answer.elapsed.as_u64() as f64);
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
        // Devices that the round gave up on would have arrived no earlier than its end.
        for rank in self.round.answers..closed.short_of.unwrap_or(0).min(self.ranks.len()) {
            self.arrived(rank, closed.elapsed.as_u64() as f64);
        }
        self.rounds = self.rounds.saturating_add(1);
        if self.round.answers < self.round.asked && closed.short_of.is_none() {
            self.spent += closed.elapsed.as_u64() as f64;
        }
        let Some((sum, gram)) = self.round.sum.take() else { return };
        let Some(origin) = &self.round.origin else { return };
        let Some(after) = origin.with_model(closed.model) else { return };
        let Some(step) = origin.step_to(&after) else { return };
        self.coverage.add(gram, self.round.steps, self.round.answers == self.round.asked);
        let n = self.round.steps as f64;
        let mean = sum / n;
        let length = mean.norm_squared();
        if !(length > 0.0 && length.is_finite()) {
            return;
        }
        let scale = mean.dot(&step) / length;
        let between = if n > 1.0 { (self.round.squares / n - length).max(0.0) * n / (n - 1.0) } else { 0.0 };
        self.variance.0 += n * between * scale * scale;
        self.variance.1 += n;
        if self.filters.is_empty() {
            self.filters = grid().map(|a| Filter::new(a, origin.expected_distance(&step, a))).collect();
        }
        let noise = self.variance.0 / self.variance.1 / n;
        let factor = self.coverage.factor(self.round.answers);
        for filter in &mut self.filters {
            filter.update(&step, noise, factor, &after);
        }
    }

    /// State for checkpoints: the sums, and distance and weight of each filter. The direction of the error is
    /// left out, since the next steps show it again.
    pub fn state(&self) -> Vec<f64> {
        let coverage = self.coverage.state();
        let lengths = [self.ranks.len(), self.filters.len(), coverage.len()].map(|length| length as f64);
        let head = [f64::from(self.rounds), self.spent, self.variance.0, self.variance.1];
        let ranks = self.ranks.iter().flat_map(|rank| [rank.time, rank.samples, rank.count]);
        let filters = self.filters.iter().flat_map(|filter| [filter.distance, filter.weight]);
        lengths.into_iter().chain(head).chain(ranks).chain(filters).chain(coverage).collect()
    }

    /// Restores [`Self::state`]; `None` if the values are not such a state.
    pub fn restored(state: &[f64]) -> Option<Self> {
        let (&[ranks, filters, length, rounds, spent, sum, weight], rest) = state.split_first_chunk::<7>()?;
        if state.iter().any(|value| !value.is_finite()) || ![0.0, GRID as f64].contains(&filters) {
            return None;
        }
        let whole = |value: f64, most: f64| {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and in range")]
            (value.fract() == 0.0 && (0.0..=most).contains(&value)).then_some(value as usize)
        };
        let filters = whole(filters, GRID as f64)?;
        let rounds = u32::try_from(whole(rounds, u32::MAX.into())?).ok()?;
        let (ranks, rest) = rest.split_at_checked(whole(ranks, rest.len() as f64)?.checked_mul(3)?)?;
        let (filters, coverage) = rest.split_at_checked(2 * filters)?;
        if whole(length, rest.len() as f64)? != coverage.len() {
            return None;
        }
        let rank = |three: &[f64; 3]| Rank { time: three[0], samples: three[1], count: three[2] };
        let filter = |(two, a): (&[f64; 2], f64)| Filter {
            a,
            error: None,
            variance: 0.0,
            distance: two[0],
            weight: two[1],
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

    fn arrived(&mut self, rank: usize, time: f64) {
        if let Some(rank) = self.ranks.get_mut(rank) {
            rank.time += time;
            rank.samples += self.round.samples;
            rank.count += 1.0;
        }
    }

    /// Mean arrival time of the `n`-th update. For a rank that was never waited for, as in a fleet that has
    /// grown, that of the last observed rank before it.
    fn time(&self, n: usize) -> Option<f64> {
        let ranks = self.ranks.get(..n).unwrap_or(&self.ranks);
        ranks.iter().rfind(|rank| rank.count > 0.0).map(|rank| rank.time / rank.count)
    }

    /// Contraction and squared distance, once a step has been observed.
    fn estimate(&self) -> Option<(f64, f64)> {
        let most = self.filters.iter().map(|filter| filter.weight).fold(f64::NEG_INFINITY, f64::max);
        let share = |filter: &Filter| libm::exp(filter.weight - most);
        let total: f64 = self.filters.iter().map(share).sum();
        // From the smallest contraction up, with the logarithm interpolated between grid points.
        let mut below = 0.0;
        let mut last: Option<(&Filter, f64)> = None;
        for filter in self.filters.iter().rev() {
            let share = share(filter) / total;
            let middle = below + share / 2.0;
            if middle >= QUANTILE {
                let Some((lower, at)) = last else { return Some((filter.a, filter.distance)) };
                let part = (QUANTILE - at) / (middle - at);
                let between = |x: f64, y: f64| libm::exp(libm::log(x) + part * (libm::log(y) - libm::log(x)));
                return Some((between(lower.a, filter.a), between(lower.distance, filter.distance)));
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
    /// Creates a filter with a prior for the squared distance alone.
    fn new(a: f64, distance: f64) -> Self {
        let off = libm::log(a / EXPECTED);
        Self { a, error: None, variance: 0.0, distance, weight: -0.5 * off * off }
    }

    /// Observes one step with noise of squared length `noise`. `factor` scales the contraction; `after` is
    /// the model after the step.
    fn update(&mut self, step: &Matrix, noise: f64, factor: f64, after: &ModelPoint) {
        let (d, k) = step.shape();
        let elements = after.degrees_of_freedom();
        let a = self.a;
        let mut error = self.error.take().unwrap_or_else(|| {
            self.variance = self.distance / elements;
            Matrix::zeros(d, k)
        });
        // A single update per round shows no noise, but rounding to f32 is always there.
        let rounding = step.norm_squared() * f64::from(f32::EPSILON * f32::EPSILON) / elements;
        let predicted = (a * a * self.variance + noise / elements).max(rounding).max(f64::MIN_POSITIVE);
        let gain = self.variance * a / predicted;
        let innovation = step - &error * a;
        self.weight -= 0.5 * (elements * libm::log(predicted) + innovation.norm_squared() / predicted);
        // Keeps the weight finite, as states require.
        self.weight = self.weight.max(f64::MIN / 2.0);
        error += innovation * gain - step;
        let error = after.project(error);
        self.variance *= 1.0 - gain * a;
        // The recursion alone bounds the length of a stage, however noisy the filter is.
        let left = 1.0 - a * factor;
        let recursion = left * left * self.distance + noise;
        let seen = error.norm_squared() + elements * self.variance;
        self.distance = recursion.min(seen).max(f64::MIN_POSITIVE);
        self.error = Some(error);
    }
}
