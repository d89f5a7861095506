//! Doubling participation (SRPFL, Algorithms 1 and 2). Each round of the first stage waits for the first `n`
//! updates of a cohort of `N` devices, each round of the next stage for twice as many, and so on until it
//! waits for all devices. The speeds of the devices need not be known. Every stage continues with the model
//! of the stage before.

use super::adaptive::Adaptive;
use super::estimator::{Decision, Estimator};
use super::theory::{optimal_stages, theorem_stages};
use super::verified::Verified;
use toml_edit::Value;

use super::{
    ClosedRound, Cohort, Draws, Participation, PolicySettings, SampleTarget, UpdateArrival, draw, first_fits,
    read_first, write_size,
};
use crate::reader::{Problem, Section};
use crate::types::DeviceId;

/// Values of the key `by`.
const DOUBLE_BY: [(&str, DoubleBy); 2] = [("devices", DoubleBy::Devices), ("samples", DoubleBy::Samples)];

/// Values of the key `draw`.
const DRAWS: [(&str, DrawPer); 2] = [("round", DrawPer::Round), ("stage", DrawPer::Stage)];

/// Goal of the last stage, which waits for all devices. It is part of the saved state, so it must be an
/// integer that f64 represents exactly.
const EVERYONE: u64 = 1 << 53;

/// Rule that ends a stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Schedule {
    /// As [`Self::Adaptive`]; and rounds that do not wait for all devices are verified by rounds that do.
    Verified,
    /// A stage ends when waiting for more devices is estimated to give more progress per unit of time.
    Adaptive,
    /// A stage ends after this many rounds.
    Fixed(u32),
    /// A stage has the length given by [`theorem_stages`].
    Theorem {
        /// Contraction `a` of SRPFL, equation 199.
        contraction: f64,
    },
    /// A stage has the length given by [`optimal_stages`].
    Optimal {
        /// Contraction `a` of SRPFL, equation 199.
        contraction: f64,
        /// Communication time of a round, in mean computation times.
        communication: f64,
        /// Initial distance to the true representation.
        start: f64,
        /// Smallest distance that full participation reaches.
        floor: f64,
    },
}

/// Quantity that doubles from stage to stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DoubleBy {
    /// Number of participating devices.
    #[default]
    Devices,
    /// Number of samples of the participants, for devices with different numbers of samples (SRPFL, appendix
    /// C). The first stage waits for as many samples as the first `n0` answering devices have.
    Samples,
}

/// Interval at which the cohort is drawn, if not all devices are invited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DrawPer {
    /// Draw a cohort for every round, since the data of the fastest devices of a single cohort may not
    /// represent the fleet.
    #[default]
    Round,
    /// Draw a cohort for every stage (SRPFL, Algorithm 2).
    Stage,
}

/// Settings of doubling participation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DoublingSettings {
    /// Number of updates that the first stage waits for, `n0`.
    pub n0: usize,
    /// Number of invited devices, `N`; `None` to invite all devices.
    pub cohort: Option<usize>,
    /// Interval at which the cohort is drawn.
    pub draw: DrawPer,
    /// Rule that ends a stage.
    pub schedule: Schedule,
    /// Quantity that doubles.
    pub by: DoubleBy,
}

impl PolicySettings for DoublingSettings {
    const NAME: &'static str = "doubling";
    const SUMMARY: &'static str =
        "the fastest few devices, then twice as many per stage (Reisizadeh et al. 2022)";

    fn read(section: &Section<'_>, communication: Option<f64>) -> Result<Self, Problem> {
        let (n0, cohort) = read_first(section, "n0", Some(4))?;
        let by = section.choice("by", Some("devices"), &DOUBLE_BY)?;
        let draw = section.choice("draw", Some("round"), &DRAWS)?;
        let schedule = read_schedule(section, communication)?;
        Ok(Self { n0, cohort, draw, schedule, by })
    }

    fn write(&self, set: &mut dyn FnMut(&str, Value)) {
        let draw_name = |draw| DRAWS.iter().find(|(_, value)| *value == draw).map_or("?", |(name, _)| *name);
        write_size(set, "n0", self.n0);
        self.cohort.into_iter().for_each(|cohort| write_size(set, "cohort", cohort));
        set("draw", draw_name(self.draw).into());
        write_schedule(self.schedule, set);
        let name = DOUBLE_BY.iter().find(|(_, value)| *value == self.by).map_or("?", |(name, _)| *name);
        set("by", name.into());
    }

    fn fits(&self, devices: usize, fleet_max: usize) -> Result<(), (&'static str, String)> {
        first_fits("n0", self.n0, self.cohort, devices, fleet_max)
    }

    /// Rejects the adaptive schedule, whose estimates are those of a representation, and for some algorithms all
    /// schedules that measure steps.
    fn fits_network(&self, steps_show_round: bool) -> Result<(), (&'static str, String)> {
        let message = match self.schedule {
            Schedule::Adaptive => {
                "found \"adaptive\" (the default), which is for linear models; allowed for networks and adapters: \
                 \"verified\", \"fixed\", \"theorem\", \"optimal\""
            }
            Schedule::Verified if !steps_show_round => {
                "found \"verified\", which measures the steps of the model, but rounds of this algorithm change more \
                 than the model; allowed: \"fixed\", \"theorem\", \"optimal\""
            }
            Schedule::Verified | Schedule::Fixed(_) | Schedule::Theorem { .. } | Schedule::Optimal { .. } => {
                return Ok(());
            }
        };
        Err(("schedule", message.to_owned()))
    }

    fn least_updates(&self, devices: usize) -> usize {
        self.n0.min(devices)
    }

    fn start(&self, draws: Draws) -> Box<dyn Participation> {
        let Self { n0, cohort, draw, schedule, by } = *self;
        Box::new(Doubling::new(n0, cohort, schedule, by, draws.seed).drawn_per(draw))
    }
}

/// Kinds of schedules, without their parameters.
#[derive(Clone, Copy)]
enum ScheduleKind {
    Verified,
    Adaptive,
    Fixed,
    Theorem,
    Optimal,
}

/// Reads the key `schedule` and the keys of that schedule. `communication` is the default communication time.
fn read_schedule(section: &Section<'_>, communication: Option<f64>) -> Result<Schedule, Problem> {
    let schedules = [
        ("verified", ScheduleKind::Verified),
        ("adaptive", ScheduleKind::Adaptive),
        ("fixed", ScheduleKind::Fixed),
        ("theorem", ScheduleKind::Theorem),
        ("optimal", ScheduleKind::Optimal),
    ];
    let kind = section.choice("schedule", Some("adaptive"), &schedules)?;
    let contraction = || section.number("contraction", Some(0.2), 1e-6..=0.99);
    Ok(match kind {
        ScheduleKind::Verified => Schedule::Verified,
        ScheduleKind::Adaptive => Schedule::Adaptive,
        ScheduleKind::Fixed => {
            let rounds = section.integer("stage_rounds", Some(10), 1..=1_000_000)?;
            Schedule::Fixed(u32::try_from(rounds).unwrap_or(u32::MAX))
        }
        ScheduleKind::Theorem => Schedule::Theorem { contraction: contraction()? },
        ScheduleKind::Optimal => Schedule::Optimal {
            contraction: contraction()?,
            communication: section.number("communication", communication, 0.0..=1e9)?,
            start: section.number("start", Some(1.0), f64::MIN_POSITIVE..=1.0)?,
            floor: section.number("floor", None, 1e-12..=1.0)?,
        },
    })
}

/// Passes the key `schedule` and the keys of that schedule to `set`.
fn write_schedule(schedule: Schedule, set: &mut dyn FnMut(&str, Value)) {
    match schedule {
        Schedule::Verified => set("schedule", "verified".into()),
        Schedule::Adaptive => set("schedule", "adaptive".into()),
        Schedule::Fixed(rounds) => {
            set("schedule", "fixed".into());
            set("stage_rounds", i64::from(rounds).into());
        }
        Schedule::Theorem { contraction } => {
            set("schedule", "theorem".into());
            set("contraction", contraction.into());
        }
        Schedule::Optimal { contraction, communication, start, floor } => {
            set("schedule", "optimal".into());
            set("contraction", contraction.into());
            set("communication", communication.into());
            set("start", start.into());
            set("floor", floor.into());
        }
    }
}

/// Policy that first waits for `first` of `cohort` devices and doubles that number from stage to stage.
#[derive(Debug)]
pub struct Doubling {
    first: usize,
    cohort: Option<usize>,
    draw: DrawPer,
    schedule: Schedule,
    by: DoubleBy,
    seed: u64,
    stage: u16,
    /// Goal of the rounds of this stage, in devices or samples, or [`EVERYONE`]; 0 before the first stage.
    goal: u64,
    /// Number of closed rounds in this stage.
    rounds: u32,
    sizes: Sizes,
    /// Number of devices in the last cohort.
    size: usize,
    /// Stage lengths in rounds for a cohort of this size.
    lengths: Vec<u32>,
    /// Observations of the open round.
    round: Round,
    /// Observations of a schedule that decides from them.
    estimator: Option<Box<dyn Estimator>>,
    /// Whether the next round waits for all devices although its goal is smaller.
    waits_for_all: bool,
}

/// Smallest and largest goal, in devices or samples.
#[derive(Clone, Copy, Debug, Default)]
struct Sizes {
    /// Goal of the first stage; 0 if it is not known yet.
    first: u64,
    /// Total over all devices; 0 if it is not known yet.
    total: u64,
}

/// Observations of an open round.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// Number of invited devices.
    invited: usize,
    /// Whether the round waits for all invited devices.
    waits_for_all: bool,
    /// Number of updates so far.
    answers: usize,
    /// Samples of all updates so far.
    samples: u64,
    /// Samples of the first `n0` updates.
    first: u64,
}

/// Estimator of a schedule that decides from observations; `None` for other schedules.
fn new_estimator(schedule: Schedule) -> Option<Box<dyn Estimator>> {
    match schedule {
        Schedule::Verified => Some(Box::new(Verified::new())),
        Schedule::Adaptive => Some(Box::new(Adaptive::new())),
        Schedule::Fixed(_) | Schedule::Theorem { .. } | Schedule::Optimal { .. } => None,
    }
}

impl Doubling {
    /// Creates a policy before its first stage. `first` is `n0`. `cohort` is the number of devices drawn for
    /// each round; `None` invites all present devices.
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
            estimator: new_estimator(schedule),
            waits_for_all: false,
        }
    }

    /// Sets the interval at which the cohort is drawn.
    #[must_use]
    pub fn drawn_per(self, draw: DrawPer) -> Self {
        Self { draw, ..self }
    }

    /// Whether a round with this goal waits for all devices: the goal is [`EVERYONE`], or at least the total
    /// of the present fleet.
    fn is_everyone(&self, goal: u64) -> bool {
        goal == EVERYONE || self.sizes.total > 0 && goal >= self.sizes.total
    }

    /// Stage and goal of the next round for a cohort of `size` devices. The goal is 0 if the goal of the
    /// first stage is not known yet.
    fn next_stage(&mut self, size: usize) -> (u16, u64) {
        let Sizes { first, total } = self.sizes;
        self.waits_for_all = false;
        if first == 0 {
            return (self.stage, 0);
        }
        let (mut stage, mut goal) = (self.stage, self.goal.max(first));
        match self.schedule {
            Schedule::Adaptive | Schedule::Verified if goal == EVERYONE || !self.is_everyone(goal) => {
                goal = self.choose_goal(first, total, goal, size);
            }
            Schedule::Adaptive | Schedule::Verified => {}
            Schedule::Fixed(_) | Schedule::Theorem { .. } | Schedule::Optimal { .. } => {
                // A stage may have no rounds, so several stages may end here.
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

    /// Goal that the adaptive schedule chooses among `first`, twice `first`, and so on below `total`, and
    /// [`EVERYONE`].
    fn choose_goal(&mut self, first: u64, total: u64, goal: u64, size: usize) -> u64 {
        let Some(estimator) = self.estimator.as_mut() else { return goal };
        let doubled = std::iter::successors(Some(first), |n| n.checked_mul(2));
        let levels: Vec<u64> = doubled.take_while(|n| *n < total).chain([EVERYONE]).collect();
        let answers = |level: &u64| match (*level, self.by) {
            (EVERYONE, _) => size,
            (level, DoubleBy::Devices) => usize::try_from(level).unwrap_or(size),
            (level, DoubleBy::Samples) => estimator.answers_with(level).min(size),
        };
        let answers: Vec<usize> = levels.iter().map(answers).collect();
        let current = levels.iter().position(|level| *level >= goal).unwrap_or(levels.len() - 1);
        let Decision { level, waits_for_all } = estimator.choose(&answers, current);
        self.waits_for_all = waits_for_all;
        levels.get(level).copied().unwrap_or(EVERYONE)
    }

    /// Number of rounds of a stage other than the last.
    fn rounds_of(&self, stage: u16) -> u32 {
        match self.schedule {
            Schedule::Fixed(rounds) => rounds,
            Schedule::Adaptive | Schedule::Verified => u32::MAX,
            // The stage after the last listed one waits for all devices.
            Schedule::Theorem { .. } | Schedule::Optimal { .. } => {
                self.lengths.get(usize::from(stage)).copied().unwrap_or(0)
            }
        }
    }

    /// Stage lengths in rounds that the schedule computes in advance for a cohort of `size` devices; empty
    /// for other schedules.
    fn compute_lengths(&self, size: usize) -> Vec<u32> {
        match self.schedule {
            Schedule::Theorem { contraction } => theorem_stages(self.first, size, contraction),
            Schedule::Optimal { contraction, communication, start, floor } => {
                optimal_stages(self.first, size, contraction, communication, start, floor)
            }
            Schedule::Fixed(_) | Schedule::Adaptive | Schedule::Verified => Vec::new(),
        }
    }
}

impl Participation for Doubling {
    fn cohort(&mut self, round: u32, fleet: &[DeviceId]) -> Cohort {
        let size = self.cohort.map_or(fleet.len(), |size| size.min(fleet.len()));
        if self.by == DoubleBy::Devices {
            self.sizes = Sizes { first: self.first as u64, total: size as u64 };
        }
        if size != self.size {
            (self.size, self.lengths) = (size, self.compute_lengths(size));
        }
        let (stage, goal) = self.next_stage(size);
        if stage != self.stage {
            self.rounds = 0;
        }
        // If samples are counted, the goal of the first stage is known only after the first round, which
        // belongs to no stage.
        if goal != self.goal {
            self.estimator.iter_mut().for_each(|estimator| estimator.begin_stage());
        }
        (self.stage, self.goal) = (stage, goal);
        let (target, sample_target) = match (goal, self.by, self.schedule) {
            (goal, ..) if self.waits_for_all || self.is_everyone(goal) => (size, None),
            (0, _, Schedule::Adaptive | Schedule::Verified) => (size, None),
            (0, ..) => (self.first.min(size), None),
            (goal, DoubleBy::Devices, _) => (usize::try_from(goal).unwrap_or(size), None),
            // The target also requires `n0` devices, since a single device could declare any number of
            // samples.
            (samples, DoubleBy::Samples, _) => {
                (size, Some(SampleTarget { samples, answers: self.first.min(size) }))
            }
        };
        self.round = Round {
            invited: size,
            waits_for_all: target == size && sample_target.is_none(),
            ..Round::default()
        };
        let waits_for_all = self.round.waits_for_all;
        self.estimator.iter_mut().for_each(|estimator| estimator.open(size, waits_for_all));
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
        self.estimator.iter_mut().for_each(|estimator| estimator.counted(answer));
    }

    fn closed(&mut self, closed: &ClosedRound<'_>) {
        self.rounds += 1;
        if self.by == DoubleBy::Samples {
            if self.sizes.first == 0 {
                self.sizes.first = self.round.first;
            }
            let has_everyone = self.round.waits_for_all || self.round.answers >= self.round.invited;
            if has_everyone || closed.short_of.is_some() {
                self.sizes.total = self.sizes.total.max(self.round.samples);
                // The total number of samples may change between rounds, but a campaign never leaves the
                // stage that waits for all devices.
                if self.goal >= self.sizes.total {
                    self.goal = EVERYONE;
                }
            }
        }
        self.estimator.iter_mut().for_each(|estimator| estimator.closed(closed));
    }

    fn state(&self) -> Vec<f64> {
        let numbers =
            [u64::from(self.stage), self.goal, self.rounds.into(), self.sizes.first, self.sizes.total];
        let estimates = self.estimator.as_ref().map(|estimator| estimator.state());
        numbers.map(|number| number as f64).into_iter().chain(estimates.into_iter().flatten()).collect()
    }

    /// Estimates of steps are large, and only their sums are part of the state.
    fn has_whole_state(&self) -> bool {
        self.estimator.is_none()
    }

    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "whole numbers, as they were written"
    )]
    fn restore(&mut self, state: &[f64]) -> bool {
        let Some((numbers, estimates)) = state.split_first_chunk::<5>() else { return false };
        let max_values = [u16::MAX.into(), EVERYONE, u32::MAX.into(), EVERYONE, EVERYONE];
        let fits = |(value, max): (&f64, u64)| value.fract() == 0.0 && (0.0..=max as f64).contains(value);
        if !numbers.iter().zip(max_values).all(fits) {
            return false;
        }
        let estimator: Option<Box<dyn Estimator>> = match self.schedule {
            Schedule::Verified => match Verified::restored(estimates) {
                Some(estimator) => Some(Box::new(estimator)),
                None => return false,
            },
            Schedule::Adaptive => match Adaptive::restored(estimates) {
                Some(estimator) => Some(Box::new(estimator)),
                None => return false,
            },
            Schedule::Fixed(_) | Schedule::Theorem { .. } | Schedule::Optimal { .. } => {
                if !estimates.is_empty() {
                    return false;
                }
                None
            }
        };
        let [stage, goal, rounds, first, total] = numbers.map(|value| value as u64);
        (self.stage, self.goal, self.rounds) = (stage as u16, goal, rounds as u32);
        (self.sizes, self.estimator) = (Sizes { first, total }, estimator);
        true
    }
}
