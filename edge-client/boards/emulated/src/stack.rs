//! Stack usage of a call: fills the free stack with a pattern, makes the call, and finds how much of the
//! pattern is overwritten.

use core::arch::asm;

use crate::fault;

/// Pattern of the painted words: an unlikely value, and no address on any emulated board.
const PAINT: u32 = 0xc5c5_a5a5;
/// Largest number of painted bytes, which limits the time on boards with megabytes of free memory.
const DEPTH: usize = 256 * 1024;

/// Address range of the stack that was filled with the pattern.
#[derive(Clone, Copy, Debug)]
pub struct Painted {
    bottom: usize,
    top: usize,
}

/// Fills the free stack below the calling function with the pattern. Interrupts that use the stack must be
/// disabled.
#[inline(always)]
#[must_use]
pub fn paint() -> Painted {
    let top = stack_pointer();
    let bottom = fedspan_memory_map::stack_limit().max(top.saturating_sub(DEPTH)).next_multiple_of(4);
    // SAFETY: the memory between the statics and the stack pointer is unused.
    unsafe { paint_words(bottom, top) };
    Painted { bottom, top }
}

impl Painted {
    /// Returns the number of bytes used since the painting, below the function that called [`paint`].
    #[must_use]
    pub fn reached(&self) -> usize {
        let read_word = |address: usize| {
            // SAFETY: `address` is an aligned address inside the stack.
            unsafe { core::ptr::with_exposed_provenance::<u32>(address).read_volatile() }
        };
        let mut address = self.bottom;
        while address < self.top && read_word(address) == PAINT {
            address += 4;
        }
        self.top - address
    }

    /// Returns the number of bytes used since the start of the program. `end` is the address at which the
    /// stack starts.
    #[must_use]
    pub fn depth(&self, end: usize) -> usize {
        end.saturating_sub(self.top).saturating_add(self.reached())
    }
}

/// Returns the number of bytes of stack that `work` uses below its caller. Interrupts must be disabled as for
/// [`paint`].
#[inline(never)]
pub fn peak(work: &mut dyn FnMut()) -> usize {
    let painted = paint();
    work();
    let reached = painted.reached();
    if reached == painted.top - painted.bottom {
        fault::exit(fault::FAULT, &"the stack has met the statics");
    }
    reached
}

/// Returns the stack pointer.
#[inline(always)]
fn stack_pointer() -> usize {
    let sp: usize;
    // SAFETY: the instruction only copies a register.
    unsafe {
        #[cfg(target_arch = "arm")]
        asm!("mov {}, sp", out(reg) sp, options(nomem, nostack, preserves_flags));
        #[cfg(target_arch = "riscv32")]
        asm!("mv {}, sp", out(reg) sp, options(nomem, nostack, preserves_flags));
    }
    sp
}

/// Fills the words from `bottom` up to `top` with the pattern, without using the stack.
///
/// # Safety
/// The memory from `bottom` to `top` must be unused.
#[inline(always)]
unsafe fn paint_words(bottom: usize, top: usize) {
    // SAFETY: guaranteed by the caller; the loop writes whole words below `top`.
    unsafe {
        #[cfg(target_arch = "arm")]
        asm!("2:", "cmp {at}, {top}", "bhs 3f", "str {paint}, [{at}]", "adds {at}, #4", "b 2b", "3:",
            at = inout(reg) bottom => _, top = in(reg) top, paint = in(reg) PAINT, options(nostack));
        #[cfg(target_arch = "riscv32")]
        asm!("2:", "bgeu {at}, {top}, 3f", "sw {paint}, 0({at})", "addi {at}, {at}, 4", "j 2b", "3:",
            at = inout(reg) bottom => _, top = in(reg) top, paint = in(reg) PAINT, options(nostack));
    }
}
