//! Command `theory srpfl`: computes the speedup by doubling participation that the recursion of SRPFL
//! predicts, and optionally draws the recursion with simulated runs.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use clap::Args;
use fedspan_engine::participation::theory::{Recursion, levels, optimal_stages, theorem_stages};
use fedspan_engine::participation::{self, DoublingSettings};
use serde::Serialize;

use super::super::measurement::parse_number;
use super::super::result_directory::{check_out, make_out};
use super::super::speedup::communication;
use super::super::{CommandError, Format, interrupt, load, output};
use fedspan_experiments::speedup::{Policy, Trajectory};
use fedspan_experiments::theory::srpfl::{
    CurvePlan, Part, Settings, by_contraction, cost_table, part, point, recursion_curve,
};
use fedspan_sim_core::parallel;
use fedspan_sim_core::report::files::{json, write_text};
use fedspan_sim_core::report::html::Page;
use fedspan_sim_core::report::plot::{Axis, Series};
use fedspan_sim_core::report::summary::Spread;
use fedspan_sim_core::report::table::{Table, figure};
use fedspan_sim_core::run::RunError;
use fedspan_sim_core::scenario::Scenario;

/// Options of command `theory srpfl`.
#[derive(Debug, Args)]
pub struct SrpflOptions {
    /// Number of devices in the first stage, n0
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    first: u16,
    /// Contraction a: a round multiplies the distance above the floor by sqrt(1 - a); the scenario stragglers
    /// has 0.19
    #[arg(long, value_name = "A", default_value_t = 0.19, value_parser = contraction)]
    contraction: f64,
    /// Target distance, as a multiple of the recursion's floor with all devices
    #[arg(long, value_name = "C", default_value_t = 1.2, value_parser = factor)]
    factor: f64,
    /// Initial distance, in the unit of the recursion
    #[arg(long, value_name = "D", default_value_t = 1.0, value_parser = positive)]
    start: f64,
    /// Communication costs of a round, in mean computation times
    #[arg(long, value_name = "C,...", value_delimiter = ',', default_values_t = [0.0, 1.0, 10.0, 100.0], value_parser = communication)]
    communication: Vec<f64>,
    /// Scenario of the simulated runs in the report: built-in or TOML file
    #[arg(long, value_name = "NAME|FILE.toml", default_value = "stragglers", requires = "out")]
    scenario: String,
    /// Change a key of the scenario, e.g. fleet.communication=10; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "out")]
    changes: Vec<String>,
    /// Number of consecutive seeds of the simulated runs, starting with the seed of the scenario
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    seeds: u32,
    /// Stationary distance of full participation [default: median over the last quarter of the simulated
    /// rounds]
    #[arg(long, value_name = "D", value_parser = positive, requires = "out")]
    floor: Option<f64>,
    /// Write report.html with curves and tables into this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Format of standard output
    #[arg(long, value_enum, default_value_t = Format::Human)]
    format: Format,
}

/// Parses a contraction.
fn contraction(text: &str) -> Result<f64, String> {
    parse_number(text, |value| value > 0.0 && value <= 0.25, "a number above 0, to 0.25")
}

/// Parses the factor of the target. The factor is below sqrt 2, because half of the devices already reach
/// sqrt 2 times the floor and the last stage would be superfluous.
fn factor(text: &str) -> Result<f64, String> {
    parse_number(
        text,
        |value| value > 1.0 && value < std::f64::consts::SQRT_2,
        "a number between 1 and sqrt 2",
    )
}

/// Parses a positive distance.
fn positive(text: &str) -> Result<f64, String> {
    parse_number(text, |value| value > 0.0, "a number above 0")
}

/// Content that `--format json` prints.
#[derive(Serialize)]
struct Figures<'a> {
    version: &'static str,
    settings: &'a Settings,
    parts: &'a [Part],
}

/// Runs command `theory srpfl`.
pub fn command(options: &SrpflOptions) -> Result<(), CommandError> {
    let settings = Settings {
        first: options.first.into(),
        contraction: options.contraction,
        factor: options.factor,
        start: options.start,
        communication: options.communication.clone(),
    };
    // The target decreases with the fleet size, so the smallest fleet has the largest target.
    let target = options.factor * Recursion { contraction: options.contraction }.floor(16.0);
    if options.start <= target {
        let message = format!("--start {}: the smallest fleet's target is {target:.4}", options.start);
        return Err(CommandError::Usage(format!("{message}, allowed: more")));
    }
    // The scenario file is checked before any output.
    if options.out.is_some() {
        doubling_scenario(options)?;
    }
    let parts: Vec<Part> = options.communication.iter().map(|c| part(&settings, *c)).collect();
    let mut tables: Vec<Table> = parts.iter().map(|part| cost_table(&settings, part)).collect();
    tables.push(by_contraction(&settings));
    match options.format {
        format @ (Format::Human | Format::Markdown) => {
            let texts: Vec<String> = tables.iter().map(|table| format.shown(table)).collect();
            output::print(&texts.join("\n"))?;
        }
        Format::Json => {
            let figures = Figures { version: env!("CARGO_PKG_VERSION"), settings: &settings, parts: &parts };
            output::print(&json(&figures).map_err(|error| CommandError::Failed(error.to_string()))?)?;
        }
    }
    let Some(out) = &options.out else { return Ok(()) };
    check_out(out)?;
    report(options, &settings, &parts, out)
}

/// Scenario to simulate, number of clients in its first stage, and size of its cohort (`None` for all
/// clients).
fn doubling_scenario(options: &SrpflOptions) -> Result<(Scenario, usize, Option<usize>), CommandError> {
    let base = load::scenario(&options.scenario, &options.changes)?;
    match base.participation {
        participation::Policy::Doubling(DoublingSettings { n0, cohort, .. }) => Ok((base, n0, cohort)),
        _ => {
            let message = format!("--scenario {}: its participation is not \"doubling\"", options.scenario);
            Err(CommandError::Usage(message))
        }
    }
}

/// Runs the scenario with full participation and with each schedule, and writes a report with the curves of
/// these runs and of the recursion.
fn report(
    options: &SrpflOptions,
    settings: &Settings,
    parts: &[Part],
    out: &Path,
) -> Result<(), CommandError> {
    let (base, n0, cohort) = doubling_scenario(options)?;
    let scenario_with = |changes: &[String]| {
        let changes: Vec<String> = options.changes.iter().chain(changes).cloned().collect();
        load::scenario(&options.scenario, &changes)
    };
    make_out(out)?;
    let stop = interrupt::watch();
    let full = simulated(
        &scenario_with(&["participation={ policy = \"full\" }".to_owned()])?,
        options.seeds,
        &stop,
    )?;
    let communication = base.fleet.communication;
    let points = |run: &Trajectory| -> Vec<(f64, f64)> { run.points(communication).collect() };
    let last_quarter = |run: &Trajectory| {
        let points = points(run);
        points.iter().skip(points.len() * 3 / 4).map(|(_, distance)| *distance).collect::<Vec<_>>()
    };
    let measured = Spread::new(&full.iter().flat_map(last_quarter).collect::<Vec<_>>());
    let starts: Vec<f64> = full.iter().filter_map(|run| Some(points(run).first()?.1)).collect();
    let ends: Vec<f64> = full.iter().map(|run| run.end(communication)).collect();
    let middle = |values: &[f64]| Spread::new(values).map_or(0.0, |spread| spread.median);
    let plan = CurvePlan {
        recursion: Recursion { contraction: options.contraction },
        start: middle(&starts),
        floor: options.floor.unwrap_or_else(|| measured.map_or(0.0, |spread| spread.median)),
        until: middle(&ends),
    };
    if plan.floor <= 0.0 {
        return Err(CommandError::Usage("the simulated floor is 0; give another with --floor".to_owned()));
    }
    let mut runs_by_policy = vec![("full".to_owned(), full)];
    for policy in Policy::known().into_iter().filter(|policy| policy.name != "fixed") {
        let scenario = scenario_with(&policy.filled(communication, plan.floor))?;
        runs_by_policy.push((policy.name, simulated(&scenario, options.seeds, &stop)?));
    }
    let clients =
        base.dataset(base.seed).map_err(|error| CommandError::Usage(error.to_string()))?.clients.len();
    let size = cohort.unwrap_or(clients).min(clients);
    let levels = levels(n0, size, communication);
    let optimal = optimal_stages(n0, size, options.contraction, communication, plan.start, plan.floor);
    let theorem = theorem_stages(n0, size, options.contraction);
    let no_stages = vec![0; levels.len() - 1];
    let mut series = Vec::new();
    for (name, stages) in [("full", &no_stages), ("optimal", &optimal), ("theorem", &theorem)] {
        let label = format!("recursion, {name}");
        let runs = vec![recursion_curve(&plan, &levels, stages)];
        series.push(Series { label, runs, ..Series::default() });
    }
    for (name, runs) in runs_by_policy {
        let to_point = |(round, (time, distance)): (usize, (f64, f64))| point(round as f64, time, distance);
        let runs =
            runs.iter().map(|run| points(run).into_iter().enumerate().map(to_point).collect()).collect();
        series.push(Series { label: format!("simulated, {name}"), runs, ..Series::default() });
    }
    let stages = |stages: &[u32]| stages.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let mut texts: Vec<(String, String)> = Vec::new();
    for part in parts {
        let Table { title, columns, rows, notes } = cost_table(settings, part);
        texts.push((title, Table { title: String::new(), columns, rows, notes }.text()));
    }
    texts.push(("Scenario".to_owned(), base.text.clone()));
    let page = Page {
        title: "SRPFL: the recursion and simulated fleets".to_owned(),
        intro: format!(
            "Scenario {}, {clients} clients, n0 = {n0}, communication {communication}, {} seeds. The recursion (a = {}) \
             starts at the simulated distance {} and is scaled so that full participation hovers at {}; its times are \
             expectations for exponential computations. Rounds before all count: optimal {}; theorem {}. The start's \
             own time is left out.",
            base.name,
            options.seeds,
            options.contraction,
            figure("distance", plan.start),
            figure("distance", plan.floor),
            stages(&optimal),
            stages(&theorem),
        ),
        tables: vec![by_contraction(settings)],
        curves: vec![(String::new(), series)],
        axes: vec![Axis::Time, Axis::Round],
        figures: Vec::new(),
        notes: vec![
            "The recursion adds the distances of a round's contraction and of its noise, where in a simulation their \
             squares add: near its floor it is too slow, and too cautious about few devices."
                .to_owned(),
        ],
        texts,
    };
    let report = out.join("report.html");
    write_text(&report, &page.html())?;
    output::log_line(&format!("report: {}", report.display()));
    Ok(())
}

/// Runs a scenario with `seeds` consecutive seeds, starting with the seed of the scenario.
pub(super) fn simulated(
    scenario: &Scenario,
    seeds: u32,
    stop: &AtomicBool,
) -> Result<Vec<Trajectory>, CommandError> {
    let seeds: Vec<u64> = (0..seeds.into()).collect();
    let run = |index: &u64| Trajectory::run(scenario, scenario.seed.wrapping_add(*index), stop);
    let runs = parallel::each(rayon::current_num_threads(), &seeds, run).map_err(|error| match error {
        RunError::Data(_) | RunError::Mismatch(_) => {
            CommandError::Usage(format!("{}: {error}", scenario.name))
        }
        error => CommandError::Failed(format!("{}: {error}", scenario.name)),
    })?;
    runs.ok_or_else(|| CommandError::Failed("interrupted; the report was not written".to_owned()))
}
