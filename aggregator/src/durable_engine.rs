//! Durable engine: the round engine behind a write-ahead log. The actions of the engine are held back until
//! the records that they depend on are on disk, and are then released in order.
//!
//! This module has no clock, sockets or threads: the server drives it with real time and a database file,
//! fault simulations drive it with virtual time and a database that loses unsynced data.
//!
//! ```text
//!  event -> Engine -> actions ------------------------------------ held --> caller
//!             |                                                     ^
//!             +--> records -> rows of the store, journal entries ---+-- Store::apply
//! ```

use fedspan_protocol::message::Privacy;

use crate::config::{Fleet, Mismatch, Resumed, difference};
use crate::journal::{JournalEntry, Server};
use crate::store::{CampaignState, Row, Store, StoreError};
use fedspan_engine::{Action, DeviceId, Engine, Event, Millis, Phase, Record, RecordedEffects};

/// Reason why a campaign cannot be resumed.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// The store cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The campaign was begun under other settings.
    #[error(
        "the campaign was begun under another configuration (- stored, + given): {}; restore the lines to resume it, or begin a new \
         campaign in another directory (`state`)", difference.trim_end().replace('\n', ", ")
    )]
    Changed {
        /// Settings that differ, one line each: `-` stored, `+` given.
        difference: String,
    },
    /// The journal file has more lines than the database. Since the file is written after the database, the
    /// database is an older copy.
    #[error(
        "arrivals.jsonl has {file} lines and the database {table}: the database is an older copy. Restore the newer one, or move \
         arrivals.jsonl away to resume from this one"
    )]
    Older {
        /// Number of lines in the journal file.
        file: u64,
        /// Number of journal lines in the database.
        table: u64,
    },
    /// The stored campaign is inconsistent, or was written by an engine whose decisions differ from those of
    /// this version.
    #[error("the stored campaign cannot be resumed: {what}")]
    Contradiction {
        /// Description of the inconsistency.
        what: String,
    },
}

/// Returns the configuration under the settings of a stored campaign.
///
/// # Errors
/// [`ResumeError::Changed`] if the file sets another value; [`ResumeError::Contradiction`] if the stored
/// settings cannot be read.
pub(crate) fn with_stored_settings(fleet: &Fleet, stored: &str) -> Result<Resumed, ResumeError> {
    fleet.resumed(stored).map_err(|mismatch| match mismatch {
        Mismatch::Differs(difference) => ResumeError::Changed { difference },
        Mismatch::Unreadable(problem) => ResumeError::Contradiction { what: problem.to_string() },
    })
}

/// Parameters with which a campaign is begun or resumed.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// Settings of the campaign, one line each. A stored campaign in which a round was opened under other
    /// settings is refused.
    pub configuration: String,
    /// Number of a new campaign; a resumed campaign keeps its number.
    pub number: u64,
    /// Number of devices that the first round waits for.
    pub expected: usize,
    /// Number of lines in the journal file; more lines than in the store are an error. `None` if no journal
    /// is kept.
    pub journal: Option<u64>,
}

/// Replays a stored campaign into a new engine, including the updates of its open round.
///
/// # Errors
/// [`ResumeError::Changed`] and [`ResumeError::Contradiction`]; the engine must not be used after an error.
pub(crate) fn restore(
    engine: &mut Engine,
    stored: &CampaignState,
    configuration: &str,
) -> Result<(), ResumeError> {
    let difference = difference(&stored.configuration, configuration);
    if !difference.is_empty() {
        return Err(ResumeError::Changed { difference });
    }
    for (device, account) in &stored.accounts {
        engine.restore_account(*device, *account);
    }
    for (device, missed) in &stored.missed {
        engine.restore_missed(*device, *missed);
    }
    let Some(checkpoint) = &stored.checkpoint else { return Ok(()) };
    let round = checkpoint.id.round;
    if !engine.resume(stored.clock, checkpoint) {
        return Err(ResumeError::Contradiction { what: format!("round {round} cannot be restored") });
    }
    let contradiction = |what| Err(ResumeError::Contradiction { what });
    if checkpoint.open.is_some() && engine.open_round().is_none() {
        // The engine has dropped the open round, so the stored updates of that round do not count.
        return match stored.last_round() {
            Some(last_id) if !engine.restore_dropped_id(last_id) => {
                contradiction(format!("round {round} cannot continue as round {}", last_id.round))
            }
            _ => Ok(()),
        };
    }
    let mut aliases = stored.round_aliases.iter().copied();
    for (device, counted) in &stored.updates {
        let has_id = |engine: &Engine| engine.open_round().is_some_and(|open| open.has_id(counted.update.id));
        // The update was counted under one of the ids of the round: renumbers the round until it has had that
        // id.
        while !has_id(engine) && aliases.next().is_some_and(|alias| engine.restore_id(alias)) {}
        if !engine.replay_update(counted.at, *device, &counted.update) {
            return contradiction(format!("the update of device {device} does not count in round {round}"));
        }
    }
    for alias in aliases {
        if !engine.restore_id(alias) {
            return contradiction(format!("round {round} cannot continue as round {}", alias.round));
        }
    }
    for device in &stored.excluded {
        engine.mark_excluded(*device);
    }
    if let Some(deadline) = stored.deadline
        && !engine.restore_deadline(deadline)
    {
        return contradiction(format!("round {round} has no device to wait for"));
    }
    Ok(())
}

/// Actions and journal lines that are durable and may be released.
#[derive(Debug, Default)]
pub struct Flushed {
    /// Actions of the engine, in order.
    pub actions: Vec<Action>,
    /// Journal lines, in order.
    pub lines: Vec<String>,
}

/// Engine whose actions are released only after the records behind them are on disk.
pub struct DurableEngine {
    engine: Engine,
    store: Store,
    /// Number of the campaign.
    campaign: u64,
    /// Number of the next journal line; `None` if no journal is kept.
    next_entry: Option<u64>,
    /// Effects of the event that is being handled.
    effects: RecordedEffects,
    /// Rows that are not written yet.
    rows: Vec<Row>,
    /// Actions that wait for the rows.
    pending: Flushed,
    /// Campaign time of the last event.
    now: Millis,
}

impl DurableEngine {
    /// Resumes the campaign in the store, or begins a new one. Also returns the time from which the campaign
    /// clock continues.
    ///
    /// # Errors
    /// [`ResumeError`] if the store cannot be used or its campaign does not fit.
    pub fn new(
        mut engine: Engine,
        mut store: Store,
        campaign: &Campaign,
    ) -> Result<(Self, Millis), ResumeError> {
        let Campaign { configuration, number, expected, journal } = campaign;
        let stored = store.load()?;
        // A new campaign continues the journal of the previous one.
        let lines = stored.as_ref().map_or(0, |stored| stored.next_journal_line);
        if let Some(file_lines) = journal.filter(|file_lines| lines > 0 && *file_lines > lines) {
            return Err(ResumeError::Older { file: file_lines, table: lines });
        }
        // A campaign in which no round was opened may be replaced by one with other settings.
        let has_same_settings =
            |stored: &CampaignState| difference(&stored.configuration, configuration).is_empty();
        let stored = stored.filter(|stored| stored.checkpoint.is_some() || has_same_settings(stored));
        let mut number = *number;
        let mut clock = Millis::ZERO;
        let mut last_round = None;
        if let Some(stored) = &stored {
            restore(&mut engine, stored, configuration)?;
            (number, clock) = (stored.campaign, stored.clock);
            if stored.updates.is_empty() {
                store.erase_key()?;
            }
            last_round = stored.last_round().map(|id| id.round);
        } else {
            store.begin(number, configuration)?;
        }
        let mut durable = Self {
            engine,
            store,
            campaign: number,
            next_entry: journal.map(|file_lines| file_lines.max(lines)),
            effects: RecordedEffects::default(),
            rows: Vec::new(),
            pending: Flushed::default(),
            now: clock,
        };
        let server = Server {
            after: last_round.unwrap_or(0),
            expected: *expected,
            configuration: configuration.clone(),
        };
        durable.append_entry(if last_round.is_some() {
            JournalEntry::Resumed(server)
        } else {
            JournalEntry::Began(server)
        });
        durable.handle(clock, Event::Resumed);
        Ok((durable, clock))
    }

    /// Returns the engine.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the number of the next journal line; 0 if no journal is kept.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.next_entry.unwrap_or(0)
    }

    /// Returns the number of the campaign.
    #[must_use]
    pub fn campaign(&self) -> u64 {
        self.campaign
    }

    /// Returns the store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Records the privacy state that a device reports in its hello, before it joins.
    pub fn record_privacy(&mut self, device: DeviceId, reported: Privacy) {
        self.engine.record_privacy(device, reported, &mut self.effects);
        self.keep_effects();
    }

    /// Applies one event to the engine. The effects are held back until [`Self::flush`].
    pub fn handle(&mut self, now: Millis, event: Event) {
        self.now = now;
        self.engine.handle(now, event, &mut self.effects);
        if self.engine.phase() == Phase::Failed {
            // A restarted server may retry from the stored campaign. Therefore only privacy accounts are
            // written, and only the failure is released.
            self.effects.records.retain(|record| matches!(record, Record::Account(..)));
            self.effects.actions.retain(|action| matches!(action, Action::Failed(_)));
        }
        self.keep_effects();
    }

    /// Moves the effects of an event to the pending actions and rows. The journal entry of a record precedes
    /// the row of that record, so that one transaction contains both.
    fn keep_effects(&mut self) {
        self.pending.actions.append(&mut self.effects.actions);
        for record in std::mem::take(&mut self.effects.records) {
            let representation = self.engine.representation();
            let entry = self.next_entry.and_then(|_| JournalEntry::of(self.now, &record, representation));
            let row = Row::of(record, representation);
            entry.into_iter().for_each(|entry| self.append_entry(entry));
            self.rows.extend(row);
        }
    }

    /// Writes the pending rows and returns the actions and journal entries that may now be released.
    ///
    /// # Errors
    /// [`StoreError`] if the rows cannot be written: nothing is released, and the call may be repeated.
    pub fn flush(&mut self) -> Result<Flushed, StoreError> {
        if !self.rows.is_empty() {
            // A failed attempt has already appended the clock.
            if !matches!(self.rows.last(), Some(Row::Clock(_))) {
                self.rows.push(Row::Clock(self.now));
            }
            self.store.apply(&self.rows)?;
            let lines = self.rows.drain(..).filter_map(|row| match row {
                Row::JournalEntry(_, line) => Some(line),
                Row::Engine(_) | Row::Round(_) | Row::Clock(_) => None,
            });
            self.pending.lines.extend(lines);
        }
        Ok(std::mem::take(&mut self.pending))
    }

    /// Appends an entry to the pending rows and journal lines, if a journal is kept.
    fn append_entry(&mut self, entry: JournalEntry) {
        let Some(next) = &mut self.next_entry else { return };
        // Every journal entry serialises to JSON.
        if let Ok(line) = serde_json::to_string(&entry) {
            self.rows.push(Row::JournalEntry(*next, line));
            *next += 1;
        }
    }
}
