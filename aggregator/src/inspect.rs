//! Looks at everything that a state directory holds, and whether it agrees with itself and with a configuration. Changes nothing.

use std::collections::BTreeSet;
use std::path::Path;

use crate::config::Fleet;
use crate::coordinator::take_up;
use crate::engine::{DeviceId, Engine};
use crate::journal::{self, Line, Outcome, digest};
use crate::store::{Snapshot, StoreError, Stored};

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// What was looked at, a line each.
    pub seen: Vec<String>,
    /// What is wrong, a line each.
    pub faults: Vec<String>,
}

/// Looks at the state directory of a configuration; `None` if no campaign was ever begun there.
///
/// # Errors
/// [`StoreError`] if the database cannot be read, which is all there is to say then.
pub fn inspect(fleet: &Fleet) -> Result<Option<Inspection>, StoreError> {
    let Some(snapshot) = Snapshot::of(&fleet.state)? else { return Ok(None) };
    let Some(stored) = snapshot.load()? else { return Ok(None) };
    let lines = snapshot.journal()?;
    let mut found = Inspection::default();
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    let megabytes = snapshot.bytes() as f64 / 1e6;
    found.seen.push(format!("database: {megabytes:.1} MB, every page has its checksum"));
    let mut engine = fleet.engine();
    let taken = take_up(&mut engine, &stored, &fleet.fingerprint());
    if let Err(error) = &taken {
        found.faults.push(error.to_string());
    }
    // It is of no use otherwise.
    let engine = taken.is_ok().then_some(&engine);
    found.seen.push(about(&stored));
    let text = (0..).zip(&lines).map(|(place, (number, text))| {
        let first = lines.first().map_or(0, |(first, _)| *first);
        if *number != first + place {
            return Err(format!("the journal has no line {}", first + place));
        }
        serde_json::from_str::<Line>(text).map_err(|error| format!("line {number} of the journal: {error}"))
    });
    match text.collect::<Result<Vec<Line>, String>>() {
        Ok(journal) => found.journal(&journal, &stored, engine),
        Err(fault) => found.faults.push(fault),
    }
    found.file(&fleet.state.join(journal::FILE), &lines);
    Ok(Some(found))
}

fn about(stored: &Stored) -> String {
    let Stored { campaign, checkpoint, updates, accounts, .. } = stored;
    let Some(checkpoint) = checkpoint else { return format!("campaign {campaign}: no round was opened yet") };
    let open = match &checkpoint.open {
        Some(open) => format!(
            "exchange {} is open among {} devices, with {} updates, which open and count",
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

impl Inspection {
    /// Holds the journal against the rest.
    fn journal(&mut self, lines: &[Line], stored: &Stored, engine: Option<&Engine>) {
        let (mut last, mut rounds, mut representation) = (0, 0, None);
        let mut open: Vec<DeviceId> = Vec::new();
        let mut wrong = |what: String| self.faults.push(format!("the journal: {what}"));
        for line in lines {
            match line {
                Line::Began(_) => (last, representation, open) = (0, None, Vec::new()),
                Line::Resumed(_) => {}
                Line::Opened(opened) => {
                    if opened.round <= last {
                        wrong(format!("exchange {} was opened after exchange {last}", opened.round));
                    }
                    last = opened.round;
                    open.clear();
                }
                Line::Answered(answer) if answer.outcome == Outcome::Counted => {
                    if answer.round != last || open.contains(&answer.device) {
                        wrong(format!("device {} counted again in exchange {}", answer.device, answer.round));
                    }
                    open.push(answer.device);
                }
                Line::Answered(_) => {}
                Line::Committed(committed) => {
                    let counted: BTreeSet<&DeviceId> = open.iter().collect();
                    if committed.round != last
                        || committed.participants.iter().collect::<BTreeSet<_>>() != counted
                    {
                        wrong(format!(
                            "exchange {} was committed with others than it counted",
                            committed.round
                        ));
                    }
                    rounds += 1;
                    open.clear();
                    representation = Some(&committed.representation);
                }
            }
        }
        let is_kept = !lines.is_empty();
        let counted: Vec<DeviceId> = stored.updates.iter().map(|(device, _)| *device).collect();
        if is_kept && stored.open().is_some_and(|id| id.round != last || counted != open) {
            wrong(format!(
                "exchange {last} has counted {} devices, and {} updates are stored",
                open.len(),
                counted.len()
            ));
        }
        let now = engine.map(|engine| digest(engine.representation()));
        if now.zip(representation).is_some_and(|(now, known)| now != *known) {
            wrong("the stored representation is not that of the last commit".to_owned());
        }
        self.seen.push(match is_kept {
            true => format!("journal: {} lines, {rounds} rounds", lines.len()),
            false => "journal: none is kept".to_owned(),
        });
    }

    /// Holds the journal's file against the table.
    fn file(&mut self, path: &Path, lines: &[(u64, String)]) {
        let name = path.display();
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
            Err(error) => return self.faults.push(format!("{name}: {error}")),
        };
        // What has no end yet is written again.
        let whole: Vec<&str> =
            text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).collect();
        let next = lines.last().map_or(0, |(number, _)| number + 1);
        let written = whole.len() as u64;
        let differs = lines.iter().find(|(number, line)| {
            let at = usize::try_from(*number).ok().and_then(|at| whole.get(at));
            at.is_some_and(|written| written != line)
        });
        if let Some((number, _)) = differs {
            self.faults.push(format!("{name}: line {} is not that of the database", number + 1));
        } else if written > next {
            self.faults.push(format!("{name}: {written} lines, and the database has {next}"));
        } else {
            let behind = match next - written {
                0 => "all of them".to_owned(),
                behind => format!("all but the last {behind}, which the next start adds"),
            };
            self.seen.push(format!("{name}: {written} lines, {behind}"));
        }
    }
}
