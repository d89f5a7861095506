//! Counters of a session.

/// Numbers of events that leave no other trace. They saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Rounds whose update was counted.
    pub counted: u32,
    /// Rounds whose update came too late.
    pub late: u32,
    /// Rounds whose update was rejected.
    pub rejected: u32,
    /// Rounds that this device declined.
    pub declined: u32,
    /// Rounds that were closed before this device had answered.
    pub closed: u32,
    /// Messages that could not be decoded.
    pub malformed: u32,
    /// Messages, chunks or samples that did not fit the phase in which they arrived.
    pub unexpected: u32,
    /// Requests for missing chunks.
    pub asked_again: u32,
    /// Outgoing frames that did not fit the transmit buffer.
    pub unsent: u32,
    /// Requests of a server for a new hello, because it had restarted behind a link that stayed up.
    pub rehandshakes: u32,
    /// Sealed frames that were replayed, forged, or not expected.
    pub unopened: u32,
    /// Messages and sealed frames dropped because they arrived while this device was silent
    /// ([`Session::silent_until`](super::Session::silent_until)).
    pub dropped_while_silent: u32,
    /// Messages without a seal on a link that has a key.
    pub unsealed: u32,
    /// Failures of the storage.
    pub storage: u32,
    /// Privacy ledgers that existed but could not be read: the whole budget counts as spent.
    pub ledger_lost: u32,
    /// Charged private rounds of which nothing was sent, because they were closed, declined or replaced.
    pub forfeited: u32,
    /// Computations that took longer than the slot ([`Task::slot`](crate::Task::slot)). Their answers wait
    /// for the next slot, and that delay reveals their duration. If this is not 0, choose a longer slot.
    pub slots_missed: u32,
}

/// Increments a counter; it saturates.
#[inline(never)]
pub(super) fn count(counter: &mut u32) {
    *counter = counter.saturating_add(1);
}
