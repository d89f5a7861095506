//! Input and output of a session.

use crate::source::Targets;
use crate::time::Millis;

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
