//! Static memory that is handed out once, with its content from the start: nothing is built on the stack and
//! moved there, which a board with 16 KiB would not survive.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

/// A value in static memory.
#[derive(Debug)]
pub struct Once<T> {
    value: UnsafeCell<T>,
    taken: AtomicBool,
}

// SAFETY: `take` hands the value out once, to one owner. It is called where no interrupt runs that calls it.
unsafe impl<T: Send> Sync for Once<T> {}

impl<T> Once<T> {
    /// With this content.
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self { value: UnsafeCell::new(value), taken: AtomicBool::new(false) }
    }

    /// The value; `None` the second time. Not for interrupts.
    #[allow(clippy::mut_from_ref, reason = "only the first call gets it")]
    pub fn take(&'static self) -> Option<&'static mut T> {
        if self.taken.load(Ordering::Relaxed) {
            return None;
        }
        self.taken.store(true, Ordering::Relaxed);
        // SAFETY: nobody has it, and nobody will get it again.
        Some(unsafe { &mut *self.value.get() })
    }
}
