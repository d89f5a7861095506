//! Link over two named pipes of the host, through semihosting: much faster than an emulated serial line, and
//! meant only for simulated fleets.
//!
//! Opening a pipe blocks until its other end is open. A read stops the whole board, including the session's
//! clock, until a byte arrives, so the device sends no keep-alives while it waits.

use embedded_io::{ErrorKind, ErrorType, Read, ReadReady, Write, WriteReady};
use semihosting::fs::{File, OpenOptions};
use semihosting::io::{Read as _, Write as _};

use crate::settings::Name;

/// The two open pipes of a link.
#[derive(Debug)]
pub struct Pipes {
    receive: File,
    transmit: File,
}

impl Pipes {
    /// Opens the receiving pipe, then the transmitting one; the other end must use the same order.
    ///
    /// # Errors
    /// [`ErrorKind::Other`] if the host cannot open a pipe.
    pub fn open(receive: &Name, transmit: &Name) -> Result<Self, ErrorKind> {
        let receive = File::open(receive.as_c_str()).map_err(failed)?;
        let options = OpenOptions::new().write(true).create(true).truncate(true).open(transmit.as_c_str());
        Ok(Self { receive, transmit: options.map_err(failed)? })
    }
}

fn failed(_: semihosting::io::Error) -> ErrorKind {
    ErrorKind::Other
}

impl ErrorType for Pipes {
    type Error = ErrorKind;
}

impl Read for Pipes {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ErrorKind> {
        self.receive.read(buffer).map_err(failed)
    }
}

impl Write for Pipes {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        self.transmit.write(bytes).map_err(failed)
    }

    fn flush(&mut self) -> Result<(), ErrorKind> {
        Ok(())
    }
}

impl WriteReady for Pipes {
    /// Always returns true: the host buffers what is written.
    fn write_ready(&mut self) -> Result<bool, ErrorKind> {
        Ok(true)
    }
}

impl ReadReady for Pipes {
    /// Always returns true: only a read shows whether bytes are available.
    fn read_ready(&mut self) -> Result<bool, ErrorKind> {
        Ok(true)
    }
}
