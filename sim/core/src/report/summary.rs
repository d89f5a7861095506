//! Content of `summary.json`: the results of a run, or their spread over several seeds. `RESULTS.md` lists
//! the fields.

use std::collections::BTreeMap;

use fedspan_engine::algorithm::ChosenPrior;
use fedspan_engine::{ChosenRidge, Counters};
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::SerializeMap};

use super::interned;
use super::predictions::MacroF1;
use crate::data::file::DataFile;
use crate::evaluate::{ClientScore, average, worst_decile};
use crate::figures::Figures;
use crate::run::{DeviceEnergy, Diverged, FitStats, Outcome, PrivacyFigures, RECENT_ROUNDS};
use crate::scenario::Scenario;

/// Stage of the participation schedule.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Stage {
    /// Number of the stage.
    pub stage: u16,
    /// Number of rounds in the stage.
    pub rounds: u32,
    /// Number of devices that were asked for an update in the last round of the stage.
    pub cohort: usize,
    /// Simulated time at the end of the stage.
    pub time: f64,
}

/// Simulated time of a run.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Time {
    /// Time at the end of the last round, in mean computations.
    pub simulated: f64,
}

/// Numbers of bytes in encoded frames, without hellos and welcomes.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Bytes {
    /// Bytes from devices in all rounds.
    pub up: u64,
    /// Bytes to devices in all rounds.
    pub down: u64,
    /// Bytes in both directions divided by `updates`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_update: Option<f64>,
    /// Bytes from the training devices in the fit of their final heads.
    pub fit_head_up: u64,
    /// Bytes to the training devices in the fit of their final heads.
    pub fit_head_down: u64,
    /// Bytes from newcomers in the fit of their heads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_clients_up: Option<u64>,
    /// Bytes to newcomers in the fit of their heads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_clients_down: Option<u64>,
}

/// Metrics that depend on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Timing {
    /// Wall-clock time of the run in seconds.
    pub wall_s: f64,
    /// Wall-clock time of rounds and final head fits in seconds, without the preparation of data and without
    /// evaluation.
    pub rounds_s: f64,
    /// Number of updates, including final heads, divided by `rounds_s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updates_per_s: Option<f64>,
}

/// Content of `summary.json` for one run.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Summary {
    /// Version of this program.
    #[serde(deserialize_with = "interned::name")]
    pub version: interned::Name,
    /// Label of the run's scenario among the compared ones.
    pub label: String,
    /// Name of the built-in scenario, or name of the scenario file without directory and extension.
    pub scenario: String,
    /// Changes of the scenario by which the compared runs differ: keys and values as they were given.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// Seed of the run.
    pub seed: u64,
    /// Name of the algorithm, as in the scenario.
    #[serde(deserialize_with = "interned::name")]
    pub algorithm: interned::Name,
    /// Number of training clients.
    pub clients: usize,
    /// Number of users in the data that did not become clients; `None` if all users became clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users_left_out: Option<usize>,
    /// Names of the classes in the order of their numbers; empty if the data name none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<String>,
    /// Commit of the program's sources; `None` if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "interned::optional")]
    pub revision: Option<interned::Name>,
    /// Files from which the data were read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<DataFile>,
    /// F1 scores averaged over classes; `None` for regression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub f1: Option<MacroF1>,
    /// Measured step size; `None` if the step size is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_size: Option<f64>,
    /// Counts of baseline fits that dropped directions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fits_cut: Option<FitStats>,
    /// Warnings about the data and the fits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Number of completed rounds.
    pub rounds: u32,
    /// True if the user ended the run with Ctrl-C.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
    /// Round and client at which training diverged; `None` if training did not diverge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diverged: Option<Diverged>,
    /// Model that `accuracy` refers to; `None` for the final representation with refitted heads.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "interned::optional")]
    pub scored: Option<interned::Name>,
    /// Model of a newcomer that `accuracy_new_clients` refers to. For networks only.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "interned::optional")]
    pub scored_new_clients: Option<interned::Name>,
    /// Stages of the participation schedule.
    pub stages: Vec<Stage>,
    /// Metrics of the final model.
    #[serde(rename = "final")]
    pub figures: Figures,
    /// Spread over clients of the metrics of each client's model.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "spreads")]
    pub per_client: BTreeMap<&'static str, Spread>,
    /// Simulated time.
    pub time: Time,
    /// Bytes of all frames.
    pub bytes: Bytes,
    /// Number of updates that were aggregated in all rounds.
    pub updates: u64,
    /// Number of rejected updates.
    pub rejected: u64,
    /// Counters of the engine, including final heads.
    pub counters: Counters,
    /// Privacy loss of the noisy releases of the devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub privacy: Option<PrivacyFigures>,
    /// Prior of heads that the clients chose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prior: Option<ChosenPrior>,
    /// Ridge that the clients chose for heads that are fitted on a few samples, and the scores of all ridges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ridge: Option<ChosenRidge>,
    /// Metrics that depend on the machine.
    pub timing: Timing,
}

/// Reads spreads by name.
fn spreads<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<&'static str, Spread>, D::Error> {
    interned::names_and_values(deserializer).map(|spreads| spreads.into_iter().collect())
}

impl Summary {
    /// Summarises a run that took `wall_s` seconds.
    #[must_use]
    pub fn new(scenario: &Scenario, seed: u64, clients: usize, outcome: &Outcome, wall_s: f64) -> Self {
        let mut figures = Figures::new(&outcome.scores);
        if let Some(network) = scenario.algorithm.network() {
            figures.push("accuracy_worst_decile", worst_decile(&outcome.clients));
            if !network.tuned && !network.method.has_prior() {
                figures.push("accuracy_last_10", recent_accuracy(outcome));
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
            label: short_name(&scenario.name),
            scenario: short_name(&scenario.name),
            settings: BTreeMap::new(),
            seed,
            algorithm: scenario.algorithm_name(),
            clients,
            users_left_out: Some(outcome.dropped_users).filter(|users| *users > 0),
            step_size: outcome.step_size,
            revision: None,
            data: outcome.names.files.clone(),
            f1: MacroF1::of(outcome),
            classes: outcome.names.classes.clone(),
            fits_cut: outcome.fits.clone(),
            warnings: outcome.warnings.clone(),
            rounds: outcome.rounds.last().map_or(0, |row| row.round),
            interrupted: outcome.interrupted,
            diverged: outcome.diverged,
            scored: scenario.algorithm.network().map(|network| {
                if network.tuned {
                    "each client's network after epochs on its head at the end"
                } else {
                    network.method.evaluated_model()
                }
            }),
            scored_new_clients: scenario
                .algorithm
                .network()
                .filter(|_| !outcome.newcomers.is_empty())
                .map(|network| network.method.evaluated_newcomer_model()),
            stages: stages(outcome),
            figures,
            per_client: per_client(outcome),
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
            prior: outcome.prior.clone(),
            ridge: outcome.ridge.clone(),
            timing: Timing {
                wall_s,
                rounds_s: outcome.seconds,
                updates_per_s: Some(rate).filter(|rate| *rate > 0.0 && rate.is_finite()),
            },
        }
    }
}

/// Spread over the clients of each metric that every one of them has.
fn per_client(outcome: &Outcome) -> BTreeMap<&'static str, Spread> {
    let accuracy =
        |clients: &[ClientScore]| Spread::new(&clients.iter().filter_map(|c| c.accuracy).collect::<Vec<_>>());
    let test_mse =
        |clients: &[ClientScore]| Spread::new(&clients.iter().filter_map(|c| c.test_mse).collect::<Vec<_>>());
    let energy: Vec<f64> = outcome.energy.iter().map(DeviceEnergy::millijoules).collect();
    let energy = Spread::new(&energy);
    let spreads = [
        ("accuracy", accuracy(&outcome.clients)),
        ("test_mse", test_mse(&outcome.clients)),
        ("accuracy_new_clients", accuracy(&outcome.newcomers)),
        ("test_mse_new_clients", test_mse(&outcome.newcomers)),
        ("energy_mj", energy),
    ];
    spreads.into_iter().filter_map(|(name, spread)| Some((name, spread?))).collect()
}

/// Mean accuracy after each of the last ten rounds, if all these rounds were evaluated.
fn recent_accuracy(outcome: &Outcome) -> Option<f64> {
    let last = outcome.rounds.last()?.round;
    let rows = outcome.rounds.iter().filter(|row| row.round > 0 && row.round + RECENT_ROUNDS > last);
    let accuracies: Option<Vec<f64>> = rows.map(|row| row.scores?.accuracy).collect();
    let accuracies = accuracies.filter(|accuracies| !accuracies.is_empty())?;
    #[allow(clippy::cast_precision_loss, reason = "at most ten")]
    let count = accuracies.len() as f64;
    Some(accuracies.iter().sum::<f64>() / count)
}

/// File name of a scenario without directory and extension.
#[must_use]
pub fn short_name(name: &str) -> String {
    let stem = std::path::Path::new(name).file_stem();
    stem.map_or_else(|| name.to_owned(), |stem| stem.to_string_lossy().into_owned())
}

/// Summarises the rounds of each stage of the participation schedule.
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

/// Mean, standard deviation, median and quartiles; quartiles are interpolated as in NumPy.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Standard deviation with n - 1 in the denominator; `None` for a single value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sd: Option<f64>,
    /// Median.
    pub median: f64,
    /// First quartile.
    pub q25: f64,
    /// Third quartile.
    pub q75: f64,
}

impl Spread {
    /// Summarises the values. Returns `None` if there are no values.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a number of values")]
    pub fn new(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        let quartile = |quarters: usize| {
            let (lower, remainder) = (quarters * last / 4, quarters * last % 4);
            let low = sorted.get(lower).copied().unwrap_or_default();
            let high = sorted.get(lower + 1).copied().unwrap_or(low);
            #[allow(clippy::cast_precision_loss, reason = "0 to 3")]
            let part = remainder as f64 / 4.0;
            low + (high - low) * part
        };
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
        let sd = (last > 0).then(|| libm::sqrt(squares / last as f64));
        Some(Self { mean, sd, median: quartile(2), q25: quartile(1), q75: quartile(3) })
    }
}

/// Mean over runs of each value of a spread over clients; `None` if a run does not have it.
fn mean_spread(runs: &[&Summary], name: &'static str) -> Option<(&'static str, Spread)> {
    let spreads: Option<Vec<&Spread>> = runs.iter().map(|run| run.per_client.get(name)).collect();
    let spreads = spreads?;
    let mean = |value: &dyn Fn(&Spread) -> Option<f64>| {
        let values: Option<Vec<f64>> = spreads.iter().map(|spread| value(spread)).collect();
        #[allow(clippy::cast_precision_loss, reason = "a number of seeds")]
        values.map(|values| values.iter().sum::<f64>() / values.len() as f64)
    };
    let spread = Spread {
        mean: mean(&|spread| Some(spread.mean))?,
        sd: mean(&|spread| spread.sd),
        median: mean(&|spread| Some(spread.median))?,
        q25: mean(&|spread| Some(spread.q25))?,
        q75: mean(&|spread| Some(spread.q75))?,
    };
    Some((name, spread))
}

/// Content of `summary.json` over several seeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SeedsSummary {
    /// Version of this program.
    pub version: &'static str,
    /// Label of the scenario among the compared ones.
    pub label: String,
    /// Name of the scenario, as in [`Summary::scenario`].
    pub scenario: String,
    /// Changes, as in [`Summary::settings`].
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// Name of the algorithm, as in the scenario.
    pub algorithm: &'static str,
    /// Seeds of the summarised runs.
    pub seeds: Vec<u64>,
    /// Seeds that diverged; the metrics exclude them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub diverged: Vec<u64>,
    /// Largest number of dropped users over all seeds; `None` if no users were dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub users_left_out: Option<usize>,
    /// Distinct warnings of all seeds, in the order of their first occurrence.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// True if the user pressed Ctrl-C before the runs of all seeds had finished.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
    /// Spread of each metric that is available for every seed.
    #[serde(rename = "final", serialize_with = "as_map")]
    pub figures: Vec<(&'static str, Spread)>,
    /// Spread over clients, as in [`Summary::per_client`]: each of its values is the mean over the seeds.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub per_client: BTreeMap<&'static str, Spread>,
    /// Metrics that depend on the machine.
    pub timing: SeedsTiming,
}

/// Metrics over several seeds that depend on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SeedsTiming {
    /// Sum of the wall-clock times of all seeds in seconds.
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
    /// Summarises the runs of one scenario. Interrupted and diverged runs are excluded. Returns `None` if no
    /// run remains.
    #[must_use]
    pub fn new(runs: &[Summary], interrupted: bool) -> Option<Self> {
        let completed: Vec<&Summary> =
            runs.iter().filter(|run| !run.interrupted && run.diverged.is_none()).collect();
        let first = completed.first()?;
        let spread = |(name, _)| {
            let values: Option<Vec<f64>> = completed.iter().map(|run| run.figures.get(name)).collect();
            values.and_then(|values| Spread::new(&values)).map(|spread| (name, spread))
        };
        let mut warnings: Vec<String> = Vec::new();
        for warning in completed.iter().flat_map(|run| &run.warnings) {
            if !warnings.contains(warning) {
                warnings.push(warning.clone());
            }
        }
        Some(Self {
            version: first.version,
            label: first.label.clone(),
            scenario: first.scenario.clone(),
            settings: first.settings.clone(),
            algorithm: first.algorithm,
            seeds: completed.iter().map(|run| run.seed).collect(),
            diverged: runs.iter().filter(|run| run.diverged.is_some()).map(|run| run.seed).collect(),
            users_left_out: completed.iter().filter_map(|run| run.users_left_out).max(),
            warnings,
            interrupted,
            figures: first.figures.iter().filter_map(spread).collect(),
            per_client: first.per_client.keys().filter_map(|name| mean_spread(&completed, name)).collect(),
            timing: SeedsTiming { wall_s: completed.iter().map(|run| run.timing.wall_s).sum() },
        })
    }
}
