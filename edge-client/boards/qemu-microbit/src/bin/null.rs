//! Program `null`: minimal firmware that starts and stops, to check that linking works.

#![no_std]
#![no_main]

use qemu_microbit as _;

#[cortex_m_rt::entry]
fn main() -> ! {
    fedspan_emulated::programs::null()
}
