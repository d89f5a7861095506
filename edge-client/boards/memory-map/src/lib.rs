//! Addresses that a board's `memory.x` defines, for the firmware of real and of emulated boards. A program
//! links only if `memory.x` has the symbols of the functions that the program calls; `../build.rs` passes the
//! file to the linker.

#![no_std]
#![cfg(target_os = "none")]

use core::ops::Range;

// Symbols of the linker, of which only the addresses are used.
unsafe extern "C" {
    static _provision_start: u8;
    static _record_start: u8;
    static _record_end: u8;
    static _recording_start: u8;
    static _recording_size: u8;
    static _ram_start: u8;
    static _ram_end: u8;
    static __sheap: u8;
}

/// Returns the address of the page with the provisioning record, as the flash driver counts it. Symbol:
/// `_provision_start`.
#[inline]
#[must_use]
#[allow(clippy::cast_possible_truncation, reason = "addresses have 32 bits on all boards")]
pub fn provision() -> u32 {
    (&raw const _provision_start).addr() as u32
}

/// Returns the address range of the session's store, as the flash driver counts it. Symbols: `_record_start`,
/// `_record_end`.
#[inline]
#[must_use]
#[allow(clippy::cast_possible_truncation, reason = "addresses have 32 bits on all boards")]
pub fn record() -> Range<u32> {
    (&raw const _record_start).addr() as u32..(&raw const _record_end).addr() as u32
}

/// Returns the flash partition for a recording or a table of samples. Symbols: `_recording_start`,
/// `_recording_size`.
#[inline]
#[must_use]
pub fn recording() -> &'static [u8] {
    let start = &raw const _recording_start;
    let size = (&raw const _recording_size).addr();
    // SAFETY: `memory.x` reserves this memory, and the program never writes to it.
    unsafe { core::slice::from_raw_parts(start, size) }
}

/// Returns the address range of the RAM. The stack starts at the end of the RAM and grows down. Symbols:
/// `_ram_start` and `_ram_end`, which `cortex-m-rt` defines on Arm.
#[inline]
#[must_use]
pub fn ram() -> Range<usize> {
    (&raw const _ram_start).addr()..(&raw const _ram_end).addr()
}

/// Returns the lowest address of the stack, which is the end of the static memory at the start of the RAM.
/// Symbol: `__sheap`, which the start-up crates define.
#[inline]
#[must_use]
pub fn stack_limit() -> usize {
    (&raw const __sheap).addr()
}
