//! `adapter serve`: rounds of adapters over HTTP.

use std::future::Future;
use std::path::PathBuf;

use crate::http::{AdapterServer, ServeSummary, ServerError, Settings};
use clap::Args;
use fedspan_engine::config::read_file;

use super::files::threads;

/// Options of `adapter serve`.
#[derive(Args)]
pub struct ServeOptions {
    /// The configuration, a commented example is aggregator/examples/exchange.toml.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Another value of a key of it, such as rounds=20 or participation.policy="full"; may be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    changes: Vec<String>,
    /// Stop once every client has fetched the last round's adapter.
    #[arg(long)]
    exit_when_finished: bool,
}

/// Why it ended before its time.
pub enum ServeError {
    /// It failed.
    Failed(String),
    /// The command line or a file is wrong.
    InvalidInput(String),
}

/// Serves until `interrupted`. `say` prints a line on standard output; nobody has to read it.
///
/// # Errors
/// What stood in the way.
pub async fn serve(
    options: &ServeOptions,
    interrupted: impl Future<Output = ()>,
    say: impl Fn(&str),
) -> Result<(), ServeError> {
    let name = options.config.display().to_string();
    let text = read_file(&options.config).map_err(|problem| ServeError::InvalidInput(problem.to_string()))?;
    let settings = Settings::parse(&name, &text, &options.changes)
        .map_err(|problem| ServeError::InvalidInput(problem.to_string()))?;
    let (method, rounds, clients) =
        (settings.rules.method, settings.rules.rounds, settings.registry.names().len());
    let stop = |error: ServerError| {
        if error.is_invalid_input() {
            ServeError::InvalidInput(error.to_string())
        } else {
            ServeError::Failed(error.to_string())
        }
    };
    let exchange = AdapterServer::open(settings).await.map_err(stop)?;
    let address = exchange.address().map_err(|error| ServeError::Failed(error.to_string()))?;
    say(&format!(
        "listening on http://{address}: {rounds} rounds of {} with {clients} clients",
        method.name()
    ));
    let ServeSummary { committed, rounds } =
        exchange.run(interrupted, options.exit_when_finished, threads()).await.map_err(stop)?;
    say(&format!("stopped after round {committed} of {rounds}"));
    Ok(())
}
