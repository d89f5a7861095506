//! Independent count of what the server's status reports.

use fedspan_aggregator::core::{PeerEvent, PeerEventKind, ServerCore};
use fedspan_aggregator::journal::{JournalEntry, Outcome};

use super::violation::Violation;

/// Counts since the server started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ShadowCounters {
    /// Accepted hellos.
    welcomed: u64,
    /// Ended peer sessions.
    ended: u64,
    /// Counted updates according to the status at the start.
    before: u64,
    /// Counted updates in the journal since then.
    counted: u64,
}

impl ShadowCounters {
    /// Counters for a server that has just started.
    pub fn new(host: &ServerCore) -> Self {
        Self { before: host.status().updates.counted, ..Self::default() }
    }

    /// Counts a message that is about to be handled.
    pub fn count_message(&mut self, message: &PeerEvent) {
        match message.kind {
            PeerEventKind::Hello(..) if message.key.as_ref().is_none_or(|key| key.is_accepted()) => {
                self.welcomed += 1
            }
            PeerEventKind::Gone(_) => self.ended += 1,
            _ => {}
        }
    }

    /// Counts a durable journal entry.
    pub fn count_entry(&mut self, line: &JournalEntry) {
        self.counted +=
            u64::from(matches!(line, JournalEntry::Answered(answer) if answer.outcome == Outcome::Counted));
    }

    /// Compares the counts with the server's status. Call only while nothing waits for the disk.
    ///
    /// # Errors
    /// If a count differs, or an honest device was disconnected.
    pub fn check(&self, host: &ServerCore) -> Result<(), Violation> {
        let status = host.status();
        let c = status.connections;
        let ended =
            c.closed + c.no_hello + c.evicted + c.idle + c.slow + c.flood + c.refused + c.revoked + c.ended;
        let reported = Self {
            welcomed: c.welcomed,
            ended,
            before: self.before,
            counted: status.updates.counted - self.before,
        };
        if reported != *self {
            return Err(Violation::new(format!(
                "the server's status has {reported:?}, but counted were {self:?}"
            )));
        }
        // All devices are honest. A device whose updates the network held back may be cut off by the update
        // quota and reconnect.
        let cut_off = [c.flood, c.congested, c.turned_away, c.unsent, c.unheeded];
        if cut_off.iter().any(|count| *count > 0) {
            return Err(Violation::new(format!("an honest device was disconnected: {c:?}")));
        }
        Ok(())
    }
}
