//! Check of a state directory (`fsck`): verifies that the stored campaign is consistent and fits a
//! configuration. The check writes nothing.

mod journal_check;

use std::collections::BTreeSet;
use std::path::Path;

use self::journal_check::JournalCheck;
use crate::config::Fleet;
use crate::durable_engine::{ResumeError, restore, with_stored_settings};
use crate::journal::{self, CommittedRound, JournalEntry, digest, sha256};
use crate::store::{CampaignState, OfflineStore, StoreError};
use fedspan_engine::{DeviceId, Engine};
use fedspan_files::regular;

/// Remedy for a journal file that differs from the database.
const REMEDY: &str = "move it away; the next start rewrites it from the database";

/// Result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Facts that were verified, one line each.
    pub facts: Vec<String>,
    /// Inconsistencies, one line each.
    pub faults: Vec<String>,
}

/// Checks the state directory of a configuration; returns `None` if the directory contains no campaign.
///
/// # Errors
/// [`StoreError`] if the database cannot be read at all.
pub fn check(fleet: &Fleet) -> Result<Option<CheckReport>, StoreError> {
    let Some(snapshot) = OfflineStore::open(&fleet.state)? else { return Ok(None) };
    let Some(stored) = snapshot.load()? else { return Ok(None) };
    let (rounds, lines) = (snapshot.rounds()?, snapshot.journal()?);
    let mut report = CheckReport::default();
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    let megabytes = snapshot.bytes() as f64 / 1e6;
    report.facts.push(format!("database: {megabytes:.1} MB, every page has its checksum"));
    let restored = with_stored_settings(fleet, &stored.configuration).and_then(|resumed| {
        if !resumed.kept.is_empty() {
            let settings = resumed.kept.join(", ");
            report.facts.push(format!("settings of the campaign that the file does not set: {settings}"));
        }
        let mut engine = resumed.fleet.engine();
        restore(&mut engine, &stored, &resumed.fleet.fingerprint()).map(|()| engine)
    });
    if let Err(error) = &restored {
        report.faults.push(locate_error(error, &fleet.state));
    }
    let engine = restored.as_ref().ok();
    report.facts.push(describe_campaign(&stored));
    report.check_rounds(&rounds, &stored, engine);
    let entries = (0..).zip(&lines).map(|(index, (number, line))| {
        let first = lines.first().map_or(0, |(first, _)| *first);
        if *number != first + index {
            return Err(format!("the journal lacks line {}", first + index));
        }
        serde_json::from_str::<JournalEntry>(line)
            .map_err(|error| format!("line {number} of the journal: {error}"))
    });
    match entries.collect::<Result<Vec<JournalEntry>, String>>() {
        Ok(journal) => report.check_journal(&journal, fleet.journal, &rounds, &stored, engine),
        Err(fault) => report.faults.push(fault),
    }
    report.check_journal_file(&fleet.state.join(journal::FILE), &lines);
    Ok(Some(report))
}

/// Formats a resume error with the path of the state directory, because the usual cause is a configuration
/// with the wrong directory.
#[must_use]
pub fn locate_error(error: &ResumeError, state: &Path) -> String {
    match error {
        // The message of a store error contains the path already.
        ResumeError::Store(error) => error.to_string(),
        error => format!("{}: {error}", state.display()),
    }
}

/// Returns one line about the campaign: its number, progress, open round and privacy accounts.
fn describe_campaign(stored: &CampaignState) -> String {
    let CampaignState { campaign, checkpoint, updates, accounts, .. } = stored;
    let Some(checkpoint) = checkpoint else { return format!("campaign {campaign}: no round was opened yet") };
    let open = match &checkpoint.open {
        Some(open) => format!(
            "round id {} is open among {} devices, with {} updates, which decrypt and count",
            checkpoint.id.round,
            open.fleet.len(),
            updates.len()
        ),
        None => "no round is open".to_owned(),
    };
    format!(
        "campaign {campaign}: {:?} of {} is done; {open}; {} privacy accounts",
        checkpoint.done,
        checkpoint.rounds,
        accounts.len()
    )
}

impl CheckReport {
    /// Checks the committed rounds against the campaign.
    fn check_rounds(&mut self, rounds: &[CommittedRound], stored: &CampaignState, engine: Option<&Engine>) {
        let mut report_fault = |text: String| self.faults.push(format!("the rounds: {text}"));
        let last = rounds.last();
        let last_round = last.map_or(0, |round| round.exchange);
        if stored.last_round().is_none_or(|id| id.round < last_round) && last.is_some() {
            report_fault(format!("round id {last_round} was committed but never opened"));
        }
        let stored_digest = engine.map(|engine| sha256(engine.representation()));
        if stored_digest.zip(last).is_some_and(|(stored_digest, last)| stored_digest != last.representation) {
            report_fault(format!("the stored representation differs from that of round id {last_round}"));
        }
        for round in rounds {
            if !round.participants.iter().all(|device| round.cohort.binary_search(device).is_ok()) {
                report_fault(format!("round id {} counts devices that were not asked", round.exchange));
            }
        }
        self.facts.push(format!("rounds: {}, the last has round id {last_round}", rounds.len()));
    }

    /// Checks the journal against the committed rounds and the campaign. `is_kept` is true if the
    /// configuration keeps a journal. A round without entries is a gap if no journal was kept during the
    /// round, and a fault otherwise.
    fn check_journal(
        &mut self,
        lines: &[JournalEntry],
        is_kept: bool,
        rounds: &[CommittedRound],
        stored: &CampaignState,
        engine: Option<&Engine>,
    ) {
        if lines.is_empty() {
            return self.facts.push("journal: none is kept".to_owned());
        }
        let mut journal_check = JournalCheck::new(lines);
        let (last_journalled, last_opened) =
            (journal_check.last, stored.last_round().map_or(0, |id| id.round));
        if !is_kept {
            journal_check.end_without_journal(last_opened);
        }
        let mut inconsistencies = std::mem::take(&mut journal_check.inconsistencies);
        for committed in &journal_check.commits {
            let index = rounds.binary_search_by_key(&committed.round, |round| round.exchange);
            let round = index.ok().and_then(|index| rounds.get(index));
            if round.is_none_or(|round| round.participants != committed.participants) {
                inconsistencies
                    .push(format!("round id {} differs from the committed round", committed.round));
            }
        }
        let journalled: BTreeSet<u32> =
            journal_check.commits.iter().map(|committed| committed.round).collect();
        for CommittedRound { exchange: round_id, .. } in rounds {
            // If a journal is kept, all rounds after its end are reported as one fault below.
            let has_entry = journalled.contains(round_id)
                || is_kept
                    && (*round_id > last_journalled
                        || *round_id == last_journalled && last_opened > last_journalled);
            if !has_entry && !journal_check.record_possible_gap(*round_id) {
                inconsistencies.push(format!("round id {round_id} was committed but has no entry"));
            }
        }
        let counted: Vec<DeviceId> = stored.updates.iter().map(|(device, _)| *device).collect();
        if last_opened > last_journalled && is_kept {
            inconsistencies.push(format!(
                "it ends in round id {last_journalled}, but round id {last_opened} was opened since; if no \
                 journal was kept until now (journal = false), the next start records the gap"
            ));
        } else if last_opened <= last_journalled
            && stored.open_round().is_some()
            && (last_opened < last_journalled || !journal_check.has_counted(&counted))
        {
            let open = journal_check.open.len();
            inconsistencies.push(format!(
                "round id {last_journalled} has counted {open} devices, but {} updates are stored",
                counted.len()
            ));
        }
        let committed = journal_check.commits.last();
        // A journal without the last committed round was reported above.
        let is_last =
            rounds.last().zip(committed).is_none_or(|(round, journalled)| journalled.round >= round.exchange);
        let digests = engine.map(|engine| digest(engine.representation())).zip(committed);
        if is_last && digests.is_some_and(|(stored, committed)| stored != committed.representation) {
            inconsistencies.push("the stored representation differs from that of the last commit".to_owned());
        }
        self.faults.extend(inconsistencies.into_iter().map(|text| format!("the journal: {text}")));
        let number = lines.iter().filter(|line| matches!(line, JournalEntry::Committed(_))).count();
        let gaps = journal_check.describe_gaps().map_or(String::new(), |gaps| format!(", with {gaps}"));
        self.facts.push(format!("journal: {} lines, {number} rounds{gaps}", lines.len()));
    }

    /// Checks the journal file against the database.
    fn check_journal_file(&mut self, path: &Path, lines: &[(u64, String)]) {
        let name = path.display();
        let text = match regular(path).and_then(|()| std::fs::read_to_string(path)) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                return self.faults.push(format!("{name}: not UTF-8; {REMEDY}"));
            }
            Err(error) => return self.faults.push(format!("{name}: {error}")),
        };
        // The next start of a server completes an unfinished last line.
        let complete_lines: Vec<&str> =
            text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).collect();
        let next = lines.last().map_or(0, |(number, _)| number + 1);
        let written = complete_lines.len() as u64;
        let differs = lines.iter().find(|(number, line)| {
            let file_line = usize::try_from(*number).ok().and_then(|index| complete_lines.get(index));
            file_line.is_some_and(|file_line| file_line != line)
        });
        if let Some((number, _)) = differs {
            self.faults.push(format!("{name}: line {} differs from the database; {REMEDY}", number + 1));
        } else if written > next {
            self.faults.push(format!("{name}: {written} lines, but the database has {next}; {REMEDY}"));
        } else {
            let behind = match next - written {
                0 => "all of them".to_owned(),
                behind => format!("all but the last {behind}, which the next start adds"),
            };
            self.facts.push(format!("{name}: {written} lines, {behind}"));
        }
    }
}
