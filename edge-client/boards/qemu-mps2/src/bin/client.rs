//! A wearer of a smartwatch, taking part in a campaign. Settings: `fedspan_emulated::settings`.

#![no_std]
#![no_main]

use cortex_m::singleton;
use cortex_m_rt::entry;
use fedspan_client::features::FEATURES;
use fedspan_emulated::board::Board;
use fedspan_emulated::{client, fault, stack};
use qemu_mps2::Mps2;

/// Windows whose features are kept in RAM: a quarter of a megabyte.
const ROOM: usize = 1024;

#[entry]
fn main() -> ! {
    let room = singleton!(: [[f32; FEATURES]; ROOM] = [[0.0; FEATURES]; ROOM]);
    let stack = stack::paint(Mps2::stack_limit());
    match (Mps2::talking(), room) {
        (Some(board), Some(room)) => client::watch(&board, stack, room),
        _ => fault::exit(fault::FAULT, &"started twice"),
    }
}
