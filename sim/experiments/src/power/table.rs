//! Markdown table of the results of the FedPower measurement.

use super::{Quartiles, Row};

/// Formats one row for each setting: the noise, the median distance after each exchange, and the median and
/// quartiles after the last exchange.
#[must_use]
pub fn markdown(rows: &[Row]) -> String {
    let column_count = rows.iter().map(|row| row.at.len()).max().unwrap_or(0);
    let numbers: String = (1..=column_count).map(|number| format!(" {number} |")).collect();
    let rules = " --- |".repeat(column_count + 2);
    let mut text = format!("| setting | noise |{numbers} at the end (quartiles) |\n| --- |{rules}\n");
    for row in rows {
        let noise = row.noise.map_or("-".to_owned(), |noise| format!("{noise:.2}"));
        let medians: String = (1..=column_count)
            .map(|number| match row.at.get(number - 1) {
                Some(_) => format!(" {} |", format_number(row.after(number).median)),
                None => " |".to_owned(),
            })
            .collect();
        let Quartiles { q25, median, q75 } = row.last();
        let last = format!("{} ({} to {})", format_number(median), format_number(q25), format_number(q75));
        text.push_str(&format!("| {} | {noise} |{medians} {last} |\n", row.name));
    }
    text
}

fn format_number(value: f64) -> String {
    if value.abs() >= 1e-3 { format!("{value:.4}") } else { format!("{value:.1e}") }
}
