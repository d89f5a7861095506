//! Check of a stored exchange: verifies every file of a state directory on which no server runs, and finds what a server
//! would refuse at its start.

use std::path::{Path, PathBuf};

use super::disk::Disk;
use super::round_record::RoundRecord;
use super::stored_state::{
    CHANGED, CONFIG, Content, DAMAGED, MODEL, StoredUpdate, changed_setting, damaged_files,
    directory_numbers, entries, hash_base, is_counted_update, later_updates, model_len, private_directories,
    read_record, read_updates, updates_directory,
};
use super::{ServerError, Settings};
use fedspan_files::{DirectoryLock, check_private_directory};

/// Result of [`check_exchange`], one line each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExchangeReport {
    /// Rounds and updates that are as they were stored, and files that cannot be verified.
    pub facts: Vec<String>,
    /// Damaged files, and states of the directory with which no server starts, with what to do.
    pub faults: Vec<String>,
}

/// Verifies all rounds of a state directory and the updates of the open round. Changes nothing. Every state that a
/// server refuses at its start is a fault; what it refuses because of its configuration (method, base, clients) only if
/// `settings` are given.
///
/// # Errors
/// [`ServerError::Locked`] while a server runs; [`ServerError::NoExchange`] if the directory has no rounds;
/// [`ServerError::Adapter`] or [`ServerError::Io`] if the base of the settings or the directory cannot be read.
pub fn check_exchange(directory: &Path, settings: Option<&Settings>) -> Result<ExchangeReport, ServerError> {
    let _lock = DirectoryLock::shared(directory)?;
    let rounds = directory_numbers(directory, "round-")?;
    let Some(newest) = rounds.last().copied() else {
        return Err(ServerError::NoExchange { path: directory.to_owned() });
    };
    let mut report = ExchangeReport::default();
    let refused = check_private(directory, &mut report)?;
    let mut records = Vec::new();
    for round in rounds {
        let path = directory.join(format!("round-{round:04}"));
        if !refused.contains(&path) {
            records.extend(check_round(directory, round, round == newest, &mut report)?);
        }
    }
    check_settings(directory, &records, settings, &mut report)?;
    let open = newest.saturating_add(1);
    let updates = updates_directory(directory, open);
    if updates.exists() && !refused.contains(&updates) {
        let names = settings.map(|settings| settings.registry.names());
        check_updates(read_updates(directory, open, names, &Disk::default())?, open, &mut report);
    }
    check_other_updates(directory, open, &records, &refused, &mut report)?;
    let damaged = directory.join(DAMAGED);
    let set_aside = if damaged.is_dir() { entries(&damaged)?.len() } else { 0 };
    if set_aside > 0 {
        let path = damaged.display();
        report
            .facts
            .push(format!("{path}: {set_aside} files were set aside; remove them if nobody needs them"));
    }
    Ok(report)
}

/// Checks that the directories are private. Returns those that a server refuses.
fn check_private(directory: &Path, report: &mut ExchangeReport) -> Result<Vec<PathBuf>, ServerError> {
    let mut refused = Vec::new();
    for path in private_directories(directory)? {
        match check_private_directory(&path) {
            Ok(readable) => {
                report.facts.extend(readable.into_iter().map(|file| {
                    format!("{}: other users can read it, until a server starts", file.display())
                }))
            }
            Err(error) => {
                report.faults.push(ServerError::from(error).to_string());
                // The content of the state directory itself is checked all the same.
                if path != directory && !path.is_dir() {
                    refused.push(path);
                }
            }
        }
    }
    Ok(refused)
}

/// Checks that all rounds are of one exchange, and of the configured one.
fn check_settings(
    directory: &Path,
    records: &[RoundRecord],
    settings: Option<&Settings>,
    report: &mut ExchangeReport,
) -> Result<(), ServerError> {
    let Some(newest) = records.last() else { return Ok(()) };
    if let Some(settings) = settings {
        let (_, base) = hash_base(&settings.base)?;
        let error = changed_setting(directory, newest, settings.rules.method, &base);
        report.faults.extend(error.map(|error| error.to_string()));
    }
    for record in records {
        for (setting, found, expected) in
            [("base of SHA-256", &record.base, &newest.base), ("method", &record.method, &newest.method)]
        {
            if found != expected {
                let path = directory.join(format!("round-{:04}", record.round));
                report.faults.push(format!(
                    "{}: of another exchange: found {setting} {found}, round {} has {expected}; move this round out of the state directory, the server uses only the newest round",
                    path.display(),
                    newest.round
                ));
            }
        }
    }
    Ok(())
}

/// Adds the updates of the open round.
fn check_updates(updates: Vec<StoredUpdate>, open: u32, report: &mut ExchangeReport) {
    let (mut sound, mut unverifiable) = (0_usize, 0_usize);
    for StoredUpdate { path, content } in updates {
        match content {
            Content::Sound(_) => sound += 1,
            Content::Unverifiable(_) => {
                unverifiable += 1;
                report.facts.push(format!("{}: not verified: stored by an earlier version", path.display()));
            }
            Content::Damaged(problem) => report.faults.push(format!(
                "{}: damaged: {problem}; the server sets it aside when it starts, and its client must send it again",
                path.display()
            )),
            Content::Refused => report.faults.push(ServerError::UnknownUpdate { path }.to_string()),
        }
    }
    report.facts.push(format!("round {open}: {sound} updates sound, {unverifiable} not verified"));
}

/// Checks the updates of committed rounds, which the server removes when it starts, and those of later rounds.
fn check_other_updates(
    directory: &Path,
    open: u32,
    records: &[RoundRecord],
    refused: &[PathBuf],
    report: &mut ExchangeReport,
) -> Result<(), ServerError> {
    for number in directory_numbers(directory, "updates-")? {
        let path = updates_directory(directory, number);
        if number >= open || refused.contains(&path) {
            continue;
        }
        let record = records.iter().find(|record| record.round == number);
        let mut counted = 0_usize;
        for path in entries(&path)? {
            let name = path.file_name().and_then(|name| name.to_str());
            if name.zip(record).is_some_and(|(name, record)| is_counted_update(record, name)) {
                counted += 1;
                continue;
            }
            report.faults.push(format!(
                "{}: not part of the mean of round {number}, which is committed; the server moves it to {DAMAGED} when it starts; move it away if nobody needs it",
                path.display()
            ));
        }
        report.facts.push(format!(
            "{}: {counted} updates that are part of the mean; the server removes them when it starts",
            path.display()
        ));
    }
    report.faults.extend(later_updates(directory, open)?.iter().map(ToString::to_string));
    Ok(())
}

/// Verifies one round, and returns its record if it can be used.
fn check_round(
    directory: &Path,
    round: u32,
    is_newest: bool,
    report: &mut ExchangeReport,
) -> Result<Option<RoundRecord>, ServerError> {
    let fault = |path: PathBuf, problem: String| match is_newest {
        true => ServerError::damaged_round(path, problem, round).to_string(),
        false => format!(
            "{}: damaged: {problem}; restore the file from a backup, or remove round-{round:04}: the server uses only the newest round",
            path.display()
        ),
    };
    let record = match read_record(directory, round) {
        Ok(record) => record,
        Err(ServerError::Damaged { path, problem, .. }) => {
            report.faults.push(fault(path, problem));
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let path = directory.join(format!("round-{round:04}"));
    let mut damaged: Vec<(PathBuf, String)> = damaged_files(&path, &record)?;
    if damaged.is_empty() {
        // The digests say that the file is as it was committed, not that it is an adapter.
        match model_len(directory, round) {
            Ok(_) => {}
            Err(ServerError::Damaged { path, problem, .. }) => damaged.push((path, problem)),
            Err(error) => return Err(error),
        }
    }
    let path_text = path.display();
    if record.files.is_empty() {
        report.facts.push(format!("{path_text}: not verified: committed by an earlier version"));
    } else if damaged.is_empty() {
        report.facts.push(format!("{path_text}: sound"));
    }
    for (file, problem) in damaged {
        report.faults.push(fault(file, problem));
    }
    for name in [MODEL, CONFIG, CHANGED] {
        let file = path.join(name);
        if file.exists() && !record.files.is_empty() && !record.files.contains_key(name) {
            report.faults.push(format!("{}: the round had no such file; remove it", file.display()));
        }
    }
    Ok(Some(record))
}
