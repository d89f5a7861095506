//! `adapter serve`: rounds of adapters over HTTP.

use std::future::Future;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use fedspan_aggregator::exchange::{Ended, Exchange, Settings};

use super::adapter::threads;

/// Longest configuration that is read, in bytes: a name of every client may be in it.
const CONFIG_MAX: u64 = 16 << 20;

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
    let text = text(&options.config).map_err(|why| Stop::Wrong(format!("{name}: {why}")))?;
    let settings = Settings::parse(&name, &text, &options.changes)
        .map_err(|problem| Stop::Wrong(problem.to_string()))?;
    let (method, rounds, clients) =
        (settings.rules.method, settings.rules.rounds, settings.roster.names().len());
    let stop = |error: fedspan_aggregator::exchange::ExchangeError| {
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

/// Reads a configuration: a regular file, not longer than any is. A pipe would be waited for, a device has no end.
fn text(path: &Path) -> Result<String, String> {
    let wrong = |error: std::io::Error| error.to_string();
    let about = std::fs::metadata(path).map_err(wrong)?;
    if !about.is_file() {
        return Err("not a regular file".to_owned());
    }
    let (mut text, file) = (String::new(), std::fs::File::open(path).map_err(wrong)?);
    file.take(CONFIG_MAX + 1).read_to_string(&mut text).map_err(wrong)?;
    match text.len() as u64 > CONFIG_MAX {
        true => Err(format!("{} bytes, at most {CONFIG_MAX} are read", about.len())),
        false => Ok(text),
    }
}
