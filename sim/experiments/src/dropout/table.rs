//! Markdown tables of the results of the dropout measurement.

use super::{Measured, Row, mean, ratio};

/// Header of each table.
const HEAD: &str = "| dropout | rounds with all answers | answers a round | extensions a round | time a round | accuracy | \
                    those least there: in rounds | their accuracy | newcomers |\n\
                    | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";

/// Formats one table for each policy, with one row for each pattern and rate. A cell shows the mean over the
/// runs. Cells of accuracies also show, in brackets, the mean change from the runs without dropouts and the
/// standard error of this change.
#[must_use]
pub fn markdown(rows: &[Row]) -> String {
    let mut text = String::new();
    let mut policy = "";
    for row in rows {
        if row.policy != policy {
            policy = row.policy;
            let separator = if text.is_empty() { "" } else { "\n" };
            text.push_str(&format!("{separator}Rounds wait for {policy}:\n\n{HEAD}"));
        }
        text.push_str(&table_row(row));
    }
    text
}

/// Formats one row of a table.
fn table_row(row: &Row) -> String {
    let sum = |value: fn(&Measured) -> usize| row.runs.iter().map(value).sum::<usize>();
    let mean_over_runs = |value: fn(&Measured) -> f64| mean(row.runs.iter().map(value));
    let (rounds, answers) = (sum(|run| run.rounds), sum(|run| run.answers));
    let extensions: u64 = row.runs.iter().map(|run| run.again).sum();
    let extensions = format!("{:.3}", ratio(usize::try_from(extensions).unwrap_or(usize::MAX), rounds));
    let changed = |value: fn(&Measured) -> f64, change: fn(&Measured) -> f64| {
        let changes: Vec<f64> = row.runs.iter().map(change).collect();
        let formatted = format!("{:.3}", mean_over_runs(value));
        if row.rate > 0.0 {
            format!("{formatted} ({:+.3} ± {:.3})", mean_over_runs(change), standard_error(&changes))
        } else {
            formatted
        }
    };
    let dropout =
        if row.rate > 0.0 { format!("{} %, {}", percent(row.rate), row.pattern) } else { "none".to_owned() };
    let complete = percentage(ratio(sum(|run| run.complete), rounds));
    let participation = percentage(mean_over_runs(|run| run.absent_there));
    format!(
        "| {dropout} | {complete} | {:.1} of {} | {extensions} | {:.2} | {} | {participation} | {} | {} |\n",
        ratio(answers, rounds),
        row.wanted,
        mean(row.runs.iter().map(|run| run.time / ratio(run.rounds, 1))),
        changed(|run| run.accuracy, |run| run.change),
        changed(|run| run.absent_accuracy, |run| run.absent_change),
        changed(|run| run.newcomers, |run| run.newcomers_change),
    )
}

/// Standard error of a mean; 0 for fewer than two values.
fn standard_error(values: &[f64]) -> f64 {
    let count = ratio(values.len(), 1);
    if values.len() < 2 {
        return 0.0;
    }
    let middle = mean(values.iter().copied());
    let square: f64 = values.iter().map(|value| (value - middle) * (value - middle)).sum();
    (square / (count - 1.0) / count).sqrt()
}

/// Formats a fraction in percent with one decimal.
fn percentage(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}

/// Converts a fraction to percent with two decimals.
fn percent(part: f64) -> f64 {
    (part * 1e4).round() / 100.0
}
