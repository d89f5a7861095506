//! Command `run`: runs a scenario with one or several seeds. Command `compare` uses the same functions to run
//! several scenarios, with progress display, result files and interruption by Ctrl-C.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

use fedspan_engine::config::Init;
use fedspan_engine::privacy::shown;
use serde::Serialize;

use super::progress::{Position, Progress};
use super::result_directory::{check_out, make_out, protect_inputs, refuse_results};
use super::{CommandError, Format, RunOptions, expect, interrupt, load, output, use_threads};
use fedspan_sim_core::report::clients::ClientFigures;
use fedspan_sim_core::report::files::{self, make_directory, remove_run, write_json, write_run, write_text};
use fedspan_sim_core::report::html::Page;
use fedspan_sim_core::report::plot::{Axis, Point, Series, curve};
use fedspan_sim_core::report::results::results;
use fedspan_sim_core::report::summary::{SeedsSummary, Spread, Summary, short_name};
use fedspan_sim_core::report::table::{Table, bytes, figure};
use fedspan_sim_core::run::{Diverged, Job, RunError};
use fedspan_sim_core::scenario::Scenario;

/// Largest number of clients that a report lists.
const CLIENTS_SHOWN: usize = 1000;

/// Scenario to run, with its label and result directory.
pub struct Entry {
    /// Label of the scenario, which is unique among the entries.
    pub label: String,
    /// Scenario to run.
    pub scenario: Scenario,
    /// Changes of the scenario by which the entries differ.
    pub settings: BTreeMap<String, String>,
    /// Directory for the result files; `None` if no files are written.
    pub directory: Option<PathBuf>,
}

/// All finished runs of one scenario.
pub struct Runs {
    /// Summary of each seed.
    pub summaries: Vec<Summary>,
    /// Curve of each seed.
    pub curves: Vec<Vec<Point>>,
    /// Results of the clients, all seeds together.
    pub client_figures: ClientFigures,
    /// Summary over the seeds; `None` for a single seed.
    pub over_seeds: Option<SeedsSummary>,
    /// Lines of `clients.csv`, if the runs are those of a single seed and the clients have names.
    clients: Option<String>,
    /// Round, entry and seed of the first diverged run.
    diverged: Option<String>,
    /// Number of runs that failed and have no result.
    pub failed: usize,
    /// Error message of the first failed run.
    pub failure: Option<String>,
    /// Numbers of features and outputs of the data; `None` if no run has begun.
    pub shape: Option<(usize, usize)>,
}

/// Results of all entries that were started before the end or Ctrl-C.
pub struct Executed {
    /// Runs of each entry that was started.
    pub runs: Vec<Runs>,
    /// Round, entry and seed at which Ctrl-C interrupted the command.
    pub interrupted: Option<String>,
    /// Round, entry and seed of the first diverged run.
    pub diverged: Option<String>,
    /// Error message of the first failed run, if the other runs were continued.
    pub failure: Option<String>,
}

/// Runs command `run`.
pub fn command(name: &str, options: &RunOptions) -> Result<(), CommandError> {
    let scenario = load::scenario(name, &options.changes)?;
    if scenario.model.init == Init::Moments && scenario.is_federated() {
        output::log_line(
            "note: init = \"moments\" sends matrices that can equal a client's records: for simulation only",
        );
    }
    if let Some(out) = &options.out {
        refuse_results(out, options.overwrite)?;
    }
    let settings = load::settings(&options.changes);
    let entry = Entry { label: short_name(name), scenario, settings, directory: options.out.clone() };
    let executed =
        execute(&check(std::slice::from_ref(&entry), entry.directory.as_deref(), options)?, options)?;
    let Some(runs) = executed.runs.first() else { return Ok(()) };
    if let Some(directory) = &entry.directory
        && runs.summaries.len() > 1
    {
        write_text(&directory.join("report.html"), &report_page(&entry, runs).html())?;
    }
    match options.format {
        Format::Json => {
            output::print(
                &files::json(&runs.written()).map_err(|error| CommandError::Failed(error.to_string()))?,
            )?;
        }
        format => output::print(&format.shown(&results_table(&entry, runs)))?,
    }
    if options.format != Format::Json
        && let Some(directory) = &entry.directory
    {
        output::log_line(&format!("results: {}", directory.join("report.html").display()));
    }
    let verdicts = expect::verify(std::slice::from_ref(&entry), &executed, options.junit.as_deref())?;
    let missed = show_verdicts(verdicts.as_ref(), options.format)?;
    end(&executed, entry.directory.as_deref())?;
    missed
}

/// Prints the table of the expectations, on standard error if standard output is JSON. The inner result is the error that
/// ends the command if an expectation is missed.
///
/// # Errors
/// [`CommandError::Failed`] if standard output cannot be written.
pub fn show_verdicts(
    verdicts: Option<&(Table, usize)>,
    format: Format,
) -> Result<Result<(), CommandError>, CommandError> {
    let Some((table, missed)) = verdicts else { return Ok(Ok(())) };
    match format {
        Format::Json => output::log_line(table.text().trim_end()),
        format => output::print(&format!("\n{}", format.shown(table)))?,
    }
    let count =
        if *missed == 1 { "1 expectation is".to_owned() } else { format!("{missed} expectations are") };
    Ok(if *missed == 0 { Ok(()) } else { Err(CommandError::Missed(format!("{count} missed"))) })
}

/// Maps an interruption, divergence or failure to the error that ends the command.
///
/// # Errors
/// [`CommandError::Failed`] in each of these cases.
pub fn end(executed: &Executed, directory: Option<&Path>) -> Result<(), CommandError> {
    let Executed { interrupted, diverged, failure, .. } = executed;
    let reason = match (interrupted, diverged, failure) {
        (Some(position), ..) => format!("interrupted {position}"),
        (None, Some(position), _) => format!("diverged {position}"),
        (None, None, Some(failure)) => failure.clone(),
        (None, None, None) => return Ok(()),
    };
    let results = match directory {
        Some(directory) => format!("finished results are in {}", directory.display()),
        None => "finished results are shown above".to_owned(),
    };
    Err(CommandError::Failed(format!("{reason}; {results}")))
}

/// Content of the `summary.json` of one scenario.
#[derive(Serialize)]
#[serde(untagged)]
pub enum Written<'a> {
    /// Summary of a single run.
    One(&'a Summary),
    /// Summary over several seeds.
    Seeds(&'a SeedsSummary),
}

impl Runs {
    /// Creates an empty list of runs.
    fn none() -> Self {
        let (summaries, curves, client_figures) = (Vec::new(), Vec::new(), ClientFigures::default());
        Self {
            summaries,
            curves,
            client_figures,
            over_seeds: None,
            clients: None,
            diverged: None,
            failed: 0,
            failure: None,
            shape: None,
        }
    }

    /// Records a run that failed and has no result.
    fn fail(&mut self, entry: &Entry, seed: u64, message: String) {
        output::log_line(&format!("{} seed {seed}: {message}", entry.label));
        self.failed += 1;
        self.failure.get_or_insert(message);
    }

    /// Content of `summary.json`, or `None` if no run was finished.
    pub fn written(&self) -> Option<Written<'_>> {
        let single = self.summaries.first().map(Written::One);
        self.over_seeds.as_ref().map(Written::Seeds).or(single)
    }
}

/// Entry whose scenario has been checked against its data.
pub struct Checked<'a> {
    entry: &'a Entry,
    /// Reason why the scenario does not fit its data; `None` if it does.
    unfit: Option<String>,
}

/// First seed of an entry.
fn first_seed(entry: &Entry, options: &RunOptions) -> u64 {
    options.seed.unwrap_or(entry.scenario.seed)
}

/// Checks every scenario against its data, before any file is written or removed. Of several scenarios, one that does not
/// fit does not end the others. `root` is the directory of the command's own results.
///
/// # Errors
/// [`CommandError::Usage`] if no scenario fits, a result directory is a file, or a result would replace a file that a
/// scenario reads.
pub fn check<'a>(
    entries: &'a [Entry],
    root: Option<&Path>,
    options: &RunOptions,
) -> Result<Vec<Checked<'a>>, CommandError> {
    use_threads(options.threads)?;
    for directory in entries.iter().filter_map(|entry| entry.directory.as_deref()) {
        check_out(directory)?;
    }
    let directories: Vec<&Path> =
        root.into_iter().chain(entries.iter().filter_map(|entry| entry.directory.as_deref())).collect();
    let check = |entry: &'a Entry| {
        // A single scenario is read only if there may be results to replace: its run reads it again.
        if entries.len() == 1 && directories.iter().all(|directory| !directory.exists()) {
            return Ok(Checked { entry, unfit: None });
        }
        match Job::prepare(&entry.scenario, first_seed(entry, options)) {
            Ok(job) => {
                protect_inputs(&entry.scenario, &job.dataset, &directories)?;
                Ok(Checked { entry, unfit: None })
            }
            Err(error) if entries.len() == 1 => Err(to_command_error(entry, &error)),
            Err(error) => Ok(Checked { entry, unfit: Some(format!("{}: {error}", entry.scenario.name)) }),
        }
    };
    let checked: Vec<Checked<'a>> = entries.iter().map(check).collect::<Result<_, CommandError>>()?;
    for Checked { entry, unfit } in &checked {
        if let Some(message) = unfit {
            if checked.iter().all(|checked| checked.unfit.is_some()) {
                return Err(CommandError::Usage(message.clone()));
            }
            output::log_line(&format!("{} is left out: {message}", entry.label));
        }
    }
    Ok(checked)
}

/// Runs all entries with all seeds and writes the files of each run as soon as it is finished.
pub fn execute(checked: &[Checked<'_>], options: &RunOptions) -> Result<Executed, CommandError> {
    let flag = interrupt::watch();
    let mut executed = Executed { runs: Vec::new(), interrupted: None, diverged: None, failure: None };
    let seeds_of_each = options.seeds.map_or(1, |seeds| seeds as usize);
    let fit = checked.iter().filter(|checked| checked.unfit.is_none()).count();
    let (mut number, total, began) = (0, fit * seeds_of_each, Instant::now());
    for Checked { entry, unfit } in checked {
        let mut runs = Runs::none();
        let first = first_seed(entry, options);
        let seeds = if unfit.is_some() { 0 } else { options.seeds.unwrap_or(1) };
        if unfit.is_some() {
            runs.failed = seeds_of_each;
            runs.failure.clone_from(unfit);
        }
        for seed in (0..u64::from(seeds)).map(|index| first.saturating_add(index)) {
            if flag.load(Ordering::Relaxed) {
                let position = format!("before seed {seed} of {}", entry.label);
                executed.interrupted.get_or_insert(position);
                break;
            }
            let several = options.seeds.is_some_and(|seeds| seeds > 1);
            number += 1;
            let position = Position { number, total, began };
            let set = RunSet { several, compared: checked.len() > 1, position, quiet: options.quiet };
            run_seed(entry, seed, set, &flag, &mut runs)?;
            if let Some(last) = runs.summaries.last().filter(|summary| summary.interrupted) {
                let position = format!("after round {} of {}, seed {seed}", last.rounds, entry.label);
                executed.interrupted = Some(position);
            }
        }
        if let Some(directory) = entry.directory.as_ref().filter(|_| !runs.summaries.is_empty()) {
            let summaries: Vec<&Summary> = runs.summaries.iter().collect();
            write_text(&directory.join("results.csv"), &results(&summaries))?;
        }
        if options.seeds.is_some_and(|seeds| seeds > 1) {
            runs.over_seeds = SeedsSummary::new(&runs.summaries, executed.interrupted.is_some());
            if let (Some(over_seeds), Some(directory)) = (&runs.over_seeds, &entry.directory) {
                write_json(&directory.join("summary.json"), over_seeds)?;
            }
        }
        executed.diverged = executed.diverged.take().or(runs.diverged.clone());
        executed.failure = executed.failure.take().or(runs.failure.clone());
        executed.runs.push(runs);
        if executed.interrupted.is_some() {
            break;
        }
    }
    Ok(executed)
}

/// Properties of the set of runs to which a run belongs.
#[derive(Clone, Copy)]
struct RunSet {
    /// True if there are several seeds.
    several: bool,
    /// True if there are several scenarios; a failed run then does not end the command.
    compared: bool,
    position: Position,
    /// True if no progress is shown.
    quiet: bool,
}

/// Runs one seed and adds its results to `runs`.
fn run_seed(
    entry: &Entry,
    seed: u64,
    RunSet { several, compared, position, quiet }: RunSet,
    flag: &std::sync::Arc<std::sync::atomic::AtomicBool>,
    runs: &mut Runs,
) -> Result<(), CommandError> {
    let began = Instant::now();
    let is_first = runs.summaries.is_empty() && runs.failed == 0;
    // A later seed may draw a split that the data do not allow, which is no reason to lose the other seeds.
    let job = match Job::prepare(&entry.scenario, seed).map_err(|error| to_command_error(entry, &error)) {
        Err(CommandError::Failed(message) | CommandError::Usage(message)) if compared || !is_first => {
            runs.fail(entry, seed, message);
            return Ok(());
        }
        job => job?,
    };
    runs.shape = Some((job.dataset.features, job.dataset.outputs));
    let directory = match (&entry.directory, several) {
        (Some(directory), true) => Some(directory.join(format!("seed-{seed}"))),
        (directory, _) => directory.clone(),
    };
    if let Some(root) = &entry.directory
        && runs.summaries.is_empty()
    {
        make_out(root)?;
        remove_run(root)?;
    }
    if let Some(directory) = &directory {
        make_directory(directory)?;
    }
    let mut progress = Progress::new(
        if several { format!("{} seed {seed}", entry.label) } else { entry.label.clone() },
        entry.scenario.algorithm.rounds,
        position,
        quiet,
        flag,
    );
    let outcome = job.run(&mut progress);
    progress.finish();
    let outcome = match outcome.map_err(|error| to_command_error(entry, &error)) {
        Err(CommandError::Failed(message) | CommandError::Usage(message)) if compared || !is_first => {
            runs.fail(entry, seed, message);
            return Ok(());
        }
        outcome => outcome?,
    };
    if let Some(step_size) = outcome.step_size.filter(|_| !quiet) {
        output::log_line(&format!("{} seed {seed}: step_size = {step_size:.6e}, measured", entry.label));
    }
    for warning in &outcome.warnings {
        output::log_line(&format!("warning: {}: {warning}", entry.scenario.name));
    }
    let wall = began.elapsed().as_secs_f64();
    let summary = Summary::new(&entry.scenario, seed, job.dataset.clients.len(), &outcome, wall);
    let (label, settings) = (entry.label.clone(), entry.settings.clone());
    let summary = Summary { revision: option_env!("FEDSPAN_REVISION"), label, settings, ..summary };
    let rate = summary.timing.updates_per_s.map_or(String::new(), |r| format!(", {r:.0} updates/s"));
    if !quiet {
        let found: String =
            summary.figures.iter().map(|(name, value)| format!(", {name} {}", figure(name, value))).collect();
        let position = position.text(true);
        let position = if position.is_empty() { position } else { format!(" ({position})") };
        output::log_line(&format!(
            "{} seed {seed}: {} rounds in {wall:.2} s{rate}{found}{position}",
            entry.label, summary.rounds
        ));
    }
    if let Some(Diverged { client, round }) = outcome.diverged {
        let position = format!("in round {round} of {}, seed {seed}", entry.label);
        output::log_line(&format!(
            "{position}: the loss of client {client} is not finite any more, so training ended; a smaller step size may help"
        ));
        runs.diverged.get_or_insert(position);
    }
    let points = curve(&outcome);
    let client_figures = ClientFigures::of(&outcome);
    if let Some(directory) = &directory {
        write_run(directory, &entry.scenario.resolved(seed), &summary, &outcome)?;
        let single = Runs {
            summaries: vec![summary.clone()],
            curves: vec![points.clone()],
            client_figures: client_figures.clone(),
            clients: Some(files::clients(&outcome)).filter(|_| !outcome.names.clients.is_empty()),
            ..Runs::none()
        };
        write_text(&directory.join("report.html"), &report_page(entry, &single).html())?;
    }
    runs.summaries.push(summary);
    runs.curves.push(points);
    runs.client_figures.add(client_figures);
    Ok(())
}

/// Converts the error of a run into the error of a command, which determines the exit code.
fn to_command_error(entry: &Entry, error: &RunError) -> CommandError {
    let message = format!("{}: {error}", entry.scenario.name);
    match error {
        RunError::Data(_) | RunError::Mismatch(_) | RunError::Build(_) | RunError::Custom(_) => {
            CommandError::Usage(message)
        }
        RunError::Failed(_) | RunError::Refused { .. } | RunError::NotFinite { .. } | RunError::Silent => {
            CommandError::Failed(message)
        }
    }
}

/// Report page of one scenario.
fn report_page(entry: &Entry, runs: &Runs) -> Page {
    let algorithm = entry.scenario.algorithm_name();
    let mut texts = vec![("Scenario".to_owned(), entry.scenario.text.clone())];
    let classes = runs.summaries.first().map(|summary| summary.classes.as_slice()).unwrap_or_default();
    if !classes.is_empty() {
        let lines = classes.iter().enumerate().map(|(class, name)| format!("{class} {name}\n"));
        texts.push(("Classes".to_owned(), lines.collect()));
    }
    if let Some(clients) = &runs.clients {
        let line_count = clients.lines().count();
        let mut text: String = clients.split_inclusive('\n').take(CLIENTS_SHOWN + 1).collect();
        if line_count > CLIENTS_SHOWN + 1 {
            text.push_str(&format!("and {} more lines in clients.csv\n", line_count - CLIENTS_SHOWN - 1));
        }
        texts.push(("Clients".to_owned(), text));
    }
    let seeds = if runs.summaries.len() > 1 { ", all seeds together" } else { "" };
    Page {
        title: format!("{} · {algorithm}", entry.label),
        tables: vec![results_table(entry, runs)],
        curves: vec![(String::new(), vec![Series::of(&entry.label, &entry.scenario, runs.curves.clone())])],
        axes: Axis::order([&entry.scenario]),
        figures: vec![
            (format!("Accuracy over clients{seeds}"), runs.client_figures.histograms("", 1.0)),
            (format!("Confusion matrix of the test samples{seeds}"), runs.client_figures.matrices()),
        ],
        texts,
        ..Page::default()
    }
}

/// Metrics of a run in the order of the table, each with its name, value and formatted value.
pub fn lines(summary: &Summary) -> Vec<(&'static str, f64, String)> {
    #[allow(clippy::cast_precision_loss, reason = "for reading")]
    let number = |name, value: u64| (name, value as f64, value.to_string());
    #[allow(clippy::cast_precision_loss, reason = "for reading")]
    let size = |name, value: u64| (name, value as f64, bytes(value as f64));
    let mut lines: Vec<(&'static str, f64, String)> =
        summary.figures.iter().map(|(name, value)| (name, value, figure(name, value))).collect();
    lines.push(number("rounds", summary.rounds.into()));
    if summary.updates > 0 {
        let time = summary.time.simulated;
        lines.push(("simulated time", time, format!("{time:.2}")));
        lines.push(number("updates", summary.updates));
        lines.push(size("bytes up", summary.bytes.up));
        lines.push(size("bytes down", summary.bytes.down));
        if let Some(bytes_per_update) = summary.bytes.per_update {
            lines.push(("bytes per update", bytes_per_update, bytes(bytes_per_update)));
        }
    }
    if let Some(privacy) = &summary.privacy {
        lines.push(("epsilon", privacy.epsilon, shown(privacy.epsilon)));
        lines.push(("delta", privacy.delta, format!("{:e}", privacy.delta)));
    }
    if summary.rejected > 0 {
        lines.push(number("rejected", summary.rejected));
    }
    lines
}

/// Formats the value of the metric `name` in the same way as [`lines`].
pub fn show(name: &str, value: f64) -> String {
    match name {
        "rounds" | "updates" | "rejected" => format!("{value:.0}"),
        "simulated time" => format!("{value:.2}"),
        "epsilon" => shown(value),
        "delta" => format!("{value:e}"),
        name if name.starts_with("bytes") => bytes(value),
        name => figure(name, value),
    }
}

/// Spread of the metric `name` over the runs, or `None` if one of the runs does not have this metric.
pub fn spread(runs: &[&Summary], name: &str) -> Option<Spread> {
    let value = |run: &&Summary| lines(run).into_iter().find(|line| line.0 == name).map(|line| line.1);
    let values: Option<Vec<f64>> = runs.iter().map(value).collect();
    values.and_then(|values| Spread::new(&values))
}

/// Table of one scenario: the metrics of a single run, or quartiles over several seeds.
fn results_table(entry: &Entry, runs: &Runs) -> Table {
    let algorithm = entry.scenario.algorithm_name();
    let Some(first) = runs.summaries.first() else { return Table::default() };
    if runs.summaries.len() == 1 {
        return Table {
            title: format!("{}, {algorithm}, seed {}, {}", entry.label, first.seed, describe_clients(first)),
            columns: vec!["figure".to_owned(), "value".to_owned()],
            rows: lines(first).into_iter().map(|(name, _, text)| vec![name.to_owned(), text]).collect(),
            notes: Vec::new(),
        };
    }
    let completed: Vec<&Summary> = runs.summaries.iter().filter(|summary| !summary.interrupted).collect();
    let rows = lines(first).into_iter().filter_map(|(name, _, _)| {
        let spread = spread(&completed, name)?;
        let cells = [spread.median, spread.q25, spread.q75].map(|value| show(name, value));
        Some([name.to_owned()].into_iter().chain(cells).collect())
    });
    Table {
        title: format!(
            "{}, {algorithm}, {} seeds, {}",
            entry.label,
            completed.len(),
            describe_clients(first)
        ),
        columns: ["figure", "median", "q25", "q75"].map(str::to_owned).to_vec(),
        rows: rows.collect(),
        notes: Vec::new(),
    }
}

/// Text with the number of clients and, if the data set counts them, of omitted users.
fn describe_clients(summary: &Summary) -> String {
    match summary.users_left_out {
        Some(users) => format!("{} clients, {users} users left out", summary.clients),
        None => format!("{} clients", summary.clients),
    }
}
