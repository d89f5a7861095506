//! Client of a smartwatch wearer in a campaign. Settings: `fedspan_emulated::settings`.

#![no_std]
#![no_main]

use fedspan_client::features::FEATURES;
use fedspan_emulated::board::Board;
use fedspan_emulated::{client, fault, stack};
use qemu_riscv::Virt;
use riscv::singleton;
use riscv_rt::entry;

/// Number of windows whose features fit in RAM: a quarter of a megabyte.
const CACHED_WINDOWS: usize = 1024;

#[entry]
fn main() -> ! {
    let cache = singleton!(: [[f32; FEATURES]; CACHED_WINDOWS] = [[0.0; FEATURES]; CACHED_WINDOWS]);
    let stack = stack::paint(Virt::stack_limit());
    match cache {
        Some(cache) => client::run_with_recording(&Virt::with_serial(), stack, cache),
        None => fault::exit(fault::FAULT, &"started twice"),
    }
}
