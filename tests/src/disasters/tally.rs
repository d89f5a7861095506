//! What the host counts, counted once more by somebody else.

use fedspan_aggregator::core::{PeerEvent, PeerEventKind, ServerCore};
use fedspan_aggregator::journal::{JournalEntry, Outcome};

use super::history::Violation;

/// What has passed since a server began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Devices that said hello under a key that counts.
    welcomed: u64,
    /// Conversations that ended.
    ended: u64,
    /// Updates that count, as the host said when it began.
    before: u64,
    /// Updates that count since then, as is durable.
    counted: u64,
}

impl Tally {
    /// For a host that has just begun.
    pub fn new(host: &ServerCore) -> Self {
        Self { before: host.status().updates.counted, ..Self::default() }
    }

    /// The host is about to hear this.
    pub fn hears(&mut self, message: &PeerEvent) {
        match message.kind {
            PeerEventKind::Hello(..) if message.key.as_ref().is_none_or(|key| key.is_accepted()) => {
                self.welcomed += 1
            }
            PeerEventKind::Gone(_) => self.ended += 1,
            _ => {}
        }
    }

    /// This is durable now.
    pub fn reads(&mut self, line: &JournalEntry) {
        self.counted +=
            u64::from(matches!(line, JournalEntry::Answered(answer) if answer.outcome == Outcome::Counted));
    }

    /// Holds what the host says against it, when nothing waits for the disk.
    ///
    /// # Errors
    /// Where they differ.
    pub fn check(&self, host: &ServerCore) -> Result<(), Violation> {
        let status = host.status();
        let c = status.connections;
        let ended =
            c.closed + c.no_hello + c.evicted + c.idle + c.slow + c.flood + c.refused + c.revoked + c.ended;
        let said = Self {
            welcomed: c.welcomed,
            ended,
            before: self.before,
            counted: status.updates.counted - self.before,
        };
        if said != *self {
            return Err(Violation::new(format!("the host's status says {said:?}, and it was {self:?}")));
        }
        // All who are here are honest. Who sends too many updates, as a network had held them back, may come back.
        let cut_off = [c.flood, c.congested, c.turned_away, c.unsent, c.unheeded];
        if cut_off.iter().any(|count| *count > 0) {
            return Err(Violation::new(format!("somebody honest was cut off: {c:?}")));
        }
        Ok(())
    }
}
