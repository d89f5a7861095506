//! Minimal firmware that links: starts and sleeps.

#![no_std]
#![no_main]

use cortex_m_rt::entry;
use rp2040_pico as _;

#[entry]
fn main() -> ! {
    loop {
        cortex_m::asm::wfi();
    }
}
