//! Journal check: verifies that the entries of a journal are consistent, and finds the ranges of rounds for
//! which no journal was kept (gaps).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::journal::{Answered, Committed, JournalEntry, Opened, Outcome};
use fedspan_engine::DeviceId;

/// Check of a journal, fed with one entry after another.
#[derive(Debug, Default)]
pub(super) struct JournalCheck<'a> {
    /// Id of the last opened round.
    pub(super) last: u32,
    /// Devices counted in the open round according to the journal, in order.
    pub(super) open: Vec<DeviceId>,
    /// Length of `open` at each resumption of a server. Updates that were counted shortly before a resumption
    /// may have no entry.
    pauses: Vec<usize>,
    /// Whether the last round was committed.
    is_over: bool,
    /// Entries of committed rounds, in order.
    pub(super) commits: Vec<&'a Committed>,
    /// Ranges of round ids with missing entries, first to last, inclusive.
    gaps: BTreeMap<u32, u32>,
    /// Ranges of round ids that were opened and closed while no journal was kept.
    skipped: Vec<Range<u32>>,
    /// Rounds that were open when a server resumed and have no later entry of a counted update. Such a round
    /// may have ended before the server resumed.
    unsure: BTreeSet<u32>,
    /// Inconsistencies, one line each.
    pub(super) wrong: Vec<String>,
}

impl<'a> JournalCheck<'a> {
    /// Checks the entries of a journal.
    pub(super) fn new(lines: &'a [JournalEntry]) -> Self {
        let mut course = Self { is_over: true, ..Self::default() };
        for line in lines {
            match line {
                // The entries before this one belong to an earlier campaign.
                JournalEntry::Began(_) => {
                    let wrong = std::mem::take(&mut course.wrong);
                    course = Self { is_over: true, wrong, ..Self::default() };
                }
                JournalEntry::Resumed(server) => course.resumed(server.after),
                JournalEntry::Opened(opened) => course.opened(opened),
                JournalEntry::Answered(answer) if answer.outcome == Outcome::Counted => {
                    course.counted(answer)
                }
                JournalEntry::Answered(_) => {}
                JournalEntry::Committed(committed) => course.committed(committed),
            }
        }
        course
    }

    /// Checks the entry of a server that resumed after round id `after`.
    fn resumed(&mut self, after: u32) {
        let Self { last, .. } = *self;
        if after < last {
            self.wrong
                .push(format!("it resumes after round id {after}, but round id {last} was opened before"));
        }
        if after > last {
            self.skip_to(after);
            self.open.clear();
            self.pauses.clear();
            (self.last, self.is_over) = (after, false);
            self.pause();
        } else if !self.is_over {
            self.pause();
        }
    }

    /// Checks the entry of an opened round.
    fn opened(&mut self, opened: &Opened) {
        let Self { last, .. } = *self;
        if opened.round <= last {
            self.wrong.push(format!("round id {} was opened after round id {last}", opened.round));
        }
        if opened.continues.is_some_and(|before| before != last) {
            self.wrong.push(format!("round id {} does not continue the last round", opened.round));
        }
        (self.last, self.is_over) = (opened.round, false);
        if opened.continues.is_none() {
            self.open.clear();
            self.pauses.clear();
        }
    }

    /// Checks the entry of a counted update.
    fn counted(&mut self, answer: &Answered) {
        if answer.round > self.last || self.open.contains(&answer.device) {
            self.wrong.push(format!("device {} counted again in round id {}", answer.device, answer.round));
        }
        self.open.push(answer.device);
        self.unsure.remove(&self.last);
    }

    /// Checks the entry of a committed round.
    fn committed(&mut self, committed: &'a Committed) {
        if committed.round != self.last || !self.has_counted(&committed.participants) {
            self.wrong.push(format!(
                "round id {} was committed with other devices than it counted",
                committed.round
            ));
        }
        self.commits.push(committed);
        self.open.clear();
        self.pauses.clear();
        self.is_over = true;
    }

    /// Returns true if the open round can have counted exactly the devices `all`, in this order. A device may
    /// lack an entry only where a server resumed; the round is then recorded as a gap.
    pub(super) fn has_counted(&mut self, all: &[DeviceId]) -> bool {
        let (mut matched, mut is_whole) = (0, true);
        for device in all {
            if self.open.get(matched) == Some(device) {
                matched += 1;
            } else if self.pauses.contains(&matched) {
                is_whole = false;
            } else {
                return false;
            }
        }
        if !is_whole {
            self.miss(self.last);
        }
        matched == self.open.len()
    }

    /// Ends the check of a journal that the current configuration does not keep. The open round may have
    /// continued without entries, up to round id `last`.
    pub(super) fn ends_here(&mut self, last: u32) {
        if last > self.last {
            self.skip_to(last);
            self.unsure.insert(last);
        } else if !self.is_over {
            self.pause();
        }
    }

    /// Returns true if the journal may lack the commit of a round because no journal was kept then; records
    /// the round as a gap.
    pub(super) fn may_miss(&mut self, exchange: u32) -> bool {
        let may =
            self.unsure.contains(&exchange) || self.skipped.iter().any(|range| range.contains(&exchange));
        if may {
            self.miss(exchange);
        }
        may
    }

    /// Returns a description of the gaps; `None` without gaps.
    pub(super) fn gaps(&self) -> Option<String> {
        let named: Vec<String> = self
            .gaps
            .iter()
            .map(|(first, last)| if first == last { first.to_string() } else { format!("{first} to {last}") })
            .collect();
        let named = named.join(", ");
        match (self.gaps.len(), self.gaps.first_key_value()) {
            (0, _) => None,
            (1, Some((first, last))) if first == last => {
                Some(format!("a gap at round id {named} (not kept)"))
            }
            (1, _) => Some(format!("a gap at round ids {named} (not kept)")),
            _ => Some(format!("gaps at round ids {named} (not kept)")),
        }
    }

    /// Records that entries of the open round may be missing after the last entry.
    fn pause(&mut self) {
        self.pauses.push(self.open.len());
        self.unsure.insert(self.last);
    }

    /// Records a gap from the last entry to the round id `exchange`.
    fn skip_to(&mut self, exchange: u32) {
        let first = if self.is_over { self.last.saturating_add(1) } else { self.last };
        self.skipped.push(first..exchange);
        match self.gap_of(first) {
            Some(last) => *last = exchange,
            None => drop(self.gaps.insert(first, exchange)),
        }
    }

    /// Returns the last round id of the gap that contains the round id `exchange`.
    fn gap_of(&mut self, exchange: u32) -> Option<&mut u32> {
        let (_, last) = self.gaps.range_mut(..=exchange).next_back()?;
        (exchange <= *last).then_some(last)
    }

    /// Records a round as a gap unless an earlier gap contains the round.
    fn miss(&mut self, exchange: u32) {
        if self.gap_of(exchange).is_none() {
            self.gaps.insert(exchange, exchange);
        }
    }
}
