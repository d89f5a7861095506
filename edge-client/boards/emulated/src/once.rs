//! Static memory that can be taken once and is initialised in place. Building a large value on the stack and
//! moving it would overflow the stack of a board with 16 KiB.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

/// A value in static memory that can be taken once.
#[derive(Debug)]
pub struct Once<T> {
    value: UnsafeCell<T>,
    taken: AtomicBool,
}

// SAFETY: `take` returns the value at most once, so it has one owner, and `take` is not called from
// interrupts.
unsafe impl<T: Send> Sync for Once<T> {}

impl<T> Once<T> {
    /// Creates a cell with this value.
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self { value: UnsafeCell::new(value), taken: AtomicBool::new(false) }
    }

    /// Returns the value on the first call and `None` afterwards. Must not be called from interrupts.
    #[allow(clippy::mut_from_ref, reason = "only the first call gets it")]
    pub fn take(&'static self) -> Option<&'static mut T> {
        if self.taken.load(Ordering::Relaxed) {
            return None;
        }
        self.taken.store(true, Ordering::Relaxed);
        // SAFETY: this is the first call, and later calls return `None`.
        Some(unsafe { &mut *self.value.get() })
    }
}
