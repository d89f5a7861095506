//! Traffic counters of a connection: bytes, faults, and frames by the result of decoding them.

use fedspan_protocol::frame::FrameCounters;

/// Traffic counters of one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of bytes received after the hello.
    pub up: u64,
    /// Number of bytes sent after the hello, beginning with the welcome.
    pub down: u64,
    /// Messages that the protocol does not allow in the state of the connection.
    pub faults: u32,
    /// Stale messages: repeated chunks; chunks and chunk requests for updates or rounds that were complete,
    /// closed or replaced; updates that were restarted before they were complete.
    pub stale: u32,
    /// Messages that did not fit a frame. A value above 0 indicates a programming error.
    pub unsent: u32,
    /// Replies dropped because too many were waiting for the device to read them.
    pub unheeded: u32,
    /// Rounds sent again because they were not answered.
    pub reopened: u32,
    /// Final heads requested with a fixed ridge because the device cannot choose one.
    pub unchosen: u32,
    /// Counters of the frame decoder. Under encryption `accepted` counts frames that were decrypted.
    pub frames: FrameCounters,
    /// Sealed frames received a second time, or too late to decide whether they are repeated.
    pub replayed: u32,
    /// Sealed frames that failed authentication, or arrived before a handshake.
    pub forged: u32,
    /// Unsealed messages received where sealing is required.
    pub unsealed: u32,
}

impl Traffic {
    /// Returns the differences of all counters from the counters `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let (now, before) = (&self.frames, &earlier.frames);
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
                accepted: now.accepted.saturating_sub(before.accepted),
                oversize: now.oversize.saturating_sub(before.oversize),
                framing: now.framing.saturating_sub(before.framing),
                check: now.check.saturating_sub(before.check),
                header: now.header.saturating_sub(before.header),
                sealed: now.sealed.saturating_sub(before.sealed),
            },
            replayed: self.replayed.saturating_sub(earlier.replayed),
            forged: self.forged.saturating_sub(earlier.forged),
            unsealed: self.unsealed.saturating_sub(earlier.unsealed),
        }
    }

    /// Returns the number of frames dropped because they were malformed.
    #[must_use]
    pub fn dropped(&self) -> u32 {
        let FrameCounters { oversize, framing, check, header, .. } = self.frames;
        [oversize, framing, check, header].into_iter().fold(0, u32::saturating_add)
    }

    /// Returns the number of faults and of frames that were malformed, replayed, forged or unsealed.
    #[must_use]
    pub fn protocol_errors(&self) -> u32 {
        let frames = [self.dropped(), self.replayed, self.forged, self.unsealed];
        frames.into_iter().fold(self.faults, u32::saturating_add)
    }
}
