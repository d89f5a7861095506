//! Traffic counters.

use fedspan_protocol::frame::FrameCounters;

/// Traffic counters of one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes received after the hello.
    pub up: u64,
    /// Bytes sent after the hello, from the welcome on.
    pub down: u64,
    /// Messages that the protocol does not allow at that point.
    pub faults: u32,
    /// Repeated chunks, chunks and chunk requests for updates or rounds that were complete, closed or replaced,
    /// and updates that were restarted before they were complete.
    pub stale: u32,
    /// Messages that did not fit a frame; above 0 only after a programming error.
    pub unsent: u32,
    /// Replies dropped because too many were waiting for the device to read them.
    pub unheeded: u32,
    /// Rounds sent again because they were not answered.
    pub reopened: u32,
    /// Final heads requested with a fixed ridge, from a device that cannot choose one.
    pub unchosen: u32,
    /// Counters of the frame decoder. Under encryption `accepted` counts frames that were decrypted.
    pub frames: FrameCounters,
    /// Sealed frames received a second time, or too late to tell.
    pub replayed: u32,
    /// Sealed frames that failed authentication, or arrived before a handshake.
    pub forged: u32,
    /// Unsealed messages received where sealing is required.
    pub unsealed: u32,
}

impl Traffic {
    /// Returns the traffic since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let (now, then) = (&self.frames, &earlier.frames);
        Self {
            up: self.up.saturating_sub(earlier.up),
            down: self.down.saturating_sub(earlier.down),
            faults: self.faults.saturating_sub(earlier.faults),
            stale: self.stale.saturating_sub(earlier.stale),
            unsent: self.unsent.saturating_sub(earlier.unsent),
            unheeded: self.unheeded.saturating_sub(earlier.unheeded),
            reopened: self.reopened.saturating_sub(earlier.reopened),
            unchosen: self.unchosen.saturating_sub(earlier.unchosen),
            frames: FrameCounters {
                accepted: now.accepted.saturating_sub(then.accepted),
                oversize: now.oversize.saturating_sub(then.oversize),
                framing: now.framing.saturating_sub(then.framing),
                check: now.check.saturating_sub(then.check),
                header: now.header.saturating_sub(then.header),
                sealed: now.sealed.saturating_sub(then.sealed),
            },
            replayed: self.replayed.saturating_sub(earlier.replayed),
            forged: self.forged.saturating_sub(earlier.forged),
            unsealed: self.unsealed.saturating_sub(earlier.unsealed),
        }
    }

    /// Returns the number of malformed frames.
    #[must_use]
    pub fn dropped(&self) -> u32 {
        let FrameCounters { oversize, framing, check, header, .. } = self.frames;
        [oversize, framing, check, header].into_iter().fold(0, u32::saturating_add)
    }

    /// Returns the number of faults and dropped frames.
    #[must_use]
    pub fn protocol_errors(&self) -> u32 {
        let frames = [self.dropped(), self.replayed, self.forged, self.unsealed];
        frames.into_iter().fold(self.faults, u32::saturating_add)
    }
}
