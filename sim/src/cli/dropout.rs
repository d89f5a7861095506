//! `dropout`: campaigns whose devices do not answer.

use clap::Args;
use serde::Serialize;

use super::Stop;
use super::figures::{Figures, FiguresOptions, chosen, number};
use fedspan_experiments::demo::DemoError;
use fedspan_experiments::dropout::{self, FOLDS, PATTERNS, POLICIES, Settings};

/// Options of `dropout`.
#[derive(Debug, Args)]
pub struct DropoutOptions {
    /// Whom rounds wait for, by the names in the tables [default: all of them]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    policies: Vec<String>,
    /// Who drops out, by the names in the tables [default: all of them]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    patterns: Vec<String>,
    /// Parts of all rounds of all devices that are lost; without dropouts is measured in any case
    #[arg(long, value_name = "PART,...", value_delimiter = ',', value_parser = rate, default_value = "0.1,0.2,0.3,0.4,0.5,0.6,0.7")]
    rates: Vec<f64>,
    /// Groups of people that are held out in turn
    #[arg(long, value_name = "N", default_value_t = FOLDS as u8, value_parser = clap::value_parser!(u8).range(1..=FOLDS as i64))]
    folds: u8,
    /// Change a key of the scenario, for every run
    #[arg(long = "set", value_name = "KEY=VALUE")]
    changes: Vec<String>,
    /// The first seed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: u64,
    /// How many seeds, counting up
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    seeds: u32,
    #[command(flatten)]
    figures: FiguresOptions,
}

fn rate(text: &str) -> Result<f64, String> {
    number(text, |value| value > 0.0 && value <= 0.9, "a number above 0 to 0.9")
}

/// What is its own in `figures.json`.
#[derive(Serialize)]
struct Own<'a> {
    folds: u8,
    changes: &'a [String],
}

/// `fedspan-sim dropout`.
pub fn command(options: &DropoutOptions) -> Result<(), Stop> {
    let settings = settings(options)?;
    let own = Own { folds: options.folds, changes: &options.changes };
    let (rows, timing) = options.figures.measure("dropout", |threads, stop, progress| {
        dropout::measure(&Settings { threads, ..settings }, stop, progress)
    })?;
    let rows = rows.map_err(|error| match error {
        DemoError::Scenario(_) => Stop::Usage(error.to_string()),
        _ => Stop::Failed(error.to_string()),
    })?;
    let Some(rows) = rows else { return Err(Stop::Failed("interrupted; nothing was finished".to_owned())) };
    let (seed, seeds, scenario) = (options.seed, options.seeds, dropout::SCENARIO);
    let figures =
        Figures { version: env!("CARGO_PKG_VERSION"), scenario, seed, seeds, own, rows: &rows, timing };
    options.figures.show(&dropout::markdown(&rows), &figures)
}

fn settings(options: &DropoutOptions) -> Result<Settings, Stop> {
    Ok(Settings {
        policies: among("--policies", &options.policies, &POLICIES, |policy| policy.name)?,
        patterns: among("--patterns", &options.patterns, &PATTERNS, |pattern| pattern.name)?,
        rates: options.rates.clone(),
        folds: options.folds.into(),
        changes: options.changes.clone(),
        seed: options.seed,
        seeds: options.seeds,
        threads: 1,
    })
}

/// Those that are asked for, or all.
fn among<T: Clone>(
    option: &str,
    names: &[String],
    known: &[T],
    name: impl Fn(&T) -> &str,
) -> Result<Vec<T>, Stop> {
    if names.is_empty() { Ok(known.to_vec()) } else { chosen(option, names, known, name) }
}
