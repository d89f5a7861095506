//! Dropout measurement: accuracy and duration of campaigns in which devices drop out, for several dropout
//! rates, dropout patterns, and participation policies. `sim/DROPOUT.md` defines the measurement.

mod table;

use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
pub use table::markdown;

use crate::byzantine::Variant;
use crate::demo::choice::{Choice, Features};
use crate::demo::{DemoError, PARTS};
use fedspan_sim_core::evaluate::average;
use fedspan_sim_core::parallel;
use fedspan_sim_core::progress::Progress;
use fedspan_sim_core::run::{Job, NoProgress, Outcome, RunError};
use fedspan_sim_core::scenario::Scenario;

/// Name of the measured built-in scenario, which is the first part of the demo. Each fold runs with the
/// hyperparameters that the demo uses in that fold.
pub const SCENARIO: &str = PARTS[0].name;

/// Changes of the scenario for all runs: compute times are drawn in every round, and the slowest of eight
/// devices misses the deadline in one of 17 rounds. (The mean compute time of that device is at most 16 / 9,
/// and the probability of a time above 5 is exp(-5 x 9 / 16) = 0.06.)
const COMMON: [&str; 3] = ["fleet.speed=exponential-dynamic", "rounds.deadline=5", "evaluate_every=1000000"];

/// Participation policy, which determines when a round is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Name in tables and on the command line.
    pub name: &'static str,
    /// Changes of the scenario.
    pub changes: &'static [&'static str],
    /// Number of updates that complete a round, and number of devices that the server selects for the round.
    pub wanted: (usize, usize),
}

/// Participation policies of the measurement; all have the same deadline.
pub const POLICIES: [Policy; 3] = [
    Policy { name: "all", changes: &["participation.policy=full"], wanted: (8, 8) },
    Policy {
        name: "first 4 of 8",
        changes: &["participation={ policy = \"first-arrivals\", n = 4 }"],
        wanted: (4, 8),
    },
    // 8 devices are selected and 6 updates complete a round, an over-selection of 1.33.
    Policy {
        name: "first 6 of 8",
        changes: &["participation={ policy = \"first-arrivals\", n = 6 }"],
        wanted: (6, 8),
    },
];

/// Dropout patterns, which determine the devices that drop out and the rounds in which they do so.
pub const PATTERNS: [Variant; 3] = [
    Variant { name: "independent", changes: &["fleet.dropout_pattern=independent"] },
    Variant { name: "persistent", changes: &["fleet.dropout_pattern=persistent"] },
    Variant {
        name: "outages",
        changes: &["fleet.dropout_pattern=outages", "fleet.outage_sites=4", "fleet.outage_rounds=10"],
    },
];

/// Number of folds; each holds out a group of people.
pub const FOLDS: usize = 5;

/// Settings of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Measured participation policies.
    pub policies: Vec<Policy>,
    /// Measured dropout patterns.
    pub patterns: Vec<Variant>,
    /// Measured dropout rates above 0, as fractions of all rounds of all devices. Rate 0 is always measured.
    pub rates: Vec<f64>,
    /// Number of measured folds, starting with the first.
    pub folds: usize,
    /// Changes of the scenario that apply to every run.
    pub changes: Vec<String>,
    /// First seed.
    pub seed: u64,
    /// Number of seeds.
    pub seeds: u32,
    /// Number of runs that are computed in parallel.
    pub threads: usize,
}

/// Results for one policy, pattern and rate. The row of rate 0 has no pattern.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Name of the policy.
    pub policy: &'static str,
    /// Name of the pattern, or "none" for the row without dropouts.
    pub pattern: &'static str,
    /// Dropout rate, as a fraction of all rounds of all devices.
    pub rate: f64,
    /// Number of updates that complete a round.
    pub wanted: usize,
    /// Results of each fold and seed.
    pub runs: Vec<Measured>,
}

/// Results of one run, compared with the run without dropouts for the same policy, fold and seed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Index of the fold, from 0.
    pub fold: usize,
    /// Seed of the run.
    pub seed: u64,
    /// Number of finished rounds.
    pub rounds: usize,
    /// Number of finished rounds that aggregated the full number of updates.
    pub complete: usize,
    /// Number of times that a round was extended or repeated because no device had sent an update.
    pub again: u64,
    /// Number of aggregated updates over all rounds.
    pub answers: usize,
    /// Number of updates that were late or rejected.
    pub not_counted: u64,
    /// Simulated time at the end of the last round.
    pub time: f64,
    /// Mean accuracy of the clients after their heads were fitted again on the final representation.
    pub accuracy: f64,
    /// `accuracy` minus the accuracy of the run without dropouts.
    pub change: f64,
    /// Number of absent clients. A client is absent if no round aggregated its updates. If there is no such
    /// client, the absent clients are the quarter of the clients whose updates were aggregated least often.
    pub absent: usize,
    /// Fraction of rounds that aggregated an update of an absent client, as a mean over absent clients.
    pub absent_there: f64,
    /// Mean accuracy of the absent clients.
    pub absent_accuracy: f64,
    /// `absent_accuracy` minus the accuracy of the same clients in the run without dropouts.
    pub absent_change: f64,
    /// Mean accuracy of newcomers, i.e. people who join after training.
    pub newcomers: f64,
    /// `newcomers` minus the accuracy of newcomers in the run without dropouts.
    pub newcomers_change: f64,
}

/// One run of the measurement, with the row to which its result belongs.
struct Task {
    row: usize,
    fold: usize,
    seed: u64,
    scenario: Scenario,
}

/// Results of a run before the comparison; the fields correspond to those of [`Measured`].
struct RunResult {
    rounds: usize,
    complete: usize,
    again: u64,
    answers: usize,
    not_counted: u64,
    time: f64,
    accuracies: Vec<f64>,
    /// Number of rounds that aggregated an update of each client.
    counted_rounds: Vec<usize>,
    newcomers: f64,
}

/// Measures all policies, patterns and rates. Returns `None` if `stop` was set before the end.
///
/// # Errors
/// [`DemoError::Scenario`] if the scenario rejects a change, [`DemoError::Run`] if a run fails,
/// [`DemoError::Choice`] if the recorded hyperparameters are broken.
pub fn measure(
    settings: &Settings,
    stop: &AtomicBool,
    progress: &dyn Progress,
) -> Result<Option<Vec<Row>>, DemoError> {
    let mut rows: Vec<(&Policy, Option<&Variant>, f64)> = Vec::new();
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
            for seed in (0..u64::from(settings.seeds)).map(|offset| settings.seed + offset) {
                tasks.push(Task { row, fold, seed, scenario: scenario.clone() });
            }
        }
    }
    let total = tasks.len() as u64;
    let results = parallel::each(settings.threads, &tasks, |task| {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let (policy, pattern, rate) = rows.get(task.row).copied().unwrap_or((&POLICIES[0], None, 0.0));
        let job = Job::prepare(&task.scenario, task.seed)?;
        let result = RunResult::new(&job.run(&mut NoProgress)?, job.dataset.clients.len(), policy.wanted.0);
        let label = format!("{}, {} {rate}", policy.name, pattern.map_or("none", |pattern| pattern.name));
        progress.advance(1, total, &label);
        Ok::<_, RunError>(Some(result))
    })?;
    let Some(results) = results else { return Ok(None) };
    let runs_per_row = settings.folds * settings.seeds as usize;
    let mut finished = Vec::new();
    // For each policy, the runs without dropouts precede the runs with dropouts.
    let mut runs_without_dropout: &[RunResult] = &[];
    let runs = results.chunks(runs_per_row.max(1)).zip(tasks.chunks(runs_per_row.max(1)));
    for ((policy, pattern, rate), (runs, tasks)) in rows.into_iter().zip(runs) {
        if pattern.is_none() {
            runs_without_dropout = runs;
        }
        let measured = runs.iter().zip(runs_without_dropout).zip(tasks);
        finished.push(Row {
            policy: policy.name,
            pattern: pattern.map_or("none", |pattern| pattern.name),
            rate,
            wanted: policy.wanted.0,
            runs: measured
                .map(|((result, runs_without_dropout), task)| {
                    result.compare_with(runs_without_dropout, task.fold, task.seed)
                })
                .collect(),
        });
    }
    Ok(Some(finished))
}

/// Scenario of one row in one fold.
fn scenario(
    settings: &Settings,
    policy: &Policy,
    pattern: Option<&Variant>,
    rate: f64,
    fold: usize,
) -> Result<Scenario, DemoError> {
    let part = &PARTS[0];
    let mut changes = Choice::recorded(part, fold)?.fedrep(Features::Device).changes();
    let mut add =
        |further_changes: &[&str]| changes.extend(further_changes.iter().map(|change| (*change).to_owned()));
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

impl RunResult {
    /// Extracts the results from the outcome of a run; a round with `wanted` or more updates is complete.
    fn new(outcome: &Outcome, clients: usize, wanted: usize) -> Self {
        let mut counts = vec![0; clients];
        let mut rounds = 0;
        let mut complete = 0;
        let mut answers = 0;
        // Row 0 is the initial model.
        for row in outcome.rounds.iter().filter(|row| row.round > 0) {
            rounds += 1;
            complete += usize::from(row.participants.len() >= wanted);
            answers += row.participants.len();
            for device in &row.participants {
                if let Some(counts) = usize::try_from(device.0).ok().and_then(|index| counts.get_mut(index)) {
                    *counts += 1;
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
            counted_rounds: counts,
            newcomers: average(&outcome.newcomers).accuracy.unwrap_or(f64::NAN),
        }
    }

    /// Absent clients: the clients without any aggregated update or, if there are none, the quarter of the
    /// clients with the fewest aggregated updates and all clients that tie with this quarter.
    fn absent(&self) -> Vec<usize> {
        let mut sorted = self.counted_rounds.clone();
        sorted.sort_unstable();
        let quarter_index = sorted.len().div_ceil(4).saturating_sub(1);
        let max_rounds =
            if sorted.first() == Some(&0) { 0 } else { sorted.get(quarter_index).copied().unwrap_or(0) };
        (0..)
            .zip(&self.counted_rounds)
            .filter(|(_, rounds)| **rounds <= max_rounds)
            .map(|(client, _)| client)
            .collect()
    }

    /// Compares the run with the run without dropouts.
    fn compare_with(&self, without: &Self, fold: usize, seed: u64) -> Measured {
        let all_clients: Vec<usize> = (0..self.accuracies.len()).collect();
        let absent = self.absent();
        let (accuracy, absent_accuracy) = (self.mean_of(&all_clients), self.mean_of(&absent));
        let counted: usize = absent.iter().filter_map(|client| self.counted_rounds.get(*client)).sum();
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
            change: accuracy - without.mean_of(&all_clients),
            absent: absent.len(),
            absent_there: ratio(counted, absent.len() * self.rounds),
            absent_accuracy,
            absent_change: absent_accuracy - without.mean_of(&absent),
            newcomers: self.newcomers,
            newcomers_change: self.newcomers - without.newcomers,
        }
    }

    /// Mean accuracy of the given clients.
    fn mean_of(&self, clients: &[usize]) -> f64 {
        mean(clients.iter().filter_map(|client| self.accuracies.get(*client).copied()))
    }
}

/// Arithmetic mean; NaN if there are no values.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = values.fold((0.0, 0.0), |(count, sum), value| (count + 1.0, sum + value));
    sum / count
}

/// Quotient of two counts.
#[allow(clippy::cast_precision_loss, reason = "counts of rounds and answers are far below 2^52")]
fn ratio(part: usize, total: usize) -> f64 {
    part as f64 / total as f64
}
