//! Markdown table of the results of the speedup measurement.

use super::{Ratio, Row, Speedup};

impl Ratio {
    /// Formats the ratio with two decimals, preceded by `<` if the value is only an upper bound.
    fn text(self) -> String {
        format!("{}{:.2}", if self.below { "<" } else { "" }, self.value)
    }
}

/// Formats the ratio and its bounds; the ratio is in bold if `mark` is set.
fn format_cell(speedup: &Speedup, mark: bool) -> String {
    let Speedup { ratio, low, high, .. } = speedup;
    let bounds = format!("[{}, {}]", low.text(), high.text());
    let ratio = ratio.text();
    if mark { format!("**{ratio}** {bounds}") } else { format!("{ratio} {bounds}") }
}

/// Formats the table with aligned columns. If several schedules are not adaptive, the largest ratio among
/// these schedules is in bold.
#[must_use]
pub fn markdown(rows: &[Row]) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let mut columns: Vec<String> =
        ["clients", "speeds", "communication", "start", "full"].map(str::to_owned).to_vec();
    columns.extend(first.policies.iter().map(|policy| policy.name.clone()));
    let cells: Vec<Vec<String>> = rows.iter().map(table_row).collect();
    let width = |column: usize| {
        let column_cells = cells.iter().chain([&columns]).filter_map(|row| row.get(column));
        column_cells.map(|cell| cell.chars().count()).max().unwrap_or(0).max(3)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let join = |row: &[String]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!(" {cell:<width$} |"));
        format!("|{}\n", cells.collect::<String>())
    };
    let rules: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    [join(&columns), join(&rules)].into_iter().chain(cells.iter().map(|row| join(row))).collect()
}

/// Cells of one row of the table.
fn table_row(row: &Row) -> Vec<String> {
    let fixed = || row.policies.iter().filter(|policy| !policy.adaptive && !policy.speedup.ratio.below);
    let best = fixed().map(|policy| policy.speedup.ratio.value).fold(f64::NEG_INFINITY, f64::max);
    let several = row.policies.iter().filter(|policy| !policy.adaptive).count() > 1;
    let mut cells = vec![
        row.clients.to_string(),
        row.speed.to_owned(),
        format!("{}", row.communication),
        format!("{:.1}", row.start),
        format!("{:.1}", row.full),
    ];
    cells.extend(row.policies.iter().map(|policy| {
        let speedup = &policy.speedup;
        let mark = several && !policy.adaptive && !speedup.ratio.below && speedup.ratio.value >= best;
        format_cell(speedup, mark)
    }));
    cells
}
