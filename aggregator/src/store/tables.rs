//! Tables of the database, and the functions that read them.

use fedspan_protocol::message::RoundId;
use redb::{
    ReadTransaction, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition, TableError,
};
use serde::de::DeserializeOwned;

use super::campaign_state::CampaignState;
use super::encryption::UpdateCipher;
use super::error::DatabaseError;
use super::update_row::decode_row;
use crate::journal::CommittedRound;
use fedspan_engine::privacy::Account;
use fedspan_engine::{Checkpoint, CountedUpdate, DeviceId, Millis};

/// Database format of this version. Format 1 was not a database, format 2 did not encrypt updates, format 3
/// did not store rounds, and format 4 did not store the clock.
pub(super) const FORMAT: u32 = 5;

/// Type of encoded values.
pub(super) type Bytes = &'static [u8];

/// Format, campaign, configuration, clock, number of updates counted in the open round, and number of the last
/// transaction.
pub(super) const ABOUT: TableDefinition<'_, &str, Bytes> = TableDefinition::new("about");
/// Key in [`ABOUT`] of the number of updates counted in the open round.
pub(super) const COUNTED: &str = "counted";
/// State of the engine at the last opening or commit of a round.
pub(super) const CHECKPOINT: TableDefinition<'_, (), Bytes> = TableDefinition::new("checkpoint");
/// Encrypted updates counted in the open round, by round, stage and the device of the first update of the row.
pub(super) const UPDATES: TableDefinition<'_, (u32, u16, u64), Bytes> = TableDefinition::new("updates");
/// Later ids of the open round; the first id is in the checkpoint.
pub(super) const NAMES: TableDefinition<'_, (u32, u16), ()> = TableDefinition::new("names");
/// Devices that will not answer the open round.
pub(super) const OUT: TableDefinition<'_, u64, ()> = TableDefinition::new("out");
/// Deadline override of the open round.
pub(super) const WAITS: TableDefinition<'_, (), Bytes> = TableDefinition::new("waits");
/// Privacy account of each device.
pub(super) const ACCOUNTS: TableDefinition<'_, u64, Bytes> = TableDefinition::new("accounts");
/// Number of deadlines that each device has missed in a row. Created by the first missed deadline.
pub(super) const MISSED: TableDefinition<'_, u64, u32> = TableDefinition::new("missed");
/// Committed rounds in JSON, by round id.
pub(super) const ROUNDS: TableDefinition<'_, u32, &str> = TableDefinition::new("rounds");
/// Journal lines, by number.
pub(super) const JOURNAL: TableDefinition<'_, u64, &str> = TableDefinition::new("journal");

/// Returns an error if the database has another format. An empty database is accepted.
pub(super) fn check_format(database: &impl ReadableDatabase) -> Result<(), DatabaseError> {
    let read = database.begin_read()?;
    let about = match read.open_table(ABOUT) {
        Ok(about) => about,
        Err(TableError::TableDoesNotExist(_)) if read.list_tables()?.next().is_none() => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let format = about.get("format")?.map_or(0, |bytes| decode_number(bytes.value()));
    if format == u64::from(FORMAT) {
        Ok(())
    } else {
        Err(DatabaseError::Version(u32::try_from(format).unwrap_or(u32::MAX), FORMAT))
    }
}

/// Returns the number of the last transaction; 0 for an empty database.
pub(super) fn last_transaction(database: &impl ReadableDatabase) -> Result<u64, DatabaseError> {
    match database.begin_read()?.open_table(ABOUT) {
        Ok(about) => Ok(about.get("transaction")?.map_or(0, |bytes| decode_number(bytes.value()))),
        Err(TableError::TableDoesNotExist(_)) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// Returns the settings of the campaign; `None` if no round of the campaign was opened.
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
        checkpoint.map(|bytes| decode_value("the checkpoint", bytes.value())).transpose()?;
    if checkpoint.iter().flat_map(|checkpoint| &checkpoint.state).any(|value| !value.is_finite()) {
        return Err(DatabaseError::Damaged("the checkpoint holds values that are not finite".to_owned()));
    }
    let mut accounts = Vec::new();
    for entry in read.open_table(ACCOUNTS)?.iter()? {
        let (device, bytes) = entry?;
        let account: Account = decode_value("an account", bytes.value())?;
        accounts.push((DeviceId(device.value()), account));
    }
    let missed = load_missed(read)?;
    let next_journal_line = read.open_table(JOURNAL)?.last()?.map_or(0, |(number, _)| number.value() + 1);
    let mut round_aliases = Vec::new();
    for entry in read.open_table(NAMES)?.iter()? {
        let (round, stage) = entry?.0.value();
        round_aliases.push(RoundId { round, stage });
    }
    let deadline = read.open_table(WAITS)?.get(())?;
    let deadline = deadline.map(|bytes| decode_value("the deadline", bytes.value())).transpose()?;
    let clock = about.get("clock")?.map_or(0, |bytes| decode_number(bytes.value()));
    let campaign = decode_number(campaign.value());
    let (updates, excluded) = (Vec::new(), Vec::new());
    Ok(Some(CampaignState {
        campaign,
        configuration,
        clock: Millis::new(clock),
        checkpoint,
        round_aliases,
        updates,
        excluded,
        deadline,
        accounts,
        missed,
        next_journal_line,
    }))
}

/// Loads the number of deadlines that each device has missed in a row. A database in which no deadline was
/// missed, or of an earlier version, has no such table.
fn load_missed(read: &ReadTransaction) -> Result<Vec<(DeviceId, u32)>, DatabaseError> {
    let table = match read.open_table(MISSED) {
        Ok(table) => table,
        Err(TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let mut missed = Vec::new();
    for entry in table.iter()? {
        let (device, count) = entry?;
        missed.push((DeviceId(device.value()), count.value()));
    }
    Ok(missed)
}

/// Loads the campaign and decrypts the updates of the open round.
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
        let wrong_round =
            || DatabaseError::Damaged(format!("an update of device {device} belongs to another round"));
        let id = open.filter(|open| *open == RoundId { round, stage }).ok_or_else(wrong_round)?;
        let decryptor = match &mut decryptor {
            Some(decryptor) => decryptor,
            slot => slot.insert(cipher.decryptor(id)?),
        };
        let device = DeviceId(device);
        let first = updates.len();
        decode_row(device, &decryptor.open(device, sealed.value())?, updates)?;
        let aliases = &stored.round_aliases;
        let is_of_round =
            |counted: &CountedUpdate| counted.update.id == id || aliases.contains(&counted.update.id);
        if !updates.iter().skip(first).all(|(_, counted)| is_of_round(counted)) {
            return Err(wrong_round());
        }
    }
    updates.sort_by_key(|(_, counted)| counted.order);
    let is_gapless = updates.iter().zip(0..).all(|((_, counted), order)| counted.order == order);
    if !is_gapless || open.is_some() && count_updates(&read)? != updates.len() as u64 {
        return Err(DatabaseError::Damaged("an update is missing".to_owned()));
    }
    for entry in read.open_table(OUT)?.iter()? {
        stored.excluded.push(DeviceId(entry?.0.value()));
    }
    Ok(Some(stored))
}

/// Loads the committed rounds, in order.
pub(super) fn rounds(read: &ReadTransaction) -> Result<Vec<CommittedRound>, DatabaseError> {
    let mut rounds = Vec::new();
    let mut damage = None;
    for_each_round(read, |round_id, line| {
        match serde_json::from_str::<CommittedRound>(line) {
            Ok(round) if round.exchange == round_id => rounds.push(round),
            Ok(_) => damage = Some(format!("round {round_id} has another id")),
            Err(error) => damage = Some(format!("round {round_id} cannot be read: {error}")),
        }
        damage.is_none()
    })?;
    damage.map_or(Ok(rounds), |damage| Err(DatabaseError::Damaged(damage)))
}

/// Returns the number of committed rounds.
pub(super) fn count_rounds(read: &ReadTransaction) -> Result<u64, DatabaseError> {
    Ok(read.open_table(ROUNDS)?.len()?)
}

/// Returns the number of updates counted in the open round.
pub(super) fn count_updates(read: &ReadTransaction) -> Result<u64, DatabaseError> {
    let counted = read.open_table(ABOUT)?.get(COUNTED)?.map(|bytes| decode_number(bytes.value()));
    // Earlier versions stored no number and each update in its own row.
    counted.map_or_else(|| Ok(read.open_table(UPDATES)?.len()?), Ok)
}

/// Passes the committed rounds with their ids to `each`, until `each` returns false.
pub(super) fn for_each_round(
    read: &ReadTransaction,
    mut each: impl FnMut(u32, &str) -> bool,
) -> Result<(), DatabaseError> {
    for entry in read.open_table(ROUNDS)?.iter()? {
        let (round_id, line) = entry?;
        if !each(round_id.value(), line.value()) {
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
    let mut lines = Vec::new();
    for_each_journal_line(&database.begin_read()?, first, |number, line| {
        lines.push((number, line.to_owned()));
        true
    })?;
    Ok(lines)
}

/// Passes the journal lines from number `first` on to `each`, until `each` returns false.
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

/// Decodes a little-endian number of 8 bytes; any other length gives `u64::MAX`.
pub(super) fn decode_number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(u64::MAX, u64::from_le_bytes)
}

/// Decodes a value; `what` names the value in the error.
fn decode_value<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T, DatabaseError> {
    match decode_next(what, bytes)? {
        (value, []) => Ok(value),
        _ => Err(DatabaseError::Damaged(format!("{what} has trailing bytes"))),
    }
}

/// Decodes a value and returns it with the bytes after it; `what` names the value in the error.
pub(super) fn decode_next<'a, T: DeserializeOwned>(
    what: &str,
    bytes: &'a [u8],
) -> Result<(T, &'a [u8]), DatabaseError> {
    postcard::take_from_bytes(bytes)
        .map_err(|error| DatabaseError::Damaged(format!("{what} cannot be decoded: {error}")))
}
