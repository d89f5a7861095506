//! Prints the cost of encryption on this core, see `fedspan_emulated::sealing`. Requires `-icount shift=0`.

#![no_std]
#![no_main]

use cortex_m_rt::entry;
use fedspan_emulated::{fault, sealing};
use qemu_microbit::Microbit;

#[entry]
fn main() -> ! {
    let Some(board) = Microbit::with_counter() else { fault::exit(fault::FAULT, &"started twice") };
    sealing::sealing(&board);
    semihosting::process::exit(0)
}
