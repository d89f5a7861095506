//! Commands `adapter serve` and `adapter check-exchange`: federated rounds of adapter files over HTTP, and the check of
//! their state directory.

use std::future::Future;
use std::path::{Path, PathBuf};

use crate::http::{AdapterServer, ExchangeReport, ServeSummary, ServerError, Settings, check_exchange};
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

/// Failure of a command, with a message for the user.
pub enum ServeError {
    /// An operation failed.
    Failed(String),
    /// The command line or a file is wrong.
    InvalidInput(String),
}

impl From<ServerError> for ServeError {
    fn from(error: ServerError) -> Self {
        match error.is_invalid_input() {
            true => Self::InvalidInput(error.to_string()),
            false => Self::Failed(error.to_string()),
        }
    }
}

/// Reads a configuration file with changes of the command line.
fn read_settings(config: &Path, changes: &[String]) -> Result<Settings, ServeError> {
    let text = read_file(config).map_err(|problem| ServeError::InvalidInput(problem.to_string()))?;
    Settings::parse(&config.display().to_string(), &text, changes)
        .map_err(|problem| ServeError::InvalidInput(problem.to_string()))
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
    let settings = read_settings(&options.config, &options.changes)?;
    let method = settings.rules.method;
    let rounds = settings.rules.rounds;
    let clients = settings.registry.names().len();
    let server = AdapterServer::open(settings).await?;
    let address = server.address().map_err(|error| ServeError::Failed(error.to_string()))?;
    print_line(&format!(
        "listening on http://{address}: {rounds} rounds of {} with {clients} clients",
        method.name()
    ));
    let ServeSummary { committed, rounds } =
        server.run(interrupted, options.exit_when_finished, threads()).await?;
    print_line(&format!("stopped after round {committed} of {rounds}"));
    Ok(())
}

/// Options of `adapter check-exchange`.
#[derive(Args)]
pub struct CheckExchangeOptions {
    /// State directory of the exchange: the key `state` of its configuration.
    #[arg(value_name = "STATE")]
    state: PathBuf,
    /// Configuration file of the exchange: also check that its method, base and clients are those of the directory.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Override a key of the configuration, as for `adapter serve`; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "config")]
    changes: Vec<String>,
}

/// Verifies the stored exchange.
///
/// # Errors
/// [`ServeError::InvalidInput`] if the directory is not that of an exchange, or the configuration or a file that it
/// names is wrong; [`ServeError::Failed`] if it cannot be
/// read, or while a server runs.
pub fn check(options: &CheckExchangeOptions) -> Result<ExchangeReport, ServeError> {
    let config = options.config.as_deref();
    let settings = config.map(|config| read_settings(config, &options.changes)).transpose()?;
    check_exchange(&options.state, settings.as_ref()).map_err(ServeError::from)
}
