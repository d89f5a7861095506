//! State of the log in flash, and the contents of a new page.

use super::Record;
use super::counters::CounterKind;

/// First content of a page, in addition to the counters.
pub enum Content<'a> {
    /// Nothing.
    Counters,
    /// A copy of the record with this address and length.
    Copy(u32, usize),
    /// A new record. Until the page is in use, the old one counts.
    Record(&'a Record<'a>),
}

/// Content of the flash.
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// Address of the page in use, if there is one.
    pub page: Option<u32>,
    /// End of what is written in that page: the address of the next write.
    pub end: u32,
    /// Largest generation.
    pub generation: u64,
    /// Largest value of each protected counter.
    pub known: [Option<u64>; CounterKind::PROTECTED.len()],
    /// True if there is a counter of another version.
    pub has_unknown: bool,
}

impl State {
    /// Returns the largest value of a protected counter.
    pub fn known(&self, kind: CounterKind) -> Option<u64> {
        self.known.get(kind.index()).copied().flatten()
    }

    /// Raises a protected counter to `value`. A smaller value has no effect.
    pub fn raise(&mut self, kind: CounterKind, value: u64) {
        if let Some(known) = self.known.get_mut(kind.index()) {
            *known = Some(value).max(*known);
        }
    }
}
