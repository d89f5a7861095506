//! Markdown table of the results of the Byzantine measurement.

use super::{Cell, Row};

/// Formats the results with one row for each attack and fraction and one column for each aggregation rule. A
/// cell shows the median of the final distances and, in brackets, the largest. The last column shows the
/// number of rejected updates and the number of updates that attackers replaced, over all rules.
#[must_use]
pub fn markdown(rows: &[Row]) -> String {
    let rules = rows.first().map_or(&[][..], |row| &row.cells);
    let names: String = rules.iter().map(|cell| format!(" {} |", cell.rule)).collect();
    let mut text =
        format!("| attack | part |{names} rejected |\n| --- | --- |{} --- |\n", " --- |".repeat(rules.len()));
    for row in rows {
        let cells: String = row.cells.iter().map(|cell| format!(" {} |", show(cell))).collect();
        let attacks: u64 = row.cells.iter().map(|cell| cell.attacks).sum();
        let rejected: u64 = row.cells.iter().map(|cell| cell.rejected).sum();
        let rejected = match (attacks, rejected) {
            (_, 0) => "0".to_owned(),
            (attacks, rejected) => format!("{rejected} of {attacks}"),
        };
        let part = if row.fraction > 0.0 { format!("{} %", percent(row.fraction)) } else { "-".to_owned() };
        text.push_str(&format!("| {} | {part} |{cells} {rejected} |\n", row.attack));
    }
    text
}

/// Formats the median and, in brackets, the largest distance of a cell.
fn show(cell: &Cell) -> String {
    format!("{} ({})", figure(cell.median()), figure(cell.worst()))
}

fn figure(value: f64) -> String {
    format!("{value:.4}")
}

/// Converts a fraction to percent with two decimals.
fn percent(fraction: f64) -> f64 {
    (fraction * 1e4).round() / 100.0
}
