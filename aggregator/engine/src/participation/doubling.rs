//! Doubling participation (SRPFL, Algorithms 1 and 2): a stage waits for the first `n` answers of a cohort of `N`, so
//! that nobody's speed needs to be known, then the next stage waits for twice as many, until all count. The
//! representation is handed on from stage to stage as the engine has it, orthonormal.

use super::adaptive::Adaptive;
use super::theory::{optimal_stages, theorem_stages};
use super::{ClosedRound, Cohort, Participation, SampleTarget, UpdateArrival, draw};
use crate::types::DeviceId;

/// The goal of the last stage. A whole number that f64 holds, as all state.
const EVERYONE: u64 = 1 << 53;

/// When a stage ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Schedule {
    /// When more devices promise more progress in less time.
    Adaptive,
    /// After this many rounds.
    Fixed(u32),
    /// After as many rounds as [`theorem_stages`] says.
    Theorem {
        /// The contraction `a` of SRPFL, equation 199.
        contraction: f64,
    },
    /// After as many rounds as [`optimal_stages`] says.
    Optimal {
        /// The contraction `a` of SRPFL, equation 199.
        contraction: f64,
        /// What every round takes besides computation, in mean computations.
        communication: f64,
        /// The distance to the true representation at the start.
        start: f64,
        /// The distance at which full participation hovers.
        floor: f64,
    },
}

/// What doubles from stage to stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DoubleBy {
    /// The number of devices that answer.
    #[default]
    Devices,
    /// The number of samples that they have together, for data of unequal size (SRPFL, appendix C): first as many as the
    /// first `n0` devices to answer have.
    Samples,
}

/// When another cohort is drawn, where not everybody is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DrawPer {
    /// For every round: the fastest few of one cohort may know little of what the rest of the fleet knows.
    #[default]
    Round,
    /// For every stage (SRPFL, Algorithm 2).
    Stage,
}

/// Starts with `first` of `cohort` devices and doubles.
#[derive(Clone, Debug)]
pub struct Doubling {
    first: usize,
    cohort: Option<usize>,
    draw: DrawPer,
    schedule: Schedule,
    by: DoubleBy,
    seed: u64,
    stage: u16,
    /// What completes a round of this stage, in devices or samples, or [`EVERYONE`]; 0 before the first.
    goal: u64,
    /// Rounds of this stage that are closed.
    rounds: u32,
    sizes: Sizes,
    /// The cohort's size, and the lengths of stages that follow from it.
    size: usize,
    lengths: Vec<u32>,
    /// The open round.
    round: Round,
    adaptive: Adaptive,
}

/// Devices or samples.
#[derive(Clone, Copy, Debug, Default)]
struct Sizes {
    /// Of the first stage; 0 as long as it is not known.
    first: u64,
    /// Of all; 0 as long as it is not known.
    all: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Round {
    asked: usize,
    /// It waits for everyone who is asked.
    everyone: bool,
    answers: usize,
    samples: u64,
    /// Samples of the first `n0`.
    first: u64,
}

impl Doubling {
    /// A schedule that has not begun. `first` is `n0`; without a `cohort` everybody who is there is asked,
    /// otherwise that many, drawn anew for each round.
    #[must_use]
    pub fn new(first: usize, cohort: Option<usize>, schedule: Schedule, by: DoubleBy, seed: u64) -> Self {
        Self {
            first: first.max(1),
            cohort,
            draw: DrawPer::default(),
            schedule,
            by,
            seed,
            stage: 0,
            goal: 0,
            rounds: 0,
            sizes: Sizes::default(),
            size: 0,
            lengths: Vec::new(),
            round: Round::default(),
            adaptive: Adaptive::new(),
        }
    }

    /// The same with cohorts that are drawn at other times.
    #[must_use]
    pub fn drawn_per(self, draw: DrawPer) -> Self {
        Self { draw, ..self }
    }

    /// Whether a goal is that everyone counts; also of a stage that a shrunken fleet cannot fill, for as long as it cannot.
    fn is_everyone(&self, goal: u64) -> bool {
        goal == EVERYONE || self.sizes.all > 0 && goal >= self.sizes.all
    }

    /// Stage and goal of the next round; no goal where the size of a stage is not known yet.
    fn next(&self, size: usize) -> (u16, u64) {
        let Sizes { first, all } = self.sizes;
        if first == 0 {
            return (self.stage, 0);
        }
        let (mut stage, mut goal) = (self.stage, self.goal.max(first));
        match self.schedule {
            Schedule::Adaptive if goal == EVERYONE || !self.is_everyone(goal) => {
                goal = self.choose(first, all, goal, size);
            }
            Schedule::Adaptive => {}
            Schedule::Fixed(_) | Schedule::Theorem { .. } | Schedule::Optimal { .. } => {
                // A stage may have no round at all.
                let mut rounds = self.rounds;
                while !self.is_everyone(goal) && rounds >= self.rounds_of(stage) {
                    (stage, goal, rounds) = (stage.saturating_add(1), (2 * goal).min(EVERYONE), 0);
                }
            }
        }
        if stage == self.stage && self.goal != 0 && self.goal != goal {
            stage = stage.saturating_add(1);
        }
        (stage, goal)
    }

    /// The goal that promises most, of those that double from `first` to `all`.
    fn choose(&self, first: u64, all: u64, goal: u64, size: usize) -> u64 {
        let doubled = std::iter::successors(Some(first), |n| n.checked_mul(2));
        let levels: Vec<u64> = doubled.take_while(|n| *n < all).chain([EVERYONE]).collect();
        let answers = |level: &u64| match (*level, self.by) {
            (EVERYONE, _) => size,
            (level, DoubleBy::Devices) => usize::try_from(level).unwrap_or(size),
            (level, DoubleBy::Samples) => self.adaptive.answers_with(level).min(size),
        };
        let answers: Vec<usize> = levels.iter().map(answers).collect();
        let now = levels.iter().position(|level| *level >= goal).unwrap_or(levels.len() - 1);
        levels.get(self.adaptive.choose(&answers, now)).copied().unwrap_or(EVERYONE)
    }

    /// How many rounds a stage has, but for the last.
    fn rounds_of(&self, stage: u16) -> u32 {
        match self.schedule {
            Schedule::Fixed(rounds) => rounds,
            Schedule::Adaptive => u32::MAX,
            // After the last one all count.
            Schedule::Theorem { .. } | Schedule::Optimal { .. } => {
                self.lengths.get(usize::from(stage)).copied().unwrap_or(0)
            }
        }
    }

    /// Stage lengths that are known beforehand, for a cohort of `size`.
    fn lengths(&self, size: usize) -> Vec<u32> {
        match self.schedule {
            Schedule::Theorem { contraction } => theorem_stages(self.first, size, contraction),
            Schedule::Optimal { contraction, communication, start, floor } => {
                optimal_stages(self.first, size, contraction, communication, start, floor)
            }
            Schedule::Fixed(_) | Schedule::Adaptive => Vec::new(),
        }
    }
}

impl Participation for Doubling {
    fn cohort(&mut self, round: u32, fleet: &[DeviceId]) -> Cohort {
        let size = self.cohort.map_or(fleet.len(), |size| size.min(fleet.len()));
        if self.by == DoubleBy::Devices {
            self.sizes = Sizes { first: self.first as u64, all: size as u64 };
        }
        if size != self.size {
            (self.size, self.lengths) = (size, self.lengths(size));
        }
        let (stage, goal) = self.next(size);
        if stage != self.stage {
            self.rounds = 0;
        }
        // By samples the first goal is known after a round, which waited for all and is no part of what it leads to.
        if goal != self.goal {
            self.adaptive.begin_stage();
        }
        (self.stage, self.goal) = (stage, goal);
        let (target, sample_target) = match (goal, self.by, self.schedule) {
            (goal, ..) if self.is_everyone(goal) => (size, None),
            (0, _, Schedule::Adaptive) => (size, None),
            (0, ..) => (self.first.min(size), None),
            (goal, DoubleBy::Devices, _) => (usize::try_from(goal).unwrap_or(size), None),
            // One device alone is not enough, whatever it says that it has.
            (samples, DoubleBy::Samples, _) => {
                (size, Some(SampleTarget { samples, answers: self.first.min(size) }))
            }
        };
        self.round =
            Round { asked: size, everyone: target == size && sample_target.is_none(), ..Round::default() };
        self.adaptive.open(size);
        let index = match self.draw {
            DrawPer::Round => round.into(),
            DrawPer::Stage => stage.into(),
        };
        let devices = draw(fleet, size, self.seed, index);
        Cohort { target, sample_target, stage, ..Cohort::new(devices) }
    }

    fn counted(&mut self, answer: &UpdateArrival<'_>) {
        let round = &mut self.round;
        round.answers += 1;
        round.samples = answer.samples;
        if round.answers <= self.first {
            round.first = round.samples;
        }
        if self.schedule == Schedule::Adaptive {
            self.adaptive.counted(answer);
        }
    }

    fn closed(&mut self, closed: &ClosedRound<'_>) {
        self.rounds += 1;
        if self.by == DoubleBy::Samples {
            if self.sizes.first == 0 {
                self.sizes.first = self.round.first;
            }
            let everyone = self.round.everyone || self.round.answers >= self.round.asked;
            if everyone || closed.short_of.is_some() {
                self.sizes.all = self.sizes.all.max(self.round.samples);
                // How many samples there are may change from round to round; that all of them count does not.
                if self.goal >= self.sizes.all {
                    self.goal = EVERYONE;
                }
            }
        }
        if self.schedule == Schedule::Adaptive {
            self.adaptive.closed(closed);
        }
    }

    fn state(&self) -> Vec<f64> {
        let own = [u64::from(self.stage), self.goal, self.rounds.into(), self.sizes.first, self.sizes.all];
        let learnt = (self.schedule == Schedule::Adaptive).then(|| self.adaptive.state());
        own.map(|whole| whole as f64).into_iter().chain(learnt.into_iter().flatten()).collect()
    }

    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "whole numbers, as they were written"
    )]
    fn restore(&mut self, state: &[f64]) -> bool {
        let Some((own, learnt)) = state.split_first_chunk::<5>() else { return false };
        let most = [u16::MAX.into(), EVERYONE, u32::MAX.into(), EVERYONE, EVERYONE];
        let fits = |(value, most): (&f64, u64)| value.fract() == 0.0 && (0.0..=most as f64).contains(value);
        if !own.iter().zip(most).all(fits) {
            return false;
        }
        let adaptive = match self.schedule {
            Schedule::Adaptive => Adaptive::restored(learnt),
            Schedule::Fixed(_) | Schedule::Theorem { .. } | Schedule::Optimal { .. } => {
                learnt.is_empty().then(Adaptive::new)
            }
        };
        let Some(adaptive) = adaptive else { return false };
        let [stage, goal, rounds, first, all] = own.map(|value| value as u64);
        (self.stage, self.goal, self.rounds) = (stage as u16, goal, rounds as u32);
        (self.sizes, self.adaptive) = (Sizes { first, all }, adaptive);
        true
    }
}
