//! Tables of the database, and the transactions on them.

use fedspan_protocol::message::RoundId;
use redb::{
    Database, ReadTransaction, ReadableDatabase, ReadableTable, ReadableTableMetadata, Table,
    TableDefinition, TableError, WriteTransaction,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use zeroize::Zeroizing;

use super::encryption::UpdateCipher;
use super::error::DatabaseError;
use super::record::{CampaignState, CountedUpdate, Record};
use crate::journal::CommittedRound;
use fedspan_engine::Checkpoint;
use fedspan_engine::privacy::Account;

/// Format written by this version. 1 was not a database; 2 did not encrypt updates; 3 had no rounds, 4 no
/// clock.
pub(super) const FORMAT: u32 = 5;

type Bytes = &'static [u8];

const ABOUT: TableDefinition<'_, &str, Bytes> = TableDefinition::new("about");
const CHECKPOINT: TableDefinition<'_, (), Bytes> = TableDefinition::new("checkpoint");
const UPDATES: TableDefinition<'_, (u32, u16, u64), Bytes> = TableDefinition::new("updates");
/// Later ids of the open round; the first id is in its checkpoint.
const NAMES: TableDefinition<'_, (u32, u16), ()> = TableDefinition::new("names");
const OUT: TableDefinition<'_, u64, ()> = TableDefinition::new("out");
/// Deadline override of the open round.
const WAITS: TableDefinition<'_, (), Bytes> = TableDefinition::new("waits");
const ACCOUNTS: TableDefinition<'_, u64, Bytes> = TableDefinition::new("accounts");
const ROUNDS: TableDefinition<'_, u32, &str> = TableDefinition::new("rounds");
const JOURNAL: TableDefinition<'_, u64, &str> = TableDefinition::new("journal");

/// Refuses a database of another format; an empty one is accepted.
pub(super) fn check_format(database: &impl ReadableDatabase) -> Result<(), DatabaseError> {
    let read = database.begin_read()?;
    let about = match read.open_table(ABOUT) {
        Ok(about) => about,
        Err(TableError::TableDoesNotExist(_)) if read.list_tables()?.next().is_none() => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let found = about.get("format")?.map_or(0, |bytes| number(bytes.value()));
    if found == u64::from(FORMAT) {
        Ok(())
    } else {
        Err(DatabaseError::Version(u32::try_from(found).unwrap_or(u32::MAX), FORMAT))
    }
}

/// Begins a transaction with two-phase commit: its pages are synced first, then the header that makes them
/// current. After a crash the database then never falls back to an older transaction because of a page or
/// header with a wrong checksum; and after a failed sync, when the system may show data that never reach the
/// disk, nothing written later depends on them.
fn begin_write(database: &Database) -> Result<WriteTransaction, DatabaseError> {
    let mut write = database.begin_write()?;
    write.set_two_phase_commit(true);
    Ok(write)
}

/// Returns the number of the last transaction; 0 for an empty database.
pub(super) fn last_transaction(database: &impl ReadableDatabase) -> Result<u64, DatabaseError> {
    match database.begin_read()?.open_table(ABOUT) {
        Ok(about) => Ok(about.get("transaction")?.map_or(0, |bytes| number(bytes.value()))),
        Err(TableError::TableDoesNotExist(_)) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// Increments the transaction number.
fn next_transaction(about: &mut Table<'_, &str, Bytes>) -> Result<u64, DatabaseError> {
    let next = about.get("transaction")?.map_or(0, |bytes| number(bytes.value())).saturating_add(1);
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
        write.open_table(CHECKPOINT)?.retain(|(), _| false)?;
        write.open_table(UPDATES)?.retain(|_, _| false)?;
        write.open_table(NAMES)?.retain(|_, ()| false)?;
        write.open_table(OUT)?.retain(|_, ()| false)?;
        write.open_table(WAITS)?.retain(|(), _| false)?;
        write.open_table(ROUNDS)?.retain(|_, _| false)?;
        // Privacy accounts and the journal outlast the campaign.
        write.open_table(ACCOUNTS)?;
        write.open_table(JOURNAL)?;
        next_transaction(&mut about)?
    };
    write.commit()?;
    Ok(number)
}

/// Writes records and returns the number of the transaction. Records before index `closed` that concern updates
/// are skipped, since the checkpoint at `closed` would remove them.
pub(super) fn apply(
    database: &Database,
    cipher: &mut UpdateCipher,
    records: &[Record],
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
        for (storage, record) in records.iter().enumerate() {
            match record {
                Record::Checkpoint(checkpoint) => {
                    checkpoints.insert((), encode(checkpoint)?.as_slice())?;
                    updates.retain(|_, _| false)?;
                    round_aliases.retain(|_, ()| false)?;
                    excluded.retain(|_, ()| false)?;
                    deadline.retain(|(), _| false)?;
                }
                Record::Deadline(now) => drop(deadline.insert((), encode(now)?.as_slice())?),
                Record::Counted(..) | Record::Renumbered(_) | Record::Excluded(_) if storage < closed => {}
                Record::Renumbered(RoundId { round, stage }) => {
                    round_aliases.insert((*round, *stage), ())?;
                    // After renumbering these devices are asked again.
                    excluded.retain(|_, ()| false)?;
                }
                Record::Counted(id @ RoundId { round, stage }, device, counted) => {
                    let id = *id;
                    cipher.begin(id)?;
                    let sealed = cipher.seal(id, *device, &Zeroizing::new(encode(counted)?))?;
                    updates.insert((*round, *stage, *device), sealed.as_slice())?;
                    excluded.remove(device)?;
                }
                Record::Excluded(device) => drop(excluded.insert(device, ())?),
                Record::Account(device, account) => {
                    accounts.insert(device, encode(account)?.as_slice())?;
                }
                Record::Round(round) => {
                    let line = serde_json::to_string(round).map_err(|error| {
                        DatabaseError::Damaged(format!("a round cannot be serialised: {error}"))
                    })?;
                    rounds.insert(round.exchange, line.as_str())?;
                }
                Record::Clock(now) => drop(about.insert("clock", now.to_le_bytes().as_slice())?),
                Record::JournalEntry(number, line) => drop(journal.insert(number, line.as_str())?),
            }
        }
        next_transaction(&mut about)?
    };
    write.commit()?;
    Ok(number)
}

/// Returns the settings of the campaign, if any of its rounds was ever opened.
pub(super) fn settings(database: &impl ReadableDatabase) -> Result<Option<String>, DatabaseError> {
    let read = database.begin_read()?;
    let stored = load_without_updates(&read)?.filter(|stored| stored.checkpoint.is_some());
    Ok(stored.map(|stored| stored.configuration))
}

/// Loads the campaign without the updates and exclusions of the open round.
pub(super) fn load_without_updates(read: &ReadTransaction) -> Result<Option<CampaignState>, DatabaseError> {
    let about = match read.open_table(ABOUT) {
        Ok(about) => about,
        Err(TableError::TableDoesNotExist(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let missing = |what: &str| DatabaseError::Damaged(format!("{what} is missing"));
    let campaign = about.get("campaign")?.ok_or_else(|| missing("the campaign"))?;
    let configuration = about.get("configuration")?.ok_or_else(|| missing("the configuration"))?;
    let configuration = String::from_utf8(configuration.value().to_vec())
        .map_err(|_| DatabaseError::Damaged("the configuration is not UTF-8".to_owned()))?;
    let checkpoint = read.open_table(CHECKPOINT)?.get(())?;
    let checkpoint: Option<Checkpoint> =
        checkpoint.map(|bytes| decode("the checkpoint", bytes.value())).transpose()?;
    if checkpoint.iter().flat_map(|checkpoint| &checkpoint.state).any(|value| !value.is_finite()) {
        return Err(DatabaseError::Damaged("the checkpoint holds values that are not finite".to_owned()));
    }
    let mut accounts = Vec::new();
    for entry in read.open_table(ACCOUNTS)?.iter()? {
        let (device, bytes) = entry?;
        let account: Account = decode("an account", bytes.value())?;
        accounts.push((device.value(), account));
    }
    let next_journal_line = read.open_table(JOURNAL)?.last()?.map_or(0, |(number, _)| number.value() + 1);
    let mut round_aliases = Vec::new();
    for entry in read.open_table(NAMES)?.iter()? {
        let (round, stage) = entry?.0.value();
        round_aliases.push(RoundId { round, stage });
    }
    let deadline = read.open_table(WAITS)?.get(())?;
    let deadline = deadline.map(|bytes| decode("the deadline", bytes.value())).transpose()?;
    let clock = about.get("clock")?.map_or(0, |bytes| number(bytes.value()));
    let campaign = number(campaign.value());
    let (updates, excluded) = (Vec::new(), Vec::new());
    Ok(Some(CampaignState {
        campaign,
        configuration,
        clock,
        checkpoint,
        round_aliases,
        updates,
        excluded,
        deadline,
        accounts,
        next_journal_line,
    }))
}

pub(super) fn load(
    database: &impl ReadableDatabase,
    cipher: &UpdateCipher,
) -> Result<Option<CampaignState>, DatabaseError> {
    check_format(database)?;
    let read = database.begin_read()?;
    let Some(mut stored) = load_without_updates(&read)? else { return Ok(None) };
    let open = stored.open_round();
    let mut decryptor = None;
    let updates = &mut stored.updates;
    for entry in read.open_table(UPDATES)?.iter()? {
        let (key, sealed) = entry?;
        let (round, stage, device) = key.value();
        let other =
            || DatabaseError::Damaged(format!("an update of device {device} belongs to another round"));
        let id = open.filter(|open| *open == RoundId { round, stage }).ok_or_else(other)?;
        let decryptor = match &mut decryptor {
            Some(decryptor) => decryptor,
            none => none.insert(cipher.decryptor(id)?),
        };
        let counted: CountedUpdate = decode("an update", &decryptor.open(device, sealed.value())?)?;
        if counted.update.id != id && !stored.round_aliases.contains(&counted.update.id) {
            return Err(other());
        }
        updates.push((device, counted));
    }
    updates.sort_by_key(|(_, counted)| counted.order);
    if updates.iter().zip(0..).any(|((_, counted), order)| counted.order != order) {
        return Err(DatabaseError::Damaged("an update is missing".to_owned()));
    }
    for entry in read.open_table(OUT)?.iter()? {
        stored.excluded.push(entry?.0.value());
    }
    Ok(Some(stored))
}

/// Loads the committed rounds, in order.
pub(super) fn rounds(read: &ReadTransaction) -> Result<Vec<CommittedRound>, DatabaseError> {
    let (mut found, mut wrong) = (Vec::new(), None);
    for_each_round(read, |exchange, line| {
        match serde_json::from_str::<CommittedRound>(line) {
            Ok(round) if round.exchange == exchange => found.push(round),
            Ok(_) => wrong = Some(format!("round {exchange} has another id")),
            Err(error) => wrong = Some(format!("round {exchange} cannot be read: {error}")),
        }
        wrong.is_none()
    })?;
    wrong.map_or(Ok(found), |wrong| Err(DatabaseError::Damaged(wrong)))
}

/// Returns the number of committed rounds.
pub(super) fn count_rounds(read: &ReadTransaction) -> Result<u64, DatabaseError> {
    Ok(read.open_table(ROUNDS)?.len()?)
}

/// Returns the number of updates counted in the open round.
pub(super) fn count_updates(read: &ReadTransaction) -> Result<u64, DatabaseError> {
    Ok(read.open_table(UPDATES)?.len()?)
}

/// Passes the committed rounds with their ids to `each`, until it returns false.
pub(super) fn for_each_round(
    read: &ReadTransaction,
    mut each: impl FnMut(u32, &str) -> bool,
) -> Result<(), DatabaseError> {
    for entry in read.open_table(ROUNDS)?.iter()? {
        let (exchange, line) = entry?;
        if !each(exchange.value(), line.value()) {
            break;
        }
    }
    Ok(())
}

/// Loads the journal lines from number `first` on, with their numbers.
pub(super) fn journal_lines(
    database: &impl ReadableDatabase,
    first: u64,
) -> Result<Vec<(u64, String)>, DatabaseError> {
    let mut found = Vec::new();
    for_each_journal_line(&database.begin_read()?, first, |number, line| {
        found.push((number, line.to_owned()));
        true
    })?;
    Ok(found)
}

/// Passes the journal lines from number `first` on to `each`, until it returns false.
pub(super) fn for_each_journal_line(
    read: &ReadTransaction,
    first: u64,
    mut each: impl FnMut(u64, &str) -> bool,
) -> Result<(), DatabaseError> {
    let lines = match read.open_table(JOURNAL) {
        Ok(lines) => lines,
        Err(TableError::TableDoesNotExist(_)) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    for entry in lines.range(first..)? {
        let (number, line) = entry?;
        if !each(number.value(), line.value()) {
            break;
        }
    }
    Ok(())
}

fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(u64::MAX, u64::from_le_bytes)
}

fn encode(value: &impl Serialize) -> Result<Vec<u8>, DatabaseError> {
    postcard::to_stdvec(value).map_err(|error| DatabaseError::Damaged(format!("cannot be encoded: {error}")))
}

fn decode<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T, DatabaseError> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok(_) => Err(DatabaseError::Damaged(format!("{what} has trailing bytes"))),
        Err(error) => Err(DatabaseError::Damaged(format!("{what} cannot be decoded: {error}"))),
    }
}
