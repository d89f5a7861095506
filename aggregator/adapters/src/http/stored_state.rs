//! Readers of a state directory, which the start of a server and the check of a stored exchange share: what a server
//! refuses is a fault of the check. They change nothing.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::disk::{Disk, finish_hex, hash_file, hex_text, is_of_the_system};
use super::error::io_error;
use super::round_record::RoundRecord;
use super::update_file::{UpdateName, Verification};
use super::{LoraMethod, ServerError};
use crate::files::read_layout;
use fedspan_files::regular;

/// Name of the adapter file of a committed round.
pub const MODEL: &str = "adapter_model.safetensors";
/// Name of the PEFT configuration of a committed round, which exists if the base has one.
pub const CONFIG: &str = "adapter_config.json";
/// Name of the file with the tensors that the round trained, for clients that have the previous adapter.
pub const CHANGED: &str = "changed.safetensors";
/// Name of the record of a committed round.
pub const RECORD: &str = "round.json";
/// Name of the directory of updates that were set aside.
pub const DAMAGED: &str = "damaged";

/// Problem of a file among the updates whose name is not the name of an update.
pub const NO_UPDATE_NAME: &str = "the name of the file is not that of an update";

/// File among the updates of the open round.
#[derive(Debug)]
pub struct StoredUpdate {
    /// Path of the file.
    pub path: PathBuf,
    /// Content of the file.
    pub content: Content,
}

/// Content of a file among the updates of the open round.
#[derive(Debug)]
pub enum Content {
    /// Update as it was accepted.
    Sound(UpdateName),
    /// Update that an earlier version has accepted, which cannot be verified.
    Unverifiable(UpdateName),
    /// Update or name that has changed, or that cannot be read; the text says how. The server sets it aside.
    Damaged(String),
    /// Update of no client, or of a client that has another one. The server does not start.
    Refused,
}

/// Reads and verifies the updates of the open round, in the order of their paths. `names` are the names of all clients
/// in ascending order; `None` if they are not known.
///
/// # Errors
/// [`ServerError::Io`] if the directory cannot be read, or for an error of the whole system.
pub fn read_updates(
    directory: &Path,
    round: u32,
    names: Option<&[String]>,
    disk: &Disk,
) -> Result<Vec<StoredUpdate>, ServerError> {
    let mut clients = BTreeSet::new();
    let mut updates = Vec::new();
    for path in entries(&updates_directory(directory, round))? {
        let parsed = path.file_name().and_then(|file| file.to_str()).and_then(UpdateName::parse);
        let content = match parsed {
            None => Content::Damaged(NO_UPDATE_NAME.to_owned()),
            Some(name) => match name.verify_file(round, &path, disk).map_err(io_error(&path))? {
                Verification::Damaged(problem) => Content::Damaged(problem),
                _ if names.is_some_and(|names| names.binary_search(&name.client).is_err()) => {
                    Content::Refused
                }
                _ if !clients.insert(name.client.clone()) => Content::Refused,
                Verification::Sound => Content::Sound(name),
                Verification::Unverifiable => Content::Unverifiable(name),
            },
        };
        updates.push(StoredUpdate { path, content });
    }
    Ok(updates)
}

/// Errors for the updates of rounds after the open one.
///
/// # Errors
/// [`ServerError::Io`] if a directory cannot be read.
pub fn later_updates(directory: &Path, open: u32) -> Result<Vec<ServerError>, ServerError> {
    let numbers = directory_numbers(directory, "updates-")?.into_iter().filter(|number| *number > open);
    let mut errors = Vec::new();
    for path in numbers.map(|number| updates_directory(directory, number)) {
        // A file in the place of a directory is refused as such.
        if path.is_dir() && !entries(&path)?.is_empty() {
            errors.push(ServerError::ClosedUpdates { path, open });
        }
    }
    Ok(errors)
}

/// Difference between the settings of a record and the configured ones, if there is one. `base` is the SHA-256 of the
/// base in hexadecimal digits.
#[must_use]
pub fn changed_setting(
    directory: &Path,
    record: &RoundRecord,
    method: LoraMethod,
    base: &str,
) -> Option<ServerError> {
    let settings =
        [("the method", &record.method, method.name()), ("the base of SHA-256", &record.base, base)];
    let (setting, found, expected) = settings.into_iter().find(|(_, found, expected)| found != expected)?;
    let (found, expected) = (found.clone(), expected.to_owned());
    Some(ServerError::SettingChanged { path: directory.to_owned(), setting, found, expected })
}

/// Path of the adapter file of a configured base, and its SHA-256 in hexadecimal digits.
///
/// # Errors
/// [`ServerError::Adapter`] if the base is not an adapter, [`ServerError::Io`] if it cannot be read.
pub fn hash_base(base: &Path) -> Result<(PathBuf, String), ServerError> {
    read_layout(base)?;
    let model = if base.is_dir() { base.join(MODEL) } else { base.to_owned() };
    let digest = hash_file(&model).map(finish_hex).map_err(io_error(&model))?;
    Ok((model, digest))
}

/// Length of the adapter file of a committed round, in bytes.
///
/// # Errors
/// [`ServerError::Damaged`] if the file is not an adapter, [`ServerError::Adapter`] for an error of the whole system.
pub fn model_len(directory: &Path, round: u32) -> Result<u64, ServerError> {
    let path = directory.join(format!("round-{round:04}")).join(MODEL);
    match read_layout(&path) {
        Ok((_, length)) => Ok(length),
        Err(error) if error.io_error().is_some_and(is_of_the_system) => Err(error.into()),
        Err(error) => {
            let problem = error.to_string().replace(&format!("{}: ", path.display()), "");
            Err(ServerError::damaged_round(path, problem, round))
        }
    }
}

/// Directories that must be private: the state directory, and those of rounds and updates.
///
/// # Errors
/// [`ServerError::Io`] if the directory cannot be read.
pub fn private_directories(directory: &Path) -> Result<Vec<PathBuf>, ServerError> {
    let mut paths = vec![directory.to_owned()];
    for prefix in ["round-", "updates-"] {
        let numbers = directory_numbers(directory, prefix)?.into_iter();
        paths.extend(numbers.map(|number| directory.join(format!("{prefix}{number:04}"))));
    }
    Ok(paths)
}

/// True if the name of a file is that of an update that a record has.
#[must_use]
pub fn is_counted_update(record: &RoundRecord, file: &str) -> bool {
    UpdateName::parse(file).is_some_and(|UpdateName { client, update, .. }| {
        record.clients.get(&client) == Some(&(update.samples, hex_text(&update.digest)))
    })
}

/// Directory of the accepted updates of a round.
pub fn updates_directory(directory: &Path, number: u32) -> PathBuf {
    directory.join(format!("updates-{number:04}"))
}

/// Reads and verifies the record of a round.
///
/// # Errors
/// [`ServerError::Damaged`] if the record is missing, cannot be read or is not as it was committed; [`ServerError::Io`]
/// for an error of the whole system.
pub fn read_record(directory: &Path, number: u32) -> Result<RoundRecord, ServerError> {
    let path = directory.join(format!("round-{number:04}")).join(RECORD);
    let json = match regular(&path).and_then(|()| std::fs::read(&path)) {
        Ok(json) => json,
        Err(error) if is_of_the_system(&error) => return Err(io_error(&path)(error)),
        Err(error) => {
            return Err(ServerError::damaged_round(path, format!("cannot be read: {error}"), number));
        }
    };
    match RoundRecord::parse(&json) {
        Ok(record) if record.round == number => Ok(record),
        Ok(record) => {
            let problem = format!("found the record of round {}", record.round);
            Err(ServerError::damaged_round(path, problem, number))
        }
        Err(fault) => Err(ServerError::damaged_round(path, fault.to_string(), number)),
    }
}

/// Files of a committed round that are not as the record says or cannot be read, with what is wrong with them.
///
/// # Errors
/// [`ServerError::Io`] for an error of the whole system.
pub fn damaged_files(directory: &Path, record: &RoundRecord) -> Result<Vec<(PathBuf, String)>, ServerError> {
    let mut damaged = Vec::new();
    for (name, recorded) in &record.files {
        let path = directory.join(name);
        if let Some(problem) = file_problem(&path, Some(recorded))? {
            damaged.push((path, problem));
        }
    }
    Ok(damaged)
}

/// Difference between the recorded digest of a file and the file; `None` stands for no file.
///
/// # Errors
/// [`ServerError::Io`] for an error of the whole system.
pub fn file_problem(path: &Path, recorded: Option<&str>) -> Result<Option<String>, ServerError> {
    match hash_file(path) {
        Ok(hash) => Ok(digest_problem(recorded, Some(&finish_hex(hash)))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(digest_problem(recorded, None)),
        Err(error) if is_of_the_system(&error) => Err(io_error(path)(error)),
        Err(error) => Ok(Some(format!("cannot be read: {error}"))),
    }
}

/// Difference between the recorded digest of a file and the one found; `None` stands for no file.
pub fn digest_problem(recorded: Option<&str>, found: Option<&str>) -> Option<String> {
    match (recorded, found) {
        (Some(recorded), Some(found)) if recorded == found => None,
        (None, None) => None,
        (Some(recorded), Some(found)) => Some(format!("found SHA-256 {found}, recorded was {recorded}")),
        (Some(recorded), None) => Some(format!("found no file, recorded was SHA-256 {recorded}")),
        (None, Some(found)) => Some(format!("found SHA-256 {found}, the round had no such file")),
    }
}

/// Number of the last committed round; `None` in an empty directory.
///
/// # Errors
/// [`ServerError::Io`] if the directory cannot be read.
pub fn latest_committed(directory: &Path) -> Result<Option<u32>, ServerError> {
    Ok(directory_numbers(directory, "round-")?.into_iter().max())
}

/// Numbers of the directories whose names begin with `prefix`, in ascending order.
///
/// # Errors
/// [`ServerError::Io`] if the directory cannot be read.
pub fn directory_numbers(directory: &Path, prefix: &str) -> Result<Vec<u32>, ServerError> {
    let mut numbers = Vec::new();
    for path in entries(directory)? {
        let file = path.file_name().and_then(|file| file.to_str());
        let number: Option<u32> = file.and_then(|file| file.strip_prefix(prefix)?.parse().ok());
        // Names that this server does not write, such as `round-7`, are ignored.
        let is_written_form = |number: &u32| file == Some(&format!("{prefix}{number:04}"));
        numbers.extend(number.filter(is_written_form));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Paths of the entries of a directory, sorted.
///
/// # Errors
/// [`ServerError::Io`] if the directory cannot be read.
pub fn entries(directory: &Path) -> Result<Vec<PathBuf>, ServerError> {
    let read = std::fs::read_dir(directory).and_then(|entries| {
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<std::io::Result<Vec<_>>>()
    });
    let mut paths = read.map_err(io_error(directory))?;
    paths.sort();
    Ok(paths)
}
