//! How deep a call reaches: the free stack is painted, the call is made, and the paint that is left counted.

use core::arch::asm;

use crate::fault;

/// The paint: an address that no emulated board has, and no number that is likely.
const PAINT: u32 = 0xc5c5_a5a5;
/// Most that is painted, so that a board with megabytes free does not take long.
const DEPTH: usize = 64 * 1024;

/// A painted stack.
#[derive(Clone, Copy, Debug)]
pub struct Painted {
    bottom: usize,
    top: usize,
}

/// Paints the free stack below the function that calls this. `limit` is the end of everything static. No
/// interrupt that uses the stack may be enabled.
#[inline(always)]
#[must_use]
pub fn paint(limit: usize) -> Painted {
    let top = pointer();
    let bottom = limit.max(top.saturating_sub(DEPTH)).next_multiple_of(4);
    // SAFETY: nothing lives between the end of the statics and the stack pointer.
    unsafe { fill(bottom, top) };
    Painted { bottom, top }
}

impl Painted {
    /// Bytes of stack that were used since, below the function that painted.
    #[must_use]
    pub fn reached(&self) -> usize {
        let word = |at: usize| {
            // SAFETY: this is memory: the stack.
            unsafe { core::ptr::with_exposed_provenance::<u32>(at).read_volatile() }
        };
        let mut at = self.bottom;
        while at < self.top && word(at) == PAINT {
            at += 4;
        }
        self.top - at
    }

    /// Bytes of stack that were ever used, from `end`, where it begins, down.
    #[must_use]
    pub fn depth(&self, end: usize) -> usize {
        end.saturating_sub(self.top).saturating_add(self.reached())
    }
}

/// Bytes of stack that `work` takes below its caller; `limit` and interrupts as for [`paint`].
#[inline(never)]
pub fn peak(limit: usize, work: &mut dyn FnMut()) -> usize {
    let painted = paint(limit);
    work();
    let reached = painted.reached();
    if reached == painted.top - painted.bottom {
        fault::exit(fault::FAULT, &"the stack has met the statics");
    }
    reached
}

/// The stack pointer.
#[inline(always)]
fn pointer() -> usize {
    let sp: usize;
    // SAFETY: copies a register.
    unsafe {
        #[cfg(target_arch = "arm")]
        asm!("mov {}, sp", out(reg) sp, options(nomem, nostack, preserves_flags));
        #[cfg(target_arch = "riscv32")]
        asm!("mv {}, sp", out(reg) sp, options(nomem, nostack, preserves_flags));
    }
    sp
}

/// Fills words from `bottom` up to `top`, without any stack of its own.
///
/// # Safety
/// Nothing may live there.
#[inline(always)]
unsafe fn fill(bottom: usize, top: usize) {
    // SAFETY: the caller's promise; the loop writes whole words below `top`.
    unsafe {
        #[cfg(target_arch = "arm")]
        asm!("2:", "cmp {at}, {top}", "bhs 3f", "str {paint}, [{at}]", "adds {at}, #4", "b 2b", "3:",
            at = inout(reg) bottom => _, top = in(reg) top, paint = in(reg) PAINT, options(nostack));
        #[cfg(target_arch = "riscv32")]
        asm!("2:", "bgeu {at}, {top}, 3f", "sw {paint}, 0({at})", "addi {at}, {at}, 4", "j 2b", "3:",
            at = inout(reg) bottom => _, top = in(reg) top, paint = in(reg) PAINT, options(nostack));
    }
}
