//! Prints the cost of encryption on this core, see `fedspan_emulated::sealing`. Requires `-icount shift=0`.

#![no_std]
#![no_main]

use fedspan_emulated::sealing;
use qemu_riscv::Virt;
use riscv_rt::entry;

#[entry]
fn main() -> ! {
    sealing::sealing(&Virt::with_counter());
    semihosting::process::exit(0)
}
