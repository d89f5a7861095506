//! Board support of the BBC micro:bit as emulated by QEMU: names, clock frequency, serial line. The emulated
//! nRF51 has a SysTick, unlike the real chip, and uses it as its only clock.

#![no_std]

mod uart;

use cortex_m_rt::exception;
use fedspan_emulated::cortex::{CortexM, Machine, on_interrupt};

/// Names, clock frequency and UART of the machine.
#[derive(Clone, Copy, Debug)]
pub struct Microbit;

/// The emulated micro:bit.
pub type Board = CortexM<Microbit>;

impl Machine for Microbit {
    const NAME: &'static str = "qemu-microbit";
    const CORE: &'static str = "m0";
    const HERTZ: u32 = 16_000_000;
    type Uart = uart::Nrf51;
}

#[exception]
unsafe fn DefaultHandler(number: i16) {
    on_interrupt::<Microbit>(number);
}
