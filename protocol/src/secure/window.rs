//! Replay window: the received frame counters, as in RFC 4303, section 3.4.3, with 64 counters.

/// Number of counters, up to the largest accepted one, that are tracked.
pub const WINDOW: u64 = 64;

/// Set of accepted counters. Only [`Window::accept`] changes it, which the caller invokes after verifying the
/// frame's tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// One more than the largest accepted counter; 0 if there is none.
    end: u64,
    /// Bitmap: bit `i` is set if `end - 1 - i` was accepted.
    seen: u64,
}

impl Window {
    /// Returns true if a frame with this counter may be new: the counter was not accepted before, is less than
    /// [`WINDOW`] behind the largest one, and is not `u64::MAX`, which no sender uses.
    #[must_use]
    pub const fn admits(&self, counter: u64) -> bool {
        if counter >= self.end {
            return counter < u64::MAX;
        }
        let behind = self.end - 1 - counter;
        behind < WINDOW && self.seen >> behind & 1 == 0
    }

    /// Records a counter that [`Self::admits`]; ignores others.
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
