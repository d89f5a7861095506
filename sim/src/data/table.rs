//! CSV files: a user's own recordings, one row a sample, with a header.

use std::collections::BTreeMap;

use super::{Client, DataError, Dataset, Labels, Layout, Set};

/// Largest file that is read.
pub const LARGEST_FILE: u64 = 1 << 30;

/// Which columns mean what.
#[derive(Clone, Debug, PartialEq)]
pub struct Columns {
    /// Names the client a row belongs to.
    pub client: String,
    /// The target. Where `classification`, its distinct words (in sorted order) are the classes.
    pub target: String,
    /// The features, in this order; a constant 1 is added at the end.
    pub features: Vec<String>,
    /// Targets are classes.
    pub classification: bool,
}

/// One sample.
struct Row {
    x: Vec<f64>,
    /// The target as a number, for regression.
    value: f64,
    /// The target as it stands in the file.
    word: String,
}

/// Parses a file. Rows keep their order within a client; clients are sorted by name, and so are the names that
/// come with them. All samples are in `train`; splitting is the scenario's.
///
/// # Errors
/// [`DataError`] naming the file, the line and the column.
pub fn parse(bytes: &[u8], path: &str, columns: &Columns) -> Result<(Dataset, Vec<String>), DataError> {
    let wrong = |message: String| DataError::new(path, message);
    let mut reader = csv::Reader::from_reader(bytes);
    let header = reader.headers().map_err(|error| wrong(error.to_string()))?.clone();
    let find = |name: &str| {
        header.iter().position(|column| column == name).ok_or_else(|| {
            let known: Vec<&str> = header.iter().collect();
            wrong(format!("no column {name:?}, there are: {}", known.join(", ")))
        })
    };
    let client_at = find(&columns.client)?;
    let target_at = find(&columns.target)?;
    let features_at = columns.features.iter().map(|name| find(name)).collect::<Result<Vec<_>, _>>()?;
    let mut rows: BTreeMap<String, Vec<Row>> = BTreeMap::new();
    for record in reader.records() {
        let record = record.map_err(|error| wrong(error.to_string()))?;
        let line = record.position().map_or(0, csv::Position::line);
        let text = |at: usize| record.get(at).unwrap_or_default().trim();
        let number = |at: usize, name: &str, hint: &str| {
            let value = text(at).parse::<f64>().ok().filter(|value| narrow(*value).is_finite());
            value.ok_or_else(|| {
                let found = text(at);
                wrong(format!("line {line}, column {name}: found {found:?}, expected a finite number{hint}"))
            })
        };
        let mut x = Vec::with_capacity(features_at.len() + 1);
        for (&at, name) in features_at.iter().zip(&columns.features) {
            x.push(number(at, name, "")?);
        }
        x.push(1.0);
        let hint = " (class names, words or numbers, are for task = \"classes\")";
        let value = if columns.classification { 0.0 } else { number(target_at, &columns.target, hint)? };
        let row = Row { x, value, word: text(target_at).to_owned() };
        rows.entry(text(client_at).to_owned()).or_default().push(row);
    }
    if rows.is_empty() {
        return Err(wrong("no rows after the header".to_owned()));
    }
    let mut classes: Vec<&str> = rows.values().flatten().map(|row| row.word.as_str()).collect();
    classes.sort_unstable();
    classes.dedup();
    if columns.classification && classes.len() > 256 {
        return Err(wrong(format!("column {} has {} classes, at most 256", columns.target, classes.len())));
    }
    let mut clients = Vec::new();
    for samples in rows.values() {
        let wide: Vec<f64> = samples.iter().flat_map(|row| row.x.iter().copied()).collect();
        let x = wide.iter().map(|value| narrow(*value)).collect();
        let mut wide_y = None;
        let y = if columns.classification {
            let number = |row: &Row| {
                classes.binary_search(&row.word.as_str()).ok().and_then(|class| u8::try_from(class).ok())
            };
            Labels::Classes(samples.iter().map(|row| number(row).unwrap_or(0)).collect())
        } else {
            wide_y = Some(samples.iter().map(|row| row.value).collect());
            Labels::values(samples.iter().map(|row| narrow(row.value)).collect())
        };
        let set = Set { x, y, wide: Some(wide), wide_y };
        clients.push(Client::new(set, Set::empty(columns.classification)));
    }
    let dataset = Dataset {
        features: columns.features.len() + 1,
        outputs: if columns.classification { classes.len() } else { 1 },
        classification: columns.classification,
        clients,
        truth: None,
        layout: Layout { shape: None, constant: true },
        ..Dataset::default()
    };
    Ok((dataset, rows.into_keys().collect()))
}

#[allow(clippy::cast_possible_truncation, reason = "devices hold f32")]
fn narrow(value: f64) -> f32 {
    value as f32
}
