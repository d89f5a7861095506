//! Program `null`: minimal firmware that starts and stops, to check that linking works.

#![no_std]
#![no_main]

use qemu_riscv as _;

#[riscv_rt::entry]
fn main() -> ! {
    fedspan_emulated::programs::null()
}
