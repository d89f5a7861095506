//! Replay of a server's journal in the simulator. Devices answer at the times that the journal records, on
//! the server's clock, and the decisions of the simulator are compared with the decisions of the server.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use fedspan_aggregator::journal::{Awaited, Committed, JournalEntry, JournalPhase, Opened, Outcome, Server};
use fedspan_engine::{Action, DeviceId, Engine, Event, Millis, RecordedEffects};

/// Reason why a journal cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// The journal has no entries.
    #[error("the journal is empty")]
    Empty,
    /// The first entry does not start a campaign.
    #[error(
        "line {line}: the journal does not begin with the start of a campaign: its first lines are missing"
    )]
    NoBeginning {
        /// Number of the line, from 1.
        line: usize,
    },
    /// Lines are missing before a restart.
    #[error(
        "line {line}: the server resumed after exchange {after}, but the lines before it end at exchange {known}: some \
         lines are missing"
    )]
    Gap {
        /// Number of the line, from 1.
        line: usize,
        /// Round after which the server resumed, counted over all phases.
        after: u32,
        /// Last round in the journal before the restart.
        known: u32,
    },
}

/// Pair of decisions of the server and the simulator that differ. Displayed in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Decision of the server; `None` if the journal has no further decision.
    pub journal: Option<JournalEntry>,
    /// Decision of the simulator; `None` if the simulator made no further decision.
    pub simulator: Option<JournalEntry>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [journal, simulator] =
            [&self.journal, &self.simulator].map(|side| DisplayDecision(side.as_ref()));
        write!(f, "journal: {journal}; simulator: {simulator}")
    }
}

struct DisplayDecision<'a>(Option<&'a JournalEntry>);

impl fmt::Display for DisplayDecision<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(JournalEntry::Opened(opened)) => {
                let Opened { round, stage, target, samples, cohort, .. } = opened;
                write!(f, "exchange {round} opened, stage {stage}, waits for {target} of {cohort:?}")?;
                samples.map_or(Ok(()), |samples| write!(f, " or {samples} samples"))
            }
            Some(JournalEntry::Committed(Committed { round, participants, representation, .. })) => {
                let verb = "committed with";
                write!(f, "exchange {round} {verb} {participants:?}, representation {representation}")
            }
            _ => write!(f, "nothing more"),
        }
    }
}

/// Decision of the server that follows from a deadline.
#[derive(Clone, Copy, Debug)]
enum DeadlineDecision {
    /// The deadline of the open round has passed.
    Passed,
    /// Rounds wait for a device again, or, with `false`, not any more.
    Awaited(DeviceId, bool),
}

/// Journal of a campaign, with the state of the comparison.
#[derive(Clone, Debug)]
pub struct Replay {
    server: Server,
    /// Openings and commits of start rounds (which compute the initial representation) and training rounds.
    decisions: Vec<JournalEntry>,
    /// Answers of a device in a round, in order: time in milliseconds, and index of the line.
    answers: BTreeMap<(u32, DeviceId), VecDeque<(f64, usize)>>,
    /// Decisions that follow from the server's deadlines, in order, with their times and lines.
    deadlines: VecDeque<(f64, usize, DeadlineDecision)>,
    /// Devices that answered a round after it was closed.
    late: BTreeSet<(u32, DeviceId)>,
    /// Time at which the first round opened.
    begins_at: Millis,
    /// Number of decisions that were compared and found equal.
    equal: usize,
    simulator: Option<JournalEntry>,
    ended: bool,
}

impl Replay {
    /// Reads the last campaign of a journal.
    ///
    /// # Errors
    /// [`ReplayError`] if the journal is empty or incomplete.
    pub fn new(lines: &[JournalEntry]) -> Result<Self, ReplayError> {
        let mut server: Option<&Server> = None;
        let mut entries: Vec<(usize, &JournalEntry)> = Vec::new();
        for (index, line) in lines.iter().enumerate() {
            match (line, server) {
                (JournalEntry::Began(began), _) => {
                    server = Some(began);
                    entries.clear();
                }
                (_, None) => return Err(ReplayError::NoBeginning { line: index + 1 }),
                (JournalEntry::Resumed(resumed), _) => {
                    // The server may resume in the middle of a round, so only missing rounds can be detected.
                    let last_committed = last_exchange(&entries);
                    if last_committed != resumed.after {
                        return Err(ReplayError::Gap {
                            line: index + 1,
                            after: resumed.after,
                            known: last_committed,
                        });
                    }
                }
                _ => entries.push((index, line)),
            }
        }
        let mut replay = Self {
            server: server.ok_or(ReplayError::Empty)?.clone(),
            decisions: Vec::new(),
            answers: BTreeMap::new(),
            deadlines: VecDeque::new(),
            late: BTreeSet::new(),
            begins_at: Millis::ZERO,
            equal: 0,
            simulator: None,
            ended: false,
        };
        for (index, line) in entries {
            replay.add_entry(index, line);
        }
        Ok(replay)
    }

    /// Adds an entry of the journal to the decisions or the answers. Entries of the final head fit are
    /// ignored.
    fn add_entry(&mut self, index: usize, line: &JournalEntry) {
        match line {
            JournalEntry::Began(_) | JournalEntry::Resumed(_) => {}
            JournalEntry::Opened(opened) => {
                if opened.phase == JournalPhase::Heads {
                    return;
                }
                // The opening of the first round is the time at which all devices have joined.
                if self.decisions.is_empty() {
                    self.begins_at = opened.at;
                }
                self.decisions.push(line.clone());
            }
            JournalEntry::Answered(answered) => {
                let key = (answered.round, answered.device);
                match answered.outcome {
                    Outcome::Duplicate => {}
                    Outcome::Late => {
                        self.late.insert(key);
                    }
                    Outcome::Counted | Outcome::Rejected | Outcome::Declined => {
                        self.answers.entry(key).or_default().push_back((to_time(answered.at), index));
                    }
                }
            }
            JournalEntry::Committed(_) => self.decisions.push(line.clone()),
            JournalEntry::Deadline(passed) => {
                self.deadlines.push_back((to_time(passed.at), index, DeadlineDecision::Passed));
            }
            JournalEntry::NotAwaited(Awaited { at, device, .. }) => {
                let decision = DeadlineDecision::Awaited(*device, false);
                self.deadlines.push_back((to_time(*at), index, decision));
            }
            JournalEntry::Awaited(Awaited { at, device, .. }) => {
                let decision = DeadlineDecision::Awaited(*device, true);
                self.deadlines.push_back((to_time(*at), index, decision));
            }
        }
    }

    /// Entry with which the campaign started: the server and its settings.
    #[must_use]
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Devices that were asked for an update or sent an answer.
    #[must_use]
    pub fn devices(&self) -> BTreeSet<DeviceId> {
        let cohorts = self.decisions.iter().filter_map(|line| match line {
            JournalEntry::Opened(opened) => Some(&opened.cohort),
            _ => None,
        });
        let answered = self.answers.keys().map(|(_, device)| *device);
        cohorts.flatten().copied().chain(answered).collect()
    }

    /// Openings and commits of the journal, in order.
    #[must_use]
    pub fn decisions(&self) -> &[JournalEntry] {
        &self.decisions
    }

    /// Number of commits that were compared and found equal.
    #[must_use]
    pub fn rounds(&self) -> usize {
        let equal = self.decisions.iter().take(self.equal);
        equal.filter(|line| matches!(line, JournalEntry::Committed(_))).count()
    }

    /// True if the simulator made a decision that differs from the journal. Missing decisions do not count.
    #[must_use]
    pub fn is_contradicted(&self) -> bool {
        self.simulator.is_some()
    }

    /// First difference between the decisions; valid after the run.
    #[must_use]
    pub fn difference(&self) -> Option<Difference> {
        let journal = self.decisions.get(self.equal).cloned();
        let difference = Difference { journal, simulator: self.simulator.clone() };
        (difference.journal.is_some() || difference.simulator.is_some()).then_some(difference)
    }

    /// Resets the comparison and returns the driver of the simulation.
    pub(super) fn driver(&mut self) -> ReplayDriver<'_> {
        (self.equal, self.simulator, self.ended) = (0, None, self.decisions.is_empty());
        ReplayDriver { replay: self, effects: RecordedEffects::default() }
    }

    /// Compares the next decision of the simulator with the journal.
    fn compare(&mut self, line: &JournalEntry) {
        if self.ended {
            return;
        }
        match (self.decisions.get(self.equal), line) {
            // The simulator has finished training, so the comparison ends.
            (_, JournalEntry::Opened(opened)) if opened.phase == JournalPhase::Heads => self.ended = true,
            (Some(decided), line) if is_same_decision(decided, line) => {
                self.equal += 1;
                self.ended = self.equal == self.decisions.len();
            }
            (Some(_), line) => {
                self.simulator = Some(line.clone());
                self.ended = true;
            }
            (None, _) => self.ended = true,
        }
    }
}

/// Simulated time of a time of the server's clock.
#[allow(clippy::cast_precision_loss, reason = "2^53 ms are 285 000 years")]
fn to_time(at: Millis) -> f64 {
    at.as_u64() as f64
}

/// Number of the last round that was opened.
fn last_exchange(entries: &[(usize, &JournalEntry)]) -> u32 {
    let opened = entries.iter().rev().find(|(_, line)| matches!(line, JournalEntry::Opened(_)));
    opened.and_then(|(_, line)| line.round()).unwrap_or(0)
}

/// True if two decisions are equal, ignoring their times.
fn is_same_decision(decided: &JournalEntry, line: &JournalEntry) -> bool {
    match (decided, line) {
        (JournalEntry::Opened(a), JournalEntry::Opened(b)) => {
            Opened { at: Millis::ZERO, ..a.clone() } == Opened { at: Millis::ZERO, ..b.clone() }
        }
        (JournalEntry::Committed(a), JournalEntry::Committed(b)) => {
            Committed { at: Millis::ZERO, ..a.clone() } == Committed { at: Millis::ZERO, ..b.clone() }
        }
        _ => false,
    }
}

/// Driver of a simulation that provides the answer times of the journal and compares the decisions.
pub struct ReplayDriver<'a> {
    replay: &'a mut Replay,
    /// Recorded effects of the engine whose decisions have not been compared yet.
    effects: RecordedEffects,
}

impl ReplayDriver<'_> {
    /// Passes one event to the engine and compares the engine's decisions.
    pub fn handle(&mut self, engine: &mut Engine, now: Millis, event: Event, actions: &mut Vec<Action>) {
        engine.handle(now, event, &mut self.effects);
        self.compare_decisions(engine, now, actions);
    }

    /// Ends training with [`Engine::finish_training`] and compares the engine's decisions.
    pub fn finish_training(&mut self, engine: &mut Engine, now: Millis, actions: &mut Vec<Action>) {
        engine.finish_training(now, &mut self.effects);
        self.compare_decisions(engine, now, actions);
    }

    fn compare_decisions(&mut self, engine: &Engine, now: Millis, actions: &mut Vec<Action>) {
        actions.append(&mut self.effects.actions);
        for record in self.effects.records.drain(..) {
            match JournalEntry::of(now, &record, engine.representation()) {
                None
                | Some(
                    JournalEntry::Answered(_)
                    | JournalEntry::Deadline(_)
                    | JournalEntry::NotAwaited(_)
                    | JournalEntry::Awaited(_),
                ) => {}
                Some(decision) => self.replay.compare(&decision),
            }
        }
    }

    /// Time of the next answer of a device to a round, and the index of the answer's line. The time is
    /// infinite if the journal has no further answer.
    pub fn due(&mut self, device: DeviceId, round: u32) -> (f64, usize) {
        let answers = self.replay.answers.get_mut(&(round, device));
        answers.and_then(VecDeque::pop_front).unwrap_or((f64::INFINITY, usize::MAX))
    }

    /// Time and line of the next decision that follows from the server's deadlines.
    pub fn next_deadline(&self) -> Option<(f64, usize)> {
        self.replay.deadlines.front().map(|(at, line, _)| (*at, *line))
    }

    /// Repeats the next decision that follows from the server's deadlines.
    pub fn pass_deadline(&mut self, engine: &mut Engine, now: Millis, actions: &mut Vec<Action>) {
        match self.replay.deadlines.pop_front() {
            Some((_, _, DeadlineDecision::Passed)) => engine.replay_deadline(now, &mut self.effects),
            Some((_, _, DeadlineDecision::Awaited(device, awaited))) => {
                engine.replay_awaited(now, device, awaited, &mut self.effects);
            }
            None => {}
        }
        self.compare_decisions(engine, now, actions);
    }

    /// True if a device answered a round after it was closed.
    pub fn was_late(&self, device: DeviceId, round: u32) -> bool {
        self.replay.late.contains(&(round, device))
    }

    /// Time at which the first round opens.
    pub fn begins_at(&self) -> Millis {
        self.replay.begins_at
    }

    /// True if all decisions have been compared, or a difference was found.
    pub fn is_over(&self) -> bool {
        self.replay.ended
    }
}
