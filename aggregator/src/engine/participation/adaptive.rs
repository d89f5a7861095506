//! How many devices to wait for, from what has been seen alone.
//!
//! A round with the first `n` of `N` answers takes the arrival time `T_n` of the last of them, communication included,
//! and shrinks the squared distance `D^2` to what the fleet can reach: `D^2 <- (1 - a)^2 D^2 + v / n` (SRPFL, equation
//! 199), with a contraction `a` and a variance `v` of one device's step. Least time to any target means the
//! largest `(D^2 a (2 - a) - v / n) / T_n` at each moment (equation 200 in squared distances); neither target nor
//! horizon enters. So three things are estimated.
//!
//! * `T_n`: the mean of the arrival times of rank `n`, as far as they were seen. The first round waits for all.
//! * `v`: the variance between the devices' steps in a round.
//! * `a` and `D^2`: the step `z` that the model takes is `a` times its error `E` plus noise, and the error becomes
//!   `E - z`. For each `a` of a grid that is a Kalman filter with one unknown matrix; how well each predicts the steps
//!   weighs them. A high quantile of `a` is used: too large a contraction means too small a distance, which is
//!   the way to full participation, and that is safe.
//!
//! Steps are taken in tangent coordinates of the representation, from the model before and after a round, so they are
//! the same thing for every algorithm. Devices reveal nothing beyond their updates.

use fedspan_protocol::tensor::Role;

use super::Answer;
use crate::linalg::{Matrix, from_f32, orthonormal};

/// Contractions: the largest, the ratio of neighbours, how many.
const LARGEST: f64 = 0.5;
const RATIO: f64 = 0.8;
const GRID: i32 = 20;
/// What is expected of the contraction beforehand: the median of a log-normal of deviation 1, for steps of about an eighth.
const EXPECTED: f64 = 0.1;
/// The quantile of the contraction that is used.
const QUANTILE: f64 = 0.9;
/// More devices are free where waiting for them takes less than this factor longer: a round too many is dearer.
const FREE: f64 = 1.2;

/// What has been seen so far.
#[derive(Clone, Debug)]
pub struct Adaptive {
    /// Rounds that have been seen.
    rounds: u32,
    /// Sum and number of arrival times by rank.
    times: Vec<(f64, u32)>,
    round: Round,
    /// Sums over rounds: of `n` times the variance between steps in the scale of the model, and of `n`.
    variance: (f64, f64),
    filters: Vec<Filter>,
}

/// The open round.
#[derive(Clone, Debug, Default)]
struct Round {
    answers: usize,
    /// How many steps could be read from them, their sum, and that of their squared lengths.
    steps: f64,
    sum: Option<Matrix>,
    squares: f64,
}

/// What is known of the error if the contraction is `a`.
#[derive(Clone, Debug)]
struct Filter {
    a: f64,
    /// The error, d x k, and the variance of each of its elements.
    error: Matrix,
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
            times: Vec::new(),
            round: Round::default(),
            variance: (0.0, 0.0),
            filters: Vec::new(),
        }
    }

    /// How many answers the next round waits for, of `levels` (ascending, the last is all of them); never fewer than
    /// `now`, but for the first round, which waits for all.
    pub fn choose(&self, levels: &[usize], now: usize) -> usize {
        let (first, all) = (levels.first().copied().unwrap_or(0), levels.last().copied().unwrap_or(0));
        if now == 0 {
            return all;
        }
        // The first round was for the clock: the stages begin behind it.
        let from = if self.rounds <= 1 { first } else { now };
        let Some((a, distance)) = self.estimate() else { return all };
        let variance = self.variance.0 / self.variance.1;
        let time = |n: usize| {
            let (sum, count) =
                n.checked_sub(1).and_then(|rank| self.times.get(rank)).copied().unwrap_or((0.0, 0));
            (count > 0).then(|| sum / f64::from(count))
        };
        let Some(whole) = time(all).filter(|time| *time > 0.0) else { return all };
        let rates = levels.iter().filter(|n| **n >= from).filter_map(|&n| {
            let time = time(n)?.max(f64::MIN_POSITIVE * whole);
            Some((n, (distance * a * (2.0 - a) - variance / n as f64) / time))
        });
        let best = rates.fold(None, |best: Option<(usize, f64)>, (n, rate)| match best {
            Some((_, most)) if most >= rate => best,
            _ => Some((n, rate)),
        });
        let best = best.filter(|(_, rate)| *rate > 0.0).map_or(all, |(n, _)| n);
        let Some(longest) = time(best).map(|time| FREE * time) else { return all };
        let free = |n: &usize| time(*n).is_some_and(|time| time <= longest);
        levels.iter().copied().filter(|n| *n >= best).filter(free).max().unwrap_or(best)
    }

    /// A round opens for a cohort of this size.
    pub fn open(&mut self, cohort: usize) {
        self.times.resize(cohort.max(self.times.len()), (0.0, 0));
        self.round = Round::default();
    }

    /// Takes the next answer.
    pub fn counted(&mut self, answer: &Answer<'_>) {
        if let Some((sum, count)) = self.times.get_mut(self.round.answers) {
            *sum += answer.after as f64;
            *count += 1;
        }
        self.round.answers += 1;
        let (d, k) = answer.representation.shape();
        let Some(tensor) = answer.tensors.first().filter(|tensor| tensor.values.len() == d * k) else {
            return;
        };
        let Ok(b) = orthonormal(answer.representation) else { return };
        let own = from_f32(d, k, &tensor.values);
        let step = match tensor.role {
            Role::Representation => tangent(&b, &own),
            _ => Some(&own - &b * b.tr_mul(&own)),
        };
        let Some(step) = step else { return };
        self.round.steps += 1.0;
        self.round.squares += step.norm_squared();
        match &mut self.round.sum {
            Some(sum) => *sum += step,
            None => self.round.sum = Some(step),
        }
    }

    /// Takes the step that the model has made.
    pub fn closed(&mut self, before: &Matrix, after: &Matrix) {
        self.rounds = self.rounds.saturating_add(1);
        let (d, k) = before.shape();
        let n = self.round.steps;
        let Some(sum) = self.round.sum.take().filter(|_| d > k) else { return };
        let (Ok(before), Ok(after)) = (orthonormal(before), orthonormal(after)) else { return };
        let Some(step) = tangent(&before, &after) else { return };
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
            self.filters = (0..GRID).map(|j| Filter::new(LARGEST * RATIO.powi(j), d, k)).collect();
        }
        let variance = self.variance.0 / self.variance.1;
        for filter in &mut self.filters {
            filter.update(&step, variance / n, &after);
        }
    }

    /// Contraction and squared distance, once a step has been seen.
    fn estimate(&self) -> Option<(f64, f64)> {
        let most = self.filters.iter().map(|filter| filter.weight).fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = self.filters.iter().map(|filter| (filter.weight - most).exp()).sum();
        // From the smallest contraction up; between two points of the grid the logarithm is interpolated.
        let mut below = 0.0;
        let mut last: Option<(&Filter, f64)> = None;
        for filter in self.filters.iter().rev() {
            let share = (filter.weight - most).exp() / total;
            let middle = below + share / 2.0;
            if middle >= QUANTILE {
                let Some((lower, at)) = last else { return Some((filter.a, filter.distance)) };
                let part = (QUANTILE - at) / (middle - at);
                let between = |x: f64, y: f64| (x.ln() + part * (y.ln() - x.ln())).exp();
                return Some((between(lower.a, filter.a), between(lower.distance, filter.distance)));
            }
            below += share;
            last = Some((filter, middle));
        }
        last.map(|(filter, _)| (filter.a, filter.distance))
    }
}

/// The step from the orthonormal `b` to the span of `to`, in tangent coordinates: the `z` with `b^T z = 0` for which
/// `b - z` spans it.
fn tangent(b: &Matrix, to: &Matrix) -> Option<Matrix> {
    Some(b - to * b.tr_mul(to).try_inverse()?)
}

impl Filter {
    /// Nothing is known: a random subspace has a squared distance of `k (d - k) / d` in all elements.
    fn new(a: f64, d: usize, k: usize) -> Self {
        let elements = ((d - k) * k) as f64;
        let variance = 1.0 / d as f64;
        let off = (a / EXPECTED).ln();
        let distance = elements * variance;
        Self { a, error: Matrix::zeros(d, k), variance, distance, weight: -0.5 * off * off }
    }

    /// One step, whose noise has the squared length `noise`; `b` is the representation after it.
    fn update(&mut self, step: &Matrix, noise: f64, b: &Matrix) {
        let (d, k) = b.shape();
        let elements = ((d - k) * k) as f64;
        let a = self.a;
        let predicted = (a * a * self.variance + noise / elements).max(f64::MIN_POSITIVE);
        let gain = self.variance * a / predicted;
        let innovation = step - &self.error * a;
        self.weight -= 0.5 * (elements * predicted.ln() + innovation.norm_squared() / predicted);
        self.error += innovation * gain - step;
        self.error -= b * b.tr_mul(&self.error);
        self.variance *= 1.0 - gain * a;
        // A stage ends in bounded time, however noisy the filter: the recursion alone says so.
        let recursion = (1.0 - a) * (1.0 - a) * self.distance + noise;
        self.distance =
            recursion.min(self.error.norm_squared() + elements * self.variance).max(f64::MIN_POSITIVE);
    }
}
