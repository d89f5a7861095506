//! Program `null`: minimal firmware that starts and sleeps, to check that linking works.

#![no_std]
#![no_main]

use esp_hal::main;
use fedspan_esp32c3 as _;

#[main]
fn main() -> ! {
    loop {
        esp_hal::riscv::asm::wfi();
    }
}
