//! The byte stream to the server, of either kind, and what went over it.

use embedded_io::{ErrorKind, ErrorType, Read, ReadReady, Write};

/// Bytes that went over a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// From the device.
    pub up: u64,
    /// To the device.
    pub down: u64,
}

/// A link that counts. `S` is the serial line, `P` the pair of pipes.
#[derive(Debug)]
pub struct Link<S, P> {
    kind: Kind<S, P>,
    /// What went over it so far.
    pub traffic: Traffic,
}

#[derive(Debug)]
enum Kind<S, P> {
    Serial(S),
    Pipes(P),
}

impl<S, P> Link<S, P> {
    /// A link over the serial line.
    pub fn serial(line: S, traffic: Traffic) -> Self {
        Self { kind: Kind::Serial(line), traffic }
    }

    /// A link over two pipes.
    pub fn pipes(pipes: P, traffic: Traffic) -> Self {
        Self { kind: Kind::Pipes(pipes), traffic }
    }
}

impl<S, P> ErrorType for Link<S, P> {
    type Error = ErrorKind;
}

impl<S: Read<Error = ErrorKind>, P: Read<Error = ErrorKind>> Read for Link<S, P> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ErrorKind> {
        let n = match &mut self.kind {
            Kind::Serial(line) => line.read(buffer),
            Kind::Pipes(pipes) => pipes.read(buffer),
        }?;
        self.traffic.down += n as u64;
        Ok(n)
    }
}

impl<S: Write<Error = ErrorKind>, P: Write<Error = ErrorKind>> Write for Link<S, P> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        let n = match &mut self.kind {
            Kind::Serial(line) => line.write(bytes),
            Kind::Pipes(pipes) => pipes.write(bytes),
        }?;
        self.traffic.up += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> Result<(), ErrorKind> {
        match &mut self.kind {
            Kind::Serial(line) => line.flush(),
            Kind::Pipes(pipes) => pipes.flush(),
        }
    }
}

impl<S: ReadReady<Error = ErrorKind>, P: ReadReady<Error = ErrorKind>> ReadReady for Link<S, P> {
    fn read_ready(&mut self) -> Result<bool, ErrorKind> {
        match &mut self.kind {
            Kind::Serial(line) => line.read_ready(),
            Kind::Pipes(pipes) => pipes.read_ready(),
        }
    }
}
