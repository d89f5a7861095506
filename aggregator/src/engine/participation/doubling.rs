//! Doubling participation (SRPFL, Algorithms 1 and 2): a stage waits for the first `n` answers of a cohort of `N`, so
//! that nobody's speed needs to be known, then the next stage waits for twice as many, until all count. The
//! representation is handed on from stage to stage as the engine has it, orthonormal.

use super::adaptive::Adaptive;
use super::{Answer, Cohort, DeviceId, Participation};
use crate::linalg::Matrix;
use crate::random::{Purpose, stream};

/// When a stage ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// When more devices promise more progress in less time.
    Adaptive,
    /// After this many rounds.
    Fixed(u32),
}

/// Starts with `first` of `cohort` devices and doubles.
#[derive(Clone, Debug)]
pub struct Doubling {
    first: usize,
    cohort: Option<usize>,
    schedule: Schedule,
    seed: u64,
    /// The stage, and how many answers complete its rounds.
    stage: u16,
    target: usize,
    /// Rounds of this stage that are closed.
    rounds: u32,
    /// Answers of the open round.
    answers: u32,
    adaptive: Adaptive,
}

impl Doubling {
    /// A schedule that has not begun. `first` is `n0`; without a `cohort` everybody who is there is asked,
    /// otherwise that many, drawn anew for each stage.
    #[must_use]
    pub fn new(first: usize, cohort: Option<usize>, schedule: Schedule, seed: u64) -> Self {
        let first = first.max(1);
        Self {
            first,
            cohort,
            schedule,
            seed,
            stage: 0,
            target: 0,
            rounds: 0,
            answers: 0,
            adaptive: Adaptive::new(),
        }
    }

    /// The numbers that a stage may wait for: `first` doubled while below `size`, then `size`.
    fn levels(&self, size: usize) -> Vec<usize> {
        let doubled = std::iter::successors(Some(self.first), |n| n.checked_mul(2));
        doubled.take_while(|n| *n < size).chain([size]).collect()
    }

    fn enter(&mut self, target: usize) {
        if self.target != 0 && self.target != target {
            self.stage = self.stage.saturating_add(1);
            self.rounds = 0;
        }
        self.target = target;
    }
}

impl Participation for Doubling {
    fn cohort(&mut self, _round: u32, fleet: &[DeviceId]) -> Cohort {
        let size = self.cohort.map_or(fleet.len(), |size| size.min(fleet.len()));
        let levels = self.levels(size);
        let first = levels.first().copied().unwrap_or(size);
        let next = match self.schedule {
            Schedule::Fixed(rounds) if self.target == 0 || self.rounds < rounds => self.target.max(first),
            Schedule::Fixed(_) => levels.iter().copied().find(|n| *n > self.target).unwrap_or(size),
            Schedule::Adaptive => self.adaptive.choose(&levels, self.target),
        };
        // A fleet that has shrunk shrinks the stage.
        self.enter(next.min(size));
        let mut devices = if size == fleet.len() {
            fleet.to_vec()
        } else {
            stream(self.seed, Purpose::Cohort, self.stage.into()).choose(fleet, size)
        };
        devices.sort_unstable();
        self.answers = 0;
        self.adaptive.open(size);
        Cohort { devices, target: self.target, stage: self.stage }
    }

    fn counted(&mut self, answer: &Answer<'_>) {
        self.answers += 1;
        if self.schedule == Schedule::Adaptive {
            self.adaptive.counted(answer);
        }
    }

    fn closed(&mut self, before: &Matrix, after: &Matrix) {
        self.rounds += 1;
        if self.schedule == Schedule::Adaptive {
            self.adaptive.closed(before, after);
        }
    }

    fn state(&self) -> Vec<f64> {
        // What was learnt about speeds and progress is learnt again; where the schedule is, is not.
        vec![f64::from(self.stage), self.target as f64, f64::from(self.rounds)]
    }

    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "whole numbers, as they were written"
    )]
    fn restore(&mut self, state: &[f64]) -> bool {
        let &[stage, target, rounds] = state else { return false };
        let fits = |value: f64, most: f64| value.fract() == 0.0 && (0.0..=most).contains(&value);
        if !(fits(stage, f64::from(u16::MAX))
            && fits(target, 2f64.powi(52))
            && fits(rounds, f64::from(u32::MAX)))
        {
            return false;
        }
        (self.stage, self.target, self.rounds) = (stage as u16, target as usize, rounds as u32);
        true
    }
}
