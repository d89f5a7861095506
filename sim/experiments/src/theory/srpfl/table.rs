//! Tables of the theoretical predictions for SRPFL.

use super::{CONTRACTIONS, Part, Settings, part};
use fedspan_sim_core::report::table::Table;

/// Formats a time: two decimals below 100, no decimals otherwise.
fn format_time(value: f64) -> String {
    if value < 100.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}

/// Creates the table of one communication cost.
#[must_use]
pub fn cost_table(settings: &Settings, part: &Part) -> Table {
    let columns = ["N/n0", "log2", "full", "optimal", "full/optimal", "theorem", "full/theorem"];
    let mut rows: Vec<Vec<String>> = part
        .cells
        .iter()
        .map(|cell| {
            vec![
                cell.ratio.to_string(),
                cell.ratio.ilog2().to_string(),
                format_time(cell.full),
                format_time(cell.optimal),
                format!("{:.2}", cell.full_over_optimal),
                format_time(cell.theorem),
                format!("{:.2}", cell.full_over_theorem),
            ]
        })
        .collect();
    let (optimal, theorem) = (part.optimal_trend, part.theorem_trend);
    let dash = || "-".to_owned();
    let trend = |name: &str, format: fn(&super::Trend) -> String| {
        vec![name.to_owned(), dash(), dash(), dash(), format(&optimal), dash(), format(&theorem)]
    };
    rows.push(trend("slope", |trend| format!("{:.3}", trend.slope)));
    rows.push(trend("at N = n0", |trend| format!("{:.2}", trend.intercept)));
    rows.push(trend("R^2", |trend| format!("{:.3}", trend.r_squared)));
    Table {
        title: format!(
            "Communication {}: expected time to {} times the floor, from {} (n0 = {}, a = {})",
            part.communication, settings.factor, settings.start, settings.first, settings.contraction
        ),
        columns: columns.map(str::to_owned).to_vec(),
        rows,
        notes: Vec::new(),
    }
}

/// Creates the table of the dependence on the contraction: for each contraction, the ratios of the largest
/// fleet and the increase of `full / optimal` for each doubling of the fleet.
#[must_use]
pub fn by_contraction(settings: &Settings) -> Table {
    let mut columns = vec!["a".to_owned()];
    for communication in &settings.communication {
        columns.extend([format!("C = {communication}: largest"), "slope".to_owned(), "theorem".to_owned()]);
    }
    let row = |contraction: f64| {
        let settings = Settings { contraction, ..settings.clone() };
        let mut row = vec![format!("{contraction}")];
        for &communication in &settings.communication {
            let part = part(&settings, communication);
            let Some(largest) = part.cells.last() else { continue };
            row.push(format!("{:.2}", largest.full_over_optimal));
            row.push(format!("{:.3}", part.optimal_trend.slope));
            row.push(format!("{:.2}", largest.full_over_theorem));
        }
        row
    };
    Table {
        title: "By the contraction a: full/optimal for the largest fleet, its slope, full/theorem".to_owned(),
        columns,
        rows: CONTRACTIONS.into_iter().map(row).collect(),
        notes: vec![
            "Times are expectations for exponential computations of mean 1 (order statistics), plus C a round. The slope \
             is what each doubling of N/n0 adds to the ratio. The theorem's stages do not know C, and begin as if \
             the start were far away."
                .to_owned(),
        ],
    }
}
