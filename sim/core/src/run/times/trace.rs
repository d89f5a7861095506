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
    let wrong = |message: String| DataError::new(path, message);
    let bytes = file::read(path, LARGEST_FILE)?;
    let bytes = file::unpack(&bytes, path, LARGEST_FILE)?;
    let content = decode(&bytes).map_err(wrong)?;
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(content.as_bytes());
    let header = reader.headers().map_err(|error| wrong(error.to_string()))?.clone();
    let known = ["client", "round", "time"];
    if let Some(stranger) = header.iter().find(|column| !known.contains(column)) {
        return Err(wrong(format!("found column {stranger:?}, allowed: client, round, time")));
    }
    let find = |name: &str| header.iter().position(|column| column == name);
    let needed =
        |name: &str| find(name).ok_or_else(|| wrong(format!("no column {name:?}; add it to the header")));
    let (client_at, round_at, time_at) = (needed("client")?, find("round"), needed("time")?);
    let mut table = BTreeMap::new();
    let mut rounds = 0;
    for record in reader.records() {
        let record = record.map_err(|error| wrong(error.to_string()))?;
        let line = record.position().map_or(0, csv::Position::line);
        let text = |at: usize| record.get(at).unwrap_or_default();
        let no = |column: &str, at: usize, allowed: String| {
            wrong(format!("line {line}, column {column}: found {:?}, allowed: {allowed}", text(at)))
        };
        let client = text(client_at).parse::<usize>().ok().filter(|client| *client < clients);
        let last = clients.saturating_sub(1);
        let client = client.ok_or_else(|| {
            no("client", client_at, format!("an integer from 0 to {last}, a training client"))
        })?;
        let round = match round_at {
            None => 1,
            Some(at) => {
                let round = text(at).parse::<u32>().ok().filter(|round| (1..=ROUNDS_MAX).contains(round));
                round.ok_or_else(|| no("round", at, format!("an integer from 1 to {ROUNDS_MAX}")))?
            }
        };
        let time = text(time_at).parse::<f64>().ok().filter(|time| time.is_finite() && *time >= 0.0);
        let time = time.ok_or_else(|| no("time", time_at, "a finite number from 0".to_owned()))?;
        if table.insert((client, round), time).is_some() {
            let message =
                format!("line {line}: client {client} already has a time for round {round}; remove one");
            return Err(wrong(message));
        }
        rounds = round.max(rounds);
    }
    if table.is_empty() {
        return Err(wrong("no rows after the header; add a row for each client".to_owned()));
    }
    // The number of entries shows whether the table is complete. The search for a missing entry stops at the
    // first gap, so it is fast even if a round number is mistyped and very large.
    let every = (1..=rounds).flat_map(|round| (0..clients).map(move |client| (client, round)));
    if table.len() as u64 != u64::from(rounds) * clients as u64
        && let Some((client, round)) = every.into_iter().find(|key| !table.contains_key(key))
    {
        let message = format!(
            "no time for client {client} in round {round}: all {clients} clients need one in every round up to the \
             last, which is {rounds}"
        );
        return Err(wrong(message));
    }
    Ok(TimeTable::repeated(table, rounds))
}
