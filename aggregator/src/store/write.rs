//! Writer of the database: conversion of the engine's records into rows, and of rows into entries of tables.

use redb::{Database, ReadableTable, Table, WriteTransaction};
use serde::Serialize;

use super::encryption::UpdateCipher;
use super::error::DatabaseError;
use super::tables::{
    ABOUT, ACCOUNTS, Bytes, CHECKPOINT, COUNTED, FORMAT, JOURNAL, MISSED, NAMES, OUT, ROUNDS, UPDATES, WAITS,
    decode_number,
};
use super::update_row::UpdateRow;
use super::{Store, StoreError, io_error};
use crate::journal::CommittedRound;
use fedspan_engine::linalg::Matrix;
use fedspan_engine::{Millis, Record};

/// Row that is written to the store.
#[derive(Clone, Debug, PartialEq)]
pub enum Row {
    /// Record of the engine. A checkpoint removes the updates, aliases, exclusions and deadline of earlier
    /// rounds.
    Engine(Record),
    /// Committed round.
    Round(CommittedRound),
    /// Time of the campaign clock.
    Clock(Millis),
    /// Journal line with its number.
    JournalEntry(u64, String),
}

impl Row {
    /// Returns the row of a record of the engine; `None` if a restart does not need the record.
    /// `representation` is the engine's current representation.
    #[must_use]
    pub fn of(record: Record, representation: &Matrix) -> Option<Self> {
        match record {
            Record::Committed(round) => Some(Self::Round(CommittedRound::new(&round, representation))),
            Record::Counted(..)
            | Record::Excluded(_)
            | Record::Reinvited(_)
            | Record::Renumbered(_)
            | Record::Deadline(_)
            | Record::Account(..)
            | Record::Missed(_)
            | Record::Checkpoint(_) => Some(Self::Engine(record)),
            Record::Answered(..)
            | Record::Declined(..)
            | Record::DeadlinePassed(_)
            | Record::Opened(_)
            | Record::Failed(_) => None,
        }
    }
}

impl Store {
    /// Writes rows in order. The rows are durable when the call returns. If the rows close a round and also
    /// count updates of the next round, then the updates and the key of the closed round are erased before
    /// the first new update is written.
    ///
    /// # Errors
    /// [`StoreError`] if some or all of the rows were not written; the written rows are a prefix. The call
    /// may be repeated, which reopens the database.
    pub fn apply(&mut self, rows: &[Row]) -> Result<(), StoreError> {
        // Updates of the round that these rows close need not be written.
        let closed = rows.iter().rposition(|row| matches!(row, Row::Engine(Record::Checkpoint(_))));
        let is_counted = |row: &Row| matches!(row, Row::Engine(Record::Counted(..)));
        let (closing_rows, later_rows) = rows.split_at(closed.map_or(0, |closed| closed + 1));
        let (first_batch, second_batch) =
            if later_rows.iter().any(is_counted) { (closing_rows, later_rows) } else { (rows, &[][..]) };
        if !first_batch.is_empty() {
            self.write(first_batch, closed.unwrap_or(0))?;
        }
        if closed.is_some() {
            self.erase_key()?;
        }
        if second_batch.is_empty() { Ok(()) } else { self.write(second_batch, 0) }
    }

    /// Writes rows in one transaction. Rows before index `closed` that concern updates are skipped.
    fn write(&mut self, rows: &[Row], closed: usize) -> Result<(), StoreError> {
        let database = match self.database.take() {
            Some(database) => database,
            None => self.open_database()?,
        };
        self.backend.check_same_file().map_err(io_error(&self.path))?;
        let written = write_rows(&database, &mut self.cipher, rows, closed);
        self.last = Some(written.map_err(|error| error.with_path(&self.path))?);
        self.database = Some(database);
        Ok(())
    }
}

/// Begins a transaction with two-phase commit: the pages are synced before the header that makes them
/// current. After a crash, the database therefore never returns to an older transaction because of a page or
/// header with a wrong checksum. After a failed sync, when the operating system may show data that never
/// reach the disk, later transactions do not depend on such data.
fn begin_write(database: &Database) -> Result<WriteTransaction, DatabaseError> {
    let mut write = database.begin_write()?;
    write.set_two_phase_commit(true);
    Ok(write)
}

/// Increments the transaction number.
fn next_transaction(about: &mut Table<'_, &str, Bytes>) -> Result<u64, DatabaseError> {
    let next = about.get("transaction")?.map_or(0, |bytes| decode_number(bytes.value())).saturating_add(1);
    about.insert("transaction", next.to_le_bytes().as_slice())?;
    Ok(next)
}

/// Begins a campaign and returns the number of the transaction.
pub(super) fn begin(database: &Database, campaign: u64, configuration: &str) -> Result<u64, DatabaseError> {
    let write = begin_write(database)?;
    let number = {
        let mut about = write.open_table(ABOUT)?;
        about.insert("format", u64::from(FORMAT).to_le_bytes().as_slice())?;
        about.insert("campaign", campaign.to_le_bytes().as_slice())?;
        about.insert("configuration", configuration.as_bytes())?;
        about.insert(COUNTED, 0u64.to_le_bytes().as_slice())?;
        write.open_table(CHECKPOINT)?.retain(|(), _| false)?;
        write.open_table(UPDATES)?.retain(|_, _| false)?;
        write.open_table(NAMES)?.retain(|_, ()| false)?;
        write.open_table(OUT)?.retain(|_, ()| false)?;
        write.open_table(WAITS)?.retain(|(), _| false)?;
        write.open_table(ROUNDS)?.retain(|_, _| false)?;
        // This table exists only after a missed deadline.
        write.delete_table(MISSED)?;
        // Privacy accounts and the journal are kept; their tables are only created.
        write.open_table(ACCOUNTS)?;
        write.open_table(JOURNAL)?;
        next_transaction(&mut about)?
    };
    write.commit()?;
    Ok(number)
}

/// Writes rows and returns the number of the transaction. Rows before index `closed` that concern updates are
/// skipped, because the checkpoint at `closed` would remove them.
fn write_rows(
    database: &Database,
    cipher: &mut UpdateCipher,
    rows: &[Row],
    closed: usize,
) -> Result<u64, DatabaseError> {
    let write = begin_write(database)?;
    let number = {
        let mut about = write.open_table(ABOUT)?;
        let mut deadline = write.open_table(WAITS)?;
        let mut updates = write.open_table(UPDATES)?;
        let mut round_aliases = write.open_table(NAMES)?;
        let mut excluded = write.open_table(OUT)?;
        let mut rounds = write.open_table(ROUNDS)?;
        let mut journal = write.open_table(JOURNAL)?;
        let mut accounts = write.open_table(ACCOUNTS)?;
        let mut checkpoints = write.open_table(CHECKPOINT)?;
        let mut update_row = UpdateRow::default();
        let mut counted_updates = None;
        for (index, row) in rows.iter().enumerate() {
            match row {
                Row::Engine(Record::Checkpoint(checkpoint)) => {
                    checkpoints.insert((), encode_value(checkpoint)?.as_slice())?;
                    counted_updates = Some(0);
                    updates.retain(|_, _| false)?;
                    round_aliases.retain(|_, ()| false)?;
                    excluded.retain(|_, ()| false)?;
                    deadline.retain(|(), _| false)?;
                }
                Row::Engine(Record::Deadline(now)) => {
                    drop(deadline.insert((), encode_value(now)?.as_slice())?)
                }
                Row::Engine(
                    Record::Counted(..) | Record::Renumbered(_) | Record::Excluded(_) | Record::Reinvited(_),
                ) if index < closed => {}
                Row::Engine(Record::Renumbered(opening)) => {
                    round_aliases.insert((opening.id.round, opening.id.stage), ())?;
                    // After renumbering, the excluded devices are asked again.
                    excluded.retain(|_, ()| false)?;
                }
                Row::Engine(Record::Counted(id, device, counted)) => {
                    if !update_row.has_room(*id) {
                        update_row.insert(&mut updates, cipher)?;
                    }
                    update_row.push(*id, *device, counted)?;
                    counted_updates = Some(u64::from(counted.order) + 1);
                    excluded.remove(device.0)?;
                }
                Row::Engine(Record::Excluded(device)) => drop(excluded.insert(device.0, ())?),
                Row::Engine(Record::Reinvited(device)) => drop(excluded.remove(device.0)?),
                Row::Engine(Record::Account(device, account)) => {
                    accounts.insert(device.0, encode_value(account)?.as_slice())?;
                }
                Row::Engine(Record::Missed(missed)) => {
                    let mut counts = write.open_table(MISSED)?;
                    match missed.missed {
                        0 => drop(counts.remove(missed.device.0)?),
                        count => drop(counts.insert(missed.device.0, count)?),
                    }
                }
                // [`Row::of`] creates no rows of these records.
                Row::Engine(
                    Record::Committed(_)
                    | Record::Answered(..)
                    | Record::Declined(..)
                    | Record::DeadlinePassed(_)
                    | Record::Opened(_)
                    | Record::Failed(_),
                ) => {}
                Row::Round(round) => {
                    let line = serde_json::to_string(round).map_err(|error| {
                        DatabaseError::Damaged(format!("a round cannot be serialised: {error}"))
                    })?;
                    rounds.insert(round.exchange, line.as_str())?;
                }
                Row::Clock(now) => drop(about.insert("clock", now.as_u64().to_le_bytes().as_slice())?),
                Row::JournalEntry(number, line) => drop(journal.insert(number, line.as_str())?),
            }
        }
        update_row.insert(&mut updates, cipher)?;
        if let Some(counted) = counted_updates {
            about.insert(COUNTED, counted.to_le_bytes().as_slice())?;
        }
        next_transaction(&mut about)?
    };
    write.commit()?;
    Ok(number)
}

/// Encodes a value in postcard format.
fn encode_value(value: &impl Serialize) -> Result<Vec<u8>, DatabaseError> {
    postcard::to_stdvec(value).map_err(encoding_error)
}

/// Returns the error of a value that cannot be encoded.
#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
pub(super) fn encoding_error(error: postcard::Error) -> DatabaseError {
    DatabaseError::Damaged(format!("cannot be encoded: {error}"))
}
