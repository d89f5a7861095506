//! Command `power`: measures the distances that FedPower reaches, over many seeds of the noise.

use clap::Args;
use fedspan_engine::privacy::fedpower::Calibration;
use serde::Serialize;

use super::CommandError;
use super::measurement::{MeasurementFile, MeasurementOptions, parse_number, select_by_name};
use fedspan_experiments::power::{self, Case, Grams, PrivacyTarget, Settings};
use fedspan_sim_core::scenario::Scenario;

/// Options of command `power`.
#[derive(Debug, Args)]
pub struct PowerOptions {
    /// FedPower scenario (built-in or TOML file) with the data and the base setting
    #[arg(long, value_name = "NAME|FILE.toml", default_value = power::SCENARIO)]
    scenario: String,
    /// Change a key of the scenario
    #[arg(long = "set", value_name = "KEY=VALUE")]
    changes: Vec<String>,
    /// Values of p, the number of power iterations between two exchanges
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [1, 2, 4], value_parser = clap::value_parser!(u16).range(1..))]
    local_steps: Vec<u16>,
    /// Values of epsilon; delta is that of the scenario
    #[arg(long, value_name = "X,...", value_delimiter = ',', default_values_t = [10.0, 1.0, 0.5], value_parser = epsilon)]
    epsilons: Vec<f64>,
    /// Values of K/m, the number of draws with replacement divided by the number of devices; at 1 every
    /// device participates once
    #[arg(long, value_name = "PART,...", value_delimiter = ',', default_values_t = [1.0, 0.6, 0.4], value_parser = part)]
    participation: Vec<f64>,
    /// Noise calibrations: paper, tight, none
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_values = ["paper", "tight"])]
    calibrations: Vec<String>,
    /// First seed of noise, draws and initial basis; the data use the seed of the scenario
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: u64,
    /// Number of consecutive seeds
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    seeds: u32,
    #[command(flatten)]
    measurement: MeasurementOptions,
}

/// Parses a value of epsilon.
fn epsilon(text: &str) -> Result<f64, String> {
    parse_number(text, |value| (1e-6..=1e6).contains(&value), "a number from 0.000001 to 1000000")
}

/// Parses a participation ratio.
fn part(text: &str) -> Result<f64, String> {
    parse_number(text, |value| value > 0.0 && value <= 1.0, "a number above 0, at most 1")
}

/// Fields of `figures.json` that are specific to this command.
#[derive(Serialize)]
struct ExtraFields<'a> {
    scenario_name: &'a str,
    changes: &'a [String],
    base: Case,
}

/// Runs command `power`.
pub fn command(options: &PowerOptions) -> Result<(), CommandError> {
    let scenario = super::load::scenario(&options.scenario, &options.changes)?;
    let settings = settings(options, &scenario)?;
    let extra = ExtraFields { scenario_name: &scenario.name, changes: &options.changes, base: settings.base };
    let (measured, timing) = options.measurement.measure("power", |threads, stop, progress| {
        let fleet = Grams::from_scenario(&scenario)?;
        power::measure(&fleet, &Settings { threads, ..settings }, stop, progress)
    })?;
    let rows = measured.map_err(|error| CommandError::Failed(error.to_string()))?;
    let Some(rows) = rows else {
        return Err(CommandError::Failed("interrupted; nothing was finished".to_owned()));
    };
    let (seed, seeds) = (options.seed, options.seeds);
    let figures = MeasurementFile {
        version: env!("CARGO_PKG_VERSION"),
        scenario: power::SCENARIO,
        seed,
        seeds,
        extra,
        rows: &rows,
        timing,
    };
    options.measurement.show(&power::markdown(&rows), &figures)
}

/// Settings of the measurement; the number of threads is set later.
fn settings(options: &PowerOptions, scenario: &Scenario) -> Result<Settings, CommandError> {
    let Some(section) = scenario.algorithm.power() else {
        let algorithm = scenario.algorithm_name();
        return Err(CommandError::Usage(format!(
            "{}: algorithm.name is {algorithm:?}, allowed: \"fedpower\"",
            scenario.name
        )));
    };
    let known_calibrations =
        [("paper", Some(Calibration::Paper)), ("tight", Some(Calibration::Tight)), ("none", None)];
    let calibrations =
        select_by_name("--calibrations", &options.calibrations, &known_calibrations, |(name, _)| name)?;
    let private = scenario.privacy;
    if private.is_none() && calibrations.iter().any(|(_, calibration)| calibration.is_some()) {
        return Err(CommandError::Usage(format!(
            "{}: there is no [privacy], which has epsilon and delta of the setting that others differ from; allowed \
             without it: --calibrations none",
            scenario.name
        )));
    }
    let base = Case {
        rank: scenario.model.k,
        iterations: section.iterations,
        local_steps: section.local_steps,
        decay: section.decay,
        procrustes: section.procrustes,
        participation: 1.0,
        privacy: private.map(|section| PrivacyTarget {
            epsilon: section.epsilon.get(),
            delta: section.delta.get(),
            calibration: section.calibration,
        }),
        one_shot: false,
    };
    Ok(Settings {
        base,
        local_steps: options.local_steps.iter().copied().filter(|p| *p <= base.iterations).collect(),
        epsilons: options.epsilons.clone(),
        participation: options.participation.clone(),
        calibrations: calibrations.into_iter().map(|(_, calibration)| calibration).collect(),
        seed: options.seed,
        seeds: options.seeds,
        threads: 1,
    })
}
