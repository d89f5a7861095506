//! Which frame counters have been seen: the sliding window of RFC 4303, section 3.4.3, for 64 counters.

/// Counters behind the largest one that may still come.
pub const WINDOW: u64 = 64;

/// The counters that were accepted. Nothing changes until [`Window::accept`] is called, which is for after the tag
/// of the frame has been verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// One more than the largest accepted counter; 0 if there was none.
    end: u64,
    /// Bit `i`: `end - 1 - i` was accepted.
    seen: u64,
}

impl Window {
    /// Whether a frame with this counter may be new: it was not accepted before, is not [`WINDOW`] or more behind
    /// the largest one, and is not the last number there is, which no sender uses.
    #[must_use]
    pub const fn admits(&self, counter: u64) -> bool {
        if counter >= self.end {
            return counter < u64::MAX;
        }
        let behind = self.end - 1 - counter;
        behind < WINDOW && self.seen >> behind & 1 == 0
    }

    /// Remembers a counter that [`Self::admits`]; others change nothing.
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
