//! Command `compare`: runs several scenarios and shows their results side by side.

use std::collections::BTreeSet;

use clap::Args;
use serde::Serialize;

use super::execute::{check, end, execute, show_verdicts};
use super::labels::{directory_name, distinct, label};
use super::result_directory::{check_out, free_out, refuse_results, remove_summaries};
use super::run_tables::{lines, show, spread};
use super::runs::{Entry, Executed, Runs, Written};
use super::time_to_accuracy::{TimeToAccuracy, TimeToAccuracyOptions};
use super::{
    CommandError, Format, RunOptions, compare_algorithms, compare_differences, expect, load, output,
};
use fedspan_sim_core::report::files::{json, write_json, write_text};
use fedspan_sim_core::report::html::Page;
use fedspan_sim_core::report::plot::{Axis, Series};
use fedspan_sim_core::report::results::results;
use fedspan_sim_core::report::summary::Summary;
use fedspan_sim_core::report::table::Table;

/// Default directory of the report.
const DEFAULT_OUT: &str = "fedspan-compare";

/// Options of command `compare`.
#[derive(Debug, Args)]
pub struct CompareOptions {
    /// Built-in scenarios or TOML files, each with its own changes
    #[arg(value_name = "NAME|FILE.toml[,KEY=VALUE]...", num_args = 1.., required = true)]
    scenarios: Vec<String>,
    /// Run each scenario with these algorithms (see `list --algorithms`), or with all that support its model
    /// and data
    #[arg(long, value_name = "all|NAME,...", value_delimiter = ',')]
    algorithms: Vec<String>,
    /// Run each algorithm once for each of these values of a key; tables show the spread over values and
    /// seeds
    #[arg(long, value_name = "KEY=VALUE,...", requires = "algorithms")]
    over: Option<String>,
    /// Show the differences to this algorithm on the same clients, with 95 % intervals over the values of
    /// --over, or over seeds
    #[arg(long, value_name = "NAME", requires = "algorithms")]
    against: Option<String>,
    #[command(flatten)]
    time_to_accuracy: TimeToAccuracyOptions,
}

/// Runs command `compare`: prints the tables and writes the report.
pub fn command(compare: &CompareOptions, options: &RunOptions) -> Result<(), CommandError> {
    let out = options.out.clone().unwrap_or_else(|| free_out(DEFAULT_OUT));
    check_out(&out)?;
    if !options.resumes {
        refuse_results(&out, options.overwrite)?;
    }
    let mut entries: Vec<Entry> = Vec::new();
    let over_changes = compare_algorithms::parse_over(compare.over.as_deref())?;
    let mut comparison =
        compare_algorithms::expand(&compare.scenarios, &compare.algorithms, &over_changes, &options.changes)?;
    let mut left_out: Vec<String> = Vec::new();
    for variant in std::mem::take(&mut comparison.variants) {
        let (name, own_changes) = (variant.name.clone(), variant.changes.clone());
        let network = variant.network.map(str::to_owned);
        let changes: Vec<String> =
            options.changes.iter().chain(&own_changes).cloned().chain(network).collect();
        let label = distinct(
            |label| entries.iter().any(|entry| directory_name(&entry.label) == directory_name(label)),
            label(&name, &own_changes),
        );
        let scenario = match load::scenario(&name, &changes) {
            // The scenario itself could be read, but not with this algorithm.
            Err(CommandError::Usage(reason)) if variant.has_algorithm() => {
                output::log_line(&format!("{label} is left out: {reason}"));
                left_out.push(format!("{label}: left out: {reason}"));
                continue;
            }
            scenario => scenario?,
        };
        comparison.variants.push(variant);
        let directory = Some(out.join(directory_name(&label)));
        let settings = load::settings(&own_changes);
        entries.push(Entry { label, scenario, settings, directory });
    }
    compare_differences::check(&comparison, compare.against.as_deref())?;
    if let (true, Some(reason)) = (entries.is_empty(), left_out.first()) {
        return Err(CommandError::Usage(reason.clone()));
    }
    compare.time_to_accuracy.check(&entries)?;
    let checked = check(&entries, Some(&out), options)?;
    remove_summaries(&out)?;
    let mut executed = execute(&checked, Some(&out), options)?;
    executed.failure = left_out.first().cloned().or(executed.failure.take());
    comparison.notes.extend(left_out);
    let mut tables = compare_algorithms::tables(&comparison, &entries, &executed, compare.against.as_deref());
    if tables.is_empty() {
        tables.push(comparison_table(&entries, &executed));
    }
    let mut summary = ComparisonSummary::new(&executed);
    if compare.time_to_accuracy.is_requested() {
        summary.reached = compare.time_to_accuracy.times(&entries, &executed);
        tables.push(compare.time_to_accuracy.table(&summary.reached));
    }
    let report = out.join("report.html");
    write_json(&out.join("summary.json"), &summary)?;
    let runs: Vec<&Summary> = executed.runs.iter().flat_map(|runs| &runs.summaries).collect();
    write_text(&out.join("results.csv"), &results(&runs))?;
    let mut page = report_page(&entries, &executed, tables.clone());
    page.curves.extend(compare.time_to_accuracy.curves(&entries, &executed));
    write_text(&report, &page.html())?;
    match options.format {
        Format::Json => {
            output::print(&json(&summary).map_err(|error| CommandError::Failed(error.to_string()))?)?;
        }
        format => {
            let texts: Vec<String> = tables.iter().map(|table| format.shown(table)).collect();
            output::print(&texts.join(if format == Format::Markdown { "\n" } else { "" }))?;
            output::log_line(&format!("report: {}", report.display()));
        }
    }
    let verdicts = expect::verify(&entries, &executed, options.junit.as_deref())?;
    let missed = show_verdicts(verdicts.as_ref(), options.format)?;
    end(&executed, Some(&out))?;
    missed
}

/// Content of a comparison's `summary.json`: the summaries of the scenarios in order, and times to
/// accuracies.
#[derive(Serialize)]
struct ComparisonSummary<'a> {
    runs: Vec<Written<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reached: Vec<TimeToAccuracy>,
}

impl<'a> ComparisonSummary<'a> {
    fn new(executed: &'a Executed) -> Self {
        let runs = executed.runs.iter().filter_map(Runs::written).collect();
        Self { runs, reached: Vec::new() }
    }
}

/// Table with one column for each scenario and one row for each metric.
fn comparison_table(entries: &[Entry], executed: &Executed) -> Table {
    let finished_runs: Vec<(&Entry, Vec<&Summary>)> = entries
        .iter()
        .zip(&executed.runs)
        .map(|(entry, runs)| (entry, runs.summaries.iter().filter(|s| !s.interrupted).collect()))
        .collect();
    let mut names: Vec<&'static str> = Vec::new();
    for summary in finished_runs.iter().flat_map(|(_, summaries)| summaries) {
        for (name, _, _) in lines(summary) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    let seeds = finished_runs.iter().map(|(_, summaries)| summaries.len()).max().unwrap_or(0);
    let mut rows = vec![
        ["algorithm".to_owned()]
            .into_iter()
            .chain(finished_runs.iter().map(|(entry, _)| entry.scenario.algorithm_name().to_owned()))
            .collect::<Vec<_>>(),
    ];
    // Scores precede counts and bytes.
    names.sort_by_key(|name| name.starts_with("bytes") || ["rounds", "updates"].contains(name));
    for name in names {
        let cell = |summaries: &Vec<&Summary>| match spread(summaries, name) {
            None => "-".to_owned(),
            Some(s) if seeds < 2 || s.q25 == s.q75 => show(name, s.median),
            Some(s) => format!("{} [{}, {}]", show(name, s.median), show(name, s.q25), show(name, s.q75)),
        };
        let cells = finished_runs.iter().map(|(_, summaries)| cell(summaries));
        rows.push([name.to_owned()].into_iter().chain(cells).collect());
    }
    let columns =
        ["figure".to_owned()].into_iter().chain(finished_runs.iter().map(|(entry, _)| entry.label.clone()));
    let title = match seeds {
        0 | 1 => String::new(),
        seeds => format!("median [lower, upper quartile] over {seeds} seeds"),
    };
    let stopped = entries.iter().zip(&executed.runs).filter_map(|(entry, runs)| {
        let failure = runs.failure.as_ref()?;
        let seeds = if runs.failed == 1 { "1 seed" } else { &format!("{} seeds", runs.failed) };
        Some(format!("{}: {seeds} stopped: {failure}", entry.label))
    });
    let notes = stopped.collect();
    Table { title, columns: columns.collect(), rows, notes }
}

/// Title of a comparison: the numbers of scenarios and algorithms, and their names if there is one of them.
fn title(series: &[Series], algorithms: impl Iterator<Item = &'static str>) -> String {
    let families: BTreeSet<&str> = series.iter().map(|entry| entry.family.as_str()).collect();
    let algorithms: BTreeSet<&str> = algorithms.collect();
    let counted = |names: &BTreeSet<&str>, what: &str| match (names.len(), names.first()) {
        (1, Some(name)) => (*name).to_owned(),
        (count, _) => format!("{count} {what}"),
    };
    format!("Comparison: {}, {}", counted(&families, "scenarios"), counted(&algorithms, "algorithms"))
}

/// Report page with the curves and texts of all scenarios.
fn report_page(entries: &[Entry], executed: &Executed, tables: Vec<Table>) -> Page {
    let finished = || entries.iter().zip(&executed.runs);
    let series: Vec<Series> = finished()
        .map(|(entry, runs)| Series::of(&entry.label, &entry.scenario, runs.curves.clone()))
        .collect();
    let lowest = finished().map(|(_, runs)| runs.client_figures.lowest()).fold(1.0, f64::min);
    let histograms =
        finished().flat_map(|(entry, runs)| runs.client_figures.histograms(&entry.label, lowest)).collect();
    let several = finished().any(|(_, runs)| runs.summaries.len() > 1);
    let seeds = if several { ", all seeds together" } else { "" };
    Page {
        title: title(&series, finished().map(|(entry, _)| entry.scenario.algorithm_name())),
        tables,
        axes: Axis::order(finished().map(|(entry, _)| &entry.scenario)),
        curves: vec![(String::new(), series)],
        figures: vec![(format!("Accuracy over clients{seeds}"), histograms)],
        texts: finished()
            .map(|(entry, _)| (format!("Scenario: {}", entry.label), entry.scenario.text.clone()))
            .collect(),
        ..Page::default()
    }
}
