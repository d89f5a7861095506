//! Minimal firmware that links: starts and sleeps.

#![no_std]
#![no_main]

use cortex_m_rt::entry;
use stm32f411_nucleo as _;

#[entry]
fn main() -> ! {
    loop {
        cortex_m::asm::wfi();
    }
}
