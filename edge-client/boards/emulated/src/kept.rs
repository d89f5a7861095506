//! What a board keeps in RAM over a reset: how often it has reset itself. Memory that no start-up code clears;
//! after power-on, whatever is there.

use core::sync::atomic::{AtomicU32, Ordering};

/// Says that the number beside it is ours: no number that memory is likely to hold after power-on.
const MARK: u32 = 0xfed5_9a27;

#[unsafe(link_section = ".uninit.kept")]
static KEPT: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];

/// Resets since power-on.
#[must_use]
pub fn resets() -> u32 {
    let [mark, resets] = &KEPT;
    if mark.load(Ordering::Relaxed) == MARK { resets.load(Ordering::Relaxed) } else { 0 }
}

/// Counts one more; to be called right before it.
pub fn count_reset() {
    let [mark, resets] = &KEPT;
    resets.store(self::resets().saturating_add(1), Ordering::Relaxed);
    mark.store(MARK, Ordering::Relaxed);
}
