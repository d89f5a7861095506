//! `adapter serve`: rounds of adapters over HTTP.

use std::future::Future;
use std::path::PathBuf;

use crate::http::{Ended, Exchange, Settings};
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
pub enum Stop {
    /// It failed.
    Failed(String),
    /// The command line or a file is wrong.
    Wrong(String),
}

/// Serves until `interrupted`. `say` prints a line on standard output; nobody has to read it.
///
/// # Errors
/// What stood in the way.
pub async fn serve(
    options: &ServeOptions,
    interrupted: impl Future<Output = ()>,
    say: impl Fn(&str),
) -> Result<(), Stop> {
    let name = options.config.display().to_string();
    let text = read_file(&options.config).map_err(|problem| Stop::Wrong(problem.to_string()))?;
    let settings = Settings::parse(&name, &text, &options.changes)
        .map_err(|problem| Stop::Wrong(problem.to_string()))?;
    let (method, rounds, clients) =
        (settings.rules.method, settings.rules.rounds, settings.roster.names().len());
    let stop = |error: crate::http::ExchangeError| {
        if error.is_wrong_input() { Stop::Wrong(error.to_string()) } else { Stop::Failed(error.to_string()) }
    };
    let exchange = Exchange::open(settings).await.map_err(stop)?;
    let address = exchange.address().map_err(|error| Stop::Failed(error.to_string()))?;
    say(&format!(
        "listening on http://{address}: {rounds} rounds of {} with {clients} clients",
        method.name()
    ));
    let Ended { committed, rounds } =
        exchange.run(interrupted, options.exit_when_finished, threads()).await.map_err(stop)?;
    say(&format!("stopped after round {committed} of {rounds}"));
    Ok(())
}
