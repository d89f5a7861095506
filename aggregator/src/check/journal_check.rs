//! Journal check: verifies that the entries of a journal are consistent, and finds the gaps where none was
//! kept.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::journal::{Answered, Committed, JournalEntry, Opened, Outcome};
use fedspan_engine::DeviceId;

/// State of the check after the entries so far.
#[derive(Debug, Default)]
pub(super) struct JournalCheck<'a> {
    /// Id of the last opened round.
    pub(super) last: u32,
    /// Devices counted in the open round, according to the entries.
    pub(super) open: Vec<DeviceId>,
    /// Number of devices counted each time a server resumed: updates counted just before have no entry.
    pauses: Vec<usize>,
    /// Whether the last round was committed.
    is_over: bool,
    pub(super) commits: Vec<&'a Committed>,
    /// Ranges of round ids with missing entries, first to last, inclusive.
    gaps: BTreeMap<u32, u32>,
    /// Rounds that were opened and closed while no journal was kept.
    skipped: Vec<Range<u32>>,
    /// Rounds that were open when a server resumed and have no counted update since: they may have been over by
    /// then.
    unsure: BTreeSet<u32>,
    pub(super) wrong: Vec<String>,
}

impl<'a> JournalCheck<'a> {
    pub(super) fn new(lines: &'a [JournalEntry]) -> Self {
        let mut course = Self { is_over: true, ..Self::default() };
        for line in lines {
            match line {
                // Entries above belong to another campaign.
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

    fn counted(&mut self, answer: &Answered) {
        if answer.round > self.last || self.open.contains(&answer.device) {
            self.wrong.push(format!("device {} counted again in round id {}", answer.device, answer.round));
        }
        self.open.push(answer.device);
        self.unsure.remove(&self.last);
    }

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

    /// Returns true if these devices, in this order, can be the ones counted in the open round. Devices without
    /// an entry are possible only where a server resumed; that is recorded as a gap.
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

    /// Ends the check of a journal that is no longer kept: the open round may have continued, and others may
    /// have followed.
    pub(super) fn ends_here(&mut self, last: u32) {
        if last > self.last {
            self.skip_to(last);
            self.unsure.insert(last);
        } else if !self.is_over {
            self.pause();
        }
    }

    /// Returns true if the commit of a round may be missing because no journal was kept.
    pub(super) fn may_miss(&mut self, exchange: u32) -> bool {
        let may =
            self.unsure.contains(&exchange) || self.skipped.iter().any(|range| range.contains(&exchange));
        if may {
            self.miss(exchange);
        }
        may
    }

    /// Returns a description of the gaps.
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

    /// Records that entries of the open round may be missing here.
    fn pause(&mut self) {
        self.pauses.push(self.open.len());
        self.unsure.insert(self.last);
    }

    /// Records a gap from the last entry to this round id.
    fn skip_to(&mut self, exchange: u32) {
        let first = if self.is_over { self.last.saturating_add(1) } else { self.last };
        self.skipped.push(first..exchange);
        match self.gap_of(first) {
            Some(last) => *last = exchange,
            None => drop(self.gaps.insert(first, exchange)),
        }
    }

    /// Returns the end of the gap that contains a round id.
    fn gap_of(&mut self, exchange: u32) -> Option<&mut u32> {
        let (_, last) = self.gaps.range_mut(..=exchange).next_back()?;
        (exchange <= *last).then_some(last)
    }

    fn miss(&mut self, exchange: u32) {
        if self.gap_of(exchange).is_none() {
            self.gaps.insert(exchange, exchange);
        }
    }
}
