//! Independent counters of the values that the server's status reports.

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
    counted_before: u64,
    /// Number of counted updates in the journal since the start.
    counted: u64,
}

impl ShadowCounters {
    /// Creates counters for a server that has just started.
    pub fn new(host: &ServerCore) -> Self {
        Self { counted_before: host.status().updates.counted, ..Self::default() }
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
        let connections = status.connections;
        let ended = connections.closed
            + connections.no_hello
            + connections.evicted
            + connections.idle
            + connections.slow
            + connections.flood
            + connections.refused
            + connections.revoked
            + connections.ended;
        let reported = Self {
            welcomed: connections.welcomed,
            ended,
            counted_before: self.counted_before,
            counted: status.updates.counted - self.counted_before,
        };
        if reported != *self {
            return Err(Violation::new(format!(
                "the server's status has {reported:?}, but counted were {self:?}"
            )));
        }
        // All devices are honest, so these counters must be zero. The update quota is excluded: it may
        // disconnect a device whose updates the network has held back.
        let must_be_zero = [
            connections.flood,
            connections.congested,
            connections.turned_away,
            connections.unsent,
            connections.unheeded,
        ];
        if must_be_zero.iter().any(|count| *count > 0) {
            return Err(Violation::new(format!("an honest device was disconnected: {connections:?}")));
        }
        Ok(())
    }
}
