//! Count of the board's resets, in RAM that start-up code does not clear. The content of that RAM is
//! arbitrary after power-on.

use core::sync::atomic::{AtomicU32, Ordering};

/// Mark of a valid count: a value that memory is unlikely to hold after power-on.
const MARK: u32 = 0xfed5_9a27;

/// The mark and the count.
#[unsafe(link_section = ".uninit.kept")]
static STATE: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];

/// Returns the number of resets since power-on.
#[must_use]
pub fn resets() -> u32 {
    let [mark, resets] = &STATE;
    if mark.load(Ordering::Relaxed) == MARK { resets.load(Ordering::Relaxed) } else { 0 }
}

/// Counts a reset. Call it immediately before the reset.
pub fn count_reset() {
    let [mark, resets] = &STATE;
    resets.store(self::resets().saturating_add(1), Ordering::Relaxed);
    mark.store(MARK, Ordering::Relaxed);
}
