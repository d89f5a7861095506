//! Recorded ratios: a file in which each recording appends one line per figure and rival.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Rival of a figure without rivals; the ratio of such a row is in runs per second.
pub const NO_RIVAL: &str = "-";

/// One recorded comparison.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Date in UTC, as 2026-01-31.
    pub date: String,
    /// Commit of the measured sources, with `+` if they were changed.
    pub commit: String,
    /// Model of the processor.
    pub processor: String,
    /// Name of the figure.
    pub figure: String,
    /// Sizes of the work.
    pub n: String,
    /// Name of the rival, or [`NO_RIVAL`].
    pub rival: String,
    /// Number of pairs.
    pub pairs: usize,
    /// Median of the rival's time divided by ours; without a rival, of runs per second.
    pub ratio: f64,
    /// Lower end of the interval of the ratio.
    pub low: f64,
    /// Upper end of the interval of the ratio.
    pub high: f64,
    /// Median of our units of work per second.
    pub rate: f64,
    /// Name of the units of work.
    pub unit: String,
    /// Part of the physical limit that our fastest turn reached; empty if the figure has none.
    pub of_limit: Option<f64>,
    /// Check value of our side with its meaning: a loss, a distance, or the peak memory.
    pub check: String,
    /// Programs of both sides with their versions.
    pub versions: String,
}

/// Returns the path of the file in the sources.
#[must_use]
pub fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benchmarks/history.csv")
}

/// Reads all rows, oldest first. There are none if the file does not exist.
///
/// # Errors
/// The name of the file, with the line of a row that cannot be parsed, or the operating system's error.
pub fn read(path: &Path) -> Result<Vec<Row>, String> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    parse(&text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Parses the text of the file.
///
/// # Errors
/// The line of the first row that cannot be parsed, and the reason.
pub fn parse(text: &str) -> Result<Vec<Row>, String> {
    let rows = csv::Reader::from_reader(text.as_bytes()).into_deserialize().collect::<Result<Vec<Row>, _>>();
    let rows = rows.map_err(|error| error.to_string())?;
    match rows.iter().position(|row| !(row.ratio > 0.0 && row.low > 0.0 && row.high >= row.low)) {
        Some(index) => {
            let Row { ratio, low, high, .. } = &rows[index];
            let line = index + 2;
            Err(format!(
                "line {line}: found ratio {ratio} ({low} to {high}), allowed: positive numbers in order"
            ))
        }
        None => Ok(rows),
    }
}

/// Appends rows to the file, which is made with a line of headings if it does not exist.
///
/// # Errors
/// The name of the file, and the operating system's error.
pub fn append(path: &Path, rows: &[Row]) -> Result<(), String> {
    let fault = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let has_headings = path.exists();
    let file = OpenOptions::new().append(true).create(true).open(path).map_err(|error| fault(&error))?;
    let mut writer = csv::WriterBuilder::new().has_headers(!has_headings).from_writer(file);
    rows.iter().try_for_each(|row| writer.serialize(row)).map_err(|error| fault(&error))?;
    writer.flush().map_err(|error| fault(&error))
}

/// Returns the newest row with the same figure, sizes, rival and processor.
#[must_use]
pub fn newest<'a>(rows: &'a [Row], of: &Row) -> Option<&'a Row> {
    rows.iter().rev().find(|row| row.key() == of.key())
}

/// Rounds a number to five significant digits, as they are recorded.
#[must_use]
pub fn rounded(value: f64) -> f64 {
    format!("{value:.4e}").parse().unwrap_or(value)
}

impl Row {
    /// Values that comparable rows share.
    #[must_use]
    pub fn key(&self) -> [&str; 4] {
        [&self.figure, &self.n, &self.rival, &self.processor]
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]

    use super::{Row, append, newest, parse, read, rounded};

    /// Returns a row of one figure, with this date and ratio.
    pub fn row(date: &str, ratio: f64) -> Row {
        Row {
            date: date.to_owned(),
            commit: "0123456+".to_owned(),
            processor: "A \"fast\" one, 3 GHz".to_owned(),
            figure: "updates".to_owned(),
            n: "500 clients x 20".to_owned(),
            rival: "numpy".to_owned(),
            pairs: 15,
            ratio,
            low: 0.9 * ratio,
            high: 1.1 * ratio,
            rate: 1.5e6,
            unit: "updates".to_owned(),
            of_limit: Some(0.25),
            check: "loss 0.25".to_owned(),
            versions: "fedspan 0.1.0; numpy 2.4.6, OpenBLAS 0.3.31".to_owned(),
        }
    }

    #[test]
    fn appended_rows_are_read_and_the_newest_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history.csv");
        assert_eq!(read(&path).unwrap(), []);
        let other = Row { processor: "another".to_owned(), of_limit: None, ..row("2026-01-03", 9.0) };
        let rows = [row("2026-01-01", 1.5), row("2026-01-02", 1.25), other];
        append(&path, &rows[..1]).unwrap();
        append(&path, &rows[1..]).unwrap();
        let found = read(&path).unwrap();
        assert_eq!(found, rows);
        assert_eq!(newest(&found, &row("", 1.0)), Some(&rows[1]), "of the same processor");
        let short = Row { n: "5 clients x 20".to_owned(), ..row("", 1.0) };
        assert_eq!(newest(&found, &short), None, "other sizes are not comparable");
    }

    #[test]
    fn numbers_are_rounded_to_five_digits() {
        let values = [0.014_233_131_677, 725_485.777_929, 1.0, 0.0];
        assert_eq!(values.map(rounded), [0.014_233, 725_490.0, 1.0, 0.0]);
    }

    #[test]
    fn broken_row_is_reported_with_its_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history.csv");
        append(&path, &[row("2026-01-01", 1.5), row("2026-01-02", 1.25)]).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        for (from, to, message) in [
            (",1.25,", ",fast,", "line: 3"),
            (",1.25,", ",-1.25,", "line 3: found ratio -1.25"),
            (",1.25,", ",NaN,", "line 3: found ratio NaN"),
            (",1.25,", ",", "line: 3"),
            ("ratio", "speed", "line: 2"),
        ] {
            let error = parse(&text.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }
}
