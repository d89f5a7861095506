//! How many devices to wait for, from what has been seen alone.
//!
//! A round with the first `n` of `N` answers takes the arrival time `T_n` of the last of them, communication included,
//! and shrinks the squared distance `D^2` to what the fleet can reach: `D^2 <- (1 - a)^2 D^2 + v / n` (SRPFL, equation
//! 199), with a contraction `a` and a variance `v` of one device's step. Least time to any target means the
//! largest `(D^2 a (2 - a) - v / n) / T_n` at each moment (equation 200 in squared distances); neither target nor
//! horizon enters. So four things are estimated.
//!
//! * `T_n`: the mean of the arrival times of rank `n`, as far as they were seen. The first round waits for all.
//! * `v`: the variance between the devices' steps in a round.
//! * `a` and `D^2`: the step `z` that the model takes is `a` times its error `E` plus noise, and the error becomes
//!   `E - z`. For each `a` of a grid that is a Kalman filter with one unknown matrix; how well each predicts the steps
//!   weighs them. A high quantile of `a` is used: too large a contraction means too small a distance, which is
//!   the way to full participation, and that is safe.
//! * By how much `a` is smaller with the devices of the present stage than with all, because these cover the directions
//!   of the representation unevenly ([`Coverage`]): speed may go with the data.
//!
//! All this takes the noise of a round for fresh, and devices for alike. Where neither is so, the few may learn what is
//! theirs alone, and never stop. So rounds that do not wait for all have a budget: together they may take as long as
//! [`BUDGET`] rounds that do. This is the most that can be lost against full participation, whatever the data.
//!
//! Steps are taken from the model before and after a round, so they are the same thing for every algorithm; those of a
//! representation in tangent coordinates, as only its span matters. Devices reveal nothing beyond their updates.

use super::coverage::Coverage;
use super::model_motion::ModelPoint;
use super::{ClosedRound, UpdateArrival};
use crate::linalg::{Matrix, from_f32, product_transposed};

/// Contractions: the largest, the ratio of neighbours, how many.
const LARGEST: f64 = 0.5;
const RATIO: f64 = 0.8;
const GRID: usize = 20;
/// What is expected of the contraction beforehand: the median of a log-normal of deviation 1, for steps of about an eighth.
const EXPECTED: f64 = 0.1;
/// The quantile of the contraction that is used.
const QUANTILE: f64 = 0.9;
/// More devices are free where waiting for them takes less than this factor longer: a round too many is dearer.
const FREE: f64 = 1.2;

/// The time of all rounds that do not wait for everyone, in mean rounds that do.
const BUDGET: f64 = 10.0;

/// What has been seen so far.
#[derive(Clone, Debug)]
pub struct Adaptive {
    /// Rounds that have been seen.
    rounds: u32,
    /// The time that rounds have taken which did not wait for everyone.
    spent: f64,
    /// By rank of arrival.
    ranks: Vec<Rank>,
    round: Round,
    /// Sums over rounds: of `n` times the variance between steps in the scale of the model, and of `n`.
    variance: (f64, f64),
    filters: Vec<Filter>,
    coverage: Coverage,
}

/// What has been seen of the answers that were the `n`-th to arrive: sums over rounds.
#[derive(Clone, Copy, Debug, Default)]
struct Rank {
    /// Arrival times.
    time: f64,
    /// Samples of this and of all that came before.
    samples: f64,
    count: f64,
}

/// The open round.
#[derive(Clone, Debug, Default)]
struct Round {
    /// How many were asked.
    asked: usize,
    answers: usize,
    samples: f64,
    origin: Option<ModelPoint>,
    /// How many steps could be read from the answers, their sum, that of their squared lengths and of `G^T G`.
    steps: usize,
    sum: Option<(Matrix, Matrix)>,
    squares: f64,
}

/// What is known of the error if the contraction is `a`.
#[derive(Clone, Debug)]
struct Filter {
    a: f64,
    /// The error, d x k, and the variance of each of its elements. None before the first step: then it is only known
    /// how long it is.
    error: Option<Matrix>,
    variance: f64,
    /// The squared distance.
    distance: f64,
    /// Logarithm of the weight.
    weight: f64,
}

impl Adaptive {
    /// Nothing has been seen.
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

    /// Which of `levels`, ascending numbers of answers of which the last is all, the next round waits for; never less
    /// than `now`, but for the first round, which waits for all, and the one after it.
    pub fn choose(&self, levels: &[usize], now: usize) -> usize {
        let all = levels.len().saturating_sub(1);
        if self.rounds == 0 {
            return all;
        }
        // The first round was for the clock: the stages begin behind it.
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

    /// How many answers bring as many samples; all who were seen, if none do.
    pub fn answers_with(&self, samples: u64) -> usize {
        let enough = |rank: &Rank| rank.count > 0.0 && rank.samples >= samples as f64 * rank.count;
        self.ranks.iter().position(enough).map_or(self.ranks.len(), |index| index + 1)
    }

    /// A round opens for so many devices.
    pub fn open(&mut self, asked: usize) {
        self.ranks.resize(asked.max(self.ranks.len()), Rank::default());
        self.round = Round { asked, ..Round::default() };
    }

    /// Another stage begins.
    pub fn begin_stage(&mut self) {
        self.coverage.begin();
    }

    /// Takes the next answer.
    pub fn counted(&mut self, answer: &UpdateArrival<'_>) {
        self.round.samples = answer.samples as f64;
        self.arrived(self.round.answers, answer.elapsed as f64);
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

    /// Takes the step that the model has made.
    pub fn closed(&mut self, closed: &ClosedRound<'_>) {
        // Who did not come and is not waited for any more would not have come earlier than the end.
        for rank in self.round.answers..closed.short_of.unwrap_or(0).min(self.ranks.len()) {
            self.arrived(rank, closed.elapsed as f64);
        }
        self.rounds = self.rounds.saturating_add(1);
        if self.round.answers < self.round.asked && closed.short_of.is_none() {
            self.spent += closed.elapsed as f64;
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

    /// What a restart must not lose: sums, and what each filter makes of the past. The direction of the error is not
    /// among it, which the next steps show again.
    pub fn state(&self) -> Vec<f64> {
        let coverage = self.coverage.state();
        let lengths = [self.ranks.len(), self.filters.len(), coverage.len()].map(|length| length as f64);
        let head = [f64::from(self.rounds), self.spent, self.variance.0, self.variance.1];
        let ranks = self.ranks.iter().flat_map(|rank| [rank.time, rank.samples, rank.count]);
        let filters = self.filters.iter().flat_map(|filter| [filter.distance, filter.weight]);
        lengths.into_iter().chain(head).chain(ranks).chain(filters).chain(coverage).collect()
    }

    /// Goes on from [`Self::state`]; none if that is none.
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

    /// Mean arrival time of the `n`-th answer; where so many have not been waited for yet, as in a fleet that has grown,
    /// of the last one before it that was.
    fn time(&self, n: usize) -> Option<f64> {
        let ranks = self.ranks.get(..n).unwrap_or(&self.ranks);
        ranks.iter().rfind(|rank| rank.count > 0.0).map(|rank| rank.time / rank.count)
    }

    /// Contraction and squared distance, once a step has been seen.
    fn estimate(&self) -> Option<(f64, f64)> {
        let most = self.filters.iter().map(|filter| filter.weight).fold(f64::NEG_INFINITY, f64::max);
        let share = |filter: &Filter| libm::exp(filter.weight - most);
        let total: f64 = self.filters.iter().map(share).sum();
        // From the smallest contraction up; between two points of the grid the logarithm is interpolated.
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

/// The contractions that are considered, descending.
fn grid() -> impl Iterator<Item = f64> {
    std::iter::successors(Some(LARGEST), |a| Some(a * RATIO)).take(GRID)
}

impl Filter {
    /// Nothing is known but about how large the squared distance is.
    fn new(a: f64, distance: f64) -> Self {
        let off = libm::log(a / EXPECTED);
        Self { a, error: None, variance: 0.0, distance, weight: -0.5 * off * off }
    }

    /// One step, whose noise has the squared length `noise`; `factor` is on the contraction, `after` is where it led.
    fn update(&mut self, step: &Matrix, noise: f64, factor: f64, after: &ModelPoint) {
        let (d, k) = step.shape();
        let elements = after.degrees_of_freedom();
        let a = self.a;
        let mut error = self.error.take().unwrap_or_else(|| {
            self.variance = self.distance / elements;
            Matrix::zeros(d, k)
        });
        // One answer a round shows no noise; that of rounding to f32 is always there.
        let rounding = step.norm_squared() * f64::from(f32::EPSILON * f32::EPSILON) / elements;
        let predicted = (a * a * self.variance + noise / elements).max(rounding).max(f64::MIN_POSITIVE);
        let gain = self.variance * a / predicted;
        let innovation = step - &error * a;
        self.weight -= 0.5 * (elements * libm::log(predicted) + innovation.norm_squared() / predicted);
        // A state has finite numbers.
        self.weight = self.weight.max(f64::MIN / 2.0);
        error += innovation * gain - step;
        let error = after.project(error);
        self.variance *= 1.0 - gain * a;
        // A stage ends in bounded time, however noisy the filter: the recursion alone says so.
        let left = 1.0 - a * factor;
        let recursion = left * left * self.distance + noise;
        let seen = error.norm_squared() + elements * self.variance;
        self.distance = recursion.min(seen).max(f64::MIN_POSITIVE);
        self.error = Some(error);
    }
}
