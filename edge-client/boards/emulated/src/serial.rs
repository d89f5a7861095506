//! Serial line of an emulated board: the interface of its UART driver, and a blocking reader and writer.

use core::marker::PhantomData;

use embedded_io::{ErrorKind, ErrorType, Read, ReadReady, Write, WriteReady};

/// Driver of a board's UART. A board has one UART, so the functions need no handle.
pub trait Uart {
    /// Returns true if a received byte waits to be read.
    fn has_byte() -> bool;

    /// Moves as many bytes as have been received and fit into `buffer`, and returns their number.
    fn receive(buffer: &mut [u8]) -> usize;

    /// Sends a byte, as soon as the transmitter has room for it.
    fn send(byte: u8);

    /// Returns the number of bytes that were lost because the receive buffer was full.
    fn lost() -> u32;
}

/// Driver of a UART that receives by interrupt.
pub trait InterruptUart: Uart {
    /// Number of the receive interrupt.
    const INTERRUPT: u16;

    /// Starts receiver and transmitter, and enables the receive interrupt.
    fn start();

    /// Moves received bytes from the UART to the receive buffer. Called by the receive interrupt.
    fn on_interrupt();
}

/// Handle to the serial line; all handles share one line. Reads block until a byte arrives; there is no end
/// of file.
#[derive(Clone, Copy, Debug)]
pub struct Serial<U>(PhantomData<U>);

impl<U: Uart> Serial<U> {
    /// Creates a handle to the line.
    #[must_use]
    pub const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<U: Uart> Default for Serial<U> {
    fn default() -> Self {
        Self::new()
    }
}

impl<U> ErrorType for Serial<U> {
    type Error = ErrorKind;
}

impl<U: Uart> Read for Serial<U> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ErrorKind> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            let n = U::receive(buffer);
            if n > 0 {
                return Ok(n);
            }
        }
    }
}

impl<U: Uart> ReadReady for Serial<U> {
    fn read_ready(&mut self) -> Result<bool, ErrorKind> {
        Ok(U::has_byte())
    }
}

impl<U: Uart> WriteReady for Serial<U> {
    /// Always returns true: a transmitter without flow control accepts a byte within a byte's time.
    fn write_ready(&mut self) -> Result<bool, ErrorKind> {
        Ok(true)
    }
}

impl<U: Uart> Write for Serial<U> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        bytes.iter().for_each(|&byte| U::send(byte));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<(), ErrorKind> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::ring::Ring;

    /// UART for tests that receives the bytes it sends. A byte arrives after two attempts to read it.
    struct Loopback;

    static WAITING: Ring<8> = Ring::new();
    static ATTEMPTS: AtomicU32 = AtomicU32::new(0);

    impl Uart for Loopback {
        fn has_byte() -> bool {
            !WAITING.is_empty()
        }

        fn receive(buffer: &mut [u8]) -> usize {
            if ATTEMPTS.fetch_add(1, Ordering::Relaxed) % 3 < 2 { 0 } else { WAITING.pop(buffer) }
        }

        fn send(byte: u8) {
            WAITING.push(byte);
        }

        fn lost() -> u32 {
            WAITING.lost()
        }
    }

    #[test]
    fn read_waits_for_a_byte_and_returns_what_is_there() {
        let mut line = Serial::<Loopback>::new();
        assert_eq!((line.read(&mut []), line.read_ready()), (Ok(0), Ok(false)));
        assert_eq!(line.write(&[1, 2, 3]), Ok(3));
        let mut buffer = [0; 2];
        assert_eq!((line.read_ready(), line.read(&mut buffer), buffer), (Ok(true), Ok(2), [1, 2]));
        let mut buffer = [0; 2];
        assert_eq!((line.read(&mut buffer), buffer, line.read_ready()), (Ok(1), [3, 0], Ok(false)));
    }
}
