//! Minimal firmware that links: starts and stops.

#![no_std]
#![no_main]

use cortex_m_rt::entry;
use qemu_microbit as _;

#[entry]
fn main() -> ! {
    semihosting::process::exit(0)
}
