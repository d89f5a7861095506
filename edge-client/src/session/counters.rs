//! Counters of a session for diagnosis.

#[cfg(feature = "reports")]
use fedspan_protocol::message::REPORT_COUNTERS;

/// Numbers of events since the session was created. The counters saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Number of rounds whose update was counted by the server.
    pub counted: u32,
    /// Number of rounds whose update arrived too late.
    pub late: u32,
    /// Number of rounds whose update was rejected.
    pub rejected: u32,
    /// Number of rounds that this device declined.
    pub declined: u32,
    /// Number of rounds that were closed before this device had answered.
    pub closed: u32,
    /// Number of links that this device left because no round opened in time ([`Sleep::wait`](super::Sleep::wait)), or because the server
    /// did not answer.
    pub unasked: u32,
    /// Number of messages that could not be decoded.
    pub malformed: u32,
    /// Number of messages, chunks or samples that were not expected in the phase in which they arrived.
    pub unexpected: u32,
    /// Number of requests for missing chunks.
    pub asked_again: u32,
    /// Number of outgoing frames that did not fit the transmit buffer.
    pub unsent: u32,
    /// Number of requests of the server for a new hello, after a restart of the server without a loss of the
    /// link.
    pub rehandshakes: u32,
    /// Number of sealed frames that were replayed, forged, or not expected.
    pub unopened: u32,
    /// Number of messages and sealed frames dropped because they arrived while this device was silent
    /// ([`Session::silent_until`](super::Session::silent_until)).
    pub dropped_while_silent: u32,
    /// Number of messages without a seal on a link that has a key.
    pub unsealed: u32,
    /// Number of rounds that a beacon has opened.
    #[cfg(feature = "beacons")]
    pub beacons: u32,
    /// Number of beacons that opened no round: of rounds that were not announced to this device or were open already, and forged ones.
    #[cfg(feature = "beacons")]
    pub beacons_ignored: u32,
    /// Number of times that the caller's clock has gone back.
    pub clock_jumps: u32,
    /// Number of failures of the storage.
    pub storage: u32,
    /// Number of privacy ledgers that existed but could not be read. The whole budget then counts as spent.
    pub ledger_lost: u32,
    /// Number of charged private rounds of which nothing was sent, because they were closed, declined or
    /// replaced.
    pub forfeited: u32,
    /// Number of computations that took longer than the slot ([`Task::slot`](crate::Task::slot)). Their
    /// answers wait for the next slot, and that delay reveals their duration. If this counter is not 0,
    /// choose a longer slot.
    pub slots_missed: u32,
}

#[cfg(feature = "reports")]
impl Counters {
    /// Returns the counters of a report, in the order of [`REPORT_COUNTERS`](fedspan_protocol::message::REPORT_COUNTERS).
    // Not inlined, so that the array is not on the stack while a frame is sealed.
    #[inline(never)]
    pub(super) fn reported(&self) -> [u32; REPORT_COUNTERS.len()] {
        #[cfg(feature = "beacons")]
        let beacons = self.beacons;
        #[cfg(not(feature = "beacons"))]
        let beacons = 0;
        let Self { counted, late, rejected, declined, closed, unasked, malformed, unexpected, .. } = *self;
        let Self { asked_again, unsent, rehandshakes, unopened, unsealed, clock_jumps, storage, .. } = *self;
        [
            counted,
            late,
            rejected,
            declined,
            closed,
            unasked,
            malformed,
            unexpected,
            asked_again,
            unsent,
            rehandshakes,
            unopened,
            unsealed,
            beacons,
            clock_jumps,
            storage,
        ]
    }
}

/// Increments a counter, saturating.
#[inline(never)]
pub(super) fn count(counter: &mut u32) {
    *counter = counter.saturating_add(1);
}
