//! Prints the cost of training a network on this core, see `fedspan_emulated::network`. Requires `-icount
//! shift=0`.

#![no_std]
#![no_main]

use cortex_m_rt::entry;
use fedspan_emulated::network::{self, Workspace};
use fedspan_emulated::once::Once;
use fedspan_emulated::{fault, measure};
use qemu_mps2::Mps2;

static MEMORY: Once<Workspace> = Once::new(Workspace::new());

#[entry]
fn main() -> ! {
    let (Some(board), Some(memory)) = (Mps2::with_counter(), MEMORY.take()) else {
        fault::exit(fault::FAULT, &"started twice")
    };
    if let Err(reason) = network::network(&board, memory) {
        measure::failed(reason);
    }
    semihosting::process::exit(0)
}
