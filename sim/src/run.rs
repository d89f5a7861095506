//! Runs a scenario with one seed: what goes in, what comes out, what can go wrong.

mod prepare;
mod simulation;

use fedspan_aggregator::engine::{Counters, Failure};
use fedspan_aggregator::linalg::Matrix;
use fedspan_protocol::message::Refusal;
pub use prepare::{Job, engine, given_start};

use crate::data::DataError;
use crate::evaluate::{ClientScore, Scores};
use crate::scenario::Scenario;

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
    /// The scenario and the data do not fit.
    #[error("{0}")]
    Mismatch(String),
    /// A fault of this program.
    #[error("the fleet fell silent before the campaign was over")]
    Silent,
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
}

/// Everything that a run gives.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Round by round, from round 0.
    pub rounds: Vec<RoundRow>,
    /// Figures of the final model.
    pub scores: Scores,
    /// Each client's personal model.
    pub clients: Vec<ClientScore>,
    /// Each newcomer's personal model.
    pub newcomers: Vec<ClientScore>,
    /// The shared model's figures on newcomers' test data, where there is a shared model.
    pub newcomers_global: Scores,
    /// `C`.
    pub outputs: usize,
    /// The final representation, orthonormal.
    pub representation: Option<Matrix>,
    /// The engine's counters.
    pub counters: Counters,
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
    /// Interrupted before the end; what was finished is here.
    pub interrupted: bool,
}

impl Outcome {
    /// The engine's counters as they would be had `newcomers` newcomers not fitted their heads.
    #[must_use]
    pub fn counters_without_newcomers(&self, newcomers: usize) -> Counters {
        Counters { counted: self.counters.counted - newcomers as u64, ..self.counters }
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
