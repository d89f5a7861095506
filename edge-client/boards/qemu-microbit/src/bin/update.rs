//! Prints what one update costs on this core, see `fedspan_emulated::measure`. Runs under `-icount shift=0`.

#![no_std]
#![no_main]

use cortex_m::singleton;
use cortex_m_rt::entry;
use fedspan_client::{Linear, Workspace};
use fedspan_emulated::shape::{D, K};
use fedspan_emulated::{fault, measure};
use qemu_microbit::Microbit;

#[entry]
fn main() -> ! {
    let model = singleton!(: Linear<Workspace<D, K>> = Linear::new(Workspace::new()));
    let upload = singleton!(: [f32; D * K] = [0.0; D * K]);
    let (Some(board), Some(model), Some(upload)) = (Microbit::counting(), model, upload) else {
        fault::exit(fault::FAULT, &"started twice")
    };
    if let Err(reason) = measure::update(&board, model, upload) {
        measure::failed(reason);
    }
    semihosting::process::exit(0)
}
