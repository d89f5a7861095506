//! Tables and report page of the runs of one scenario.

use fedspan_engine::privacy::shown;

use super::runs::{Entry, Runs};
use fedspan_sim_core::report::html::Page;
use fedspan_sim_core::report::plot::{Axis, Series};
use fedspan_sim_core::report::summary::{Spread, Summary};
use fedspan_sim_core::report::table::{Table, bytes, figure};

/// Largest number of clients that a report lists.
const CLIENTS_SHOWN: usize = 1000;

/// Report page of one scenario.
pub fn report_page(entry: &Entry, runs: &Runs) -> Page {
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
pub fn results_table(entry: &Entry, runs: &Runs) -> Table {
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
        let sd = spread.sd.map_or("-".to_owned(), |sd| show(name, sd));
        let [mean, median, q25, q75] =
            [spread.mean, spread.median, spread.q25, spread.q75].map(|value| show(name, value));
        let cells = [mean, sd, median, q25, q75];
        Some([name.to_owned()].into_iter().chain(cells).collect())
    });
    Table {
        title: format!(
            "{}, {algorithm}, {} seeds, {}",
            entry.label,
            completed.len(),
            describe_clients(first)
        ),
        columns: ["figure", "mean", "sd", "median", "q25", "q75"].map(str::to_owned).to_vec(),
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
