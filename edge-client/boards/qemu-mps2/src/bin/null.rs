//! Minimal firmware that links: starts and stops.

#![no_std]
#![no_main]

use qemu_mps2 as _;

#[cortex_m_rt::entry]
fn main() -> ! {
    fedspan_emulated::programs::null()
}
