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
