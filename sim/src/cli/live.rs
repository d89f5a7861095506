//! Command `live`: runs scenarios one after another in real time and shows their results side by side.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use fedspan_aggregator::journal;
use fedspan_aggregator::server::Status;
use fedspan_engine::config::StopSection;
use serde::Serialize;

use super::result_directory::{check_out, make_out};
use super::{CommandError, Format, emulate, labels, load, output};
use fedspan_sim_core::figures::Figures;
use fedspan_sim_core::live::{self, LiveError, Plan, ReplayCheck, TimedRound, campaign, check_replay};
use fedspan_sim_core::report::files::{json, make_directory, write_json};
use fedspan_sim_core::report::table::{Table, figure};
use fedspan_sim_core::run::{Job, RunError};
use fedspan_sim_core::scenario::Scenario;

/// Options of command `live`.
#[derive(Debug, Args)]
pub struct LiveOptions {
    /// Built-in scenarios or TOML files, each with its own changes
    #[arg(value_name = "NAME|FILE.toml[,KEY=VALUE]...", num_args = 1.., required = true)]
    scenarios: Vec<String>,
    /// Change a key of all scenarios, e.g. algorithm.rounds=50; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    changes: Vec<String>,
    /// Seed that replaces the seeds of the scenarios
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: Option<u64>,
    /// Duration of a mean computation, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 50, value_parser = clap::value_parser!(u32).range(..=3_600_000))]
    unit_ms: u32,
    /// Show the first time at which the distance to the true representation is at most this value
    #[arg(long, value_name = "DISTANCE")]
    target: Option<f64>,
    /// Write each server's journal and summary.json into this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Format of standard output: a table, or the text of summary.json
    #[arg(long, value_enum, default_value_t = Format::Human)]
    format: Format,
}

/// Result of one scenario that was run in real time.
#[derive(Debug, Serialize)]
struct Run {
    scenario: String,
    seed: u64,
    clients: usize,
    rounds: u32,
    /// Time from the opening of the first training round to the last commit, in seconds.
    seconds: f64,
    /// Time from the opening of the first training round until the target was reached, in seconds.
    target_seconds: Option<f64>,
    #[serde(rename = "final")]
    figures: Figures,
    /// [`EQUAL`] if the simulator makes the same decisions as the server at the same arrivals, else
    /// [`DIFFERENT`].
    replay: &'static str,
    server: Status,
    /// Distance of the model from the truth after every training round.
    curve: Vec<CurvePoint>,
}

/// Distance of the model from the truth after one round.
#[derive(Debug, Serialize)]
struct CurvePoint {
    round: u32,
    seconds: f64,
    distance: Option<f64>,
}

/// Runs command `live`.
pub fn command(options: &LiveOptions) -> Result<(), CommandError> {
    if let Some(target) = options.target
        && !(0.0..=1.0).contains(&target)
    {
        return Err(CommandError::Usage(format!("--target {target}: allowed: a number from 0 to 1")));
    }
    if let Some(out) = &options.out {
        check_out(out)?;
    }
    let mut entries: Vec<(String, Scenario)> = Vec::new();
    for argument in &options.scenarios {
        let (name, own_changes) = load::with_changes(argument);
        let changes: Vec<String> = options.changes.iter().chain(&own_changes).cloned().collect();
        let mut scenario = load::scenario(&name, &changes)?;
        if let Some(seed) = options.seed {
            scenario.seed = seed;
            scenario.given.add("seed");
        }
        scenario.evaluate_every = 1;
        let is_taken = |label: &str| {
            entries
                .iter()
                .any(|(entry_label, _)| labels::directory_name(entry_label) == labels::directory_name(label))
        };
        let label = labels::distinct(is_taken, labels::label(&name, &own_changes));
        entries.push((label, scenario));
    }
    // Every scenario is checked before the first scenario runs.
    for (_, scenario) in &entries {
        let job = Job::prepare(scenario, scenario.seed).map_err(|error| data_error(scenario, &error))?;
        campaign(scenario, &job.dataset, Path::new("")).map_err(|error| to_command_error(&error))?;
        let stop = scenario.stop;
        if stop != (StopSection { change: stop.change, ..StopSection::default() }) {
            output::log_line(&format!(
                "note: {}: of [stop] a server knows \"change\" only; without it all {} rounds are run",
                scenario.name, scenario.algorithm.rounds
            ));
        }
        if options.target.is_some() && job.dataset.truth.is_none() {
            let message = format!("--target: {}: the true representation is not known", scenario.name);
            return Err(CommandError::Usage(message));
        }
    }
    if let Some(out) = &options.out {
        make_out(out)?;
    }
    let mut runs = Vec::new();
    for (label, scenario) in &entries {
        runs.push(run_live(label, scenario, options)?);
    }
    let summary = serde_json::json!({ "unit_ms": options.unit_ms, "target": options.target, "runs": runs });
    if let Some(out) = &options.out {
        write_json(&out.join("summary.json"), &summary)?;
    }
    match options.format {
        Format::Json => {
            output::print(&json(&summary).map_err(|error| CommandError::Failed(error.to_string()))?)?;
        }
        format => output::print(&format.shown(&live_table(&runs, options)))?,
    }
    match runs.iter().find(|run| run.replay != EQUAL) {
        None => Ok(()),
        Some(run) => {
            Err(CommandError::Failed(format!("{}: the simulator decides differently", run.scenario)))
        }
    }
}

/// Value of [`Run::replay`] if the decisions are equal.
const EQUAL: &str = "equal";
/// Value of [`Run::replay`] if the decisions differ.
const DIFFERENT: &str = "different";

/// Runs one scenario in real time, then replays its journal in the simulator.
fn run_live(label: &str, scenario: &Scenario, options: &LiveOptions) -> Result<Run, CommandError> {
    let job = Job::prepare(scenario, scenario.seed).map_err(|error| data_error(scenario, &error))?;
    let scratch = tempfile::Builder::new().prefix("fedspan-live").tempdir();
    let scratch = scratch.map_err(|error| CommandError::Failed(format!("a temporary directory: {error}")))?;
    let unit = Duration::from_millis(options.unit_ms.into());
    let plan = Plan { scenario, dataset: &job.dataset, unit, state: scratch.path() };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CommandError::Failed(error.to_string()))?;
    let mut printed = 0;
    let ended = runtime.block_on(live::run(&plan, emulate::interrupted(), |status| {
        let number = |key: &str| status.get(key).and_then(serde_json::Value::as_u64).unwrap_or(0);
        let (round, rounds) = (number("round"), number("rounds").max(1));
        if round * 10 / rounds > printed {
            printed = round * 10 / rounds;
            let target = number("target");
            output::log_line(&format!("{label}: round {round}/{rounds}, which waits for {target} answers"));
        }
    }));
    drop(runtime);
    // The journal of an interrupted run is kept as well.
    let arrivals = scratch.path().join(journal::FILE);
    let journal_path = match &options.out {
        Some(out) => {
            let directory = out.join(labels::directory_name(label));
            make_directory(&directory)?;
            let journal_path = directory.join(journal::FILE);
            let copied = std::fs::copy(&arrivals, &journal_path);
            copied.map_err(|error| CommandError::Failed(format!("{}: {error}", journal_path.display())))?;
            journal_path
        }
        None => arrivals,
    };
    let status = ended.map_err(|error| to_command_error(&error))?;
    let lines = journal::read(&journal_path).map_err(|error| CommandError::Failed(error.to_string()))?;
    let check = check_replay(scenario, &lines).map_err(|error| CommandError::Failed(error.to_string()))?;
    if let Some(difference) = check.replay.difference() {
        output::log_line(&format!("{label}: the simulator decides differently: {difference}"));
    }
    Ok(run(label, scenario, job.dataset.clients.len(), &check, status, options.target))
}

/// Collects the results of a run from the replay and the server's status.
fn run(
    label: &str,
    scenario: &Scenario,
    clients: usize,
    check: &ReplayCheck,
    server: Status,
    target: Option<f64>,
) -> Run {
    let timed = check.timed_rounds();
    let reached =
        |row: &&TimedRound| matches!((row.distance, target), (Some(d), Some(target)) if d <= target);
    Run {
        scenario: label.to_owned(),
        seed: scenario.seed,
        clients,
        rounds: timed.last().map_or(0, |last| last.round),
        seconds: timed.last().map_or(0.0, |last| last.after.as_secs_f64()),
        target_seconds: timed.iter().find(reached).map(|timed_round| timed_round.after.as_secs_f64()),
        figures: check.outcome.as_ref().map(|outcome| Figures::new(&outcome.scores)).unwrap_or_default(),
        replay: if check.replay.difference().is_none() { EQUAL } else { DIFFERENT },
        server,
        curve: timed
            .iter()
            .map(|timed_round| CurvePoint {
                round: timed_round.round,
                seconds: timed_round.after.as_secs_f64(),
                distance: timed_round.distance,
            })
            .collect(),
    }
}

/// Table with one column for each scenario.
fn live_table(runs: &[Run], options: &LiveOptions) -> Table {
    let seconds = |seconds: f64| format!("{seconds:.2}");
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut row = |name: &str, cell: &dyn Fn(&Run) -> String| {
        rows.push([name.to_owned()].into_iter().chain(runs.iter().map(cell)).collect());
    };
    row("devices", &|run| run.clients.to_string());
    row("rounds", &|run| run.rounds.to_string());
    row("seconds", &|run| seconds(run.seconds));
    if let Some(target) = options.target {
        row(&format!("seconds to {target}"), &|run| run.target_seconds.map_or("-".to_owned(), seconds));
        let first = runs.first().and_then(|run| run.target_seconds);
        row("times the first's", &|run| match (run.target_seconds, first) {
            (Some(seconds_of_run), Some(first)) if first > 0.0 => format!("{:.2}", seconds_of_run / first),
            _ => "-".to_owned(),
        });
    }
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in runs.iter().flat_map(|run| run.figures.iter()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    for name in names {
        row(name, &|run| run.figures.get(name).map_or("-".to_owned(), |value| figure(name, value)));
    }
    row("answers counted", &|run| run.server.updates.counted.to_string());
    row("answers late", &|run| run.server.updates.late.to_string());
    row("answers rejected", &|run| run.server.updates.rejected().to_string());
    row("answers declined", &|run| run.server.updates.declined.to_string());
    row("connections lost", &|run| {
        let lost = run.server.connections;
        (lost.idle + lost.slow + lost.flood + lost.congested).to_string()
    });
    row("decided again", &|run| run.replay.to_owned());
    let columns = ["figure".to_owned()].into_iter().chain(runs.iter().map(|run| run.scenario.clone()));
    Table {
        title: format!("real time, {} ms a mean computation", options.unit_ms),
        columns: columns.collect(),
        rows,
        notes: Vec::new(),
    }
}

/// Converts an error of preparing the data into the error of a command.
fn data_error(scenario: &Scenario, error: &RunError) -> CommandError {
    CommandError::Usage(format!("{}: {error}", scenario.name))
}

/// Converts an error into the error of a command, which determines the exit code.
fn to_command_error(error: &LiveError) -> CommandError {
    match error {
        LiveError::Scenario(_) | LiveError::AttackNotAllowed(_) => CommandError::Usage(error.to_string()),
        error => CommandError::Failed(error.to_string()),
    }
}
