//! Client of a device with a table of samples in flash, in a campaign of shape (20, 2): the demonstration's
//! (58, 24) does not fit 16 KiB. Settings: `fedspan_emulated::settings`.

#![no_std]
#![no_main]

use cortex_m_rt::entry;
use fedspan_emulated::board::Board;
use fedspan_emulated::{client, fault, stack};
use qemu_microbit::Microbit;

#[entry]
fn main() -> ! {
    let stack = stack::paint(Microbit::stack_limit());
    match Microbit::with_serial() {
        Some(board) => client::run_with_table(&board, stack),
        None => fault::exit(fault::FAULT, &"started twice"),
    }
}
