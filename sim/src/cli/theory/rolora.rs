//! Command `theory rolora`: compares the simulated angle between the trained and the true adapter factor A
//! with the bounds of RoLoRA's theorems.

use clap::Args;
use fedspan_engine::algorithm::LinearMethod;
use fedspan_engine::config::Init;
use serde::Serialize;

use super::super::measurement::parse_number;
use super::super::{CommandError, Format, interrupt, load, output};
use super::srpfl::simulated;
use fedspan_experiments::speedup::Trajectory;
use fedspan_experiments::theory::rolora::{heterogeneous_clients_bound, identical_clients_bound, sine_after};
use fedspan_sim_core::report::files::json;
use fedspan_sim_core::report::summary::Spread;
use fedspan_sim_core::report::table::Table;
use fedspan_sim_core::scenario::{DataSection, Scenario};

/// Options of command `theory rolora`.
#[derive(Debug, Args)]
pub struct RoLoraOptions {
    /// Step sizes, multiplied by L^2, where L is the norm of the mean of the true up-projections
    #[arg(long, value_name = "X,...", value_delimiter = ',', default_values_t = [0.25, 0.5], value_parser = parse_step)]
    steps: Vec<f64>,
    /// Iterations of Algorithm 2 (two rounds each) after which the angle is shown
    #[arg(long, value_name = "T,...", value_delimiter = ',', default_values_t = [1, 5, 10, 40], value_parser = clap::value_parser!(u32).range(1..=10_000))]
    iterations: Vec<u32>,
    /// Number of consecutive seeds, starting with the seed of the scenario
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    seeds: u32,
    /// Scenario to simulate (built-in name or TOML file), with data.kind "low-rank-regression", algorithm
    /// "rolora" and init "truth-sine:S"
    #[arg(long, value_name = "NAME|FILE.toml", default_value = "rolora")]
    scenario: String,
    /// Change a key of the scenario, e.g. data.samples=500; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    changes: Vec<String>,
    /// Format of standard output
    #[arg(long, value_enum, default_value_t = Format::Human)]
    format: Format,
}

/// Parses a step size times L^2.
fn parse_step(text: &str) -> Result<f64, String> {
    parse_number(text, |value| value > 0.0 && value <= 1.0, "a number above 0 and at most 1")
}

/// Simulated and predicted angles for one step size.
#[derive(Serialize)]
struct StepResults {
    /// Product eta L^2 of the step size and the squared signal strength.
    step: f64,
    /// Sine of the initial angle.
    start: f64,
    rows: Vec<Row>,
}

/// Simulated and predicted sines of the angle after a number of iterations.
#[derive(Serialize)]
struct Row {
    iterations: u32,
    simulated: Spread,
    /// Predicted sine for infinitely many samples.
    population: f64,
    /// Upper bound of Lemma 5.3, for identical clients.
    lemma_5_3: f64,
    /// Upper bound of Lemma A.16; `None` for steps above 1/2, to which the lemma does not apply.
    lemma_a_16: Option<f64>,
}

/// Content that `--format json` prints.
#[derive(Serialize)]
struct Figures {
    version: &'static str,
    seeds: u32,
    parts: Vec<StepResults>,
}

/// Runs command `theory rolora`.
pub fn command(options: &RoLoraOptions) -> Result<(), CommandError> {
    let parts = options
        .steps
        .iter()
        .map(|step| results_of_step(options, *step))
        .collect::<Result<Vec<StepResults>, CommandError>>()?;
    match options.format {
        format @ (Format::Human | Format::Markdown) => {
            let texts: Vec<String> =
                parts.iter().map(|part| format.shown(&iterations_table(options, part))).collect();
            output::print(&texts.join("\n"))
        }
        Format::Json => {
            let figures = Figures { version: env!("CARGO_PKG_VERSION"), seeds: options.seeds, parts };
            output::print(&json(&figures).map_err(|error| CommandError::Failed(error.to_string()))?)
        }
    }
}

/// Scenario with the given step size and as many rounds as the iterations require, and the sine of its
/// initial angle.
fn scenario(options: &RoLoraOptions, step: f64) -> Result<(Scenario, f64), CommandError> {
    let scenario_error =
        |problem: &str| CommandError::Usage(format!("--scenario {}: {problem}", options.scenario));
    let base = load::scenario(&options.scenario, &options.changes)?;
    let DataSection::LowRank(data) = base.data else {
        return Err(scenario_error("its data are not \"low-rank-regression\""));
    };
    if !matches!(base.algorithm.linear(), Some(LinearMethod::RoLora(_))) {
        return Err(scenario_error("its algorithm is not \"rolora\""));
    }
    let Init::TruthSine(start) = base.model.init else {
        return Err(scenario_error("its model does not start at \"truth-sine:S\""));
    };
    let last = options.iterations.iter().copied().max().unwrap_or(1);
    let required = [
        format!("algorithm.step_size={:e}", step / (data.strength * data.strength)),
        format!("algorithm.rounds={}", 2 * last),
        "evaluate_every=1".to_owned(),
    ];
    let changes: Vec<String> = options.changes.iter().cloned().chain(required).collect();
    Ok((load::scenario(&options.scenario, &changes)?, start))
}

/// Simulates one step size and computes the predictions.
fn results_of_step(options: &RoLoraOptions, step: f64) -> Result<StepResults, CommandError> {
    let (scenario, start) = scenario(options, step)?;
    let runs = simulated(&scenario, options.seeds, &interrupt::watch())?;
    let communication = scenario.fleet.communication;
    let sine = |run: &Trajectory, iterations: u32| {
        let round = usize::try_from(2 * iterations).unwrap_or(usize::MAX);
        run.points(communication).nth(round).map(|(_, distance)| distance)
    };
    let row = |&iterations: &u32| {
        let sines: Vec<f64> = runs.iter().filter_map(|run| sine(run, iterations)).collect();
        let simulated = Spread::new(&sines).filter(|_| sines.len() == runs.len());
        let ended_early = || {
            CommandError::Usage(format!(
                "--iterations {iterations}: a run ended before this iteration; remove [stop] from the scenario"
            ))
        };
        Ok(Row {
            iterations,
            simulated: simulated.ok_or_else(ended_early)?,
            population: sine_after(iterations, start, step),
            lemma_5_3: identical_clients_bound(iterations, start, step),
            lemma_a_16: (step <= 0.5).then(|| heterogeneous_clients_bound(iterations, start, step)),
        })
    };
    Ok(StepResults {
        step,
        start,
        rows: options.iterations.iter().map(row).collect::<Result<_, CommandError>>()?,
    })
}

/// Table of one step size with one row for each number of iterations.
fn iterations_table(options: &RoLoraOptions, part: &StepResults) -> Table {
    let sine = |value: f64| format!("{value:.3e}");
    let columns = ["iterations", "median", "q25", "q75", "population", "Lemma 5.3", "Lemma A.16"];
    let row = |row: &Row| {
        let Spread { median, q25, q75, .. } = row.simulated;
        let mut cells = vec![row.iterations.to_string()];
        cells.extend([median, q25, q75, row.population, row.lemma_5_3].map(sine));
        cells.push(row.lemma_a_16.map_or_else(|| "-".to_owned(), sine));
        cells
    };
    Table {
        title: format!(
            "eta L^2 = {}: sine of the angle to A*, from {}, {} seeds",
            part.step, part.start, options.seeds
        ),
        columns: columns.map(str::to_owned).to_vec(),
        rows: part.rows.iter().map(row).collect(),
        notes: Vec::new(),
    }
}
