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
    is_committed: bool,
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
    pub(super) inconsistencies: Vec<String>,
}

impl<'a> JournalCheck<'a> {
    /// Checks the entries of a journal.
    pub(super) fn new(lines: &'a [JournalEntry]) -> Self {
        let mut check = Self { is_committed: true, ..Self::default() };
        for line in lines {
            match line {
                // The entries before this one belong to an earlier campaign.
                JournalEntry::Began(_) => {
                    let inconsistencies = std::mem::take(&mut check.inconsistencies);
                    check = Self { is_committed: true, inconsistencies, ..Self::default() };
                }
                JournalEntry::Resumed(server) => check.check_resumed(server.after),
                JournalEntry::Opened(opened) => check.check_opened(opened),
                JournalEntry::Answered(answer) if answer.outcome == Outcome::Counted => {
                    check.check_counted(answer)
                }
                JournalEntry::Answered(_)
                | JournalEntry::Deadline(_)
                | JournalEntry::NotAwaited(_)
                | JournalEntry::Awaited(_) => {}
                JournalEntry::Committed(committed) => check.check_committed(committed),
            }
        }
        check
    }

    /// Checks the entry of a server that resumed after round id `after`.
    fn check_resumed(&mut self, after: u32) {
        let Self { last, .. } = *self;
        if after < last {
            self.inconsistencies
                .push(format!("it resumes after round id {after}, but round id {last} was opened before"));
        }
        if after > last {
            self.skip_to(after);
            self.open.clear();
            self.pauses.clear();
            (self.last, self.is_committed) = (after, false);
            self.record_pause();
        } else if !self.is_committed {
            self.record_pause();
        }
    }

    /// Checks the entry of an opened round.
    fn check_opened(&mut self, opened: &Opened) {
        let Self { last, .. } = *self;
        if opened.round <= last {
            self.inconsistencies.push(format!("round id {} was opened after round id {last}", opened.round));
        }
        if opened.continues.is_some_and(|before| before != last) {
            self.inconsistencies.push(format!("round id {} does not continue the last round", opened.round));
        }
        (self.last, self.is_committed) = (opened.round, false);
        if opened.continues.is_none() {
            self.open.clear();
            self.pauses.clear();
        }
    }

    /// Checks the entry of a counted update.
    fn check_counted(&mut self, answer: &Answered) {
        if answer.round > self.last || self.open.contains(&answer.device) {
            self.inconsistencies
                .push(format!("device {} counted again in round id {}", answer.device, answer.round));
        }
        self.open.push(answer.device);
        self.unsure.remove(&self.last);
    }

    /// Checks the entry of a committed round.
    fn check_committed(&mut self, committed: &'a Committed) {
        if committed.round != self.last || !self.has_counted(&committed.participants) {
            self.inconsistencies.push(format!(
                "round id {} was committed with other devices than it counted",
                committed.round
            ));
        }
        self.commits.push(committed);
        self.open.clear();
        self.pauses.clear();
        self.is_committed = true;
    }

    /// Returns true if the open round can have counted exactly `devices`, in this order. A device may lack an
    /// entry only where a server resumed; the round is then recorded as a gap.
    pub(super) fn has_counted(&mut self, devices: &[DeviceId]) -> bool {
        let mut matched = 0;
        let mut is_complete = true;
        for device in devices {
            if self.open.get(matched) == Some(device) {
                matched += 1;
            } else if self.pauses.contains(&matched) {
                is_complete = false;
            } else {
                return false;
            }
        }
        if !is_complete {
            self.record_gap(self.last);
        }
        matched == self.open.len()
    }

    /// Ends the check of a journal that the current configuration does not keep. The open round may have
    /// continued without entries, up to round id `last`.
    pub(super) fn end_without_journal(&mut self, last: u32) {
        if last > self.last {
            self.skip_to(last);
            self.unsure.insert(last);
        } else if !self.is_committed {
            self.record_pause();
        }
    }

    /// Returns true if the journal may lack the commit of a round because no journal was kept then; records
    /// the round as a gap.
    pub(super) fn record_possible_gap(&mut self, round_id: u32) -> bool {
        let may_be_missing =
            self.unsure.contains(&round_id) || self.skipped.iter().any(|range| range.contains(&round_id));
        if may_be_missing {
            self.record_gap(round_id);
        }
        may_be_missing
    }

    /// Returns a description of the gaps; `None` without gaps.
    pub(super) fn describe_gaps(&self) -> Option<String> {
        let ranges: Vec<String> = self
            .gaps
            .iter()
            .map(|(first, last)| if first == last { first.to_string() } else { format!("{first} to {last}") })
            .collect();
        let ranges = ranges.join(", ");
        match (self.gaps.len(), self.gaps.first_key_value()) {
            (0, _) => None,
            (1, Some((first, last))) if first == last => {
                Some(format!("a gap at round id {ranges} (not kept)"))
            }
            (1, _) => Some(format!("a gap at round ids {ranges} (not kept)")),
            _ => Some(format!("gaps at round ids {ranges} (not kept)")),
        }
    }

    /// Records that entries of the open round may be missing after the last entry.
    fn record_pause(&mut self) {
        self.pauses.push(self.open.len());
        self.unsure.insert(self.last);
    }

    /// Records a gap from the last entry to `round_id`.
    fn skip_to(&mut self, round_id: u32) {
        let first = if self.is_committed { self.last.saturating_add(1) } else { self.last };
        self.skipped.push(first..round_id);
        match self.gap_of(first) {
            Some(last) => *last = round_id,
            None => drop(self.gaps.insert(first, round_id)),
        }
    }

    /// Returns the last round id of the gap that contains `round_id`.
    fn gap_of(&mut self, round_id: u32) -> Option<&mut u32> {
        let (_, last) = self.gaps.range_mut(..=round_id).next_back()?;
        (round_id <= *last).then_some(last)
    }

    /// Records a round as a gap unless an earlier gap contains the round.
    fn record_gap(&mut self, round_id: u32) {
        if self.gap_of(round_id).is_none() {
            self.gaps.insert(round_id, round_id);
        }
    }
}
