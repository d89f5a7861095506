//! Command `grid`: runs all combinations of settings, and chooses the best on validation data.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use fedspan_experiments::grid::{Axis, Cell, Choice, Grid, LARGEST, METRICS, Outcome, Row, as_good, rows};
use fedspan_experiments::survey::{Survey, SurveyError};
use fedspan_sim_core::data::file::DataFile;
use fedspan_sim_core::report::files::{json, write_json, write_text};
use fedspan_sim_core::report::summary::{Spread, short_name};
use fedspan_sim_core::report::table::{Table, figure};
use fedspan_sim_core::scenario::Scenario;

use super::load::{settings, split_values};
use super::result_directory::{check_out, make_out, refuse_results};
use super::{CommandError, Format, interrupt, load, output, progress, use_threads};

/// Largest number of combinations that the table lists.
const LISTED: usize = 20;
/// File with the runs that compare the combinations.
const GRID_FILE: &str = "grid.jsonl";
/// File with the runs of the chosen combination.
const CHOSEN_FILE: &str = "chosen.jsonl";

/// Arguments of command `grid`.
#[derive(Debug, Args)]
pub struct GridOptions {
    /// Built-in scenario (see `list`) or TOML file
    #[arg(value_name = "NAME|FILE.toml")]
    scenario: String,
    /// Try each of these values of a key, with each value of the other keys; may be given several times
    #[arg(long, value_name = "KEY=VALUE,...", required = true)]
    over: Vec<String>,
    /// Metric by which the best is chosen [default: accuracy, test_mse or distance, whichever the data have]
    #[arg(long, value_name = "NAME", value_parser = METRICS.map(|(name, _)| name))]
    metric: Option<String>,
    /// Fraction of each client's training samples on which combinations are compared
    #[arg(long, value_name = "FRACTION", default_value_t = 0.25)]
    validation: f64,
    /// Change a key of the scenario for all combinations
    #[arg(long = "set", value_name = "KEY=VALUE")]
    changes: Vec<String>,
    /// First seed [default: the scenario's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: Option<u64>,
    /// Number of consecutive seeds of each combination
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    seeds: u32,
    /// Number of runs at a time, which does not affect the results [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    parallel: Option<u16>,
    /// Directory for the results; the same command continues in it [default: the name of the scenario and -grid]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Show no progress; errors are still shown
    #[arg(long, short)]
    quiet: bool,
    /// Format of standard output: tables as text or as Markdown, or the text of summary.json
    #[arg(long, value_enum, default_value_t = Format::Human)]
    format: Format,
}

/// Content of `summary.json`.
#[derive(Serialize)]
struct GridSummary<'a> {
    version: &'static str,
    /// Name of the scenario, without its folder.
    label: String,
    grid: &'a Grid,
    /// Sentence about the data and the metric by which the best was chosen.
    chosen_by: String,
    /// Settings of the best combination; empty if no combination finished.
    chosen: BTreeMap<String, String>,
    /// Figures of the chosen combination on test data.
    #[serde(rename = "final", skip_serializing_if = "BTreeMap::is_empty")]
    figures: BTreeMap<String, Spread>,
    combinations: &'a [Row],
}

/// Runs the command.
pub fn command(options: &GridOptions) -> Result<(), CommandError> {
    let grid = grid(options)?;
    let default_out = || PathBuf::from(format!("{}-grid", short_name(&options.scenario)));
    let out = options.out.clone().unwrap_or_else(default_out);
    check_out(&out)?;
    let cells = grid.cells();
    // A grid continues in its own directory only.
    if !out.join(GRID_FILE).exists() {
        refuse_results(&out, false)?;
    }
    make_out(&out)?;
    use_threads(options.parallel)?;
    let outcomes = measure(&out.join(GRID_FILE), &grid, &cells, ("grid", options.quiet))?;
    let rows = rows(&grid, &cells, &outcomes);
    let finished = outcomes.iter().flatten().count();
    if finished < cells.len() {
        return Err(CommandError::Failed(format!(
            "interrupted: {finished} of {} runs are finished; the same command continues",
            cells.len()
        )));
    }
    write_text(&out.join("results.csv"), &results(&grid, &cells, &outcomes))?;
    let best = rows.first().filter(|row| row.failure.is_none() && row.metric.is_some());
    let mut final_failures: Vec<String> = Vec::new();
    let (figures, chosen) = match best {
        Some(best) => {
            let final_cells = grid.final_cells(best.combination);
            let scored = measure(
                &out.join(CHOSEN_FILE),
                &(&grid, best.combination),
                &final_cells,
                ("chosen", options.quiet),
            )?;
            if scored.iter().any(Option::is_none) {
                return Err(CommandError::Failed("interrupted; the same command continues".to_owned()));
            }
            for (cell, outcome) in final_cells.iter().zip(&scored) {
                if let Some(Outcome::Failed(reason)) = outcome {
                    final_failures.push(format!("seed {}: failed: {reason}", cell.seed));
                }
            }
            (
                spreads(&scored),
                settings(&grid.changes(&best.values.iter().map(String::as_str).collect::<Vec<_>>())),
            )
        }
        None => (BTreeMap::new(), BTreeMap::new()),
    };
    let chosen_by = chosen_by(&grid);
    let summary = GridSummary {
        version: env!("CARGO_PKG_VERSION"),
        label: short_name(&options.scenario),
        grid: &grid,
        chosen_by,
        chosen,
        figures,
        combinations: &rows,
    };
    write_json(&out.join("summary.json"), &summary)?;
    match options.format {
        Format::Json => {
            output::print(&json(&summary).map_err(|error| CommandError::Failed(error.to_string()))?)?;
        }
        format => {
            let mut text = format.shown(&combinations_table(&grid, &rows, &summary.chosen_by));
            if best.is_some() {
                text += "\n";
                text += &format.shown(&chosen_table(&grid, &summary, final_failures.clone()));
            }
            output::print(&text)?;
        }
    }
    if !options.quiet {
        output::log_line(&format!("results: {}", out.display()));
    }
    if !final_failures.is_empty() {
        let message = format!(
            "{} runs of the chosen combination failed on test data; the table says why",
            final_failures.len()
        );
        return Err(CommandError::Failed(message));
    }
    match rows.iter().find_map(|row| row.failure.as_ref()) {
        Some(_) if best.is_none() => {
            Err(CommandError::Failed("no combination has finished; the table says why".to_owned()))
        }
        Some(_) => Err(CommandError::Failed("some combinations failed; the table says why".to_owned())),
        None => Ok(()),
    }
}

/// Reads the options.
fn grid(options: &GridOptions) -> Result<Grid, CommandError> {
    let scenario = load::scenario(&options.scenario, &options.changes)?;
    if !(0.0 < options.validation && options.validation <= 0.9) {
        let message =
            format!("--validation: found {}, allowed: a number above 0, to 0.9", options.validation);
        return Err(CommandError::Usage(message));
    }
    let axes: Vec<Axis> = options.over.iter().map(|text| axis(text)).collect::<Result<_, _>>()?;
    for (index, axis) in axes.iter().enumerate() {
        if axes.iter().take(index).any(|earlier| earlier.key == axis.key) {
            return Err(CommandError::Usage(format!(
                "--over {}: given twice; list all values of a key once",
                axis.key
            )));
        }
        if axis.key == "split.fold" {
            let message = "--over split.fold: a fold is no setting, the best one would be chosen by luck; set one fold, or compare with \
                           --over split.fold";
            return Err(CommandError::Usage(message.to_owned()));
        }
        if axis.key == "split.validation" || axis.key == "seed" {
            let message = format!(
                "--over {}: the grid sets this key itself; use --validation, or --seed and --seeds",
                axis.key
            );
            return Err(CommandError::Usage(message));
        }
    }
    let combinations = axes.iter().fold(1_usize, |product, axis| product.saturating_mul(axis.values.len()));
    if combinations > LARGEST {
        return Err(CommandError::Usage(format!(
            "--over: found {combinations} combinations, allowed: at most {LARGEST}"
        )));
    }
    let validation = format!("split.validation={}", options.validation);
    let has_split =
        Scenario::parse(&scenario.name, &scenario.text, std::slice::from_ref(&validation)).is_ok();
    let dataset = scenario.dataset(options.seed.unwrap_or(scenario.seed));
    let dataset = dataset.map_err(|error| CommandError::Usage(format!("{}: {error}", scenario.name)))?;
    let metric = options.metric.clone().unwrap_or_else(|| {
        let is_tested = dataset.clients.iter().any(|client| !client.test.is_empty());
        let default = match (dataset.classification, is_tested, dataset.truth.is_some()) {
            (true, true, _) => "accuracy",
            (_, _, true) => "distance",
            (false, true, false) => "test_mse",
            _ => "loss",
        };
        default.to_owned()
    });
    let mut files = dataset.files;
    if axes.iter().any(|axis| axis.key.starts_with("data.")) {
        files = combined_files(&scenario, &axes, files)?;
    }
    Ok(Grid {
        text: scenario.text.clone(),
        data: files,
        program: format!(
            "{} {}",
            env!("CARGO_PKG_VERSION"),
            option_env!("FEDSPAN_REVISION").unwrap_or_default()
        ),
        axes,
        choice: if has_split { Choice::Validation(options.validation) } else { Choice::OtherSeeds },
        metric,
        seed: options.seed.unwrap_or(scenario.seed),
        seeds: options.seeds,
        scenario: scenario.name,
    })
}

/// Files of the data of all combinations, each once; combinations that are not possible have none.
fn combined_files(
    scenario: &Scenario,
    axes: &[Axis],
    base: Vec<DataFile>,
) -> Result<Vec<DataFile>, CommandError> {
    let mut files = base;
    for axis in axes.iter().filter(|axis| axis.key.starts_with("data.")) {
        for value in &axis.values {
            let change = format!("{}={value}", axis.key);
            let parsed = Scenario::parse(&scenario.name, &scenario.text, &[change]);
            let Ok(dataset) =
                parsed.map_err(|_| ()).and_then(|scenario| scenario.dataset(scenario.seed).map_err(|_| ()))
            else {
                continue;
            };
            files.extend(dataset.files);
        }
    }
    files.sort_by(|a, b| a.file.cmp(&b.file));
    files.dedup();
    Ok(files)
}

/// Splits `KEY=VALUE,VALUE,...`.
fn axis(text: &str) -> Result<Axis, CommandError> {
    let usage_error = || CommandError::Usage(format!("--over: found {text:?}, allowed: KEY=VALUE,VALUE,..."));
    let (key, values) = text.split_once('=').ok_or_else(usage_error)?;
    let values = split_values(values);
    if key.trim().is_empty() || values.iter().any(String::is_empty) {
        return Err(usage_error());
    }
    Ok(Axis { key: key.trim().to_owned(), values })
}

/// Runs the cells that are not finished.
fn measure(
    file: &Path,
    description: &impl Serialize,
    cells: &[Cell],
    (name, quiet): (&str, bool),
) -> Result<Vec<Option<Outcome>>, CommandError> {
    let to_command_error = |error: SurveyError| match error {
        SurveyError::Other { .. } | SurveyError::Line { .. } | SurveyError::Locked(_) => {
            CommandError::Usage(error.to_string())
        }
        _ => CommandError::Failed(error.to_string()),
    };
    let mut survey = Survey::open(file, description, cells).map_err(to_command_error)?;
    let (finished, all) = (survey.finished(), cells.len());
    if finished < all {
        if !quiet {
            output::log_line(&format!(
                "{name}: {all} runs, {finished} of them finished; Ctrl-C ends it, and the same command continues"
            ));
        }
        let stop = interrupt::watch();
        let progress = progress::PartsProgress::new(name, quiet);
        let measured = survey.measure(rayon::current_num_threads(), &stop, &progress);
        progress.finish();
        measured.map_err(to_command_error)?;
    }
    Ok(survey.outcomes().to_vec())
}

/// Sentence about the choice.
fn chosen_by(grid: &Grid) -> String {
    let Grid { metric, seeds, .. } = grid;
    let runs = if *seeds == 1 { "one seed".to_owned() } else { format!("the mean over {seeds} seeds") };
    match grid.choice {
        Choice::Validation(fraction) => format!(
            "chosen by {metric}, {runs}, on validation parts of {} % of each client's training samples; no test sample was used",
            fraction * 100.0
        ),
        Choice::OtherSeeds => {
            format!("chosen by {metric}, {runs}; the final score is on data of other seeds")
        }
    }
}

/// Spread of each figure over the runs that have it.
fn spreads(outcomes: &[Option<Outcome>]) -> BTreeMap<String, Spread> {
    let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for outcome in outcomes.iter().flatten() {
        if let Outcome::Figures(figures) = outcome {
            for (name, value) in figures {
                values.entry(name.clone()).or_default().push(*value);
            }
        }
    }
    values.into_iter().filter_map(|(name, values)| Some((name, Spread::new(&values)?))).collect()
}

/// Mean and standard deviation as text.
fn shown(name: &str, spread: &Spread) -> String {
    let sd = spread.sd.map_or(String::new(), |sd| format!(" +- {}", figure(name, sd)));
    figure(name, spread.mean) + &sd
}

/// Table of the combinations, the best first.
fn combinations_table(grid: &Grid, rows: &[Row], chosen_by: &str) -> Table {
    let keys = grid.axes.iter().map(|axis| axis.key.clone());
    let cell = |row: &Row| row.metric.as_ref().map_or("-".to_owned(), |spread| shown(&grid.metric, spread));
    let line = |row: &Row| row.values.iter().cloned().chain([cell(row), row.finished.to_string()]).collect();
    let mut notes = vec![chosen_by.to_owned()];
    let near = as_good(rows);
    if near > 1 {
        notes.push(format!(
            "{near} combinations, the first one included, are within one standard error of it"
        ));
    }
    notes.extend(rows.first().into_iter().flat_map(|best| at_the_edge(grid, best)));
    if rows.len() > LISTED {
        notes.push(format!("{} more combinations are in results.csv", rows.len() - LISTED));
    }
    for row in rows.iter().filter(|row| row.failure.is_some()) {
        let values: Vec<&str> = row.values.iter().map(String::as_str).collect();
        let reason = row.failure.as_deref().unwrap_or_default();
        notes.push(format!("{}: failed: {reason}", grid.changes(&values).join(" ")));
    }
    Table {
        title: format!(
            "{}: {} combinations, mean +- standard deviation",
            short_name(&grid.scenario),
            rows.len()
        ),
        columns: keys.chain([grid.metric.clone(), "runs".to_owned()]).collect(),
        rows: rows.iter().take(LISTED).map(line).collect(),
        notes,
    }
}

/// Notes on numbers of the best combination that are the smallest or the largest of those tried.
fn at_the_edge(grid: &Grid, best: &Row) -> Vec<String> {
    let note = |(axis, value): (&Axis, &String)| {
        let tried: Vec<f64> = axis.values.iter().map(|value| value.parse().ok()).collect::<Option<_>>()?;
        let chosen: f64 = value.parse().ok()?;
        let is_least = tried.iter().all(|other| chosen <= *other);
        let is_largest = tried.iter().all(|other| chosen >= *other);
        let (edge, further) = match (is_least, is_largest) {
            (true, false) => ("smallest", "smaller"),
            (false, true) => ("largest", "larger"),
            _ => return None,
        };
        Some(format!(
            "{}: the best value, {value}, is the {edge} of those tried; try {further} ones too",
            axis.key
        ))
    };
    grid.axes.iter().zip(&best.values).filter_map(note).collect()
}

/// Table of the chosen combination on test data.
fn chosen_table(grid: &Grid, summary: &GridSummary<'_>, notes: Vec<String>) -> Table {
    let settings: Vec<String> = summary.chosen.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let on = match grid.choice {
        Choice::Validation(_) => "test parts",
        Choice::OtherSeeds => "data of other seeds",
    };
    Table {
        title: format!("chosen: {}, on {on}", settings.join(" ")),
        columns: vec!["figure".to_owned(), "mean +- standard deviation".to_owned()],
        rows: summary.figures.iter().map(|(name, spread)| vec![name.clone(), shown(name, spread)]).collect(),
        notes,
    }
}

/// Text of `results.csv`: a line for each run that compares the combinations.
fn results(grid: &Grid, cells: &[Cell], outcomes: &[Option<Outcome>]) -> String {
    let figures: BTreeMap<String, Spread> = spreads(outcomes);
    let mut writer = csv::Writer::from_writer(Vec::new());
    let header = grid.axes.iter().map(|axis| axis.key.as_str()).chain(["seed"]);
    let header = header.chain(figures.keys().map(String::as_str)).chain(["failure"]);
    // Writing to memory does not fail.
    let _ = writer.write_record(header);
    let combinations = grid.combinations();
    for (cell, outcome) in cells.iter().zip(outcomes) {
        let values = combinations.get(cell.combination).cloned().unwrap_or_default();
        let (found, failure) = match outcome {
            Some(Outcome::Figures(found)) => (found.clone(), String::new()),
            Some(Outcome::Failed(reason)) => (BTreeMap::new(), reason.clone()),
            None => continue,
        };
        let figure = |name: &String| found.get(name).map_or(String::new(), f64::to_string);
        let line = values.into_iter().map(str::to_owned).chain([cell.seed.to_string()]);
        let _ = writer.write_record(line.chain(figures.keys().map(figure)).chain([failure]));
    }
    writer.into_inner().ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
}
