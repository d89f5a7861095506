//! Replay window over received frame counters, as in RFC 4303, section 3.4.3, with 64 counters.

/// Number of tracked counters, of which the largest accepted counter is the highest.
pub const WINDOW: u64 = 64;

/// Set of accepted counters. Only [`Window::accept`] changes the set; the caller must first verify the
/// frame's tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// One more than the largest accepted counter; 0 before the first.
    end: u64,
    /// Bitmap: bit `i` is set if `end - 1 - i` was accepted.
    seen: u64,
}

impl Window {
    /// Returns true if a frame with this counter may be new: the counter was not accepted before, is less
    /// than [`WINDOW`] below the largest accepted counter, and is not `u64::MAX`, which no sender uses.
    #[must_use]
    pub const fn admits(&self, counter: u64) -> bool {
        if counter >= self.end {
            return counter < u64::MAX;
        }
        let behind = self.end - 1 - counter;
        behind < WINDOW && self.seen >> behind & 1 == 0
    }

    /// Returns the counter with these low 16 bits that is closest to the next one, as QUIC (RFC 9000, appendix A.3) and DTLS 1.3 do.
    /// Equal to the sender's counter if fewer than 2^15 frames in a row were lost.
    #[cfg(feature = "short-seals")]
    #[must_use]
    pub const fn expand(&self, low: u16) -> u64 {
        // Distance of the candidate ahead of the next counter, from -2^15 to 2^15 - 1.
        let ahead = low.wrapping_sub(self.end as u16) as i16;
        match self.end.checked_add_signed(ahead as i64) {
            Some(counter) => counter,
            // Before the first 2^15 frames nothing is behind zero.
            None => low as u64,
        }
    }

    /// Records a counter if [`Self::admits`] returns true for it; otherwise does nothing.
    pub const fn accept(&mut self, counter: u64) {
        if !self.admits(counter) {
            return;
        }
        if counter < self.end {
            self.seen |= 1 << (self.end - 1 - counter);
            return;
        }
        let step = counter - self.end + 1;
        self.seen = if step < WINDOW { self.seen << step } else { 0 } | 1;
        self.end = counter + 1;
    }
}
