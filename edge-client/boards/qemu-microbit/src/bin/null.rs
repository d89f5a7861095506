//! Minimal firmware that links: starts and stops.

#![no_std]
#![no_main]

use qemu_microbit as _;

#[cortex_m_rt::entry]
fn main() -> ! {
    fedspan_emulated::programs::null()
}
