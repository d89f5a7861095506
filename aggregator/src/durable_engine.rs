//! The engine and what must not be forgotten of it. What the engine wants done waits until everything is durable on which it
//! rests: acknowledgements, openings, everything, in its order.
//!
//! No clock, no sockets, no threads: the server drives it with real time and a database in a file, simulated disasters with
//! virtual time and a database that loses what was not synced.
//!
//! ```text
//!  event -> Engine -> actions ---------------------- wait ----------------> caller
//!             |                                        ^
//!             +--> records: checkpoint, counted, out --+-- Store::apply
//! ```

use fedspan_protocol::message::{Ack, AckOutcome, Privacy, RoundId};

use crate::config::{Fleet, Mismatch, Resumed, difference};
use crate::journal::{CommittedRound, JournalEntry, JournalRecorder, Server};
use crate::store::{CampaignState, CountedUpdate, Record, Store, StoreError};
use fedspan_engine::privacy::Account;
use fedspan_engine::{Action, DeviceId, Engine, Event, Millis, Phase};

/// A campaign cannot be taken up.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The state belongs to another configuration.
    #[error(
        "the campaign was begun under another configuration:\n{difference}put the lines back to go on with it (- was, + is), \
         or begin a new one in another directory (`state`)"
    )]
    Changed {
        /// Lines that differ.
        difference: String,
    },
    /// The journal's file tells of more than the database, which it follows.
    #[error(
        "arrivals.jsonl has {file} lines, and the database {table}, which is older than the one that was here: put the newer one \
         back, or move arrivals.jsonl away to go on from this one"
    )]
    Older {
        /// Lines in the file.
        file: u64,
        /// Lines in the database.
        table: u64,
    },
    /// What is stored contradicts itself, or was made by an engine that decides otherwise.
    #[error("the stored campaign cannot be taken up: {what}")]
    Contradiction {
        /// What does not fit.
        what: String,
    },
}

/// A configuration under the settings of a stored campaign.
///
/// # Errors
/// [`ResumeError::Changed`] and [`ResumeError::Contradiction`].
pub(crate) fn with_stored_settings(fleet: &Fleet, stored: &str) -> Result<Resumed, ResumeError> {
    fleet.resumed(stored).map_err(|mismatch| match mismatch {
        Mismatch::Differs(difference) => ResumeError::Changed { difference },
        Mismatch::Unreadable(problem) => ResumeError::Contradiction { what: problem.to_string() },
    })
}

/// What a campaign is called, and how it is watched.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// Its settings, a line each: another campaign's state is refused.
    pub configuration: String,
    /// The campaign's number, if it is a new one.
    pub number: u64,
    /// How many devices the first round waits for.
    pub expected: usize,
    /// Lines that the journal's file has already: never more than the store, which it follows; none: no journal is kept.
    pub journal: Option<u64>,
}

/// Puts an engine where a stored campaign is, in the middle of its round.
///
/// # Errors
/// [`ResumeError::Changed`] and [`ResumeError::Contradiction`]; the engine is of no use then.
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
    let Some(checkpoint) = &stored.checkpoint else { return Ok(()) };
    let round = checkpoint.id.round;
    if !engine.resume(stored.clock, checkpoint) {
        return Err(ResumeError::Contradiction { what: format!("round {round} would not be what it was") });
    }
    let contradiction = |what| Err(ResumeError::Contradiction { what });
    if checkpoint.open.is_some() && engine.open_round().is_none() {
        // What was counted in it counts no longer.
        return match stored.last_round() {
            Some(last) if !engine.drop_as(last) => {
                contradiction(format!("round {round} cannot have become round {}", last.round))
            }
            _ => Ok(()),
        };
    }
    let mut names = stored.round_aliases.iter().copied();
    for (device, counted) in &stored.updates {
        let is_called =
            |engine: &Engine| engine.open_round().is_some_and(|open| open.is_called(counted.update.id));
        // It was counted under the number that the round had then, or an earlier one.
        while !is_called(engine) && names.next().is_some_and(|name| engine.go_on_as(name)) {}
        if !engine.recount(counted.at, *device, &counted.update) {
            return contradiction(format!("the update of device {device} in round {round}"));
        }
    }
    for name in names {
        if !engine.go_on_as(name) {
            return contradiction(format!("round {round} cannot have become round {}", name.round));
        }
    }
    for device in &stored.excluded {
        engine.leave_out(*device);
    }
    if let Some(deadline) = stored.deadline
        && !engine.wait_as(deadline)
    {
        return contradiction(format!("round {round} waits for nobody"));
    }
    Ok(())
}

/// The number under which the open round was opened, and the one that it has now.
fn open_round_ids(engine: &Engine) -> Option<(RoundId, RoundId)> {
    engine.open_round().map(|round| (round.first(), round.opening.id))
}

/// What may be done now.
#[derive(Debug, Default)]
pub struct Flushed {
    /// What the engine wants done, in its order.
    pub actions: Vec<Action>,
    /// What has happened, in the journal's words.
    pub lines: Vec<JournalEntry>,
}

/// An engine whose decisions are durable before they are anybody's.
pub struct DurableEngine {
    engine: Engine,
    store: Store,
    recorder: JournalRecorder,
    campaign: u64,
    /// The number of the journal's next line, if one is kept.
    next_entry: Option<u64>,
    /// The open round, as far as records tell: the number under which it was opened, and the one that it has now.
    recorded_ids: Option<(RoundId, RoundId)>,
    records: Vec<Record>,
    pending: Flushed,
    /// When the last event was.
    now: Millis,
}

impl DurableEngine {
    /// Begins a campaign, or goes on with the one in the store; and the time at which its clock is to go on.
    ///
    /// # Errors
    /// [`ResumeError`].
    pub fn new(
        mut engine: Engine,
        mut store: Store,
        campaign: &Campaign,
    ) -> Result<(Self, Millis), ResumeError> {
        let Campaign { configuration, number, expected, journal } = campaign;
        let stored = store.load()?;
        // The journal goes on where it was, whatever becomes of the campaign.
        let lines = stored.as_ref().map_or(0, |stored| stored.next_journal_line);
        if let Some(file) = journal.filter(|file| lines > 0 && *file > lines) {
            return Err(ResumeError::Older { file, table: lines });
        }
        // Where no round was opened there is nothing that another configuration could spoil.
        let is_the_same =
            |stored: &CampaignState| difference(&stored.configuration, configuration).is_empty();
        let stored = stored.filter(|stored| stored.checkpoint.is_some() || is_the_same(stored));
        let (mut number, mut clock, mut after) = (*number, 0, None);
        if let Some(stored) = &stored {
            restore(&mut engine, stored, configuration)?;
            (number, clock) = (stored.campaign, stored.clock);
            if stored.updates.is_empty() {
                store.erase_key()?;
            }
            after = stored.last_round().map(|id| id.round);
        } else {
            store.begin(number, configuration)?;
        }
        let mut durable = Self {
            recorded_ids: open_round_ids(&engine),
            engine,
            store,
            recorder: JournalRecorder::default(),
            campaign: number,
            next_entry: journal.map(|recorded_ids| recorded_ids.max(lines)),
            records: Vec::new(),
            pending: Flushed::default(),
            now: clock,
        };
        durable.recorder = JournalRecorder::after(durable.recorded_ids.map(|(_, now)| now));
        let server =
            Server { after: after.unwrap_or(0), expected: *expected, configuration: configuration.clone() };
        durable.append_journal([if after.is_some() {
            JournalEntry::Resumed(server)
        } else {
            JournalEntry::Began(server)
        }]);
        durable.handle(clock, Event::Resumed);
        Ok((durable, clock))
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The number of the journal's next line; 0 where none is kept.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.next_entry.unwrap_or(0)
    }

    /// The campaign's number.
    #[must_use]
    pub fn campaign(&self) -> u64 {
        self.campaign
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Notes what a device says of its noise, before it joins.
    pub fn record_privacy(&mut self, device: DeviceId, said: Privacy) {
        let before = self.account(device);
        self.engine.heard_privacy(device, said);
        self.record_account_change(device, before);
    }

    /// Gives the engine one event; what comes of it waits for [`Self::flush`].
    pub fn handle(&mut self, now: Millis, event: Event) {
        self.now = now;
        let is_out = |engine: &Engine, device: DeviceId| {
            engine.open_round().is_some_and(|round| round.out.contains(&device))
        };
        let device = match event {
            Event::Update(device, _) | Event::Unread(device, _) | Event::Declined(device, _) => Some(device),
            Event::Joined(_) | Event::Left(_) | Event::Tick | Event::Resumed => None,
        };
        let update = match &event {
            Event::Update(device, update)
                if self.engine.open_round().is_some_and(|round| round.id_for(*device) == update.id) =>
            {
                Some(update.clone())
            }
            _ => None,
        };
        let waited = self.engine.waits();
        let before = device.map(|device| (device, self.account(device), is_out(&self.engine, device)));
        let first = self.pending.actions.len();
        let mut lines = Vec::new();
        self.recorder.handle(&mut self.engine, now, event, &mut self.pending.actions, &mut lines);
        let actions = self.pending.actions.get(first..).unwrap_or_default();
        let commits = actions.iter().any(|action| matches!(action, Action::Commit(_)));
        let committed = actions.iter().find_map(|action| match action {
            Action::Commit(record) => Some(CommittedRound::new(record, self.engine.representation())),
            _ => None,
        });
        let counts =
            matches!(actions.first(), Some(Action::Acknowledge(_, Ack { outcome: AckOutcome::Counted, .. })));
        let recorded_ids = open_round_ids(&self.engine);
        let goes_on =
            !commits && recorded_ids.map(|(first, _)| first) == self.recorded_ids.map(|(first, _)| first);
        if self.engine.phase() == Phase::Failed {
            // The next server may try again from where the campaign was: nothing of this is written, and nobody is told.
            let all = self.pending.actions.split_off(first);
            self.pending.actions.extend(all.into_iter().filter(|action| matches!(action, Action::Failed(_))));
            lines.clear();
        } else if goes_on {
            if let (true, Some(update), Some((device, ..)), Some(round)) =
                (counts, update, before, self.engine.open_round())
            {
                let order = u32::try_from(round.participants.len()).unwrap_or(u32::MAX).saturating_sub(1);
                self.records.push(Record::Counted(
                    round.first(),
                    device,
                    CountedUpdate { order, at: now, update },
                ));
            } else if let Some((device, _, false)) = before
                && is_out(&self.engine, device)
            {
                self.records.push(Record::Excluded(device));
            }
            // Last: what was counted was counted under the number before.
            if let Some((_, now)) = recorded_ids.filter(|_| recorded_ids != self.recorded_ids) {
                self.records.push(Record::Renumbered(now));
            }
            if let Some(deadline) = self.engine.waits().filter(|deadline| waited != Some(*deadline)) {
                self.records.push(Record::Deadline(deadline));
            }
            self.recorded_ids = recorded_ids;
        } else {
            self.records.extend(committed.map(Record::Round));
            self.records.push(Record::Checkpoint(self.engine.checkpoint()));
            self.recorded_ids = recorded_ids;
        }
        if let Some((device, account, _)) = before {
            self.record_account_change(device, account);
        }
        self.append_journal(lines);
    }

    /// Makes durable what has happened, and says what may be done now.
    ///
    /// # Errors
    /// [`StoreError`]: nothing may be done, and this can be tried again.
    pub fn flush(&mut self) -> Result<Flushed, StoreError> {
        if !self.records.is_empty() {
            // It may have been tried before.
            if !matches!(self.records.last(), Some(Record::Clock(_))) {
                self.records.push(Record::Clock(self.now));
            }
            self.store.apply(&self.records)?;
            self.records.clear();
        }
        Ok(std::mem::take(&mut self.pending))
    }

    fn account(&self, device: DeviceId) -> Option<Account> {
        self.engine.ledger().accounts().get(&device).copied()
    }

    fn record_account_change(&mut self, device: DeviceId, before: Option<Account>) {
        if let Some(account) = self.account(device)
            && before != Some(account)
        {
            self.records.push(Record::Account(device, account));
        }
    }

    fn append_journal(&mut self, lines: impl IntoIterator<Item = JournalEntry>) {
        let Some(next) = &mut self.next_entry else { return };
        for line in lines {
            // Nothing in a line has no JSON.
            if let Ok(text) = serde_json::to_string(&line) {
                self.records.push(Record::JournalEntry(*next, text));
                *next += 1;
                self.pending.lines.push(line);
            }
        }
    }
}
