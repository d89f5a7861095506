//! UART of the nRF51: receives by interrupt, transmits by polling.

use cortex_m::interrupt::InterruptNumber;
use embedded_io::{ErrorKind, ErrorType, Read, ReadReady, Write};
use fedspan_emulated::register::Register;
use fedspan_emulated::ring::Ring;

const BASE: usize = 0x4000_2000;
/// Number of the UART's interrupt.
pub const INTERRUPT: i16 = 2;

// SAFETY: a register of the UART; it does not affect memory.
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

/// Received bytes that have not been read: large enough for two frames of the longest kind.
pub static RECEIVED: Ring<520> = Ring::new();

/// Interrupt of the UART, for the interrupt controller.
#[derive(Clone, Copy, Debug)]
pub struct Interrupt;

// SAFETY: the number is constant, and the chip has this interrupt.
unsafe impl InterruptNumber for Interrupt {
    fn number(self) -> u16 {
        INTERRUPT.unsigned_abs()
    }
}

/// Starts both directions.
pub fn start() {
    ENABLE.write(ENABLED);
    ENABLE_INTERRUPT.write(INTERRUPT_RECEIVE_READY);
    START_RECEIVE.write(1);
    START_TRANSMIT.write(1);
}

/// Reads one byte. The event is cleared first: reading the byte raises it again if another one waits.
pub fn on_interrupt() {
    if RECEIVE_READY.read() != 0 {
        RECEIVE_READY.write(0);
        #[allow(clippy::cast_possible_truncation, reason = "the register has eight bits")]
        RECEIVED.push(RECEIVE.read() as u8);
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
            TRANSMIT_READY.write(0);
            TRANSMIT.write(byte.into());
            while TRANSMIT_READY.read() == 0 {}
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<(), ErrorKind> {
        Ok(())
    }
}
