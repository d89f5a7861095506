//! Command `replay`: replays a server's journal in the simulator and compares the decisions of both.

use std::path::{Path, PathBuf};

use clap::Args;
use fedspan_aggregator::journal;

use super::{CommandError, load, output};
use fedspan_sim_core::live::{ReplayCheck, ReplayCheckError, check_replay};

/// Options of command `replay`.
#[derive(Debug, Args)]
pub struct ReplayOptions {
    /// Scenario of the server: built-in (see `list`) or TOML file
    #[arg(value_name = "NAME|FILE.toml")]
    scenario: String,
    /// Journal from the server's state directory or from `live --out`
    #[arg(value_name = "ARRIVALS.jsonl")]
    journal: PathBuf,
    /// Change a key of the scenario file in the same way as for the server; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    changes: Vec<String>,
    /// Seed that replaces the seed of the scenario
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: Option<u64>,
}

/// Runs command `replay`.
pub fn command(options: &ReplayOptions) -> Result<(), CommandError> {
    let mut scenario = load::scenario(&options.scenario, &options.changes)?;
    if let Some(seed) = options.seed {
        scenario.seed = seed;
        scenario.given.add("seed");
    }
    scenario.evaluate_every = u32::MAX;
    let lines = journal::read(&options.journal).map_err(|error| CommandError::Usage(error.to_string()))?;
    let decided =
        check_replay(&scenario, &lines).map_err(|error| to_command_error(&options.journal, &error))?;
    output::print(&format!("{}\n", equality_message(&decided)?))
}

/// Message that all decisions are equal.
///
/// # Errors
/// [`CommandError::Failed`] with the first difference if the decisions differ.
fn equality_message(decided: &ReplayCheck) -> Result<String, CommandError> {
    let rounds = decided.replay.rounds();
    match decided.replay.difference() {
        None => Ok(format!("{rounds} rounds: every decision equal")),
        Some(difference) => Err(CommandError::Failed(format!(
            "{rounds} rounds are equal; then the decisions differ: {difference}"
        ))),
    }
}

/// Converts an error into the error of a command, which determines the exit code.
fn to_command_error(path: &Path, error: &ReplayCheckError) -> CommandError {
    match error {
        ReplayCheckError::Run(error) => CommandError::Failed(error.to_string()),
        ReplayCheckError::Scenario(error) => CommandError::Usage(error.to_string()),
        error => CommandError::Usage(format!("{}: {error}", path.display())),
    }
}
