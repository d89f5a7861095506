//! Command `fleet`: writes the configuration of a real server for the clients of a scenario.

use clap::Args;

use super::{CommandError, load, output};
use fedspan_sim_core::live::server_configuration;
use fedspan_sim_core::run::Job;

/// Arguments of command `fleet`.
#[derive(Debug, Args)]
pub struct FleetOptions {
    /// Built-in scenario (see `list`) or TOML file
    #[arg(value_name = "NAME|FILE.toml")]
    scenario: String,
    /// Change a key of the scenario
    #[arg(long = "set", value_name = "KEY=VALUE")]
    changes: Vec<String>,
}

/// Runs command `fleet`.
pub fn command(options: &FleetOptions) -> Result<(), CommandError> {
    let scenario = load::scenario(&options.scenario, &options.changes)?;
    let job = Job::prepare(&scenario, scenario.seed)
        .map_err(|error| CommandError::Usage(format!("{}: {error}", scenario.name)))?;
    let text = server_configuration(job.scenario(), &job.dataset, &options.changes)
        .map_err(|error| CommandError::Usage(error.to_string()))?;
    output::print(&text)
}
