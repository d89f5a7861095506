//! UART 0, a CMSDK APB UART: receives by interrupt, transmits by polling.

use cortex_m::interrupt::InterruptNumber;
use embedded_io::{ErrorKind, ErrorType, Read, ReadReady, Write};
use fedspan_emulated::register::Register;
use fedspan_emulated::ring::Ring;

const BASE: usize = if cfg!(feature = "m33") { 0x5020_0000 } else { 0x4000_4000 };
/// Number of the receive interrupt.
pub const INTERRUPT: i16 = if cfg!(feature = "m33") { 32 } else { 0 };

// SAFETY: a register of UART 0 of this machine; it does not affect memory.
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

/// Received bytes that have not been read: large enough for a download of the demonstration's representation.
pub static RECEIVED: Ring<8192> = Ring::new();

/// The receive interrupt, for the interrupt controller.
#[derive(Clone, Copy, Debug)]
pub struct Interrupt;

// SAFETY: the number is constant, and the machine has this interrupt.
unsafe impl InterruptNumber for Interrupt {
    fn number(self) -> u16 {
        INTERRUPT.unsigned_abs()
    }
}

/// Starts the UART at its highest rate, which the emulator ignores.
pub fn start() {
    DIVIDER.write(16);
    CONTROL.write(CONTROL_TRANSMIT | CONTROL_RECEIVE | CONTROL_RECEIVE_INTERRUPT);
}

/// Reads the received bytes. The interrupt is cleared first, so that a byte that arrives meanwhile raises it
/// again; cleared afterwards, that byte would be missed.
pub fn on_interrupt() {
    CLEAR.write(CLEAR_RECEIVE);
    while STATE.read() & STATE_RECEIVE_FULL != 0 {
        #[allow(clippy::cast_possible_truncation, reason = "the register has eight bits")]
        RECEIVED.push(DATA.read() as u8);
    }
}

/// The serial line. Reads block until a byte arrives; there is no end of file.
#[derive(Clone, Copy, Debug)]
pub struct Uart;

impl ErrorType for Uart {
    type Error = ErrorKind;
}

impl Read for Uart {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ErrorKind> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            let n = RECEIVED.pop(buffer);
            if n > 0 {
                return Ok(n);
            }
        }
    }
}

impl ReadReady for Uart {
    fn read_ready(&mut self) -> Result<bool, ErrorKind> {
        Ok(!RECEIVED.is_empty())
    }
}

impl Write for Uart {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        for &byte in bytes {
            while STATE.read() & STATE_TRANSMIT_FULL != 0 {}
            DATA.write(byte.into());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<(), ErrorKind> {
        Ok(())
    }
}
