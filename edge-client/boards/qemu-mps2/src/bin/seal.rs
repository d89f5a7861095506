//! Prints the cost of encryption on this core, see `fedspan_emulated::sealing`. Requires `-icount shift=0`.

#![no_std]
#![no_main]

use cortex_m_rt::entry;
use fedspan_emulated::{fault, sealing};
use qemu_mps2::Mps2;

#[entry]
fn main() -> ! {
    let Some(board) = Mps2::with_counter() else { fault::exit(fault::FAULT, &"started twice") };
    sealing::sealing(&board);
    semihosting::process::exit(0)
}
