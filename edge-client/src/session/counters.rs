//! Counters of a session.

/// Everything that happened and left no other trace.
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
    /// Messages, chunks or samples that had no place when they came.
    pub unexpected: u32,
    /// Chunks asked for again.
    pub asked_again: u32,
    /// Frames that did not fit the buffer for outgoing frames.
    pub unsent: u32,
    /// Times that a server asked for a new hello: it had restarted behind a link that stayed up.
    pub rehandshakes: u32,
    /// Sealed frames that were replayed, forged, or came where none is expected.
    pub unopened: u32,
    /// Messages and sealed frames that came while this device was quiet
    /// ([`Session::quiet_until`](super::Session::quiet_until)): they are lost.
    pub dropped_while_silent: u32,
    /// Messages that were not sealed and should have been.
    pub unsealed: u32,
    /// Failures of the storage.
    pub storage: u32,
    /// Privacy ledgers that were there and cannot be read: the whole budget counts as spent.
    pub ledger_lost: u32,
    /// Private rounds that were paid for and of which nothing has left: closed, declined or replaced after that.
    pub forfeited: u32,
    /// Computations that took longer than a slot ([`Task::slot`](crate::Task::slot)): their answer waits for the next,
    /// and that it does tells how long they took. There should be none: choose a longer slot.
    pub slots_missed: u32,
}

/// Up to the largest number, and no further.
#[inline(never)]
pub(super) fn count(counter: &mut u32) {
    *counter = counter.saturating_add(1);
}
