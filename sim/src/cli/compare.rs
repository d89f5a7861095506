//! `compare`: several scenarios side by side.

use std::path::PathBuf;

use serde::Serialize;

use super::execute::{Entry, Executed, Runs, Written, end, execute, lines, show};
use super::{Format, RunOptions, Stop, load, methods, output};
use crate::report::files::{json, write_json, write_text};
use crate::report::html::Page;
use crate::report::plot::Series;
use crate::report::summary::{Spread, Summary, short_name};
use crate::report::table::Table;

/// Where the report goes if `--out` does not say.
const DEFAULT_OUT: &str = "fedspan-compare";

/// `fedspan-sim compare`.
pub fn command(words: &[String], algorithms: &[String], options: &RunOptions) -> Result<(), Stop> {
    let out = options.out.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_OUT));
    super::check_out(&out)?;
    let mut entries: Vec<Entry> = Vec::new();
    let words = methods::expand(words, algorithms, &options.changes)?;
    for word in &words {
        let (name, own) = (word.name.clone(), word.changes.clone());
        let changes: Vec<String> = options.changes.iter().cloned().chain(own.iter().cloned()).collect();
        let scenario = load::scenario(&name, &changes)?;
        let label = distinct(
            |label| entries.iter().any(|entry| file_name(&entry.label) == file_name(label)),
            label(&name, &own),
        );
        let directory = Some(out.join(file_name(&label)));
        entries.push(Entry { label, scenario, directory });
    }
    let executed = execute(&entries, options)?;
    let table = match methods::table(&words, &entries, &executed) {
        Some(table) => table,
        None => table(&entries, &executed),
    };
    let report = out.join("report.html");
    let together = Together::of(&executed);
    write_json(&out.join("summary.json"), &together)?;
    write_text(&report, &page(&entries, &executed, table.clone()).html())?;
    match options.format {
        Format::Json => {
            output::print(&json(&together).map_err(|error| Stop::Failed(error.to_string()))?)?;
        }
        Format::Human => {
            output::print(&table.text())?;
            output::say(&format!("report: {}", report.display()));
        }
    }
    end(&executed, Some(&out))
}

/// A scenario's short name with the changes that make it different: the last part of a key says enough.
pub fn label(name: &str, own: &[String]) -> String {
    let short = |change: &String| {
        let (key, value) = change.split_once('=').unwrap_or((change, ""));
        format!(" {}={value}", key.rsplit('.').next().unwrap_or(key))
    };
    short_name(name) + &own.iter().map(short).collect::<String>()
}

/// A label that is not taken.
pub fn distinct(taken: impl Fn(&str) -> bool, label: String) -> String {
    if !taken(&label) {
        return label;
    }
    (2u32..).map(|n| format!("{label} ({n})")).find(|label| !taken(label)).unwrap_or(label)
}

/// A label as the name of a directory.
pub fn file_name(label: &str) -> String {
    let keep = |c: char| if c.is_alphanumeric() || "-_.=".contains(c) { c } else { '-' };
    label.chars().map(keep).collect()
}

/// `summary.json` of a comparison: those of its runs, in order.
#[derive(Serialize)]
struct Together<'a> {
    runs: Vec<Written<'a>>,
}

impl<'a> Together<'a> {
    fn of(executed: &'a Executed) -> Self {
        Self { runs: executed.runs.iter().filter_map(Runs::written).collect() }
    }
}

/// The spread of what a table calls `name` over runs that all have it.
pub fn spread(runs: &[&Summary], name: &str) -> Option<Spread> {
    let value = |run: &&Summary| lines(run).into_iter().find(|line| line.0 == name).map(|line| line.1);
    let values: Option<Vec<f64>> = runs.iter().map(value).collect();
    values.and_then(|values| Spread::of(&values))
}

fn table(entries: &[Entry], executed: &Executed) -> Table {
    let done: Vec<(&Entry, Vec<&Summary>)> = entries
        .iter()
        .zip(&executed.runs)
        .map(|(entry, runs)| (entry, runs.summaries.iter().filter(|s| !s.interrupted).collect()))
        .collect();
    let mut names: Vec<&'static str> = Vec::new();
    for summary in done.iter().flat_map(|(_, summaries)| summaries) {
        for (name, _, _) in lines(summary) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    let seeds = done.iter().map(|(_, summaries)| summaries.len()).max().unwrap_or(0);
    let mut rows = vec![
        ["algorithm".to_owned()]
            .into_iter()
            .chain(done.iter().map(|(entry, _)| entry.scenario.algorithm_word().to_owned()))
            .collect::<Vec<_>>(),
    ];
    // Figures first, whatever order the runs brought them in.
    names.sort_by_key(|name| name.starts_with("bytes") || ["rounds", "updates"].contains(name));
    for name in names {
        let cell = |summaries: &Vec<&Summary>| match spread(summaries, name) {
            None => "-".to_owned(),
            Some(one) if seeds < 2 || one.q25 == one.q75 => show(name, one.median),
            Some(s) => format!("{} [{}, {}]", show(name, s.median), show(name, s.q25), show(name, s.q75)),
        };
        let cells = done.iter().map(|(_, summaries)| cell(summaries));
        rows.push([name.to_owned()].into_iter().chain(cells).collect());
    }
    let columns = ["figure".to_owned()].into_iter().chain(done.iter().map(|(entry, _)| entry.label.clone()));
    let title = match seeds {
        0 | 1 => String::new(),
        seeds => format!("median [lower, upper quartile] over {seeds} seeds"),
    };
    Table { title, columns: columns.collect(), rows, notes: Vec::new() }
}

fn page(entries: &[Entry], executed: &Executed, table: Table) -> Page {
    let begun = || entries.iter().zip(&executed.runs);
    let labels: Vec<&str> = begun().map(|(entry, _)| entry.label.as_str()).collect();
    Page {
        title: labels.join(" · "),
        tables: vec![table],
        curves: vec![(
            String::new(),
            begun()
                .map(|(entry, runs)| Series { label: entry.label.clone(), runs: runs.curves.clone() })
                .collect(),
        )],
        texts: begun()
            .map(|(entry, _)| (format!("Scenario: {}", entry.label), entry.scenario.text.clone()))
            .collect(),
        ..Page::default()
    }
}
