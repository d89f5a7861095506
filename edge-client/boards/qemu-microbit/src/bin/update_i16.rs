//! Prints the cost of an update in 16-bit fixed point on this core, see `fedspan_emulated::measure`, after a
//! check of its products. Requires `-icount shift=0`.

#![no_std]
#![no_main]

use cortex_m_rt::entry;
use fedspan_client::Linear;
use fedspan_client::memory::FixedWorkspace;
use fedspan_emulated::once::Once;
use fedspan_emulated::shape::{D, K};
use fedspan_emulated::{fault, lengths, measure};
use qemu_microbit::Microbit;

static MODEL: Once<Linear<FixedWorkspace<D, K>>> = Once::new(Linear::new(FixedWorkspace::new()));
static UPLOAD: Once<[f32; D * K]> = Once::new([0.0; D * K]);

#[entry]
fn main() -> ! {
    let (Some(board), Some(model), Some(upload)) = (Microbit::with_counter(), MODEL.take(), UPLOAD.take())
    else {
        fault::exit(fault::FAULT, &"started twice")
    };
    if let Err(n) = lengths::check() {
        fault::exit(fault::WRONG, &format_args!("products of {n} integers are wrong"))
    }
    if let Err(reason) = measure::update(&board, model, upload) {
        measure::failed(reason);
    }
    semihosting::process::exit(0)
}
