//! Command `dropout`: measures campaigns in which devices drop out.

use clap::Args;
use serde::Serialize;

use super::CommandError;
use super::measurement::{MeasurementFile, MeasurementOptions, parse_number, select_by_name};
use fedspan_experiments::demo::DemoError;
use fedspan_experiments::dropout::{self, FOLDS, PATTERNS, POLICIES, Settings};

/// Options of command `dropout`.
#[derive(Debug, Args)]
pub struct DropoutOptions {
    /// Participation policies, by their names in the tables [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    policies: Vec<String>,
    /// Dropout patterns, by their names in the tables [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    patterns: Vec<String>,
    /// Dropout rates, as fractions of all rounds of all devices; rate 0 is always measured
    #[arg(long, value_name = "PART,...", value_delimiter = ',', value_parser = rate, default_value = "0.1,0.2,0.3,0.4,0.5,0.6,0.7")]
    rates: Vec<f64>,
    /// Number of folds; each holds out a group of people
    #[arg(long, value_name = "N", default_value_t = FOLDS as u8, value_parser = clap::value_parser!(u8).range(1..=FOLDS as i64))]
    folds: u8,
    /// Change a key of the scenario for every run
    #[arg(long = "set", value_name = "KEY=VALUE")]
    changes: Vec<String>,
    /// First seed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: u64,
    /// Number of consecutive seeds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    seeds: u32,
    #[command(flatten)]
    measurement: MeasurementOptions,
}

/// Parses a dropout rate.
fn rate(text: &str) -> Result<f64, String> {
    parse_number(text, |value| value > 0.0 && value <= 0.9, "a number above 0 to 0.9")
}

/// Fields of `figures.json` that are specific to this command.
#[derive(Serialize)]
struct ExtraFields<'a> {
    folds: u8,
    changes: &'a [String],
}

/// Runs command `dropout`.
pub fn command(options: &DropoutOptions) -> Result<(), CommandError> {
    let settings = settings(options)?;
    let extra = ExtraFields { folds: options.folds, changes: &options.changes };
    let (rows, timing) = options.measurement.measure("dropout", |threads, stop, progress| {
        dropout::measure(&Settings { threads, ..settings }, stop, progress)
    })?;
    let rows = rows.map_err(|error| match error {
        DemoError::Scenario(_) => CommandError::Usage(error.to_string()),
        _ => CommandError::Failed(error.to_string()),
    })?;
    let Some(rows) = rows else {
        return Err(CommandError::Failed("interrupted; nothing was finished".to_owned()));
    };
    let seed = options.seed;
    let seeds = options.seeds;
    let scenario = dropout::SCENARIO;
    let figures = MeasurementFile {
        version: env!("CARGO_PKG_VERSION"),
        scenario,
        seed,
        seeds,
        extra,
        rows: &rows,
        timing,
    };
    options.measurement.show(&dropout::markdown(&rows), &figures)
}

/// Settings of the measurement; the number of threads is set later.
fn settings(options: &DropoutOptions) -> Result<Settings, CommandError> {
    Ok(Settings {
        policies: select_or_all("--policies", &options.policies, &POLICIES, |policy| policy.name)?,
        patterns: select_or_all("--patterns", &options.patterns, &PATTERNS, |pattern| pattern.name)?,
        rates: options.rates.clone(),
        folds: options.folds.into(),
        changes: options.changes.clone(),
        seed: options.seed,
        seeds: options.seeds,
        threads: 1,
    })
}

/// Returns the elements with the requested names, or all of `known` without a request.
fn select_or_all<T: Clone>(
    option: &str,
    names: &[String],
    known: &[T],
    name: impl Fn(&T) -> &str,
) -> Result<Vec<T>, CommandError> {
    if names.is_empty() { Ok(known.to_vec()) } else { select_by_name(option, names, known, name) }
}
