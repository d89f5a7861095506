//! Driver of the nRF51's UART: receives by interrupt, transmits by polling.

use fedspan_emulated::register::Register;
use fedspan_emulated::ring::Ring;
use fedspan_emulated::serial::{InterruptUart, Uart};

const BASE: usize = 0x4000_2000;

// SAFETY: the address is a register of the UART, which does not affect memory.
const START_RECEIVE: Register<u32> = unsafe { Register::at(BASE) };
// SAFETY: as above.
const START_TRANSMIT: Register<u32> = unsafe { Register::at(BASE + 0x8) };
// SAFETY: as above.
const RECEIVE_READY: Register<u32> = unsafe { Register::at(BASE + 0x108) };
// SAFETY: as above.
const TRANSMIT_READY: Register<u32> = unsafe { Register::at(BASE + 0x11c) };
// SAFETY: as above.
const ENABLE_INTERRUPT: Register<u32> = unsafe { Register::at(BASE + 0x304) };
// SAFETY: as above.
const ENABLE: Register<u32> = unsafe { Register::at(BASE + 0x500) };
// SAFETY: as above.
const RECEIVE: Register<u32> = unsafe { Register::at(BASE + 0x518) };
// SAFETY: as above.
const TRANSMIT: Register<u32> = unsafe { Register::at(BASE + 0x51c) };

const ENABLED: u32 = 4;
const INTERRUPT_RECEIVE_READY: u32 = 1 << 2;

/// Received bytes that wait to be read: large enough for two frames of the longest kind.
static RECEIVED: Ring<520> = Ring::new();

/// Driver of the UART.
#[derive(Clone, Copy, Debug)]
pub struct Nrf51;

impl Uart for Nrf51 {
    fn has_byte() -> bool {
        !RECEIVED.is_empty()
    }

    fn receive(buffer: &mut [u8]) -> usize {
        RECEIVED.pop(buffer)
    }

    fn send(byte: u8) {
        TRANSMIT_READY.write(0);
        TRANSMIT.write(byte.into());
        while TRANSMIT_READY.read() == 0 {}
    }

    fn lost() -> u32 {
        RECEIVED.lost()
    }
}

impl InterruptUart for Nrf51 {
    const INTERRUPT: u16 = 2;

    fn start() {
        ENABLE.write(ENABLED);
        ENABLE_INTERRUPT.write(INTERRUPT_RECEIVE_READY);
        START_RECEIVE.write(1);
        START_TRANSMIT.write(1);
    }

    /// Receives one byte. The event is cleared before the byte is read, because the read raises the event
    /// again if another byte waits.
    fn on_interrupt() {
        if RECEIVE_READY.read() != 0 {
            RECEIVE_READY.write(0);
            #[allow(clippy::cast_possible_truncation, reason = "the register has eight bits")]
            RECEIVED.push(RECEIVE.read() as u8);
        }
    }
}
