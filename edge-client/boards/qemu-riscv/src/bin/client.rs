//! A wearer of a smartwatch, taking part in a campaign. Settings: `fedspan_emulated::settings`.

#![no_std]
#![no_main]

use fedspan_client::features::FEATURES;
use fedspan_emulated::board::Board;
use fedspan_emulated::{client, fault, stack};
use qemu_riscv::Virt;
use riscv::singleton;
use riscv_rt::entry;

/// Windows whose features are kept in RAM: a quarter of a megabyte.
const ROOM: usize = 1024;

#[entry]
fn main() -> ! {
    let room = singleton!(: [[f32; FEATURES]; ROOM] = [[0.0; FEATURES]; ROOM]);
    let stack = stack::paint(Virt::stack_limit());
    match room {
        Some(room) => client::watch(&Virt::talking(), stack, room),
        None => fault::exit(fault::FAULT, &"started twice"),
    }
}
