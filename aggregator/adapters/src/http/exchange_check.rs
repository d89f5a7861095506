//! Check of a stored exchange: verifies the digest of every file of a state directory on which no server runs.

use std::path::{Path, PathBuf};

use super::ServerError;
use super::disk::Disk;
use super::error::io_error;
use super::round_store::{
    CHANGED, CONFIG, DAMAGED, MODEL, damaged_files, directory_numbers, entries, read_record,
    updates_directory,
};
use super::update_file::{UpdateName, Verification};
use fedspan_files::DirectoryLock;

/// Result of [`check_exchange`], one line each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExchangeReport {
    /// Rounds and updates that are as they were stored, and files that cannot be verified.
    pub facts: Vec<String>,
    /// Damaged files.
    pub faults: Vec<String>,
}

/// Verifies all rounds of a state directory and the updates of the open round. Changes nothing.
///
/// # Errors
/// [`ServerError::Locked`] while a server runs; [`ServerError::NoExchange`] if the directory has no rounds;
/// [`ServerError::Io`] if a file cannot be read.
pub fn check_exchange(directory: &Path) -> Result<ExchangeReport, ServerError> {
    let _lock = DirectoryLock::shared(directory)?;
    let rounds = directory_numbers(directory, "round-")?;
    let Some(newest) = rounds.last().copied() else {
        return Err(ServerError::NoExchange { path: directory.to_owned() });
    };
    let mut report = ExchangeReport::default();
    for round in rounds {
        check_round(directory, round, round == newest, &mut report)?;
    }
    let open = newest.saturating_add(1);
    let updates = updates_directory(directory, open);
    let (mut sound, mut unverifiable) = (0_usize, 0_usize);
    for path in if updates.exists() { entries(&updates)? } else { Vec::new() } {
        let name = path.file_name().and_then(|file| file.to_str()).and_then(UpdateName::parse);
        let verified = name
            .map(|name| name.verify_file(open, &path, &Disk::default()))
            .transpose()
            .map_err(io_error(&path))?;
        match verified {
            Some(Verification::Sound) => sound += 1,
            Some(Verification::Unverifiable) => {
                unverifiable += 1;
                report.facts.push(format!("{}: not verified: stored by an earlier version", path.display()));
            }
            Some(Verification::Damaged(problem)) => report.faults.push(format!(
                "{}: damaged: {problem}; the server sets it aside when it starts, and its client must send it again",
                path.display()
            )),
            None => report.faults.push(format!(
                "{}: not the name of an update; move the file out of the state directory, and let its client send it again",
                path.display()
            )),
        }
    }
    let damaged = directory.join(DAMAGED);
    let set_aside = if damaged.exists() { entries(&damaged)?.len() } else { 0 };
    if set_aside > 0 {
        let path = damaged.display();
        report
            .facts
            .push(format!("{path}: {set_aside} updates were set aside; remove them if nobody needs them"));
    }
    report.facts.push(format!("round {open}: {sound} updates sound, {unverifiable} not verified"));
    Ok(report)
}

/// Verifies one round.
fn check_round(
    directory: &Path,
    round: u32,
    is_newest: bool,
    report: &mut ExchangeReport,
) -> Result<(), ServerError> {
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
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let path = directory.join(format!("round-{round:04}"));
    if record.files.is_empty() {
        report.facts.push(format!("{}: not verified: committed by an earlier version", path.display()));
        return Ok(());
    }
    let damaged: Vec<(PathBuf, String)> = damaged_files(&path, &record)?;
    if damaged.is_empty() {
        report.facts.push(format!("{}: sound", path.display()));
    }
    for (file, problem) in damaged {
        report.faults.push(fault(file, problem));
    }
    for name in [MODEL, CONFIG, CHANGED] {
        let file = path.join(name);
        if file.exists() && !record.files.contains_key(name) {
            report.faults.push(format!("{}: the round had no such file; remove it", file.display()));
        }
    }
    Ok(())
}
