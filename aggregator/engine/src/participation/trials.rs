//! Trials of rounds that do not wait for all devices, each verified by the next round with all devices.
//!
//! The time of trials comes from an allowance. Every round with all devices adds a part [`RATE`] of its duration,
//! and a trial takes its own duration away. So trials that gain nothing take at most this part of the time of
//! the rounds with all devices, and one partial round more, for any data and speeds.
//!
//! A round with all devices after a trial shows what the trial gained. For a representation, a round
//! with all devices multiplies the step of all devices by `1 - a`, with the contraction `a`. If the step has shrunk
//! more than by the rounds with all devices alone, the trial was worth the missing number of such rounds. For a
//! network, steps are gradients of the mean objective times a step size. The trial was worth
//! as many rounds with all devices as such rounds decrease the objective by the same amount:
//!
//! ```text
//! <((1 - a) z + z') / 2, x> / ((1 - a / 2) |(1 - a) z|^2)
//! ```
//!
//! with the steps `z` and `z'` of all devices before and after the trial, and the displacement `x` of the model
//! during it. The numerator is the trapezoidal rule, which is exact for a quadratic objective.
//!
//! The time of the rounds that a trial was worth is added to the allowance. A trial that was worth less than its
//! time halves the part that later rounds add, so that the number of such trials grows with the logarithm of the
//! number of rounds only.
//!
//! During a trial the gain is predicted from the last step `z` of all devices and the displacement `x` of the model
//! since: `<(1 - a) z, x> - a |x|^2 / 2`, in units of the objective times the step size. For a network, the gain of
//! rounds with all devices in the same time is subtracted. A trial ends when this falls far below its largest value.
//!
//! Curvature and noise of a network are not known, and the data of the first devices may be of few classes. So its
//! trials are short, and they are made only with rounds that are much shorter than one with all devices.

use super::round_steps::ModelStep;
use crate::linalg::Matrix;

/// Part of the duration of a round with all devices that is added to the allowance, before a trial failed.
const RATE: f64 = 0.15;
/// Factor of this part after a trial that was worth less than its time.
const AFTER_FAILURE: f64 = 0.5;
/// Largest allowance, in durations of a round with all devices.
const LARGEST_ALLOWANCE: f64 = 10.0;
/// Decrease of the predicted gain below its largest value that ends a trial, as a multiple of the gain of the
/// last round with all devices.
const LARGEST_DECREASE: f64 = 0.5;
/// Largest duration of a partial round of a network, as a part of that of a round with all devices.
const LARGEST_PART_OF_LAYERS: f64 = 1.0 / 3.0;
/// Longest trial of a network, in durations of a round with all devices. The steps of a network predict less far
/// than those of a representation.
const LONGEST_TRIAL_OF_LAYERS: f64 = 1.0;
/// Smallest and largest factor by which a round with all devices is assumed to shrink the step.
const SHRINKING: (f64, f64) = (0.05, 0.999);

/// Result of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The step of all devices has shrunk, or its noise hides whether it has.
    Harmless,
    /// The step of all devices has grown, noise considered, or the objective has increased.
    Harmful,
}

/// Trials with their allowance. All times are in milliseconds.
#[derive(Clone, Debug)]
pub struct Trials {
    /// Time that partial rounds may take.
    allowance: f64,
    /// Part of the duration of a round with all devices that is added to the allowance.
    rate: f64,
    /// Time of the present trial.
    spent: f64,
    /// Duration of the last round with all devices; 0 before the first.
    full_time: f64,
    /// Whether the model is a network, whose steps are gradients of an objective.
    is_of_layers: bool,
    /// Last round with all devices. `None` before the first, and after a restart.
    start: Option<Start>,
}

/// Last round with all devices, and the present trial after it.
#[derive(Clone, Debug)]
struct Start {
    /// Step of the round.
    step: Matrix,
    /// Degrees of freedom of a step.
    degrees_of_freedom: f64,
    /// Displacement of the model since the round, as the sum of the steps of the trial.
    displacement: Matrix,
    /// Largest predicted gain of the trial so far.
    best: f64,
    /// Whether the trial has ended.
    ended: bool,
}

impl Trials {
    /// Creates trials without an allowance.
    pub fn new() -> Self {
        Self { allowance: 0.0, rate: RATE, spent: 0.0, full_time: 0.0, is_of_layers: false, start: None }
    }

    /// Whether a partial round of this expected duration may be tried, if one with all devices takes `full`.
    pub fn may_try(&self, duration: f64, full: f64) -> bool {
        !self.is_of_layers || duration <= LARGEST_PART_OF_LAYERS * full
    }

    /// Whether a partial round of this expected duration may follow.
    pub fn allow(&self, duration: f64) -> bool {
        if self.start.as_ref().is_none_or(|start| start.ended) {
            return false;
        }
        let longest =
            if self.is_of_layers { LONGEST_TRIAL_OF_LAYERS * self.full_time } else { f64::INFINITY };
        self.spent + duration <= longest && duration <= self.allowance
    }

    /// Observes the end of a partial round, with the step of the model and the estimated contraction `a`.
    pub fn close_partial(&mut self, duration: f64, step: Option<&Matrix>, a: f64) {
        self.spent += duration;
        self.allowance -= duration;
        let Some((start, step)) = self.start.as_mut().zip(step) else { return };
        if start.displacement.shape() != step.shape() {
            return;
        }
        start.displacement += step;
        let displacement = &start.displacement;
        let gain = (1.0 - a) * start.step.dot(displacement) - 0.5 * a * displacement.norm_squared();
        let gain_of_all = (1.0 - 0.5 * a) * start.step.norm_squared();
        // The time of the trial is worth what rounds with all devices would gain in it.
        let price = if self.is_of_layers { gain_of_all * self.spent / self.full_time } else { 0.0 };
        let gain = gain - price;
        start.best = start.best.max(gain);
        start.ended = gain < start.best - LARGEST_DECREASE * gain_of_all;
    }

    /// Observes the end of a round with all devices, with the step of the model, the estimated contraction `a`
    /// and the expected squared length `noise` of the noise of the step. Returns the verdict on the trial before
    /// it, if there was one.
    pub fn close_full(
        &mut self,
        duration: f64,
        observed: Option<&ModelStep>,
        a: f64,
        noise: f64,
    ) -> Option<Verdict> {
        // The shorter of two durations, since a single long round must not make a trial worth more.
        let shorter = if self.full_time > 0.0 { duration.min(self.full_time) } else { duration };
        let verdict = (self.spent > 0.0).then(|| {
            let worth = observed.and_then(|observed| self.rounds_worth(&observed.step, a, noise));
            let (low, high) = worth.unwrap_or((0.0, 0.0));
            let gained = low.max(0.0) * shorter;
            self.allowance += gained;
            if worth.is_some() && gained < self.spent {
                self.rate *= AFTER_FAILURE;
            }
            if high < self.harm() { Verdict::Harmful } else { Verdict::Harmless }
        });
        self.allowance = (self.allowance + self.rate * duration).min(LARGEST_ALLOWANCE * shorter);
        self.full_time = duration;
        self.spent = 0.0;
        self.is_of_layers = observed.map_or(self.is_of_layers, |observed| observed.is_of_layers);
        self.start = observed.map(|observed| Start {
            step: observed.step.clone(),
            degrees_of_freedom: observed.model_after.degrees_of_freedom(),
            displacement: &observed.step * 0.0,
            best: 0.0,
            ended: false,
        });
        verdict
    }

    /// Number of rounds with all devices below which a trial is harmful. The length of a step is noisy, so a trial
    /// must have undone the round with all devices before it. The objective need only have increased.
    fn harm(&self) -> f64 {
        if self.is_of_layers { 0.0 } else { -1.0 }
    }

    /// Number of rounds with all devices that the present trial was worth, for a network: the decrease of the
    /// objective during the trial, by the trapezoidal rule from the steps before and after it, in comparison with
    /// the decrease of a round with all devices.
    fn rounds_worth_of_layers(start: &Start, step: &Matrix, a: f64) -> f64 {
        let (smallest, largest) = SHRINKING;
        let shrinking = (1.0 - a).abs().clamp(smallest, largest).copysign(1.0 - a);
        let before = &start.step * shrinking;
        let decrease = 0.5 * (before.dot(&start.displacement) + step.dot(&start.displacement));
        decrease / ((1.0 - 0.5 * a) * before.norm_squared())
    }

    /// Smallest and largest number of rounds with all devices that the present trial was probably worth, from
    /// the step of all devices after it: one standard deviation of the noise to either side.
    fn rounds_worth(&self, step: &Matrix, a: f64, noise: f64) -> Option<(f64, f64)> {
        let start = self.start.as_ref()?;
        if self.is_of_layers {
            if start.displacement.shape() != step.shape() || start.step.norm_squared() == 0.0 {
                return None;
            }
            let rounds = Self::rounds_worth_of_layers(start, step, a);
            return Some((rounds, rounds));
        }
        let (before, after) = (start.step.norm_squared(), step.norm_squared());
        if !(before > 0.0 && after > 0.0) {
            return None;
        }
        // Relative variance of a squared length, of which `noise` is the expected part of the noise.
        let relative = |squared: f64| {
            let noise = noise.min(squared);
            (4.0 * (squared - noise) + 2.0 * noise) * noise / start.degrees_of_freedom / (squared * squared)
        };
        let (smallest, largest) = SHRINKING;
        let per_round = -2.0 * libm::log((1.0 - a).abs().clamp(smallest, largest));
        let rounds = libm::log(before / after) / per_round - 1.0;
        let deviation = libm::sqrt(relative(before) + relative(after)) / per_round;
        Some((rounds - deviation, rounds + deviation))
    }

    /// State for checkpoints. The step before a trial in progress is omitted: after a restart the next round waits
    /// for all devices, and the trial has no verdict.
    pub fn state(&self) -> [f64; 5] {
        [self.allowance, self.rate, self.spent, self.full_time, f64::from(u8::from(self.is_of_layers))]
    }

    /// Restores a state that [`Self::state`] returned.
    pub fn restored([allowance, rate, spent, full_time, is_of_layers]: [f64; 5]) -> Self {
        Self { allowance, rate, spent, full_time, is_of_layers: is_of_layers != 0.0, start: None }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::model_motion::ModelPoint;
    use super::*;

    /// Ends a round with all devices whose step has this length.
    fn full_round(trials: &mut Trials, duration: f64, length: f64, a: f64) -> Option<Verdict> {
        let step = Matrix::from_element(2, 3, length / 6.0_f64.sqrt());
        let point = ModelPoint::Values(Matrix::zeros(2, 3));
        let observed = ModelStep::new(point.clone(), point, step);
        trials.close_full(duration, Some(&observed), a, 0.0)
    }

    fn partial_round(trials: &mut Trials, duration: f64) {
        trials.close_partial(duration, Some(&Matrix::zeros(2, 3)), 0.5);
    }

    #[test]
    fn allowance_is_a_part_of_the_time_of_all_devices() {
        let mut trials = Trials::new();
        assert!(!trials.allow(0.0), "a trial before the first round with all devices");
        full_round(&mut trials, 1000.0, 1.0, 0.5);
        assert!(trials.allow(1000.0 * RATE) && !trials.allow(1000.0 * RATE + 1.0));
        partial_round(&mut trials, 100.0);
        assert!(trials.allow(1000.0 * RATE - 100.0) && !trials.allow(100.0));
    }

    #[test]
    fn trial_worth_more_than_its_time_extends_the_allowance() {
        // A round with all devices halves the step; after the trial it has an eighth of its length. So the trial
        // was worth two rounds.
        let mut trials = Trials::new();
        full_round(&mut trials, 1000.0, 1.0, 0.5);
        partial_round(&mut trials, 100.0);
        assert_eq!(full_round(&mut trials, 1000.0, 0.125, 0.5), Some(Verdict::Harmless));
        let expected = 1000.0 * RATE - 100.0 + 2000.0 + 1000.0 * RATE;
        assert!((trials.allowance - expected).abs() < 1e-6, "{}", trials.allowance);
        assert_eq!(trials.rate, RATE);
    }

    #[test]
    fn useless_trials_become_rare_and_harmful_ones_are_reported() {
        let mut trials = Trials::new();
        full_round(&mut trials, 1000.0, 1.0, 0.5);
        partial_round(&mut trials, 100.0);
        assert_eq!(full_round(&mut trials, 1000.0, 0.5, 0.5), Some(Verdict::Harmless));
        assert_eq!(trials.rate, RATE * AFTER_FAILURE);
        partial_round(&mut trials, 100.0);
        assert_eq!(full_round(&mut trials, 1000.0, 0.6, 0.5), Some(Verdict::Harmful));
        assert_eq!(full_round(&mut trials, 1000.0, 0.3, 0.5), None, "a verdict without a trial");
    }

    /// A long round with all devices must not make the trial after it worth more than a short one.
    #[test]
    fn single_long_round_does_not_raise_the_worth_of_a_trial() {
        let mut trials = Trials::new();
        full_round(&mut trials, 100_000.0, 1.0, 0.5);
        partial_round(&mut trials, 100.0);
        full_round(&mut trials, 1000.0, 0.125, 0.5);
        assert!(trials.allowance <= LARGEST_ALLOWANCE * 1000.0);
    }

    /// With the quadratic objective `h |y|^2 / 2` and the step size `a / h`, the worth of a trial is the decrease of
    /// the objective exactly, for any displacement.
    #[test]
    fn trial_of_a_network_is_worth_its_decrease_of_the_objective() {
        let a = 0.2;
        let objective = |y: &Matrix| 0.5 * y.norm_squared();
        let full = |trials: &mut Trials, y: &Matrix| {
            let point = ModelPoint::Values(y.clone());
            let observed = ModelStep::new(point.clone(), point, y * a).of_layers();
            trials.close_full(1000.0, Some(&observed), a, 0.0)
        };
        for (displacement, harmful) in [([0.5, -0.3], false), ([2.0, 0.5], false), ([-0.1, -0.2], true)] {
            let mut trials = Trials::new();
            let start = Matrix::from_column_slice(2, 1, &[3.0, 1.0]);
            full(&mut trials, &start);
            let before = &start * (1.0 - a);
            let displacement = Matrix::from_column_slice(2, 1, &displacement);
            trials.close_partial(10.0, Some(&displacement), a);
            let after = &before - displacement;
            let allowed = trials.allowance;
            let verdict = full(&mut trials, &after);
            assert_eq!(verdict == Some(Verdict::Harmful), harmful);
            let decrease = objective(&before) - objective(&after);
            let of_all_devices = objective(&before) - objective(&(&before * (1.0 - a)));
            let worth = (decrease / of_all_devices).max(0.0);
            let rate = if worth * 1000.0 < 10.0 { RATE * AFTER_FAILURE } else { RATE };
            let expected = (allowed + 1000.0 * (worth + rate)).min(1000.0 * LARGEST_ALLOWANCE);
            assert!((trials.allowance - expected).abs() < 1e-6, "{} instead of {expected}", trials.allowance);
        }
    }

    /// Ends a round with all devices of a network, which takes 1000 ms and the step `step`.
    fn full_round_of_layers(trials: &mut Trials, step: &Matrix) {
        let point = ModelPoint::Values(step * 0.0);
        let observed = ModelStep::new(point.clone(), point, step.clone()).of_layers();
        trials.close_full(1000.0, Some(&observed), 0.1, 0.0);
    }

    /// Trials of a network are short, and have rounds that are much shorter than one with all devices, however
    /// large the allowance.
    #[test]
    fn trials_of_a_network_are_short() {
        let mut trials = Trials { allowance: 9000.0, ..Trials::new() };
        let step = Matrix::from_element(2, 1, 1.0);
        full_round_of_layers(&mut trials, &step);
        assert!(trials.may_try(1000.0 * LARGEST_PART_OF_LAYERS, 1000.0));
        assert!(!trials.may_try(1000.0 * LARGEST_PART_OF_LAYERS + 1.0, 1000.0));
        for _ in 0..4 {
            trials.close_partial(250.0, Some(&step), 0.1);
        }
        assert!(!trials.allow(10.0), "a trial longer than a round with all devices");
        let mut trials = Trials { allowance: 9000.0, ..Trials::new() };
        full_round(&mut trials, 1000.0, 1.0, 0.1);
        assert!(trials.may_try(900.0, 1000.0), "no limit for a representation");
        (0..4).for_each(|_| partial_round(&mut trials, 250.0));
        assert!(trials.allow(900.0), "no limit for a representation");
    }

    /// A trial of a network ends when its time is worth more with all devices.
    #[test]
    fn trial_of_a_network_without_progress_ends() {
        let mut trials = Trials { allowance: 9000.0, ..Trials::new() };
        let step = Matrix::from_element(2, 1, 1.0);
        full_round_of_layers(&mut trials, &step);
        let rounds = (0..10).take_while(|_| {
            trials.close_partial(100.0, Some(&(&step * 0.01)), 0.1);
            trials.allow(100.0)
        });
        // After 600 ms the gain of all devices in this time is larger by more than LARGEST_DECREASE.
        assert_eq!(rounds.count(), 5);
    }

    /// The predicted gain ends a trial that moves the model away.
    #[test]
    fn trial_ends_when_the_model_moves_away() {
        let mut trials = Trials::new();
        full_round(&mut trials, 1000.0, 1.0, 0.5);
        let away = Matrix::from_element(2, 3, -1.0 / 6.0_f64.sqrt());
        trials.close_partial(1.0, Some(&away), 0.5);
        assert!(!trials.allow(1.0));
        full_round(&mut trials, 1000.0, 1.0, 0.5);
        assert!(trials.allow(1.0));
    }

    #[test]
    fn restored_trials_wait_for_all_devices_first() {
        let mut trials = Trials::new();
        full_round(&mut trials, 1000.0, 1.0, 0.5);
        let mut restored = Trials::restored(trials.state());
        assert!(trials.allow(10.0) && !restored.allow(10.0));
        full_round(&mut restored, 1000.0, 0.5, 0.5);
        assert!(restored.allow(10.0));
    }
}
