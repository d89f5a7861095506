//! Interface of the schedules that decide from observations for how many updates a round waits.

use std::fmt;

use super::{ClosedRound, UpdateArrival};

/// Decision about the next round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Index of the level of the stage.
    pub level: usize,
    /// Whether the round waits for all devices whatever the level.
    pub waits_for_all: bool,
}

/// Schedule that observes the rounds.
pub trait Estimator: fmt::Debug + Send {
    /// Chooses the level for which the next round waits. `levels` are numbers of updates in ascending order;
    /// the last is the number of all devices. `current` is the index of the present level. The result is at
    /// least `current`, except after the first round, which waits for all devices.
    fn choose(&mut self, levels: &[usize], current: usize) -> Decision;

    /// Number of first updates that together have had `samples` samples on average; the number of observed
    /// ranks if no number of updates reaches this count.
    fn answers_with(&self, samples: u64) -> usize;

    /// Begins a round with `invited` devices, which waits for all of them or for the first.
    fn open(&mut self, invited: usize, waits_for_all: bool);

    /// Begins a stage.
    fn begin_stage(&mut self) {}

    /// Observes the next update of the open round.
    fn counted(&mut self, answer: &UpdateArrival<'_>);

    /// Observes the end of a round.
    fn closed(&mut self, closed: &ClosedRound<'_>);

    /// State for checkpoints.
    fn state(&self) -> Vec<f64>;
}

/// Reads a count from a state; `None` if it is not an integer from 0 to `max`.
pub fn checked_count(value: f64, max: f64) -> Option<usize> {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and in range")]
    (value.fract() == 0.0 && (0.0..=max).contains(&value)).then_some(value as usize)
}
