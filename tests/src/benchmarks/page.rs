//! Table of the recorded ratios, for `BENCHMARKS.md`.

use std::path::{Path, PathBuf};

use super::history::{NO_RIVAL, Row, newest};
use super::registry::FIGURES;
use super::report::significant;
use crate::tables::markdown::Table;
use crate::tables::page::{replace_table, slots};

/// Name of the table, for `tests/tables --print`.
pub const TABLE: &str = "benchmarks";

/// Returns the path of the page in the sources.
#[must_use]
pub fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("BENCHMARKS.md")
}

/// Returns the table of the newest rows of each figure, size, rival and processor, in the order of the figures.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let columns = [
        "figure",
        "sizes",
        "rival",
        "ratio",
        "interval",
        "pairs",
        "ours per second",
        "of the limit",
        "check",
        "measured",
    ];
    let mut latest: Vec<&Row> = rows.iter().filter(|row| newest(rows, row) == Some(row)).collect();
    let place =
        |row: &&Row| FIGURES.iter().position(|figure| figure.name == row.figure).unwrap_or(FIGURES.len());
    latest.sort_by_key(|row| (place(row), row.key()));
    let cells = |row: &Row| {
        let ratio = |value| if row.rival == NO_RIVAL { String::new() } else { significant(value) };
        let (low, high) = (ratio(row.low), ratio(row.high));
        let interval = if low.is_empty() { low } else { format!("{low} to {high}") };
        vec![
            format!("`{}`", row.figure),
            row.n.clone(),
            row.rival.clone(),
            ratio(row.ratio),
            interval,
            row.pairs.to_string(),
            format!("{} {}", significant(row.rate), row.unit),
            row.of_limit.map_or_else(String::new, |part| format!("{:.1} %", 100.0 * part)),
            row.check.clone(),
            format!("{} at {}, {}; {}", row.date, row.commit, row.processor, row.versions),
        ]
    };
    let rows = latest.into_iter().map(cells).collect();
    Table { columns: columns.map(str::to_owned).to_vec(), rows }.text()
}

/// Rewrites the table of the page.
///
/// # Errors
/// The name of the page, and what is wrong with its mark, or the operating system's error.
pub fn rewrite(page: &Path, rows: &[Row]) -> Result<(), String> {
    let fault = |error: String| format!("{}: {error}", page.display());
    let text = std::fs::read_to_string(page).map_err(|error| fault(error.to_string()))?;
    let mark = format!("tests/tables --print {TABLE}");
    let slot = slots(&text).map_err(fault)?.into_iter().find(|slot| slot.commands() == mark);
    let slot = slot.ok_or_else(|| fault(format!("found no table with the command {mark:?}")))?;
    let text = replace_table(&text, &slot, &table(rows), "");
    std::fs::write(page, text).map_err(|error| fault(error.to_string()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::{rewrite, table};
    use crate::benchmarks::history::{NO_RIVAL, Row, tests::row};

    #[test]
    fn table_has_the_newest_row_of_each_key() {
        let alone = Row {
            figure: "start".to_owned(),
            rival: NO_RIVAL.to_owned(),
            of_limit: None,
            ..row("2026-01-03", 4.0)
        };
        let rows = [row("2026-01-01", 1.5), row("2026-01-02", 1.25), alone];
        let text = table(&rows);
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(
            text.contains(
                "| numpy | 1.25 | 1.12 to 1.38 | 15 | 1500000 updates | 25.0 % | loss 0.25 | 2026-01-02 at 0123456+,"
            ),
            "{text}"
        );
        assert!(text.contains("| - | | | 15 | 1500000 updates | | loss 0.25 | 2026-01-03"), "{text}");
    }

    #[test]
    fn only_the_table_of_the_page_is_rewritten() {
        let directory = tempfile::tempdir().unwrap();
        let page = directory.path().join("PAGE.md");
        let text = "A\n<!-- table: tests/tables --print benchmarks -->\nold\n<!-- end of table -->\nB\n";
        std::fs::write(&page, text).unwrap();
        let rows = [row("2026-01-01", 1.5)];
        rewrite(&page, &rows).unwrap();
        assert_eq!(std::fs::read_to_string(&page).unwrap(), text.replace("old\n", &table(&rows)));
        std::fs::write(&page, "A\n").unwrap();
        assert!(rewrite(&page, &rows).unwrap_err().contains("found no table with the command"));
    }
}
