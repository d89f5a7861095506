//! Independent counters of the figures that the server's status reports.

use fedspan_aggregator::core::{PeerEvent, PeerEventKind, ServerCore};
use fedspan_aggregator::journal::{JournalEntry, Outcome};

use super::violation::Violation;

/// Counts since the server started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ShadowCounters {
    /// Number of accepted hellos.
    welcomed: u64,
    /// Number of ended peer sessions.
    ended: u64,
    /// Number of counted updates that the status reported at the start.
    before: u64,
    /// Number of counted updates in the journal since the start.
    counted: u64,
}

impl ShadowCounters {
    /// Creates counters for a server that has just started.
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

    /// Compares the counters with the server's status. Must be called only while nothing waits for the disk.
    ///
    /// # Errors
    /// If a counter differs, or an honest device was disconnected.
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
        // All devices are honest, so these counters must be zero. The update quota is excluded: it may
        // disconnect a device whose updates the network has held back.
        let cut_off = [c.flood, c.congested, c.turned_away, c.unsent, c.unheeded];
        if cut_off.iter().any(|count| *count > 0) {
            return Err(Violation::new(format!("an honest device was disconnected: {c:?}")));
        }
        Ok(())
    }
}
