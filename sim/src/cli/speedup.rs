//! `speedup`: schedules of participation against waiting for everybody.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde::Serialize;

use super::{Format, Stop, check_out, interrupt, make_out, output, progress, use_threads};
use crate::report::files::{json, write_json, write_text};
use crate::speedup::{
    self, Measured, Policy, RESAMPLES, Row, SPEEDS, STATIONARY, Settings, SpeedModel, SpeedupError,
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
    /// Threads; results do not depend on it [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Write table.md and figures.json into this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// What standard output gets: a table, or the text of figures.json
    #[arg(long, value_enum, default_value_t = Format::Human)]
    format: Format,
}

/// A time from 0.
pub fn communication(text: &str) -> Result<f64, String> {
    number(text, |value| value >= 0.0, "a number from 0")
}

/// Above the floor.
fn factor(text: &str) -> Result<f64, String> {
    number(text, |value| value > 1.0, "a number above 1")
}

/// A finite number of which something holds.
pub fn number(text: &str, holds: impl Fn(f64) -> bool, allowed: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value: &f64| value.is_finite() && holds(*value));
    value.ok_or_else(|| format!("allowed: {allowed}"))
}

/// `figures.json`.
#[derive(Serialize)]
struct Figures<'a> {
    version: &'static str,
    scenario: &'static str,
    seed: u64,
    seeds: u32,
    factor: f64,
    resamples: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    interrupted: bool,
    rows: &'a [Row],
    timing: Timing,
}

#[derive(Serialize)]
struct Timing {
    wall_s: f64,
}

/// `fedspan-sim speedup`.
pub fn command(options: &SpeedupOptions) -> Result<(), Stop> {
    let settings = settings(options)?;
    if let Some(out) = &options.out {
        check_out(out)?;
        make_out(out)?;
    }
    use_threads(options.threads)?;
    let settings = Settings { threads: rayon::current_num_threads(), ..settings };
    let stop = interrupt::watch();
    let progress = progress::Whole::new("speedup");
    let began = Instant::now();
    let measured = speedup::measure(&settings, &stop, &progress);
    progress.finish();
    let Measured { rows, interrupted } = measured.map_err(|error| match error {
        SpeedupError::Scenario(_) | SpeedupError::NoTarget(_) => Stop::Usage(error.to_string()),
        _ => Stop::Failed(error.to_string()),
    })?;
    let figures = Figures {
        version: env!("CARGO_PKG_VERSION"),
        scenario: speedup::SCENARIO,
        seed: settings.seed,
        seeds: settings.seeds,
        factor: settings.factor,
        resamples: RESAMPLES,
        interrupted,
        rows: &rows,
        timing: Timing { wall_s: began.elapsed().as_secs_f64() },
    };
    let table = speedup::markdown(&rows);
    if let Some(out) = &options.out {
        write_text(&out.join("table.md"), &table)?;
        write_json(&out.join("figures.json"), &figures)?;
    }
    match options.format {
        Format::Human => output::print(&table)?,
        Format::Json => {
            output::print(&json(&figures).map_err(|error| Stop::Failed(error.to_string()))?)?;
        }
    }
    output::say(&format!("{} seeds, {:.1} s", settings.seeds, figures.timing.wall_s));
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
    if names.is_empty() {
        return Ok(known);
    }
    let all: Vec<&str> = known.iter().map(|policy| policy.name.as_str()).collect();
    let find = |name: &String| {
        let policy = known.iter().find(|policy| policy.name == *name).cloned();
        let unknown = || format!("--schedules: found {name:?}, allowed: {}", all.join(", "));
        policy.ok_or_else(|| Stop::Usage(unknown()))
    };
    names.iter().map(find).collect()
}
