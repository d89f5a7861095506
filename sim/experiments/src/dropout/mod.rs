//! The dropout sweep: what becomes of a campaign whose devices do not answer, by how many they are, by who they are, and by
//! whom a round waits for. `sim/DROPOUT.md` says what is measured.

mod table;

use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
pub use table::markdown;

use crate::byzantine::Choice;
use crate::demo::choose::{self, Features};
use crate::demo::{DemoError, PARTS};
use fedspan_sim_core::evaluate::average;
use fedspan_sim_core::parallel;
use fedspan_sim_core::progress::Progress;
use fedspan_sim_core::run::{Job, NoProgress, Outcome, RunError};
use fedspan_sim_core::scenario::Scenario;

/// The scenario that is measured: that of the demo's first part, each fold with the settings that were chosen for it.
pub const SCENARIO: &str = PARTS[0].name;

/// Changes for all of it: times that differ and are drawn in every round, and a deadline that the slowest of eight devices
/// misses in one round of 17 (its mean is at most 16 / 9, and exp(-5 x 9 / 16) = 0.06).
const COMMON: [&str; 3] = ["fleet.speed=exponential-dynamic", "rounds.deadline=5", "evaluate_every=1000000"];

/// Whom a round waits for, and how many answers that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// In tables and on the command line.
    pub name: &'static str,
    /// Changes of the scenario.
    pub changes: &'static [&'static str],
    /// How many answers complete a round, of how many devices.
    pub wanted: (usize, usize),
}

/// All of them have the deadline.
pub const POLICIES: [Policy; 3] = [
    Policy { name: "all", changes: &["participation.policy=full"], wanted: (8, 8) },
    Policy {
        name: "first 4 of 8",
        changes: &["participation={ policy = \"first-arrivals\", n = 4 }"],
        wanted: (4, 8),
    },
    // Asked over waited for: 1.33.
    Policy {
        name: "first 6 of 8",
        changes: &["participation={ policy = \"first-arrivals\", n = 6 }"],
        wanted: (6, 8),
    },
];

/// Who drops out, and when.
pub const PATTERNS: [Choice; 3] = [
    Choice { name: "independent", changes: &["fleet.dropout_pattern=independent"] },
    Choice { name: "persistent", changes: &["fleet.dropout_pattern=persistent"] },
    Choice {
        name: "outages",
        changes: &["fleet.dropout_pattern=outages", "fleet.outage_sites=4", "fleet.outage_rounds=10"],
    },
];

/// Groups of people that are held out in turn.
pub const FOLDS: usize = 5;

/// What to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Whom rounds wait for.
    pub policies: Vec<Policy>,
    /// Who drops out.
    pub patterns: Vec<Choice>,
    /// Which part of all rounds of all devices is lost, above 0: without dropouts is measured in any case.
    pub rates: Vec<f64>,
    /// How many folds, from the first.
    pub folds: usize,
    /// Changes of the scenario besides.
    pub changes: Vec<String>,
    /// The first seed.
    pub seed: u64,
    /// How many.
    pub seeds: u32,
    /// Runs at once.
    pub threads: usize,
}

/// One policy, pattern and rate; without dropouts there is no pattern.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The policy's name.
    pub policy: &'static str,
    /// The pattern's, "none" without dropouts.
    pub pattern: &'static str,
    /// Part of all rounds of all devices that is lost.
    pub rate: f64,
    /// How many answers complete a round.
    pub wanted: usize,
    /// By fold and seed.
    pub runs: Vec<Measured>,
}

/// What one run gives, and the run without dropouts of the same policy, fold and seed to compare it with.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Which fold.
    pub fold: usize,
    /// Which seed.
    pub seed: u64,
    /// Rounds that were finished.
    pub rounds: usize,
    /// Of these, with as many answers as were wanted.
    pub complete: usize,
    /// Times that a round was extended or repeated, as nobody had answered.
    pub again: u64,
    /// Answers that counted.
    pub answers: usize,
    /// Updates that came too late or were rejected.
    pub not_counted: u64,
    /// Simulated time.
    pub time: f64,
    /// Mean accuracy of the clients' refitted heads.
    pub accuracy: f64,
    /// The same, less that without dropouts.
    pub change: f64,
    /// How many never counted or, where everybody did, are in the quarter that counted least often.
    pub absent: usize,
    /// The part of rounds in which these counted.
    pub absent_there: f64,
    /// Their mean accuracy.
    pub absent_accuracy: f64,
    /// The same, less theirs without dropouts.
    pub absent_change: f64,
    /// Mean accuracy of those who come after training.
    pub newcomers: f64,
    /// The same, less that without dropouts.
    pub newcomers_change: f64,
}

/// One run of the sweep.
struct Task {
    row: usize,
    fold: usize,
    seed: u64,
    scenario: Scenario,
}

/// What is kept of a run.
struct Ran {
    rounds: usize,
    complete: usize,
    again: u64,
    answers: usize,
    not_counted: u64,
    time: f64,
    accuracies: Vec<f64>,
    /// In how many rounds each client counted.
    there: Vec<usize>,
    newcomers: f64,
}

/// Measures the sweep. `None` if it was stopped.
///
/// # Errors
/// [`DemoError`].
pub fn measure(
    settings: &Settings,
    stop: &AtomicBool,
    progress: &dyn Progress,
) -> Result<Option<Vec<Row>>, DemoError> {
    let mut rows: Vec<(&Policy, Option<&Choice>, f64)> = Vec::new();
    for policy in &settings.policies {
        rows.push((policy, None, 0.0));
        for pattern in &settings.patterns {
            rows.extend(settings.rates.iter().map(|rate| (policy, Some(pattern), *rate)));
        }
    }
    let mut tasks = Vec::new();
    for (row, (policy, pattern, rate)) in rows.iter().enumerate() {
        for fold in 0..settings.folds {
            let scenario = scenario(settings, policy, *pattern, *rate, fold)?;
            for seed in (0..u64::from(settings.seeds)).map(|more| settings.seed + more) {
                tasks.push(Task { row, fold, seed, scenario: scenario.clone() });
            }
        }
    }
    let of = tasks.len() as u64;
    let done = parallel::each(settings.threads, &tasks, |task| {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let (policy, pattern, rate) = rows.get(task.row).copied().unwrap_or((&POLICIES[0], None, 0.0));
        let job = Job::prepare(&task.scenario, task.seed)?;
        let ran = Ran::of(&job.run(&mut NoProgress)?, job.dataset.clients.len(), policy.wanted.0);
        let what = format!("{}, {} {rate}", policy.name, pattern.map_or("none", |pattern| pattern.name));
        progress.advance(1, of, &what);
        Ok::<_, RunError>(Some(ran))
    })?;
    let Some(done) = done else { return Ok(None) };
    let each = settings.folds * settings.seeds as usize;
    let mut finished = Vec::new();
    // The runs without dropouts of a policy come before the others.
    let mut without: &[Ran] = &[];
    let runs = done.chunks(each.max(1)).zip(tasks.chunks(each.max(1)));
    for ((policy, pattern, rate), (runs, tasks)) in rows.into_iter().zip(runs) {
        if pattern.is_none() {
            without = runs;
        }
        let measured = runs.iter().zip(without).zip(tasks);
        finished.push(Row {
            policy: policy.name,
            pattern: pattern.map_or("none", |pattern| pattern.name),
            rate,
            wanted: policy.wanted.0,
            runs: measured.map(|((ran, without), task)| ran.beside(without, task.fold, task.seed)).collect(),
        });
    }
    Ok(Some(finished))
}

/// The scenario of a row in a fold.
fn scenario(
    settings: &Settings,
    policy: &Policy,
    pattern: Option<&Choice>,
    rate: f64,
    fold: usize,
) -> Result<Scenario, DemoError> {
    let part = &PARTS[0];
    let mut changes = choose::Choice::recorded(part, fold)?.fedrep(Features::Device).changes();
    let mut add = |more: &[&str]| changes.extend(more.iter().map(|change| (*change).to_owned()));
    add(&[&format!("split.fold={fold}")]);
    add(&COMMON);
    add(policy.changes);
    if let Some(pattern) = pattern {
        add(&[&format!("fleet.dropout={rate:?}")]);
        add(pattern.changes);
    }
    changes.extend(settings.changes.iter().cloned());
    Ok(Scenario::parse(SCENARIO, Scenario::built_in(SCENARIO).unwrap_or_default(), &changes)?)
}

impl Ran {
    fn of(outcome: &Outcome, clients: usize, wanted: usize) -> Self {
        let mut there = vec![0; clients];
        let (mut rounds, mut complete, mut answers) = (0, 0, 0);
        // Row 0 is the initial model.
        for row in outcome.rounds.iter().filter(|row| row.round > 0) {
            rounds += 1;
            complete += usize::from(row.participants.len() >= wanted);
            answers += row.participants.len();
            for device in &row.participants {
                if let Some(there) = usize::try_from(*device).ok().and_then(|index| there.get_mut(index)) {
                    *there += 1;
                }
            }
        }
        let counters = outcome.counters;
        Self {
            rounds,
            complete,
            again: counters.extended + counters.repeated,
            answers,
            not_counted: counters.late + counters.rejected(),
            time: outcome.rounds.last().map_or(0.0, |row| row.time),
            accuracies: outcome.clients.iter().map(|client| client.accuracy.unwrap_or(f64::NAN)).collect(),
            there,
            newcomers: average(&outcome.newcomers).accuracy.unwrap_or(f64::NAN),
        }
    }

    /// Who never counted or, where everybody did, the quarter that counted least often, with all who did as rarely.
    fn absent(&self) -> Vec<usize> {
        let mut sorted = self.there.clone();
        sorted.sort_unstable();
        let quarter = sorted.len().div_ceil(4).saturating_sub(1);
        let most = if sorted.first() == Some(&0) { 0 } else { sorted.get(quarter).copied().unwrap_or(0) };
        (0..).zip(&self.there).filter(|(_, there)| **there <= most).map(|(client, _)| client).collect()
    }

    /// Beside the run without dropouts.
    fn beside(&self, without: &Self, fold: usize, seed: u64) -> Measured {
        let everybody: Vec<usize> = (0..self.accuracies.len()).collect();
        let absent = self.absent();
        let (accuracy, absent_accuracy) = (self.mean_of(&everybody), self.mean_of(&absent));
        let there: usize = absent.iter().filter_map(|client| self.there.get(*client)).sum();
        Measured {
            fold,
            seed,
            rounds: self.rounds,
            complete: self.complete,
            again: self.again,
            answers: self.answers,
            not_counted: self.not_counted,
            time: self.time,
            accuracy,
            change: accuracy - without.mean_of(&everybody),
            absent: absent.len(),
            absent_there: ratio(there, absent.len() * self.rounds),
            absent_accuracy,
            absent_change: absent_accuracy - without.mean_of(&absent),
            newcomers: self.newcomers,
            newcomers_change: self.newcomers - without.newcomers,
        }
    }

    /// Mean accuracy of some clients.
    fn mean_of(&self, clients: &[usize]) -> f64 {
        mean(clients.iter().filter_map(|client| self.accuracies.get(*client).copied()))
    }
}

/// NaN of nothing.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = values.fold((0.0, 0.0), |(count, sum), value| (count + 1.0, sum + value));
    sum / count
}

#[allow(clippy::cast_precision_loss, reason = "counts of rounds and answers are far below 2^52")]
fn ratio(part: usize, of: usize) -> f64 {
    part as f64 / of as f64
}
