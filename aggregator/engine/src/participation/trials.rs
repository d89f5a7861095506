//! Trials of rounds that do not wait for all devices, each verified by a round with all devices.
//!
//! The time of a trial comes from an allowance. Rounds with all devices add a small part of their duration to
//! it, and a verified trial adds the time in which rounds with all devices would have gained as much.

use super::model_motion::ModelPoint;
use super::round_steps::ModelStep;
use crate::linalg::Matrix;

/// Part of the duration of a round with all devices that is added to the allowance, before the first trial
/// failed.
const RATE: f64 = 0.1;
/// Factor of this part after a trial that gained less than rounds with all devices would have.
const AFTER_FAILURE: f64 = 0.5;
/// Largest allowance, in durations of a round with all devices.
const LARGEST_ALLOWANCE: f64 = 10.0;
/// Longest trial, as a fraction of the time of all rounds before.
const LONGEST_TRIAL: f64 = 0.5;

/// Trials with their allowance. All times are in milliseconds.
#[derive(Clone, Debug)]
pub struct Trials {
    /// Time that partial rounds may take.
    allowance: f64,
    /// Part of the duration of a round with all devices that is added to the allowance.
    rate: f64,
    /// Time of all rounds before the present trial.
    elapsed: f64,
    /// Time of the present trial.
    spent: f64,
    /// Duration of the last round with all devices.
    full_time: f64,
    /// Step of the last round with all devices, and the model after it. `None` before the first such round and
    /// after a restart.
    start: Option<(Matrix, ModelPoint)>,
}

impl Trials {
    /// Creates trials without an allowance.
    pub fn new() -> Self {
        Self { allowance: 0.0, rate: RATE, elapsed: 0.0, spent: 0.0, full_time: 0.0, start: None }
    }

    /// Whether a partial round of this expected duration may follow.
    pub fn allow(&self, duration: f64) -> bool {
        let longest = LONGEST_TRIAL * self.elapsed;
        self.start.is_some() && duration <= self.allowance && self.spent + duration <= longest
    }

    /// Observes the end of a partial round.
    pub fn close_partial(&mut self, duration: f64) {
        self.spent += duration;
        self.allowance -= duration;
    }

    /// Observes the end of a round with all devices, with the estimated contraction `a`. Returns whether the
    /// trial before it, if there was one, gained at least as much as rounds with all devices would have.
    pub fn close_full(&mut self, duration: f64, observed: Option<&ModelStep>, a: f64) -> Option<bool> {
        let shorter = if self.full_time > 0.0 { duration.min(self.full_time) } else { duration };
        let mut verdict = None;
        if self.spent > 0.0 {
            let rounds = observed.and_then(|observed| self.gain(observed, a)).unwrap_or(0.0).max(0.0);
            let gained = rounds * shorter;
            let success = gained >= self.spent;
            self.allowance += gained;
            if !success {
                self.rate *= AFTER_FAILURE;
            }
            verdict = Some(success);
        }
        self.allowance = (self.allowance + self.rate * duration).min(LARGEST_ALLOWANCE * shorter);
        self.elapsed += self.spent + duration;
        self.full_time = duration;
        self.spent = 0.0;
        self.start = observed.map(|observed| (observed.step.clone(), observed.model_after.clone()));
        verdict
    }

    /// Gain of the present trial in the objective of all devices, as a multiple of the gain of the round with
    /// all devices before it. The gain follows from the steps of all devices before and after the trial, which
    /// are the gradients times the step size, and the displacement between.
    fn gain(&self, observed: &ModelStep, a: f64) -> Option<f64> {
        let (step, model) = self.start.as_ref()?;
        let displacement = model.step_to(&observed.origin)?;
        let mean_step = (step * (1.0 - a) + &observed.step) * 0.5;
        let unit = (1.0 - 0.5 * a) * step.norm_squared();
        (unit > 0.0).then(|| mean_step.dot(&displacement) / unit)
    }

    /// State for checkpoints.
    pub fn state(&self) -> [f64; 5] {
        [self.allowance, self.rate, self.elapsed, self.spent, self.full_time]
    }

    /// Restores a state that [`Self::state`] returned.
    pub fn restored([allowance, rate, elapsed, spent, full_time]: [f64; 5]) -> Self {
        Self { allowance, rate, elapsed, spent, full_time, start: None }
    }
}
