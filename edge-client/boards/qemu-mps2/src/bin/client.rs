//! Client of a smartwatch wearer in a campaign. Settings: `fedspan_emulated::settings`.

#![no_std]
#![no_main]

use cortex_m::singleton;
use cortex_m_rt::entry;
use fedspan_client::features::FEATURES;
use fedspan_emulated::board::Board;
use fedspan_emulated::{client, fault, stack};
use qemu_mps2::Mps2;

/// Number of windows whose features fit in RAM: a quarter of a megabyte.
const CACHED_WINDOWS: usize = 1024;

#[entry]
fn main() -> ! {
    let cache = singleton!(: [[f32; FEATURES]; CACHED_WINDOWS] = [[0.0; FEATURES]; CACHED_WINDOWS]);
    let stack = stack::paint(Mps2::stack_limit());
    match (Mps2::with_serial(), cache) {
        (Some(board), Some(cache)) => client::run_with_recording(&board, stack, cache),
        _ => fault::exit(fault::FAULT, &"started twice"),
    }
}
