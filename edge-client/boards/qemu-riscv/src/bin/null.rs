//! Minimal firmware that links: starts and stops.

#![no_std]
#![no_main]

use qemu_riscv as _;

#[riscv_rt::entry]
fn main() -> ! {
    fedspan_emulated::programs::null()
}
