//! `summary.json`: what a run comes to, and its spread over seeds. `RESULTS.md` lists the fields.

use fedspan_engine::{ChosenRidge, Counters};
use serde::{Serialize, Serializer, ser::SerializeMap};

use crate::evaluate::{Scores, average, worst_decile};
use crate::run::{Diverged, Fits, Outcome, PrivacyFigures, RECENT};
use crate::scenario::Scenario;

/// Figures by name, in the order of the tables; those that do not apply are not in it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures(Vec<(&'static str, f64)>);

impl Figures {
    /// The figures of a model on the clients that trained.
    #[must_use]
    pub fn of(scores: &Scores) -> Self {
        let mut figures = Self::default();
        figures.push("distance", scores.distance);
        figures.push("loss", scores.loss);
        figures.push("accuracy", scores.accuracy);
        figures.push("accuracy_global", scores.accuracy_global);
        figures.push("test_mse", scores.test_mse);
        figures
    }

    /// Adds a figure; an absent one does not apply. One that is no number would end as null: runs fail before.
    pub fn push(&mut self, name: &'static str, value: Option<f64>) {
        if let Some(value) = value {
            self.0.push((name, value));
        }
    }

    /// The figure of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// All, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, f64)> + '_ {
        self.0.iter().copied()
    }
}

impl Serialize for Figures {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

/// One stage of the participation policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stage {
    /// Its number.
    pub stage: u16,
    /// Its rounds.
    pub rounds: u32,
    /// Devices asked in its last round.
    pub cohort: usize,
    /// Simulated time at its end.
    pub time: f64,
}

/// Simulated time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Time {
    /// At the end of the last round, in mean computations.
    pub simulated: f64,
}

/// Bytes of encoded frames, hello and welcome excluded.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bytes {
    /// From devices, in all rounds.
    pub up: u64,
    /// To devices, in all rounds.
    pub down: u64,
    /// Both directions over `updates`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_update: Option<f64>,
    /// From the devices that trained, for their final head.
    pub fit_head_up: u64,
    /// To them.
    pub fit_head_down: u64,
    /// From new devices, for their head.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new_clients_up: Option<u64>,
    /// To them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new_clients_down: Option<u64>,
}

/// Everything that depends on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Timing {
    /// The whole run.
    pub wall_s: f64,
    /// Its rounds and final heads, without making data and without evaluation.
    pub rounds_s: f64,
    /// Updates (final heads included) over `rounds_s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updates_per_s: Option<f64>,
}

/// `summary.json` of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Of this program.
    pub version: &'static str,
    /// The built-in's name, or the file's without directory and ending.
    pub scenario: String,
    /// Seed.
    pub seed: u64,
    /// As in the scenario.
    pub algorithm: &'static str,
    /// Clients that trained.
    pub clients: usize,
    /// Users of the data who are no clients, where there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub users_left_out: Option<usize>,
    /// Names of classes 0, 1, 2 and so on, where the data have some.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<String>,
    /// The step size, where it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_size: Option<f64>,
    /// Of baselines: fits that have left directions out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fits_cut: Option<Fits>,
    /// What was said of the data and the fits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Rounds that were done.
    pub rounds: u32,
    /// Ended by Ctrl-C.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
    /// Training ended early, as a loss was not finite any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diverged: Option<Diverged>,
    /// Which model `accuracy` is of, where that is not the head refitted on the final representation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scored: Option<&'static str>,
    /// Of networks: which model of a client that came after training `accuracy_new_clients` is of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scored_new_clients: Option<&'static str>,
    /// Stages of participation.
    pub stages: Vec<Stage>,
    /// Figures of the final model.
    #[serde(rename = "final")]
    pub figures: Figures,
    /// Time.
    pub time: Time,
    /// Bytes.
    pub bytes: Bytes,
    /// Updates that counted in all rounds.
    pub updates: u64,
    /// Updates that were rejected, whatever the reason.
    pub rejected: u64,
    /// The engine's counters, final heads included.
    pub counters: Counters,
    /// The account of the devices' noise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub privacy: Option<PrivacyFigures>,
    /// The ridge that the clients have chosen for heads that are fitted on a few samples, and its scores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ridge: Option<ChosenRidge>,
    /// The machine.
    pub timing: Timing,
}

impl Summary {
    /// Sums up a run that took `wall_s` seconds.
    #[must_use]
    pub fn new(scenario: &Scenario, seed: u64, clients: usize, outcome: &Outcome, wall_s: f64) -> Self {
        let mut figures = Figures::of(&outcome.scores);
        if let Some(network) = scenario.algorithm.network {
            figures.push("accuracy_worst_decile", worst_decile(&outcome.clients));
            if !network.tuned {
                figures.push("accuracy_last_10", recent(outcome));
                figures.push("accuracy_tuned", average(&outcome.tuned).accuracy);
                figures.push("accuracy_tuned_worst_decile", worst_decile(&outcome.tuned));
            }
        }
        figures.push("interference", outcome.rounds.last().and_then(|row| row.interference));
        let new = average(&outcome.newcomers);
        figures.push("accuracy_new_clients", new.accuracy);
        figures.push("accuracy_global_new_clients", outcome.newcomers_global.accuracy);
        figures.push("test_mse_new_clients", new.test_mse);
        let has_new = !outcome.newcomers.is_empty() && scenario.is_federated();
        #[allow(clippy::cast_precision_loss, reason = "counts")]
        let ratio = |a: u64, b: u64| (b > 0).then(|| a as f64 / b as f64);
        #[allow(clippy::cast_precision_loss, reason = "counts")]
        let rate = outcome.counters.counted as f64 / outcome.seconds;
        Self {
            version: env!("CARGO_PKG_VERSION"),
            scenario: short_name(&scenario.name),
            seed,
            algorithm: scenario.algorithm_word(),
            clients,
            users_left_out: Some(outcome.left_out).filter(|users| *users > 0),
            step_size: outcome.step_size,
            classes: outcome.named.classes.clone(),
            fits_cut: outcome.fits.clone(),
            warnings: outcome.warnings.clone(),
            rounds: outcome.rounds.last().map_or(0, |row| row.round),
            interrupted: outcome.interrupted,
            diverged: outcome.diverged,
            scored: scenario.algorithm.network.map(|network| {
                if network.tuned {
                    "each client's network after epochs on its head at the end"
                } else {
                    network.method.scored()
                }
            }),
            scored_new_clients: scenario
                .algorithm
                .network
                .filter(|_| !outcome.newcomers.is_empty())
                .map(|network| network.method.scored_of_newcomers()),
            stages: stages(outcome),
            figures,
            time: Time { simulated: outcome.rounds.last().map_or(0.0, |row| row.time) },
            bytes: Bytes {
                up: outcome.bytes.0,
                down: outcome.bytes.1,
                per_update: ratio(outcome.bytes.0 + outcome.bytes.1, outcome.updates),
                fit_head_up: outcome.fit_bytes.0,
                fit_head_down: outcome.fit_bytes.1,
                new_clients_up: has_new.then_some(outcome.newcomer_bytes.0),
                new_clients_down: has_new.then_some(outcome.newcomer_bytes.1),
            },
            updates: outcome.updates,
            rejected: outcome.counters.rejected(),
            counters: outcome.counters,
            privacy: outcome.privacy.clone(),
            ridge: outcome.ridge.clone(),
            timing: Timing {
                wall_s,
                rounds_s: outcome.seconds,
                updates_per_s: Some(rate).filter(|rate| *rate > 0.0 && rate.is_finite()),
            },
        }
    }
}

/// The mean accuracy after the last ten rounds, where they were all evaluated.
fn recent(outcome: &Outcome) -> Option<f64> {
    let last = outcome.rounds.last()?.round;
    let rows = outcome.rounds.iter().filter(|row| row.round > 0 && row.round + RECENT > last);
    let accuracies: Option<Vec<f64>> = rows.map(|row| row.scores?.accuracy).collect();
    let accuracies = accuracies.filter(|accuracies| !accuracies.is_empty())?;
    #[allow(clippy::cast_precision_loss, reason = "at most ten")]
    let count = accuracies.len() as f64;
    Some(accuracies.iter().sum::<f64>() / count)
}

/// A scenario's name without directory and ending.
#[must_use]
pub fn short_name(name: &str) -> String {
    let stem = std::path::Path::new(name).file_stem();
    stem.map_or_else(|| name.to_owned(), |stem| stem.to_string_lossy().into_owned())
}

fn stages(outcome: &Outcome) -> Vec<Stage> {
    let mut stages: Vec<Stage> = Vec::new();
    for row in outcome.rounds.iter().filter(|row| row.round > 0) {
        let (cohort, time) = (row.cohort.len(), row.time);
        match stages.last_mut().filter(|stage| stage.stage == row.stage) {
            Some(stage) => *stage = Stage { stage: row.stage, rounds: stage.rounds + 1, cohort, time },
            None => stages.push(Stage { stage: row.stage, rounds: 1, cohort, time }),
        }
    }
    stages
}

/// Median and quartiles, interpolated as NumPy does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The middle.
    pub median: f64,
    /// A quarter of the values is below.
    pub q25: f64,
    /// A quarter of the values is above.
    pub q75: f64,
}

impl Spread {
    /// Of at least one value.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        let at = |quarters: usize| {
            let (whole, rest) = (quarters * last / 4, quarters * last % 4);
            let low = sorted.get(whole).copied().unwrap_or_default();
            let high = sorted.get(whole + 1).copied().unwrap_or(low);
            #[allow(clippy::cast_precision_loss, reason = "0 to 3")]
            let part = rest as f64 / 4.0;
            low + (high - low) * part
        };
        Some(Self { median: at(2), q25: at(1), q75: at(3) })
    }
}

/// `summary.json` over several seeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SeedsSummary {
    /// Of this program.
    pub version: &'static str,
    /// As in [`Summary::scenario`].
    pub scenario: String,
    /// As in the scenario.
    pub algorithm: &'static str,
    /// The seeds that were finished.
    pub seeds: Vec<u64>,
    /// Seeds that diverged: the figures leave them out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub diverged: Vec<u64>,
    /// The most users left out in any seed, where there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub users_left_out: Option<usize>,
    /// The distinct warnings of all seeds, in the order of their first appearance.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Ended by Ctrl-C before all seeds were done.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
    /// The spread of each figure that every seed has.
    #[serde(rename = "final", serialize_with = "as_map")]
    pub figures: Vec<(&'static str, Spread)>,
    /// The machine.
    pub timing: SeedsTiming,
}

/// Everything that depends on the machine, over several seeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SeedsTiming {
    /// All seeds together.
    pub wall_s: f64,
}

fn as_map<S: Serializer>(figures: &[(&'static str, Spread)], serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(figures.len()))?;
    for (name, spread) in figures {
        map.serialize_entry(name, spread)?;
    }
    map.end()
}

impl SeedsSummary {
    /// Sums up the runs of one scenario; interrupted ones, and those that diverged, do not count. `None` without a finished run.
    #[must_use]
    pub fn of(runs: &[Summary], interrupted: bool) -> Option<Self> {
        let done: Vec<&Summary> =
            runs.iter().filter(|run| !run.interrupted && run.diverged.is_none()).collect();
        let first = done.first()?;
        let spread = |(name, _)| {
            let values: Option<Vec<f64>> = done.iter().map(|run| run.figures.get(name)).collect();
            values.and_then(|values| Spread::of(&values)).map(|spread| (name, spread))
        };
        let mut warnings: Vec<String> = Vec::new();
        for warning in done.iter().flat_map(|run| &run.warnings) {
            if !warnings.contains(warning) {
                warnings.push(warning.clone());
            }
        }
        Some(Self {
            version: first.version,
            scenario: first.scenario.clone(),
            algorithm: first.algorithm,
            seeds: done.iter().map(|run| run.seed).collect(),
            diverged: runs.iter().filter(|run| run.diverged.is_some()).map(|run| run.seed).collect(),
            users_left_out: done.iter().filter_map(|run| run.users_left_out).max(),
            warnings,
            interrupted,
            figures: first.figures.iter().filter_map(spread).collect(),
            timing: SeedsTiming { wall_s: done.iter().map(|run| run.timing.wall_s).sum() },
        })
    }
}
