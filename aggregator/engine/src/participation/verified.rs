//! Verified schedule of doubling participation: estimates from the rounds so far for how many updates the next
//! round should wait, and verifies the gain of rounds that do not wait for all devices.

use super::arrival_times::ArrivalTimes;
use super::cohort_bias::CohortBias;
use super::contraction::{Contraction, Grid, Progress};
use super::estimator::{Decision, Estimator, checked_count};
use super::round_steps::RoundSteps;
use super::trials::Trials;
use super::{ClosedRound, UpdateArrival};
use crate::linalg::Matrix;

/// Contractions of the filters, which cover every stable step.
const GRID: Grid = Grid { largest: 1.9, count: 27 };
/// Factor by which a round may take longer than the best one in order to wait for more devices, since an
/// additional round costs more.
const FREE: f64 = 1.2;
/// Factor of the weight of an arrival time for each later observation of its rank.
const FORGETTING: f64 = 0.8;

/// Estimates of the verified schedule from the rounds so far.
#[derive(Clone, Debug)]
pub struct Verified {
    /// Number of rounds observed.
    rounds: u32,
    arrivals: ArrivalTimes,
    round: RoundSteps,
    /// Whether the open round waits for all devices.
    waits_for_all: bool,
    /// Numbers of updates of the levels.
    levels: Vec<usize>,
    /// Mean steps of the first devices of the open round, each with the number of these devices.
    first: Vec<(usize, Matrix)>,
    /// Sums over rounds: of `n` times the variance between the devices' steps, scaled to the model's step,
    /// and of `n`.
    variance: (f64, f64),
    contraction: Contraction,
    bias: CohortBias,
    trials: Trials,
}

impl Verified {
    /// Creates estimates without observations.
    pub fn new() -> Self {
        Self {
            rounds: 0,
            arrivals: ArrivalTimes::new(FORGETTING),
            round: RoundSteps::default(),
            waits_for_all: true,
            levels: Vec::new(),
            first: Vec::new(),
            variance: (0.0, 0.0),
            contraction: Contraction::new(GRID),
            bias: CohortBias::default(),
            trials: Trials::new(),
        }
    }

    /// Restores a state that [`Estimator::state`] returned; `None` if the values are not such a state.
    pub fn restored(state: &[f64]) -> Option<Self> {
        let (&[ranks, filters, rounds, sum, weight], values) = state.split_first_chunk::<5>()?;
        if state.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let (trials, values) = values.split_first_chunk::<5>()?;
        let rounds = u32::try_from(checked_count(rounds, u32::MAX.into())?).ok()?;
        let (ranks, values) =
            values.split_at_checked(checked_count(ranks, values.len() as f64)?.checked_mul(3)?)?;
        let (filters, bias) = values.split_at_checked(2 * checked_count(filters, GRID.count as f64)?)?;
        Some(Self {
            rounds,
            variance: (sum, weight),
            arrivals: ArrivalTimes::restored(FORGETTING, ranks)?,
            contraction: Contraction::restored(GRID, filters)?,
            bias: CohortBias::restored(bias)?,
            trials: Trials::restored(*trials),
            ..Self::new()
        })
    }

    /// Index of the level with the largest estimated gain per unit of time, from `first` on.
    fn best_level(&self, levels: &[usize], first: usize) -> Option<usize> {
        let full_level = levels.len().saturating_sub(1);
        let (a, distance) = self.contraction.estimate()?;
        let variance = self.variance.0 / self.variance.1;
        let time = |level: usize| levels.get(level).and_then(|n| self.arrivals.mean(*n));
        let full_time = time(full_level).filter(|time| *time > 0.0)?;
        let rates = levels.iter().enumerate().skip(first).filter_map(|(level, &n)| {
            let time = time(level)?.max(f64::MIN_POSITIVE * full_time);
            let progress = if level == full_level { Progress::FULL } else { self.bias.progress(n) };
            let gain = distance * (1.0 - progress.remaining(a)) - variance / n as f64;
            Some((level, gain / time))
        });
        let best = rates.fold(None, |best: Option<(usize, f64)>, (level, rate)| match best {
            Some((_, best_rate)) if best_rate >= rate => best,
            _ => Some((level, rate)),
        });
        let best = best.filter(|(_, rate)| *rate > 0.0)?.0;
        let longest = FREE * time(best)?;
        let is_nearly_free = |level: &usize| time(*level).is_some_and(|time| time <= longest);
        Some((best..levels.len()).filter(is_nearly_free).max().unwrap_or(best))
    }
}

impl Estimator for Verified {
    fn choose(&mut self, levels: &[usize], current: usize) -> Decision {
        self.levels = levels.to_vec();
        let full_level = levels.len().saturating_sub(1);
        if self.rounds == 0 {
            return Decision { level: current, waits_for_all: true };
        }
        let level = self.best_level(levels, current).unwrap_or(full_level);
        let expected = levels.get(level).and_then(|n| self.arrivals.mean(*n)).unwrap_or(f64::INFINITY);
        Decision { level, waits_for_all: level == full_level || !self.trials.allow(expected) }
    }

    fn answers_with(&self, samples: u64) -> usize {
        self.arrivals.answers_with(samples)
    }

    fn open(&mut self, invited: usize, waits_for_all: bool) {
        self.waits_for_all = waits_for_all;
        self.arrivals.open(invited);
        self.round.open(invited);
        self.first.clear();
    }

    fn counted(&mut self, answer: &UpdateArrival<'_>) {
        let rank = self.round.answers;
        self.round.counted(answer);
        self.arrivals.record(rank, answer.elapsed.as_u64() as f64, self.round.samples);
        let n = self.round.answers;
        if self.waits_for_all && n < self.round.invited && self.levels.contains(&n) {
            self.first.extend(self.round.mean().map(|mean| (n, mean)));
        }
    }

    fn closed(&mut self, closed: &ClosedRound<'_>) {
        let elapsed = closed.elapsed.as_u64() as f64;
        // Updates that the round did not receive would have arrived at its end at the earliest.
        for rank in self.round.answers..closed.short_of.unwrap_or(0).min(self.arrivals.len()) {
            self.arrivals.record(rank, elapsed, self.round.samples);
        }
        self.rounds = self.rounds.saturating_add(1);
        let answers = self.round.answers;
        let observed = self.round.close(closed);
        if let Some((observed, scale)) = observed.as_ref().and_then(|step| Some((step, step.scale()?))) {
            let n = observed.count;
            self.variance.0 += n * observed.variance() * scale * scale;
            self.variance.1 += n;
            let noise = self.variance.0 / self.variance.1 / n;
            let progress = if self.waits_for_all { Progress::FULL } else { self.bias.progress(answers) };
            let remaining = |a: f64| progress.remaining(a);
            self.contraction.update(&observed.step, noise, remaining, &observed.origin, &observed.model_after);
            if self.waits_for_all {
                self.bias.update(observed, &self.first);
            }
        }
        if self.waits_for_all {
            let a = self.contraction.estimate().map_or(1.0, |(a, _)| a);
            self.trials.close_full(elapsed, observed.as_ref(), a);
        } else {
            self.trials.close_partial(elapsed);
        }
    }

    fn state(&self) -> Vec<f64> {
        let lengths = [self.arrivals.len(), self.contraction.state_len() / 2].map(|length| length as f64);
        let head = [f64::from(self.rounds), self.variance.0, self.variance.1];
        let all = lengths.into_iter().chain(head).chain(self.trials.state()).chain(self.arrivals.state());
        all.chain(self.contraction.state()).chain(self.bias.state()).collect()
    }
}
