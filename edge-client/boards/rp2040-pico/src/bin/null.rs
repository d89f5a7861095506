//! Program `null`: minimal firmware that starts and sleeps, to check that linking works.

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
