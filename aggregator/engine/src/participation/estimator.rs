//! Interface of the schedules that decide from observations for how many updates a round waits.

use std::fmt;

use super::{ClosedRound, UpdateArrival};

/// Decision about the next round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Index of the level of the stage.
    pub level: usize,
    /// Whether the round waits for all devices although its level has fewer.
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

/// Factor by which a round may take longer than the best one in order to wait for more devices, since an
/// additional round costs more.
const FREE: f64 = 1.2;

/// Index of the level with the largest decrease of the squared distance per unit of time, from `first` on, and
/// then of the last level that takes hardly longer. `levels` are numbers of updates in ascending order. `time` is the
/// mean duration of a round of a level, and `decrease` the estimated decrease, for a level and its number of
/// updates. `None` if no level decreases the distance.
pub fn best_level(
    levels: &[usize],
    first: usize,
    time: impl Fn(usize) -> Option<f64>,
    decrease: impl Fn(usize, usize) -> f64,
) -> Option<usize> {
    let full_time = time(levels.len().checked_sub(1)?).filter(|time| *time > 0.0)?;
    let rates = levels.iter().enumerate().skip(first).filter_map(|(level, &n)| {
        let time = time(level)?.max(f64::MIN_POSITIVE * full_time);
        Some((level, decrease(level, n) / time))
    });
    let best = rates.fold(None, |best: Option<(usize, f64)>, (level, rate)| match best {
        Some((_, best_rate)) if best_rate >= rate => best,
        _ => Some((level, rate)),
    });
    let (best, _) = best.filter(|(_, rate)| *rate > 0.0)?;
    let longest = FREE * time(best)?;
    let is_nearly_free = |level: &usize| time(*level).is_some_and(|time| time <= longest);
    Some((best..levels.len()).filter(is_nearly_free).max().unwrap_or(best))
}

/// Reads a count from a state; `None` if it is not an integer from 0 to `max`.
pub fn checked_count(value: f64, max: f64) -> Option<usize> {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and in range")]
    (value.fract() == 0.0 && (0.0..=max).contains(&value)).then_some(value as usize)
}
