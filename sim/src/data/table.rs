//! CSV files: a user's own recordings, one row a sample, with a header.

use std::collections::BTreeMap;

use super::{Client, DataError, Dataset, Labels, Set};

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

/// Reads a file. Rows keep their order within a client; clients are sorted by name. All samples are in
/// `train`; splitting is the scenario's.
///
/// # Errors
/// [`DataError`] naming the file, the line and the column.
pub fn read(path: &str, columns: &Columns) -> Result<Dataset, DataError> {
    let wrong = |message: String| DataError::new(path, message);
    let mut reader = csv::Reader::from_path(path).map_err(|error| wrong(error.to_string()))?;
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
    let mut rows: BTreeMap<String, Vec<(Vec<f32>, String)>> = BTreeMap::new();
    for record in reader.records() {
        let record = record.map_err(|error| wrong(error.to_string()))?;
        let line = record.position().map_or(0, csv::Position::line);
        let text = |at: usize| record.get(at).unwrap_or_default().trim();
        let mut x = Vec::with_capacity(features_at.len() + 1);
        for (&at, name) in features_at.iter().zip(&columns.features) {
            let value: f32 = text(at).parse().map_err(|_| {
                wrong(format!("line {line}, column {name}: found {:?}, expected a number", text(at)))
            })?;
            x.push(value);
        }
        x.push(1.0);
        rows.entry(text(client_at).to_owned()).or_default().push((x, text(target_at).to_owned()));
    }
    if rows.is_empty() {
        return Err(wrong("no rows after the header".to_owned()));
    }
    let mut classes: Vec<&str> = rows.values().flatten().map(|(_, y)| y.as_str()).collect();
    classes.sort_unstable();
    classes.dedup();
    if columns.classification && classes.len() > 256 {
        return Err(wrong(format!("column {} has {} classes, at most 256", columns.target, classes.len())));
    }
    let mut clients = Vec::new();
    for (name, samples) in &rows {
        let x = samples.iter().flat_map(|(x, _)| x.iter().copied()).collect();
        let y = if columns.classification {
            let number =
                |y: &String| classes.binary_search(&y.as_str()).ok().and_then(|c| u8::try_from(c).ok());
            Labels::Classes(samples.iter().map(|(_, y)| number(y).unwrap_or(0)).collect())
        } else {
            let values: Result<Vec<f32>, _> = samples.iter().map(|(_, y)| y.parse::<f32>()).collect();
            let values = values.map_err(|_| {
                wrong(format!("client {name}: column {} is not a number everywhere", columns.target))
            })?;
            Labels::Values(values)
        };
        clients.push(Client::new(Set { x, y }, Set::empty(columns.classification)));
    }
    Ok(Dataset {
        features: columns.features.len() + 1,
        outputs: if columns.classification { classes.len() } else { 1 },
        classification: columns.classification,
        clients,
        newcomers: Vec::new(),
        truth: None,
    })
}
