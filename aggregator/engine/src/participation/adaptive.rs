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
//! * `a` and `D^2`: see [`Contraction`].
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

use super::arrival_times::ArrivalTimes;
use super::contraction::{Contraction, Grid};
use super::coverage::Coverage;
use super::estimator::{Decision, Estimator, best_level, checked_count};
use super::round_steps::RoundSteps;
use super::{ClosedRound, UpdateArrival};
use crate::linalg::{Matrix, product_transposed};

/// Contractions of the filters.
const GRID: Grid = Grid { largest: 0.5, count: 20 };
/// Time budget of rounds that do not wait for all devices, in mean durations of rounds that do.
const BUDGET: f64 = 10.0;

/// Estimates of the adaptive schedule from the rounds so far.
#[derive(Clone, Debug)]
pub struct Adaptive {
    /// Number of rounds observed.
    rounds: u32,
    /// Total time of the rounds that did not wait for all devices, in milliseconds.
    spent: f64,
    arrivals: ArrivalTimes,
    round: RoundSteps,
    /// Sum of `G^T G` over the steps `G` of the open round.
    gram: Option<Matrix>,
    /// Sums over rounds: of `n` times the variance between the devices' steps, scaled to the model's step,
    /// and of `n`.
    variance: (f64, f64),
    contraction: Contraction,
    coverage: Coverage,
}

impl Adaptive {
    /// Creates estimates without observations.
    pub fn new() -> Self {
        Self {
            rounds: 0,
            spent: 0.0,
            arrivals: ArrivalTimes::new(1.0),
            round: RoundSteps::default(),
            gram: None,
            variance: (0.0, 0.0),
            contraction: Contraction::new(GRID),
            coverage: Coverage::default(),
        }
    }

    /// Restores a state that [`Estimator::state`] returned; `None` if the values are not such a state.
    pub fn restored(state: &[f64]) -> Option<Self> {
        let (&[ranks, filters, coverage_len, rounds, spent, sum, weight], values) =
            state.split_first_chunk::<7>()?;
        if state.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let filters = checked_count(filters, GRID.count as f64)?;
        let rounds = u32::try_from(checked_count(rounds, u32::MAX.into())?).ok()?;
        let (ranks, values) =
            values.split_at_checked(checked_count(ranks, values.len() as f64)?.checked_mul(3)?)?;
        let (filters, coverage) = values.split_at_checked(2 * filters)?;
        if checked_count(coverage_len, values.len() as f64)? != coverage.len() {
            return None;
        }
        Some(Self {
            rounds,
            spent,
            variance: (sum, weight),
            arrivals: ArrivalTimes::restored(1.0, ranks)?,
            contraction: Contraction::restored(GRID, filters)?,
            coverage: Coverage::restored(coverage)?,
            ..Self::new()
        })
    }

    /// Index of the level for which the next round waits.
    fn level(&self, levels: &[usize], current: usize) -> usize {
        let full_level = levels.len().saturating_sub(1);
        if self.rounds == 0 {
            return full_level;
        }
        // The first round only measured arrival times. The stages begin after it, with the first level.
        let first_level = if self.rounds == 1 { 0 } else { current };
        let Some((a, distance)) = self.contraction.estimate() else { return full_level };
        let variance = self.variance.0 / self.variance.1;
        let time = |level: usize| levels.get(level).and_then(|n| self.arrivals.mean(*n));
        let Some(full_time) = time(full_level).filter(|time| *time > 0.0) else { return full_level };
        if self.spent >= BUDGET * full_time {
            return full_level;
        }
        let decrease = |level: usize, n: usize| {
            let a = if level == current { a * self.coverage.factor(n) } else { a };
            distance * a * (2.0 - a) - variance / n as f64
        };
        best_level(levels, first_level, time, decrease).unwrap_or(full_level)
    }
}

impl Estimator for Adaptive {
    fn choose(&mut self, levels: &[usize], current: usize) -> Decision {
        Decision { level: self.level(levels, current), waits_for_all: false }
    }

    fn answers_with(&self, samples: u64) -> usize {
        self.arrivals.answers_with(samples)
    }

    fn open(&mut self, invited: usize, _waits_for_all: bool) {
        self.arrivals.open(invited);
        self.round.open(invited);
        self.gram = None;
    }

    /// Discards the coverage observed in the stage before.
    fn begin_stage(&mut self) {
        self.coverage.begin();
    }

    fn counted(&mut self, answer: &UpdateArrival<'_>) {
        let rank = self.round.answers;
        let step = self.round.counted(answer);
        self.arrivals.record(rank, answer.elapsed.as_u64() as f64, self.round.samples);
        let Some(step) = step else { return };
        let gram = product_transposed(&step, &step);
        match &mut self.gram {
            Some(grams) => *grams += gram,
            None => self.gram = Some(gram),
        }
    }

    fn closed(&mut self, closed: &ClosedRound<'_>) {
        // Updates that the round did not receive would have arrived at its end at the earliest.
        for rank in self.round.answers..closed.short_of.unwrap_or(0).min(self.arrivals.len()) {
            self.arrivals.record(rank, closed.elapsed.as_u64() as f64, self.round.samples);
        }
        self.rounds = self.rounds.saturating_add(1);
        if self.round.answers < self.round.invited && closed.short_of.is_none() {
            self.spent += closed.elapsed.as_u64() as f64;
        }
        let Some(observed) = self.round.close(closed) else { return };
        if let Some(gram) = self.gram.take() {
            self.coverage.add(gram, self.round.steps, self.round.is_complete());
        }
        let Some(scale) = observed.scale() else { return };
        let n = observed.count;
        self.variance.0 += n * observed.variance() * scale * scale;
        self.variance.1 += n;
        let noise = self.variance.0 / self.variance.1 / n;
        let factor = self.coverage.factor(self.round.answers);
        let remaining = |a: f64| {
            let remaining = 1.0 - a * factor;
            remaining * remaining
        };
        self.contraction.update(&observed, noise, remaining);
    }

    /// State for checkpoints: the sums, and the distance and weight of each filter.
    fn state(&self) -> Vec<f64> {
        let coverage = self.coverage.state();
        let lengths = [self.arrivals.len(), self.contraction.state_len() / 2, coverage.len()];
        let head = [f64::from(self.rounds), self.spent, self.variance.0, self.variance.1];
        let lengths = lengths.into_iter().map(|length| length as f64);
        lengths
            .chain(head)
            .chain(self.arrivals.state())
            .chain(self.contraction.state())
            .chain(coverage)
            .collect()
    }
}
