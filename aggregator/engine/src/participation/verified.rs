//! Verified schedule of doubling participation: estimates from the rounds so far for how many updates the next
//! round should wait, and verifies rounds that do not wait for all devices.
//!
//! As in the adaptive schedule, a round with the first `n` of `N` updates takes the arrival time `T_n` of the last
//! of these updates, communication included, and every round should maximise the estimated decrease of the
//! squared distance `D^2` per unit of time (SRPFL, equation 200):
//!
//! ```text
//! (D^2 (2 a p_n - a^2 q_n) - v / n) / T_n
//! ```
//!
//! with the contraction `a` and the distance ([`Contraction`]), the variance `v` of one device's step, and the
//! component `p_n` and squared length `q_n` of the step that the first `n` devices take, in comparison with the
//! step of all ([`CohortBias`]); both are 1 if speed has nothing to do with data.
//!
//! Estimates can be wrong, so they only propose. Whether a round may wait for fewer devices is decided by
//! [`Trials`]: an allowance of time, and a verification by the next round with all devices. That round also
//! measures arrival times and the differences of the first devices again. After a harmful trial, rounds with as
//! few devices are not tried again.

use super::arrival_times::ArrivalTimes;
use super::cohort_bias::CohortBias;
use super::contraction::{Contraction, Grid, Progress};
use super::estimator::{Decision, Estimator, best_level, checked_count};
use super::round_steps::{ModelStep, RoundSteps};
use super::trials::{Trials, Verdict};
use super::{ClosedRound, UpdateArrival};
use crate::linalg::Matrix;

/// Contractions of the filters. They cover every step for which rounds with all devices are stable.
const GRID: Grid = Grid { largest: 1.9, count: 27 };
/// Factor of the weight of an arrival time for each later observation of its rank, so that the times follow
/// devices that become faster or slower.
const FORGETTING: f64 = 0.8;
/// Number of cycles with all devices before the first trial. A target that full participation reaches in this
/// many cycles is reached in the same time.
const FIRST_CYCLES: u32 = 3;
/// Number of cycles with all devices before the first trial if the contraction is at most [`SMALL_CONTRACTION`].
const FIRST_CYCLES_IF_SMALL: u32 = 2;
/// Contraction with which full participation needs many rounds, so that an early trial costs little.
const SMALL_CONTRACTION: f64 = 0.3;
/// Contraction that is assumed while there is no estimate.
const UNKNOWN_CONTRACTION: f64 = 1.0;

/// Estimates and trials of the verified schedule.
#[derive(Clone, Debug)]
pub struct Verified {
    /// Number of cycles observed.
    cycles: u32,
    arrivals: ArrivalTimes,
    round: RoundSteps,
    /// Whether the rounds of the present cycle wait for all devices. True after a restart.
    cycle_waits_for_all: bool,
    /// Whether the open round waits for all devices.
    waits_for_all: bool,
    cycle: Cycle,
    /// Numbers of updates of the levels.
    levels: Vec<usize>,
    /// Mean steps of the first devices in the present cycle.
    first: Vec<FirstDevices>,
    /// Sums over rounds: of `n` times the variance between the devices' steps, scaled to the model's step,
    /// and of `n`.
    variance: (f64, f64),
    contraction: Contraction,
    bias: CohortBias,
    trials: Trials,
    /// Smallest number of updates of a partial round.
    least: usize,
    /// Number of updates of the rounds of the present trial.
    tried: usize,
}

/// Mean step of the first devices, as a sum over the rounds of a cycle.
#[derive(Clone, Debug)]
struct FirstDevices {
    devices: usize,
    mean: Matrix,
    /// Number of rounds in the sum.
    rounds: u32,
}

/// Finished rounds of the present cycle.
#[derive(Clone, Debug, Default)]
struct Cycle {
    /// Number of the rounds.
    rounds: u32,
    /// Number of rounds of the last cycle; 0 before its end.
    length: u32,
    /// Time of the rounds, in milliseconds.
    elapsed: f64,
    /// Sum of the steps of the model. `None` if no round has a measured step.
    step: Option<ModelStep>,
    /// Whether all steps of the cycle so far are included. False after a restart within a cycle.
    is_whole: bool,
}

impl Verified {
    /// Creates estimates without observations.
    pub fn new() -> Self {
        Self {
            cycles: 0,
            arrivals: ArrivalTimes::new(FORGETTING),
            round: RoundSteps::default(),
            cycle_waits_for_all: true,
            waits_for_all: true,
            cycle: Cycle { is_whole: true, ..Cycle::default() },
            levels: Vec::new(),
            first: Vec::new(),
            variance: (0.0, 0.0),
            contraction: Contraction::new(GRID),
            bias: CohortBias::default(),
            trials: Trials::new(),
            least: 0,
            tried: 0,
        }
    }

    /// Restores a state that [`Estimator::state`] returned; `None` if the values are not such a state.
    pub fn restored(state: &[f64]) -> Option<Self> {
        let (&[ranks, filters, biases, cycles, least, tried, sum, weight, in_cycle, length, elapsed], values) =
            state.split_first_chunk::<11>()?;
        if state.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let (trials, values) = values.split_first_chunk::<5>()?;
        let largest = u32::MAX.into();
        let count = |value| u32::try_from(checked_count(value, largest)?).ok();
        let (ranks, values) =
            values.split_at_checked(checked_count(ranks, values.len() as f64)?.checked_mul(3)?)?;
        let (filters, bias) = values.split_at_checked(2 * checked_count(filters, GRID.count as f64)?)?;
        if checked_count(biases, bias.len() as f64)?.checked_mul(5)? != bias.len() {
            return None;
        }
        Some(Self {
            cycles: count(cycles)?,
            least: checked_count(least, largest)?,
            tried: checked_count(tried, largest)?,
            variance: (sum, weight),
            cycle: Cycle {
                rounds: count(in_cycle)?,
                length: count(length)?,
                elapsed,
                step: None,
                is_whole: in_cycle == 0.0,
            },
            arrivals: ArrivalTimes::restored(FORGETTING, ranks)?,
            contraction: Contraction::restored(GRID, filters)?,
            bias: CohortBias::restored(bias)?,
            trials: Trials::restored(*trials),
            ..Self::new()
        })
    }

    /// Variance of one device's step.
    fn step_variance(&self) -> f64 {
        self.variance.0 / self.variance.1
    }

    /// Index of the level with the largest estimated decrease of the squared distance per unit of time, from
    /// `first` on. `None` if there is no estimate, or if none decreases the distance.
    fn proposed_level(&self, levels: &[usize], first: usize) -> Option<usize> {
        let full_level = levels.len().saturating_sub(1);
        let (a, distance) = self.contraction.estimate()?;
        let time = |level: usize| {
            let mean = |level: usize| levels.get(level).and_then(|n| self.arrivals.mean(*n));
            let full = mean(full_level)?;
            mean(level).filter(|time| level == full_level || self.trials.may_try(*time, full))
        };
        let decrease = |level: usize, n: usize| {
            let progress = if level == full_level { Progress::FULL } else { self.bias.progress(n) };
            distance * (1.0 - progress.remaining(a)) - self.step_variance() / n as f64
        };
        best_level(levels, first, time, decrease)
    }

    /// Number of cycles with all devices before the first trial.
    fn first_cycles(&self) -> u32 {
        match self.contraction.estimate() {
            Some((a, _)) if a <= SMALL_CONTRACTION => FIRST_CYCLES_IF_SMALL,
            _ => FIRST_CYCLES,
        }
    }

    /// Decides about the next cycle.
    fn decide(&mut self, levels: &[usize], current: usize) -> Decision {
        if self.cycles < self.first_cycles() {
            return Decision { level: current, waits_for_all: true };
        }
        let full_level = levels.len().saturating_sub(1);
        let least = levels.iter().position(|n| *n >= self.least).unwrap_or(full_level);
        let level = self.proposed_level(levels, current.max(least)).unwrap_or(full_level);
        let updates = levels.get(level).copied().unwrap_or(0);
        let cycle = f64::from(self.cycle.length.max(1));
        let duration = self.arrivals.mean(updates).map_or(f64::INFINITY, |time| cycle * time);
        let waits_for_all = level == full_level || !self.trials.allow(duration);
        if !waits_for_all {
            self.tried = updates;
        }
        Decision { level, waits_for_all }
    }

    /// Observes the step of the model at the end of a cycle, with rounds of `answers` devices; returns it.
    fn observe_step(&mut self, observed: Option<ModelStep>, answers: usize) -> Option<ModelStep> {
        let observed = observed?;
        if let Some(scale) = observed.scale() {
            let n = observed.count;
            self.variance.0 += n * observed.variance() * scale * scale;
            self.variance.1 += n;
            let noise = self.step_variance() / n;
            let progress = if self.waits_for_all { Progress::FULL } else { self.bias.progress(answers) };
            let remaining = |a: f64| progress.remaining(a);
            self.contraction.update(&observed, noise, remaining);
            if self.waits_for_all {
                // Sums over some rounds of the cycle cannot be compared with the step of the cycle.
                let is_whole = |first: &&FirstDevices| first.rounds == self.cycle.length;
                let first = self.first.iter().filter(is_whole).map(|first| (first.devices, &first.mean));
                self.bias.update(&observed, first);
            }
        }
        Some(observed)
    }
}

impl Estimator for Verified {
    fn choose(&mut self, levels: &[usize], current: usize) -> Decision {
        if self.cycle.rounds > 0 {
            // The rounds of a cycle train different values, so they are tried together.
            return Decision { level: current, waits_for_all: self.cycle_waits_for_all };
        }
        self.levels = levels.to_vec();
        let decision = self.decide(levels, current);
        self.cycle_waits_for_all = decision.waits_for_all;
        decision
    }

    fn answers_with(&self, samples: u64) -> usize {
        self.arrivals.answers_with(samples)
    }

    fn open(&mut self, invited: usize, waits_for_all: bool) {
        self.waits_for_all = waits_for_all;
        self.arrivals.open(invited);
        self.round.open(invited);
        if self.cycle.rounds == 0 {
            self.first.clear();
        }
    }

    fn counted(&mut self, answer: &UpdateArrival<'_>) {
        let rank = self.round.answers;
        self.round.counted(answer);
        self.arrivals.record(rank, answer.elapsed.as_u64() as f64, self.round.samples);
        let n = self.round.answers;
        if self.waits_for_all && n < self.round.invited && self.levels.contains(&n) {
            let Some(mean) = self.round.mean() else { return };
            match self.first.iter_mut().find(|first| first.devices == n) {
                Some(first) => {
                    first.mean += mean;
                    first.rounds += 1;
                }
                None => self.first.push(FirstDevices { devices: n, mean, rounds: 1 }),
            }
        }
    }

    fn closed(&mut self, closed: &ClosedRound<'_>) {
        let elapsed = closed.elapsed.as_u64() as f64;
        // Updates that the round did not receive would have arrived at its end at the earliest.
        for rank in self.round.answers..closed.short_of.unwrap_or(0).min(self.arrivals.len()) {
            self.arrivals.record(rank, elapsed, self.round.samples);
        }
        let answers = self.round.answers;
        let step = self.round.close(closed);
        let cycle = &mut self.cycle;
        cycle.rounds = cycle.rounds.saturating_add(1);
        cycle.elapsed += elapsed;
        match (&mut cycle.step, step) {
            (Some(sum), Some(step)) => sum.extend(step),
            (sum @ None, step) => *sum = step,
            (Some(_), None) => {}
        }
        if !closed.ends_cycle {
            return;
        }
        let (elapsed, whole) = (cycle.elapsed, cycle.is_whole);
        let step = cycle.step.take().filter(|_| whole);
        *cycle = Cycle { length: cycle.rounds, is_whole: true, ..Cycle::default() };
        self.cycles = self.cycles.saturating_add(1);
        let observed = self.observe_step(step, answers);
        let a = self.contraction.estimate().map_or(UNKNOWN_CONTRACTION, |(a, _)| a);
        if !self.waits_for_all {
            self.trials.close_partial(elapsed, observed.as_ref().map(|observed| &observed.step), a);
            return;
        }
        let noise = observed.as_ref().map_or(0.0, |observed| self.step_variance() / observed.count);
        if self.trials.close_full(elapsed, observed.as_ref(), a, noise) == Some(Verdict::Harmful) {
            self.least = self.tried.saturating_add(1);
        }
    }

    fn state(&self) -> Vec<f64> {
        let counts = [self.arrivals.len(), self.contraction.state_len() / 2, self.bias.len()];
        let counts = counts.into_iter().map(|count| count as f64);
        let head =
            [f64::from(self.cycles), self.least as f64, self.tried as f64, self.variance.0, self.variance.1];
        let cycle = [f64::from(self.cycle.rounds), f64::from(self.cycle.length), self.cycle.elapsed];
        let all = counts.chain(head).chain(cycle).chain(self.trials.state()).chain(self.arrivals.state());
        all.chain(self.contraction.state()).chain(self.bias.state()).collect()
    }
}
