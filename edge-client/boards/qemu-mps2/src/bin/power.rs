//! Prints the cost of a FedPower iteration on this core, see `fedspan_emulated::power`. Requires `-icount
//! shift=0`.

#![no_std]
#![no_main]

use cortex_m_rt::entry;
use fedspan_client::memory::PowerWorkspace;
use fedspan_emulated::once::Once;
use fedspan_emulated::shape::{D, K};
use fedspan_emulated::{fault, measure, power};
use qemu_mps2::Mps2;

static MEMORY: Once<PowerWorkspace<D, K>> = Once::new(PowerWorkspace::new());
static UPLOAD: Once<[f32; D * K]> = Once::new([0.0; D * K]);

#[entry]
fn main() -> ! {
    let (Some(board), Some(memory), Some(upload)) = (Mps2::with_counter(), MEMORY.take(), UPLOAD.take())
    else {
        fault::exit(fault::FAULT, &"started twice")
    };
    if let Err(reason) = power::power(&board, memory, upload) {
        measure::failed(reason);
    }
    semihosting::process::exit(0)
}
