//! Runs at the times of a server's journal: devices answer when the journal says that they did, on the server's own
//! clock, and what the engine decides is compared with what the server's decided.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use fedspan_aggregator::journal::{
    Committed, JournalEntry, JournalPhase, JournalRecorder, Opened, Outcome, Server,
};
use fedspan_engine::{Action, DeviceId, Engine, Event, Millis};

/// A journal that cannot be run again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// Nothing is in it.
    #[error("the journal is empty")]
    Empty,
    /// It does not begin where a campaign begins.
    #[error("line {line}: no campaign began before it: the journal's beginning is missing")]
    NoBeginning {
        /// Which line, from 1.
        line: usize,
    },
    /// Lines are missing before a restart.
    #[error(
        "line {line}: the server went on after exchange {after}, and the lines before it end at exchange {known}: \
         some are missing"
    )]
    Gap {
        /// Which line, from 1.
        line: usize,
        /// Where the server went on.
        after: u32,
        /// What the journal knows of.
        known: u32,
    },
}

/// Two decisions that should be the same; nothing where one side made none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What the server decided.
    pub journal: Option<JournalEntry>,
    /// What the simulator decides.
    pub simulator: Option<JournalEntry>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  journal:   {}", Shown(self.journal.as_ref()))?;
        write!(f, "  simulator: {}", Shown(self.simulator.as_ref()))
    }
}

struct Shown<'a>(Option<&'a JournalEntry>);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(JournalEntry::Opened(opened)) => {
                let Opened { round, stage, target, samples, cohort, .. } = opened;
                write!(f, "exchange {round} opened, stage {stage}, waits for {target} of {cohort:?}")?;
                samples.map_or(Ok(()), |samples| write!(f, " or {samples} samples"))
            }
            Some(JournalEntry::Committed(Committed { round, participants, representation, .. })) => {
                let with = "committed with";
                write!(f, "exchange {round} {with} {participants:?}, representation {representation}")
            }
            _ => write!(f, "nothing more"),
        }
    }
}

/// A journal, to be run again and compared with.
#[derive(Clone, Debug)]
pub struct Replay {
    server: Server,
    /// Openings and commits of start and training.
    decisions: Vec<JournalEntry>,
    /// Answers that a device gave in an exchange, in order: when, and the place in the journal.
    answers: BTreeMap<(u32, DeviceId), VecDeque<(f64, usize)>>,
    /// Who answered an exchange after it was closed.
    late: BTreeSet<(u32, DeviceId)>,
    /// When the first round opened.
    begins_at: Millis,
    /// Decisions that have been compared and are equal.
    equal: usize,
    simulator: Option<JournalEntry>,
    ended: bool,
}

impl Replay {
    /// Takes the last campaign of a journal.
    ///
    /// # Errors
    /// [`ReplayError`].
    pub fn new(lines: &[JournalEntry]) -> Result<Self, ReplayError> {
        let mut server: Option<&Server> = None;
        let mut kept: Vec<(usize, &JournalEntry)> = Vec::new();
        for (index, line) in lines.iter().enumerate() {
            match (line, server) {
                (JournalEntry::Began(began), _) => {
                    server = Some(began);
                    kept.clear();
                }
                (_, None) => return Err(ReplayError::NoBeginning { line: index + 1 }),
                (JournalEntry::Resumed(resumed), _) => {
                    // It goes on in the middle of a round: nothing but a gap could show.
                    let known = last_exchange(&kept);
                    if known != resumed.after {
                        return Err(ReplayError::Gap { line: index + 1, after: resumed.after, known });
                    }
                }
                _ => kept.push((index, line)),
            }
        }
        let mut replay = Self {
            server: server.ok_or(ReplayError::Empty)?.clone(),
            decisions: Vec::new(),
            answers: BTreeMap::new(),
            late: BTreeSet::new(),
            begins_at: 0,
            equal: 0,
            simulator: None,
            ended: false,
        };
        for (index, line) in kept {
            replay.enter(index, line);
        }
        Ok(replay)
    }

    fn enter(&mut self, index: usize, line: &JournalEntry) {
        match line {
            JournalEntry::Began(_) | JournalEntry::Resumed(_) => {}
            JournalEntry::Opened(opened) => {
                if opened.phase == JournalPhase::Heads {
                    return;
                }
                // The first says when the devices were there.
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
                        #[allow(clippy::cast_precision_loss, reason = "2^53 ms are 285 000 years")]
                        self.answers.entry(key).or_default().push_back((answered.at as f64, index));
                    }
                }
            }
            JournalEntry::Committed(_) => self.decisions.push(line.clone()),
        }
    }

    /// Who wrote the journal, and under which settings.
    #[must_use]
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Everybody who was asked or answered.
    #[must_use]
    pub fn devices(&self) -> BTreeSet<DeviceId> {
        let asked = self.decisions.iter().filter_map(|line| match line {
            JournalEntry::Opened(opened) => Some(&opened.cohort),
            _ => None,
        });
        let answered = self.answers.keys().map(|(_, device)| *device);
        asked.flatten().copied().chain(answered).collect()
    }

    /// Openings and commits, in order.
    #[must_use]
    pub fn decisions(&self) -> &[JournalEntry] {
        &self.decisions
    }

    /// How many commits have been found equal.
    #[must_use]
    pub fn rounds(&self) -> usize {
        let equal = self.decisions.iter().take(self.equal);
        equal.filter(|line| matches!(line, JournalEntry::Committed(_))).count()
    }

    /// The simulator has decided something else, not merely less.
    #[must_use]
    pub fn is_contradicted(&self) -> bool {
        self.simulator.is_some()
    }

    /// The first decision that is not the same, after the run.
    #[must_use]
    pub fn difference(&self) -> Option<Difference> {
        let journal = self.decisions.get(self.equal).cloned();
        let difference = Difference { journal, simulator: self.simulator.clone() };
        (difference.journal.is_some() || difference.simulator.is_some()).then_some(difference)
    }

    /// What the simulator takes its times from.
    pub(super) fn recording(&mut self) -> Recording<'_> {
        (self.equal, self.simulator, self.ended) = (0, None, self.decisions.is_empty());
        Recording { replay: self, scribe: JournalRecorder::default() }
    }

    /// Compares the next decision.
    fn compare(&mut self, line: &JournalEntry) {
        if self.ended {
            return;
        }
        match (self.decisions.get(self.equal), line) {
            // The simulator has trained to the end, whether or not the journal has.
            (_, JournalEntry::Opened(opened)) if opened.phase == JournalPhase::Heads => self.ended = true,
            (Some(decided), line) if same(decided, line) => {
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

/// The last exchange that was opened.
fn last_exchange(kept: &[(usize, &JournalEntry)]) -> u32 {
    let opened = kept.iter().rev().find(|(_, line)| matches!(line, JournalEntry::Opened(_)));
    opened.and_then(|(_, line)| line.round()).unwrap_or(0)
}

/// Equal but for the time.
fn same(decided: &JournalEntry, line: &JournalEntry) -> bool {
    match (decided, line) {
        (JournalEntry::Opened(a), JournalEntry::Opened(b)) => {
            Opened { at: 0, ..a.clone() } == Opened { at: 0, ..b.clone() }
        }
        (JournalEntry::Committed(a), JournalEntry::Committed(b)) => {
            Committed { at: 0, ..a.clone() } == Committed { at: 0, ..b.clone() }
        }
        _ => false,
    }
}

/// What a simulation takes its times from, and tells its decisions to.
pub struct Recording<'a> {
    replay: &'a mut Replay,
    scribe: JournalRecorder,
}

impl Recording<'_> {
    /// Gives the engine one event and compares what it decides.
    pub fn handle(&mut self, engine: &mut Engine, now: Millis, event: Event, actions: &mut Vec<Action>) {
        let mut lines = Vec::new();
        self.scribe.handle(engine, now, event, actions, &mut lines);
        for line in lines {
            if !matches!(line, JournalEntry::Answered(_)) {
                self.replay.compare(&line);
            }
        }
    }

    /// When a device answers an exchange, and its place in the journal; never, if it is not there.
    pub fn due(&mut self, device: DeviceId, round: u32) -> (f64, usize) {
        let answers = self.replay.answers.get_mut(&(round, device));
        answers.and_then(VecDeque::pop_front).unwrap_or((f64::INFINITY, usize::MAX))
    }

    /// Whether a device answered an exchange that was closed.
    pub fn came_late(&self, device: DeviceId, round: u32) -> bool {
        self.replay.late.contains(&(round, device))
    }

    /// When the next round opens for those who join.
    pub fn begins_at(&self) -> Millis {
        self.replay.begins_at
    }

    /// Everything has been compared, or something was different.
    pub fn is_over(&self) -> bool {
        self.replay.ended
    }
}
