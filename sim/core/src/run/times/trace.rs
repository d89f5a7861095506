//! Reader of computation times from a CSV file with columns `client`, `round` and `time`.

use std::collections::BTreeMap;

use super::time_table::TimeTable;
use crate::data::table::text::decode;
use crate::data::{DataError, file};

/// Largest round number of a trace.
const ROUNDS_MAX: u32 = 10_000_000;

/// Largest file size in bytes, enough for ten million rounds of one client.
const LARGEST_FILE: u64 = 1 << 28;

/// Reads a trace for clients 0 to `clients - 1`, with a time for each client and round. Without a column
/// `round`, the times are the same in every round.
///
/// # Errors
/// [`DataError`] naming the file, the line and the allowed values.
pub fn read(path: &str, clients: usize) -> Result<TimeTable, DataError> {
    let data_error = |message: String| DataError::new(path, message);
    let bytes = file::read(path, LARGEST_FILE)?;
    let bytes = file::unpack(&bytes, path, LARGEST_FILE)?;
    let content = decode(&bytes).map_err(data_error)?;
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(content.as_bytes());
    let header = reader.headers().map_err(|error| data_error(error.to_string()))?.clone();
    let known_columns = ["client", "round", "time"];
    if let Some(unknown) = header.iter().find(|column| !known_columns.contains(column)) {
        return Err(data_error(format!("found column {unknown:?}, allowed: client, round, time")));
    }
    let position_of = |name: &str| header.iter().position(|column| column == name);
    let required_position = |name: &str| {
        position_of(name).ok_or_else(|| data_error(format!("no column {name:?}; add it to the header")))
    };
    let (client_at, round_at, time_at) =
        (required_position("client")?, position_of("round"), required_position("time")?);
    let mut table = BTreeMap::new();
    let mut rounds = 0;
    for record in reader.records() {
        let record = record.map_err(|error| data_error(error.to_string()))?;
        let line = record.position().map_or(0, csv::Position::line);
        let cell = |index: usize| record.get(index).unwrap_or_default();
        let bad_cell = |column: &str, index: usize, allowed: String| {
            data_error(format!("line {line}, column {column}: found {:?}, allowed: {allowed}", cell(index)))
        };
        let client = cell(client_at).parse::<usize>().ok().filter(|client| *client < clients);
        let last = clients.saturating_sub(1);
        let client = client.ok_or_else(|| {
            bad_cell("client", client_at, format!("an integer from 0 to {last}, a training client"))
        })?;
        let round = match round_at {
            None => 1,
            Some(index) => {
                let round = cell(index).parse::<u32>().ok().filter(|round| (1..=ROUNDS_MAX).contains(round));
                round.ok_or_else(|| bad_cell("round", index, format!("an integer from 1 to {ROUNDS_MAX}")))?
            }
        };
        let time = cell(time_at).parse::<f64>().ok().filter(|time| time.is_finite() && *time >= 0.0);
        let time = time.ok_or_else(|| bad_cell("time", time_at, "a finite number from 0".to_owned()))?;
        if table.insert((client, round), time).is_some() {
            let message =
                format!("line {line}: client {client} already has a time for round {round}; remove one");
            return Err(data_error(message));
        }
        rounds = round.max(rounds);
    }
    if table.is_empty() {
        return Err(data_error("no rows after the header; add a row for each client".to_owned()));
    }
    // The number of entries shows whether the table is complete. The search for a missing entry stops at the
    // first gap, so it is fast even if a round number is mistyped and very large.
    let needed_entries = (1..=rounds).flat_map(|round| (0..clients).map(move |client| (client, round)));
    if table.len() as u64 != u64::from(rounds) * clients as u64
        && let Some((client, round)) = needed_entries.into_iter().find(|key| !table.contains_key(key))
    {
        let message = format!(
            "no time for client {client} in round {round}: all {clients} clients need one in every round up to the \
             last, which is {rounds}"
        );
        return Err(data_error(message));
    }
    Ok(TimeTable::repeated(table, rounds))
}
