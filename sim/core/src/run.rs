//! Simulation of a scenario with one seed: function [`run`], its result types and its errors.

mod arrivals;
mod attack;
mod builder;
mod column_scale;
mod devices;
mod energy_meter;
mod engine;
mod expected_answers;
mod fit_stats;
mod prepare;
pub mod replay;
mod saved_run;
mod simulation;
mod step_size;
mod times;

use std::collections::BTreeMap;

pub use builder::{Simulation, SimulationBuilder};
pub use devices::gate;
pub use energy_meter::DeviceEnergy;
pub use engine::engine;
use fedspan_engine::algorithm::{ChosenPrior, HeadPrior, Scale};
use fedspan_engine::linalg::Matrix;
use fedspan_engine::{ChosenRidge, Counters, CustomError, DeviceId, Failure, Tensor};
use fedspan_protocol::message::Refusal;
pub use fit_stats::FitStats;
pub use prepare::{Job, given_start};
pub use saved_run::{SavedRun, SavedRunError};
pub use times::Times;

use serde::{Deserialize, Serialize};

use crate::data::file::DataFile;
use crate::data::scale::Scaling;
use crate::data::{DataError, Dataset};
use crate::evaluate::{ClientScore, Scores, average};
use crate::figures::Figures;
use crate::fleet::BuildError;
use crate::scenario::Scenario;

/// Number of final rounds over which the accuracy of networks is averaged, as in the papers.
pub const RECENT_ROUNDS: u32 = 10;

/// Error of a run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RunError {
    /// The data cannot be read or used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The campaign cannot continue.
    #[error("the campaign stopped: {0}")]
    Failed(#[from] Failure),
    /// The server refused a device because of its hello.
    #[error("client {client} is refused: {refusal}")]
    Refused {
        /// Index of the client, from 0.
        client: u64,
        /// Reason of the refusal.
        refusal: Refusal,
    },
    /// A metric is NaN or infinite.
    #[error(
        "the figure {figure} is {value} after round {round}: the numbers of the data are too large for f32, or the \
         step size is"
    )]
    NotFinite {
        /// Name of the metric in the results.
        figure: &'static str,
        /// Value of the metric: NaN or infinite.
        value: f64,
        /// Round after which the metric was computed; 0 is the initial model.
        round: u32,
    },
    /// A custom algorithm or policy does not fit the scenario.
    #[error(transparent)]
    Custom(#[from] CustomError),
    /// The scenario and the data do not fit together.
    #[error("{0}")]
    Mismatch(String),
    /// A device cannot be built with the scenario's settings.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The simulator has a bug: no device will answer the open round, and the round has no deadline.
    #[error(
        "the campaign stalled: no device answers the open round; this is a bug of the simulator, please report it"
    )]
    Silent,
}

/// Divergence of training, which ends training early: the loss of a client was not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Diverged {
    /// Index of the client, from 0.
    pub client: u64,
    /// Number of the round in which the loss was not finite.
    pub round: u32,
}

/// Privacy loss of the noisy releases of the devices.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct PrivacyFigures {
    /// Largest epsilon over all devices. Every record has (epsilon, delta) differential privacy.
    pub epsilon: f64,
    /// Delta of the privacy guarantee.
    pub delta: f64,
    /// Epsilon of each device.
    pub devices: BTreeMap<DeviceId, f64>,
}

/// Results of a round, as written to `rounds.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundRow {
    /// Number of the round; 0 is the initial model.
    pub round: u32,
    /// Stage of the participation schedule.
    pub stage: u16,
    /// Devices that were asked for an update.
    pub cohort: Vec<DeviceId>,
    /// Devices whose updates were aggregated, in order of arrival.
    pub participants: Vec<DeviceId>,
    /// Cumulative simulated time, in mean computations.
    pub time: f64,
    /// Metrics after the round; `None` if the round was not evaluated.
    pub scores: Option<Scores>,
    /// Bytes of encoded frames from devices, without hellos.
    pub bytes_up: u64,
    /// Bytes of encoded frames to devices, without welcomes.
    pub bytes_down: u64,
    /// Number of rejected updates.
    pub rejected: u32,
    /// Distance between the product of the averaged factors and the average of the products, relative to the
    /// average of the products. For adapters only.
    pub interference: Option<f64>,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Names in the data, and the scale of the features.
    pub names: DataNames,
    /// Results of all rounds, from round 0.
    pub rounds: Vec<RoundRow>,
    /// Metrics of the final model.
    pub scores: Scores,
    /// Scores of the personal model of each client; attackers are left out.
    pub clients: Vec<ClientScore>,
    /// Numbers of the scored clients and of the newcomers in the data, from 0. Newcomers follow all training clients.
    pub numbers: Vec<usize>,
    /// Scores of the personal models after the final epochs on their heads. For networks only.
    pub tuned: Vec<ClientScore>,
    /// Round and client at which training diverged; `None` if training did not diverge.
    pub diverged: Option<Diverged>,
    /// Scores of the personal model of each newcomer.
    pub newcomers: Vec<ClientScore>,
    /// Metrics of the shared model on the test data of newcomers, if the algorithm has a shared model.
    pub newcomers_global: Scores,
    /// Number of users in the data that did not become clients.
    pub dropped_users: usize,
    /// Summary of the fits on raw features; `None` if there were no such fits.
    pub fits: Option<FitStats>,
    /// Warnings about the data and the fits, one line each.
    pub warnings: Vec<String>,
    /// Measured step size; `None` if the step size is configured.
    pub step_size: Option<f64>,
    /// Number of outputs, `C`.
    pub outputs: usize,
    /// Prior of heads that the clients chose; `None` for an algorithm without one.
    pub prior: Option<ChosenPrior>,
    /// Matrices of that prior.
    pub head_prior: Option<HeadPrior>,
    /// Ridge that the clients chose for heads that are fitted on a few samples; `None` if the ridge is
    /// configured.
    pub ridge: Option<ChosenRidge>,
    /// Final representation of a linear model, orthonormal.
    pub representation: Option<Matrix>,
    /// Scale of the samples, if the model expects standardised samples.
    pub scale: Option<Scale>,
    /// Final shared layers. For networks only.
    pub layers: Vec<Tensor>,
    /// Counters of the engine.
    pub counters: Counters,
    /// Privacy loss of all releases of each device; `None` if devices add no noise.
    pub privacy: Option<PrivacyFigures>,
    /// Energy of each training device; empty if the scenario does not ask for it.
    pub energy: Vec<DeviceEnergy>,
    /// Number of updates that were aggregated in start rounds (which compute the initial representation) and
    /// training rounds, without the final head fit.
    pub updates: u64,
    /// Uploaded and downloaded bytes of all rounds.
    pub bytes: (u64, u64),
    /// Uploaded and downloaded bytes of the final head fit of training clients.
    pub fit_bytes: (u64, u64),
    /// Uploaded and downloaded bytes of the head fit of newcomers.
    pub newcomer_bytes: (u64, u64),
    /// Wall-clock time of rounds without evaluation, in seconds.
    pub seconds: f64,
    /// Number of updates that attackers replaced, including updates of start rounds.
    pub attacks: u64,
    /// True if the run was interrupted. The results then cover the rounds that had finished.
    pub interrupted: bool,
}

/// Names in the data, and the scale of a table's features, for result files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DataNames {
    /// Names of the training clients; empty if clients have no names.
    pub clients: Vec<String>,
    /// Names of the clients that joined after training.
    pub newcomers: Vec<String>,
    /// Names of the classes, in the order of their numbers.
    pub classes: Vec<String>,
    /// Scale of the features of a table.
    pub scale: Option<Scaling>,
    /// Files from which the data were read.
    pub files: Vec<DataFile>,
}

impl DataNames {
    /// Copies the names of the clients of these numbers and of all newcomers, and the scale of a data set.
    #[must_use]
    pub fn new(dataset: &Dataset, numbers: &[usize]) -> Self {
        let name = |number: &usize| dataset.client_names.get(*number).cloned();
        Self {
            clients: numbers.iter().filter_map(name).collect(),
            newcomers: dataset.newcomer_names.clone(),
            classes: dataset.class_names.clone(),
            scale: dataset.scale.clone(),
            files: dataset.files.clone(),
        }
    }
}

impl Outcome {
    /// Checks that the metrics of the final model, of newcomers, and of the shared model on newcomers are
    /// finite.
    fn check_figures(&self) -> Result<(), RunError> {
        let round = self.rounds.last().map_or(0, |row| row.round);
        check_finite(&self.scores, round)?;
        // The loss is checked besides the accuracy, because a prediction is a class even if outputs are NaN.
        let new = average(&self.newcomers);
        let figure = if new.accuracy.is_some() { "accuracy_new_clients" } else { "test_mse_new_clients" };
        for value in [new.loss, new.accuracy, new.test_mse] {
            check_one(figure, value, round)?;
        }
        check_one("accuracy_global_new_clients", self.newcomers_global.loss, round)
    }

    /// Counters of the engine, without the head fits of `newcomers` newcomers.
    #[must_use]
    pub fn counters_without_newcomers(&self, newcomers: usize) -> Counters {
        Counters { counted: self.counters.counted - newcomers as u64, ..self.counters }
    }
}

/// Checks that all metrics are finite.
fn check_finite(scores: &Scores, round: u32) -> Result<(), RunError> {
    for (figure, value) in Figures::new(scores).iter() {
        check_one(figure, Some(value), round)?;
    }
    Ok(())
}

fn check_one(figure: &'static str, value: Option<f64>, round: u32) -> Result<(), RunError> {
    match value.filter(|value| !value.is_finite()) {
        Some(value) => Err(RunError::NotFinite { figure, value, round }),
        None => Ok(()),
    }
}

/// Observer of a run's progress, which can end the run early. It may be called on another thread than that of the caller, one call at a
/// time.
pub trait Watcher: Send {
    /// Called after each round, with the number of finished rounds `done`, the total number of rounds `of`,
    /// and the metrics if the round was evaluated. Returns false to end the run.
    fn round(&mut self, done: u32, of: u32, scores: Option<&Scores>) -> bool;

    /// Called after each training round that can be continued later; `is_last` is true if the run trains no further.
    /// Returns true to receive the state of the run.
    fn wants_state(&mut self, _is_last: bool) -> bool {
        false
    }

    /// Receives the state of the run, if [`Self::wants_state`] has returned true. Not called if the participation policy keeps
    /// estimates that are not part of its state, as doubling does with the schedules `adaptive` and `verified`.
    fn keep_state(&mut self, _state: SavedRun) {}
}

/// Observer that ignores progress.
pub struct NoProgress;

impl Watcher for NoProgress {
    fn round(&mut self, _done: u32, _of: u32, _scores: Option<&Scores>) -> bool {
        true
    }
}

/// Runs a scenario on its data with one seed.
///
/// # Errors
/// [`RunError`] if the data cannot be used, do not fit the scenario, or the campaign fails.
pub fn run(scenario: &Scenario, seed: u64, watcher: &mut dyn Watcher) -> Result<Outcome, RunError> {
    Job::prepare(scenario, seed)?.run(watcher)
}
