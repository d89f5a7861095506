//! Runs a scenario with one seed: what goes in, what comes out, what can go wrong.

mod arrivals;
mod attack;
mod devices;
mod drowned;
mod fits;
mod measured;
mod prepare;
pub mod recorded;
mod simulation;
mod times;

use std::collections::BTreeMap;

pub use devices::gate;
use fedspan_engine::Tensor;
use fedspan_engine::algorithm::Scale;
use fedspan_engine::linalg::Matrix;
use fedspan_engine::{ChosenRidge, Counters, DeviceId, Failure};
use fedspan_protocol::message::Refusal;
pub use fits::Fits;
pub use prepare::{Job, engine, given_start};
pub use times::Times;

use serde::Serialize;

use crate::data::scale::Scaling;
use crate::data::{DataError, Dataset};
use crate::evaluate::{ClientScore, Scores, average};
use crate::fleet::BuildError;
use crate::report::summary::Figures;
use crate::scenario::Scenario;

/// Rounds at the end whose mean accuracy is reported of networks, as the papers do.
pub const RECENT: u32 = 10;

/// A run that did not end well.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RunError {
    /// The data could not be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The campaign could not go on.
    #[error("the campaign stopped: {0}")]
    Failed(#[from] Failure),
    /// A device cannot take part, as a server would see it from its hello.
    #[error("client {client} is refused: {refusal}")]
    Refused {
        /// Which, from 0.
        client: u64,
        /// Why.
        refusal: Refusal,
    },
    /// A figure is no number: nothing that comes after it means anything.
    #[error(
        "the figure {figure} is {value} after round {round}: the numbers of the data are too large for f32, or the \
         step size is"
    )]
    NotFinite {
        /// Its name in the results.
        figure: &'static str,
        /// NaN or infinite.
        value: f64,
        /// After which round; 0 is the initial model.
        round: u32,
    },
    /// The scenario and the data do not fit.
    #[error("{0}")]
    Mismatch(String),
    /// The devices cannot be built so.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A fault of this program.
    #[error("the fleet fell silent before the campaign was over")]
    Silent,
}

/// Where training ended early, as the loss of a client was not finite any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Diverged {
    /// Which, from 0.
    pub client: u64,
    /// In which round.
    pub round: u32,
}

/// The account of the devices' noise.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PrivacyFigures {
    /// The largest of the devices': every record is (epsilon, delta)-private.
    pub epsilon: f64,
    /// Delta.
    pub delta: f64,
    /// Epsilon of each device.
    pub devices: BTreeMap<DeviceId, f64>,
}

/// One round, as `rounds.jsonl` has it.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundRow {
    /// 0 is the initial model.
    pub round: u32,
    /// Participation stage.
    pub stage: u16,
    /// Who was asked.
    pub cohort: Vec<u64>,
    /// Who counted, in order of arrival.
    pub participants: Vec<u64>,
    /// Cumulative simulated time.
    pub time: f64,
    /// Figures after the round; absent where it was not evaluated.
    pub scores: Option<Scores>,
    /// Bytes of encoded frames, hello excluded.
    pub bytes_up: u64,
    /// Bytes of encoded frames, welcome excluded.
    pub bytes_down: u64,
    /// Updates rejected.
    pub rejected: u32,
    /// By how much the product of averaged factors missed the mean of products, relative to the latter; of adapters.
    pub interference: Option<f64>,
}

/// Everything that a run gives.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Names that the data have, and the scale of their features.
    pub named: Named,
    /// Round by round, from round 0.
    pub rounds: Vec<RoundRow>,
    /// Figures of the final model.
    pub scores: Scores,
    /// Each client's personal model.
    pub clients: Vec<ClientScore>,
    /// Of networks: the same after epochs on their heads at the end.
    pub tuned: Vec<ClientScore>,
    /// The round and the client whose loss was not finite any more, which ended training.
    pub diverged: Option<Diverged>,
    /// Each newcomer's personal model.
    pub newcomers: Vec<ClientScore>,
    /// The shared model's figures on newcomers' test data, where there is a shared model.
    pub newcomers_global: Scores,
    /// Users of the data who are no clients.
    pub left_out: usize,
    /// What fits on features have left out; nothing where there were none.
    pub fits: Option<Fits>,
    /// What is to be said of the data and the fits, a line each.
    pub warnings: Vec<String>,
    /// The step size, where it was measured.
    pub step_size: Option<f64>,
    /// `C`.
    pub outputs: usize,
    /// The ridge that the clients have chosen for heads that are fitted on a few samples, where it was left to them.
    pub ridge: Option<ChosenRidge>,
    /// The final representation of linear models, orthonormal.
    pub representation: Option<Matrix>,
    /// The scale of the samples that models are about, where they have one.
    pub scale: Option<Scale>,
    /// Of networks: the layers that travel, as they are at the end.
    pub layers: Vec<Tensor>,
    /// The engine's counters.
    pub counters: Counters,
    /// What all releases have cost the records of each device; without noise there is no account.
    pub privacy: Option<PrivacyFigures>,
    /// Updates that counted in all rounds, the start's included, the final fit-head's not.
    pub updates: u64,
    /// Bytes up and down of all rounds.
    pub bytes: (u64, u64),
    /// Bytes up and down of the final fit-head of those who trained.
    pub fit_bytes: (u64, u64),
    /// Bytes up and down of the fit-head of newcomers.
    pub newcomer_bytes: (u64, u64),
    /// Seconds spent in rounds, without evaluation.
    pub seconds: f64,
    /// Updates that attackers replaced, those of the start included.
    pub attacks: u64,
    /// Interrupted before the end; what was finished is here.
    pub interrupted: bool,
}

/// Names that the data have, and the scale of a table's features: for result files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Named {
    /// Names of clients that trained; empty where the data have none.
    pub clients: Vec<String>,
    /// Names of clients that came after training.
    pub newcomers: Vec<String>,
    /// Names of classes 0, 1, 2 and so on.
    pub classes: Vec<String>,
    /// The scale of a table's features.
    pub scale: Option<Scaling>,
}

impl Named {
    /// Names of a data set.
    #[must_use]
    pub fn of(dataset: &Dataset) -> Self {
        Self {
            clients: dataset.client_names.clone(),
            newcomers: dataset.newcomer_names.clone(),
            classes: dataset.class_names.clone(),
            scale: dataset.scale.clone(),
        }
    }
}

impl Outcome {
    /// The figures of the final model, of new clients and of the shared model on them.
    fn check_figures(&self) -> Result<(), RunError> {
        let round = self.rounds.last().map_or(0, |row| row.round);
        check_finite(&self.scores, round)?;
        // A loss tells where an accuracy does not: the largest of no numbers is a class, too.
        let new = average(&self.newcomers);
        let figure = if new.accuracy.is_some() { "accuracy_new_clients" } else { "test_mse_new_clients" };
        for value in [new.loss, new.accuracy, new.test_mse] {
            check_one(figure, value, round)?;
        }
        check_one("accuracy_global_new_clients", self.newcomers_global.loss, round)
    }

    /// The engine's counters as they would be had `newcomers` newcomers not fitted their heads.
    #[must_use]
    pub fn counters_without_newcomers(&self, newcomers: usize) -> Counters {
        Counters { counted: self.counters.counted - newcomers as u64, ..self.counters }
    }
}

/// Refuses figures that are no numbers.
fn check_finite(scores: &Scores, round: u32) -> Result<(), RunError> {
    for (figure, value) in Figures::of(scores).iter() {
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

/// Is told about progress; answers false to end the run.
pub trait Watcher {
    /// After each round.
    fn round(&mut self, done: u32, of: u32, scores: Option<&Scores>) -> bool;
}

/// Watches nothing.
pub struct Unwatched;

impl Watcher for Unwatched {
    fn round(&mut self, _done: u32, _of: u32, _scores: Option<&Scores>) -> bool {
        true
    }
}

/// Runs a scenario on its data with one seed.
///
/// # Errors
/// [`RunError`].
pub fn run(scenario: &Scenario, seed: u64, watcher: &mut dyn Watcher) -> Result<Outcome, RunError> {
    Job::prepare(scenario, seed)?.run(watcher)
}
