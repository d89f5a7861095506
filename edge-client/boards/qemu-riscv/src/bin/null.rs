//! Minimal firmware that links: starts and stops.

#![no_std]
#![no_main]

use qemu_riscv as _;
use riscv_rt::entry;

#[entry]
fn main() -> ! {
    semihosting::process::exit(0)
}
