//! Board support of the Arm MPS2 boards as emulated by QEMU: names, clock frequency, serial line.

#![no_std]

mod uart;

use cortex_m_rt::exception;
use fedspan_emulated::cortex::{CortexM, Machine, on_interrupt};

/// Names, clock frequency and UART of the machine that the Cargo feature selects.
#[derive(Clone, Copy, Debug)]
pub struct Mps2;

/// The emulated board with the selected machine.
pub type Board = CortexM<Mps2>;

impl Machine for Mps2 {
    const NAME: &'static str = "qemu-mps2";
    const CORE: &'static str = if cfg!(feature = "m0") {
        "m0"
    } else if cfg!(feature = "m3") {
        "m3"
    } else if cfg!(feature = "m7") {
        "m7"
    } else if cfg!(feature = "m33") {
        "m33"
    } else {
        "m4"
    };
    const HERTZ: u32 = if cfg!(feature = "m33") { 20_000_000 } else { 25_000_000 };
    type Uart = uart::Cmsdk;
}

#[exception]
unsafe fn DefaultHandler(number: i16) {
    on_interrupt::<Mps2>(number);
}
