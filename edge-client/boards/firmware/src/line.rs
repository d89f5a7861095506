//! Serial line that tolerates transmission errors.
//!
//! Drivers report an overrun or a framing error as an error of `read`, and the client closes its link at the
//! first error. This wrapper reads again instead. The damaged bytes are then missing, which the checksum of
//! the frame detects, and the session repeats the lost frame.

use embedded_io_async::{ErrorType, Read, Write};

/// Number of consecutive reads without a byte after which the line counts as broken. Noise costs single
/// bytes, whereas a broken line fails immediately every time.
const FAULTS: u32 = 8;

/// Serial line over a port's driver.
#[derive(Debug)]
pub struct Line<'a, IO>(pub &'a mut IO);

impl<IO: ErrorType> ErrorType for Line<'_, IO> {
    type Error = IO::Error;
}

impl<IO: Read> Read for Line<'_, IO> {
    /// Reads bytes. Cancel-safe if the driver's `read` is.
    async fn read(&mut self, buffer: &mut [u8]) -> Result<usize, IO::Error> {
        let mut broken = Ok(0);
        for _ in 0..FAULTS {
            match self.0.read(buffer).await {
                // A serial line has no end of file, so an empty read, such as an empty USB packet, is
                // retried.
                Ok(0) => {}
                Ok(n) => return Ok(n),
                Err(error) => broken = Err(error),
            }
        }
        broken
    }
}

impl<IO: Write> Write for Line<'_, IO> {
    async fn write(&mut self, bytes: &[u8]) -> Result<usize, IO::Error> {
        self.0.write(bytes).await
    }

    async fn flush(&mut self) -> Result<(), IO::Error> {
        self.0.flush().await
    }
}

#[cfg(test)]
mod tests {
    use embassy_futures::block_on;
    use embedded_io_async::ErrorKind;

    use super::*;

    /// Reader for tests that fails the given number of times, then delivers a byte.
    struct Noisy(u32);

    impl ErrorType for Noisy {
        type Error = ErrorKind;
    }

    impl Read for Noisy {
        async fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ErrorKind> {
            if self.0 > 0 {
                self.0 -= 1;
                return Err(ErrorKind::InvalidData);
            }
            buffer[0] = 7;
            Ok(1)
        }
    }

    #[test]
    fn line_tolerates_noise_but_not_a_broken_line() {
        let mut byte = [0];
        for faults in 0..2 * FAULTS {
            let read = block_on(Line(&mut Noisy(faults)).read(&mut byte));
            let expected = if faults < FAULTS { Ok(1) } else { Err(ErrorKind::InvalidData) };
            assert_eq!(read, expected, "{faults} faults");
        }
    }
}
