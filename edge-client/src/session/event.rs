//! Inputs and outputs of a session.

use crate::source::Targets;
use crate::time::Millis;

/// Input of a session.
#[derive(Debug)]
pub enum Event<'a> {
    /// The link to the server is connected.
    LinkUp,
    /// The link to the server is lost.
    LinkDown,
    /// A frame with a valid checksum has arrived; contains its message and body.
    Message(&'a [u8]),
    /// A complete sealed frame has arrived. The session decrypts it in place.
    Sealed(&'a mut [u8]),
    /// The wake-up time has passed, or [`Progress::again`] is set.
    Tick,
    /// A sensor has produced a sample (d values) with its target. Counted as unexpected unless samples are
    /// [streamed](super::Sampling).
    Sample(&'a [f32], Targets<'a>),
}

/// Next step of the driver.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Number of bytes of `out` to send now.
    pub sent: usize,
    /// True if the driver must call again with [`Event::Tick`], before any other event, as soon as another
    /// frame can be sent: there is more to send, or the session has computed and needs the current time.
    pub again: bool,
    /// True if the driver must close the link.
    pub close: bool,
    /// Time at which to call again with [`Event::Tick`] if there is no event earlier. If there is no link,
    /// this is the time to connect.
    pub wake: Millis,
}
