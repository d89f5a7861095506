//! Driver of UART 0, a CMSDK APB UART: receives by interrupt, transmits by polling.

use fedspan_emulated::register::Register;
use fedspan_emulated::ring::Ring;
use fedspan_emulated::serial::{InterruptUart, Uart};

const BASE: usize = if cfg!(feature = "m33") { 0x5020_0000 } else { 0x4000_4000 };

// SAFETY: the address is a register of UART 0 of this machine, which does not affect memory.
const DATA: Register<u32> = unsafe { Register::at(BASE) };
// SAFETY: as above.
const STATE: Register<u32> = unsafe { Register::at(BASE + 0x4) };
// SAFETY: as above.
const CONTROL: Register<u32> = unsafe { Register::at(BASE + 0x8) };
// SAFETY: as above.
const CLEAR: Register<u32> = unsafe { Register::at(BASE + 0xc) };
// SAFETY: as above.
const DIVIDER: Register<u32> = unsafe { Register::at(BASE + 0x10) };

const STATE_TRANSMIT_FULL: u32 = 1;
const STATE_RECEIVE_FULL: u32 = 1 << 1;
const CONTROL_TRANSMIT: u32 = 1;
const CONTROL_RECEIVE: u32 = 1 << 1;
const CONTROL_RECEIVE_INTERRUPT: u32 = 1 << 3;
const CLEAR_RECEIVE: u32 = 1 << 1;

/// Received bytes that wait to be read: large enough for a download of the demonstration's representation.
static RECEIVED: Ring<8192> = Ring::new();

/// Driver of the UART.
#[derive(Clone, Copy, Debug)]
pub struct Cmsdk;

impl Uart for Cmsdk {
    fn has_byte() -> bool {
        !RECEIVED.is_empty()
    }

    fn receive(buffer: &mut [u8]) -> usize {
        RECEIVED.pop(buffer)
    }

    fn send(byte: u8) {
        while STATE.read() & STATE_TRANSMIT_FULL != 0 {}
        DATA.write(byte.into());
    }

    fn lost() -> u32 {
        RECEIVED.lost()
    }
}

impl InterruptUart for Cmsdk {
    const INTERRUPT: u16 = if cfg!(feature = "m33") { 32 } else { 0 };

    /// Starts the UART at its highest rate, which the emulator ignores.
    fn start() {
        DIVIDER.write(16);
        CONTROL.write(CONTROL_TRANSMIT | CONTROL_RECEIVE | CONTROL_RECEIVE_INTERRUPT);
    }

    /// Receives the waiting bytes. The interrupt is cleared first, so that a byte that arrives during the
    /// loop raises it again; if it were cleared after the loop, such a byte could be missed.
    fn on_interrupt() {
        CLEAR.write(CLEAR_RECEIVE);
        while STATE.read() & STATE_RECEIVE_FULL != 0 {
            #[allow(clippy::cast_possible_truncation, reason = "the register has eight bits")]
            RECEIVED.push(DATA.read() as u8);
        }
    }
}
