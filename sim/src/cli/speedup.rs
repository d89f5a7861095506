//! Command `speedup`: measures the speedup of participation schedules over full participation.

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde::Serialize;

use super::CommandError;
use super::measurement::{MeasurementFile, MeasurementOptions, parse_number, select_by_name};
use super::survey::SurveyRun;
use fedspan_experiments::speedup::{
    self, Measured, Policy, RESAMPLES, SPEEDS, STATIONARY, Settings, SpeedModel, SpeedupError, hunt,
};

/// Options of command `speedup`.
#[derive(Debug, Args)]
pub struct SpeedupOptions {
    /// Numbers of clients of the fleets
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = STATIONARY.map(|(clients, _)| clients as u32), value_parser = clap::value_parser!(u32).range(4..=65_536))]
    clients: Vec<u32>,
    /// Models of compute times: drawn once, or drawn in every round around a mean or a rate
    #[arg(long, value_name = "MODEL,...", value_delimiter = ',', default_values_t = SPEEDS.map(|speed| speed.name.to_owned()), value_parser = PossibleValuesParser::new(SPEEDS.map(|speed| speed.name)))]
    speeds: Vec<String>,
    /// Communication costs of a round, in mean computation times
    #[arg(long, value_name = "C,...", value_delimiter = ',', default_values_t = [0.0, 1.0, 10.0, 100.0], value_parser = communication)]
    communication: Vec<f64>,
    /// Schedules to compare with full participation: fixed, theorem, optimal, adaptive, verified [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    schedules: Vec<String>,
    /// First seed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: u64,
    /// Number of consecutive seeds
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    seeds: u32,
    /// Target, as a multiple of the stationary distance of full participation
    #[arg(long, value_name = "X", default_value_t = 1.15, value_parser = factor)]
    factor: f64,
    /// Measure the stationary distance instead of using the recorded value; implied by --set
    #[arg(long)]
    measure_target: bool,
    /// Change a key of the scenario for every run
    #[arg(long = "set", value_name = "KEY=VALUE")]
    changes: Vec<String>,
    /// Search for settings in which the schedule of the scenario is slower than full participation: draw this many worlds
    /// at random from the first seed, and list the worst. The results are collected in hunt.jsonl of --out, and the same
    /// command continues an interrupted hunt
    #[arg(long, value_name = "WORLDS", requires = "out", conflicts_with_all = ["clients", "speeds", "communication", "schedules", "factor", "measure_target"], value_parser = clap::value_parser!(u32).range(1..=100_000))]
    hunt: Option<u32>,
    #[command(flatten)]
    measurement: MeasurementOptions,
}

/// Parses a communication cost, which is at least 0.
pub fn communication(text: &str) -> Result<f64, String> {
    parse_number(text, |value| value >= 0.0, "a number from 0")
}

/// Parses the factor of the target. The factor is above 1, so that the target is above the stationary
/// distance.
fn factor(text: &str) -> Result<f64, String> {
    parse_number(text, |value| value > 1.0, "a number above 1")
}

/// Fields of `figures.json` that are specific to this command.
#[derive(Serialize)]
struct ExtraFields {
    factor: f64,
    resamples: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    interrupted: bool,
}

/// Runs command `speedup`.
pub fn command(options: &SpeedupOptions) -> Result<(), CommandError> {
    if let Some(worlds) = options.hunt {
        return hunt(options, worlds as usize);
    }
    let settings = settings(options)?;
    let (measured, timing) = options.measurement.measure("speedup", |threads, stop, progress| {
        speedup::measure(&Settings { threads, ..settings }, stop, progress)
    })?;
    let Measured { rows, interrupted } = measured.map_err(|error| match error {
        SpeedupError::Scenario(_) | SpeedupError::NoTarget(_) => CommandError::Usage(error.to_string()),
        _ => CommandError::Failed(error.to_string()),
    })?;
    let extra = ExtraFields { factor: options.factor, resamples: RESAMPLES, interrupted };
    let seed = options.seed;
    let seeds = options.seeds;
    let scenario = speedup::SCENARIO;
    let figures = MeasurementFile {
        version: env!("CARGO_PKG_VERSION"),
        scenario,
        seed,
        seeds,
        extra,
        rows: &rows,
        timing,
    };
    options.measurement.show(&speedup::markdown(&rows), &figures)?;
    match (interrupted, rows.is_empty()) {
        (false, _) => Ok(()),
        (true, true) => Err(CommandError::Failed("interrupted; nothing was finished".to_owned())),
        (true, false) => {
            Err(CommandError::Failed("interrupted; the table holds what was finished".to_owned()))
        }
    }
}

/// Name of the file in `--out` in which the results of a hunt are collected.
const HUNT_FILE: &str = "hunt.jsonl";

/// Runs a search for the worst of many worlds drawn at random.
fn hunt(options: &SpeedupOptions, worlds: usize) -> Result<(), CommandError> {
    let changes = options.changes.clone();
    let settings = hunt::Settings { worlds, changes, seed: options.seed, seeds: options.seeds };
    let worlds = hunt::worlds(&settings);
    for world in &worlds {
        world.check().map_err(|problem| CommandError::Usage(problem.to_string()))?;
    }
    let survey = SurveyRun {
        name: "speedup",
        file: HUNT_FILE,
        scenario: speedup::SCENARIO,
        seed: settings.seed,
        seeds: settings.seeds,
    };
    survey.run(&options.measurement, &settings, &worlds, |outcomes| hunt::markdown(&worlds, outcomes))
}

/// Settings of the measurement; the number of threads is set later.
fn settings(options: &SpeedupOptions) -> Result<Settings, CommandError> {
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
        changes: options.changes.clone(),
        measure_target: options.measure_target,
        threads: 1,
    })
}

/// Returns the schedules with the requested names, or all schedules without a request.
fn policies(names: &[String]) -> Result<Vec<Policy>, CommandError> {
    let known_policies = Policy::known();
    if names.is_empty() {
        Ok(known_policies)
    } else {
        select_by_name("--schedules", names, &known_policies, |policy| &policy.name)
    }
}
