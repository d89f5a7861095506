//! What goes into a session and what comes out of it.

use fedspan_protocol::limits::{FRAME_LIMIT_DEFAULT, FRAME_LIMIT_MAX, FRAME_LIMIT_MIN, wire_capacity};

use crate::source::Targets;
use crate::time::Millis;

/// How a session behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The device's identity, unique in the fleet.
    pub device: u64,
    /// Largest decoded frame, 128 to 4096 bytes: the length of the receive buffer.
    pub frame_limit: u16,
    /// Where samples come from.
    pub sampling: Sampling,
    /// Closes the link once the final head is fitted and acknowledged: for devices that only come by.
    pub leave_when_fitted: bool,
}

impl Config {
    /// A device with a replayable source and the default frame limit.
    #[must_use]
    pub const fn new(device: u64) -> Self {
        #[allow(clippy::cast_possible_truncation, reason = "a constant of 256")]
        let frame_limit = FRAME_LIMIT_DEFAULT as u16;
        Self { device, frame_limit, sampling: Sampling::Replay, leave_when_fitted: false }
    }

    /// Bytes that the buffer for outgoing frames must have.
    #[must_use]
    pub const fn transmit_capacity(&self) -> usize {
        wire_capacity(self.limit())
    }

    pub(super) const fn limit(&self) -> usize {
        let limit = self.frame_limit as usize;
        if limit < FRAME_LIMIT_MIN {
            FRAME_LIMIT_MIN
        } else if limit > FRAME_LIMIT_MAX {
            FRAME_LIMIT_MAX
        } else {
            limit
        }
    }
}

/// Where a round's samples come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampling {
    /// From the source, which can be read twice.
    Replay,
    /// From [`Event::Sample`]: a round is computed after this many usable samples.
    Stream {
        /// How many.
        samples: u32,
    },
}

/// What happened.
#[derive(Debug)]
pub enum Event<'a> {
    /// The link to the server stands (again).
    LinkUp,
    /// The link is gone.
    LinkDown,
    /// A checked frame came: the bytes of its message and body.
    Message(&'a [u8]),
    /// A whole sealed frame came. It is decrypted where it is.
    Sealed(&'a mut [u8]),
    /// The wake-up time has come, or [`Progress::again`] has asked for it.
    Tick,
    /// A sensor delivered a sample (d values) and its target.
    Sample(&'a [f32], Targets<'a>),
}

/// What to do next.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of `out` to send now.
    pub sent: usize,
    /// Call again with [`Event::Tick`] as soon as there is room for another frame, before anything else: there is more to
    /// send, or the session has computed and has to see what time it is now.
    pub again: bool,
    /// Close the link.
    pub close: bool,
    /// Call again with [`Event::Tick`] (offline: try to connect) at this time, if nothing happens before.
    pub wake: Millis,
}

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
    pub greeted_again: u32,
    /// Sealed frames that were replayed, forged, or came where none is expected.
    pub unopened: u32,
    /// Messages and sealed frames that came while this device was quiet
    /// ([`Session::quiet_until`](super::Session::quiet_until)): they are lost.
    pub unheard: u32,
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
