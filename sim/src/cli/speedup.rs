//! `speedup`: schedules of participation against waiting for everybody.

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde::Serialize;

use super::Stop;
use super::figures::{Figures, FiguresOptions, chosen, number};
use fedspan_experiments::speedup::{
    self, Measured, Policy, RESAMPLES, SPEEDS, STATIONARY, Settings, SpeedModel, SpeedupError,
};

/// Options of `speedup`.
#[derive(Debug, Args)]
pub struct SpeedupOptions {
    /// Sizes of the fleet
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = STATIONARY.map(|(clients, _)| clients as u32), value_parser = clap::value_parser!(u32).range(4..=65_536))]
    clients: Vec<u32>,
    /// How long clients compute: drawn once, or in every round around a parameter that is a mean, or a rate
    #[arg(long, value_name = "MODEL,...", value_delimiter = ',', default_values_t = SPEEDS.map(|speed| speed.name.to_owned()), value_parser = PossibleValuesParser::new(SPEEDS.map(|speed| speed.name)))]
    speeds: Vec<String>,
    /// What every round takes besides, in mean computations
    #[arg(long, value_name = "C,...", value_delimiter = ',', default_values_t = [0.0, 1.0, 10.0, 100.0], value_parser = communication)]
    communication: Vec<f64>,
    /// Schedules to compare with full participation: fixed, theorem, optimal, adaptive [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    schedules: Vec<String>,
    /// The first seed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: u64,
    /// How many seeds, counting up
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    seeds: u32,
    /// The target: so many times the distance at which full participation hovers
    #[arg(long, value_name = "X", default_value_t = 1.15, value_parser = factor)]
    factor: f64,
    /// Measure that distance, instead of taking what is recorded
    #[arg(long)]
    measure_target: bool,
    #[command(flatten)]
    figures: FiguresOptions,
}

/// A time from 0.
pub fn communication(text: &str) -> Result<f64, String> {
    number(text, |value| value >= 0.0, "a number from 0")
}

/// Above the floor.
fn factor(text: &str) -> Result<f64, String> {
    number(text, |value| value > 1.0, "a number above 1")
}

/// What is its own in `figures.json`.
#[derive(Serialize)]
struct Own {
    factor: f64,
    resamples: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    interrupted: bool,
}

/// `fedspan-sim speedup`.
pub fn command(options: &SpeedupOptions) -> Result<(), Stop> {
    let settings = settings(options)?;
    let (measured, timing) = options.figures.measure("speedup", |threads, stop, progress| {
        speedup::measure(&Settings { threads, ..settings }, stop, progress)
    })?;
    let Measured { rows, interrupted } = measured.map_err(|error| match error {
        SpeedupError::Scenario(_) | SpeedupError::NoTarget(_) => Stop::Usage(error.to_string()),
        _ => Stop::Failed(error.to_string()),
    })?;
    let own = Own { factor: options.factor, resamples: RESAMPLES, interrupted };
    let (seed, seeds, scenario) = (options.seed, options.seeds, speedup::SCENARIO);
    let figures =
        Figures { version: env!("CARGO_PKG_VERSION"), scenario, seed, seeds, own, rows: &rows, timing };
    options.figures.show(&speedup::markdown(&rows), &figures)?;
    match (interrupted, rows.is_empty()) {
        (false, _) => Ok(()),
        (true, true) => Err(Stop::Failed("interrupted; nothing was finished".to_owned())),
        (true, false) => Err(Stop::Failed("interrupted; the table holds what was finished".to_owned())),
    }
}

fn settings(options: &SpeedupOptions) -> Result<Settings, Stop> {
    let speeds = options.speeds.iter().filter_map(|name| SPEEDS.into_iter().find(|speed| speed.name == name));
    let clients = options.clients.iter().filter_map(|clients| usize::try_from(*clients).ok());
    Ok(Settings {
        clients: clients.collect(),
        speeds: speeds.collect::<Vec<SpeedModel>>(),
        communication: options.communication.clone(),
        policies: policies(&options.schedules)?,
        seed: options.seed,
        seeds: options.seeds,
        factor: options.factor,
        measure_target: options.measure_target,
        threads: 1,
    })
}

/// Those that are asked for, or all.
fn policies(names: &[String]) -> Result<Vec<Policy>, Stop> {
    let known = Policy::known();
    if names.is_empty() { Ok(known) } else { chosen("--schedules", names, &known, |policy| &policy.name) }
}
