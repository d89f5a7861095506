//! Input and output of a session.

use crate::source::Targets;
use crate::time::Millis;

/// An input of the session.
#[derive(Debug)]
pub enum Event<'a> {
    /// The link to the server is up.
    LinkUp,
    /// The link to the server is down.
    LinkDown,
    /// A frame with a valid checksum arrived: the bytes of its message and body.
    Message(&'a [u8]),
    /// A complete sealed frame arrived. The session decrypts it in place.
    Sealed(&'a mut [u8]),
    /// The wake-up time has come, or [`Progress::again`] is set.
    Tick,
    /// A sensor has delivered a sample (d values) and its target.
    Sample(&'a [f32], Targets<'a>),
}

/// The driver's next step.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of `out` to send now.
    pub sent: usize,
    /// Call again with [`Event::Tick`] as soon as there is room for another frame, before anything else:
    /// there is more to send, or the session has computed and needs the current time.
    pub again: bool,
    /// Close the link.
    pub close: bool,
    /// Time at which to call again with [`Event::Tick`] if nothing happens before (offline: try to connect
    /// then).
    pub wake: Millis,
}
