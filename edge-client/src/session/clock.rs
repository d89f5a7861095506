//! Clock of a session: the caller's clock, made monotonic. A counter of 32 bits that wraps, or a clock that is set back,
//! would otherwise stop all timers until it has caught up.

use crate::time::Millis;

/// Clock that never goes back.
#[derive(Clone, Copy, Debug, Default)]
pub struct SessionClock {
    /// Time of the session at time 0 of the caller's clock, since the last jump.
    offset: Millis,
    /// Last time of the session.
    last: Millis,
}

impl SessionClock {
    /// Returns the session's time at the caller's time `now`, and whether the caller's clock has gone back. The session's
    /// time then stands still at the jump, and continues from it.
    pub fn advance(&mut self, now: Millis) -> (Millis, bool) {
        let time = now + self.offset;
        let has_jumped = time < self.last;
        if has_jumped {
            self.offset += self.last - time;
        } else {
            self.last = time;
        }
        (self.last, has_jumped)
    }

    /// Returns the session's time at the caller's time `now`.
    pub fn time(&self, now: Millis) -> Millis {
        (now + self.offset).max(self.last)
    }

    /// Returns the caller's time of a time of the session.
    pub fn caller_time(&self, time: Millis) -> Millis {
        if time == Millis::MAX { time } else { time - self.offset }
    }
}
