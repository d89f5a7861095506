//! Command `adapter serve`: serves federated rounds of adapter files over HTTP.

use std::future::Future;
use std::path::PathBuf;

use crate::http::{AdapterServer, ServeSummary, ServerError, Settings};
use clap::Args;
use fedspan_engine::config::read_file;

use super::files::threads;

/// Options of `adapter serve`.
#[derive(Args)]
pub struct ServeOptions {
    /// Configuration file; aggregator/examples/exchange.toml is a commented example.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Override a key of the configuration, such as rounds=20 or participation.policy="full"; may be
    /// repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    changes: Vec<String>,
    /// Stop once every client has requested the last round's adapter.
    #[arg(long)]
    exit_when_finished: bool,
}

/// Failure of `adapter serve`, with a message for the user.
pub enum ServeError {
    /// An operation failed.
    Failed(String),
    /// The command line or a file is wrong.
    InvalidInput(String),
}

/// Runs the server until `interrupted` completes. `print_line` prints a line on standard output.
///
/// # Errors
/// [`ServeError::InvalidInput`] if the configuration or a file that the configuration names is wrong,
/// [`ServeError::Failed`] if an operation fails.
pub async fn serve(
    options: &ServeOptions,
    interrupted: impl Future<Output = ()>,
    print_line: impl Fn(&str),
) -> Result<(), ServeError> {
    let name = options.config.display().to_string();
    let text = read_file(&options.config).map_err(|problem| ServeError::InvalidInput(problem.to_string()))?;
    let settings = Settings::parse(&name, &text, &options.changes)
        .map_err(|problem| ServeError::InvalidInput(problem.to_string()))?;
    let method = settings.rules.method;
    let rounds = settings.rules.rounds;
    let clients = settings.registry.names().len();
    let serve_error = |error: ServerError| {
        if error.is_invalid_input() {
            ServeError::InvalidInput(error.to_string())
        } else {
            ServeError::Failed(error.to_string())
        }
    };
    let server = AdapterServer::open(settings).await.map_err(serve_error)?;
    let address = server.address().map_err(|error| ServeError::Failed(error.to_string()))?;
    print_line(&format!(
        "listening on http://{address}: {rounds} rounds of {} with {clients} clients",
        method.name()
    ));
    let ServeSummary { committed, rounds } =
        server.run(interrupted, options.exit_when_finished, threads()).await.map_err(serve_error)?;
    print_line(&format!("stopped after round {committed} of {rounds}"));
    Ok(())
}
