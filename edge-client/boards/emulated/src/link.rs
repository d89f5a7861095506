//! Byte stream to the server, over a serial line or two pipes, with traffic counters. The link can fail at
//! the end of a given message, to simulate a power cut or a reset.

use embedded_io::{ErrorKind, ErrorType, Read, ReadReady, Write, WriteReady};

/// Number of bytes per read from the line or pipe if message boundaries matter.
const READ: usize = 64;

/// Traffic of a link, added up over all connections since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes sent by the device.
    pub up: u64,
    /// Bytes received by the device.
    pub down: u64,
    /// Number of messages in both directions. Each message ends with a zero byte.
    pub messages: u32,
}

/// Link with traffic counters. `S` is the type of the serial line, `P` that of the pair of pipes.
#[derive(Debug)]
pub struct Link<S, P> {
    kind: Kind<S, P>,
    /// Traffic up to the present.
    pub traffic: Traffic,
    /// Number of the message after which the link fails.
    last: Option<u32>,
    /// True if the other end of the link was closed.
    ended: bool,
    /// Bytes read but not yet delivered, if message boundaries matter.
    held: [u8; READ],
    waiting: core::ops::Range<usize>,
}

#[derive(Debug)]
enum Kind<S, P> {
    Serial(S),
    Pipes(P),
}

impl<S, P> Link<S, P> {
    /// Creates a link over the serial line. It fails after message number `last`, if given.
    pub fn serial(line: S, traffic: Traffic, last: Option<u32>) -> Self {
        Self { kind: Kind::Serial(line), traffic, last, ended: false, held: [0; READ], waiting: 0..0 }
    }

    /// Creates a link over two pipes. It fails after message number `last`, if given.
    pub fn pipes(pipes: P, traffic: Traffic, last: Option<u32>) -> Self {
        Self { kind: Kind::Pipes(pipes), traffic, last, ended: false, held: [0; READ], waiting: 0..0 }
    }

    /// Returns true if the last message has passed. The device has then processed that message and sent
    /// nothing after it.
    pub fn is_over(&self) -> bool {
        self.last.is_some_and(|last| self.traffic.messages >= last)
    }

    /// Returns true if the other end was closed, so that no more bytes will arrive.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    fn fail_if_over(&self) -> Result<(), ErrorKind> {
        if self.is_over() { Err(ErrorKind::ConnectionAborted) } else { Ok(()) }
    }

    fn count_messages(&mut self, bytes: &[u8]) {
        let ends = bytes.iter().filter(|&&byte| byte == 0).count();
        self.traffic.messages = self.traffic.messages.saturating_add(u32::try_from(ends).unwrap_or(u32::MAX));
    }
}

impl<S, P> ErrorType for Link<S, P> {
    type Error = ErrorKind;
}

impl<S: Read<Error = ErrorKind>, P: Read<Error = ErrorKind>> Read for Link<S, P> {
    /// Reads bytes. If there is a last message, no read extends beyond the end of a message.
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ErrorKind> {
        self.fail_if_over()?;
        let n = if self.last.is_none() {
            self.kind.read(buffer)?
        } else {
            if self.waiting.is_empty() {
                self.waiting = 0..self.kind.read(&mut self.held)?;
            }
            let waiting = self.held.get(self.waiting.clone()).unwrap_or_default();
            let end = waiting.iter().position(|&byte| byte == 0).map_or(waiting.len(), |zero| zero + 1);
            let n = end.min(buffer.len());
            for (target, byte) in buffer.iter_mut().zip(waiting).take(n) {
                *target = *byte;
            }
            self.waiting.start += n;
            n
        };
        self.ended |= n == 0 && !buffer.is_empty();
        self.traffic.down += n as u64;
        self.count_messages(buffer.get(..n).unwrap_or_default());
        Ok(n)
    }
}

impl<S: Write<Error = ErrorKind>, P: Write<Error = ErrorKind>> Write for Link<S, P> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        self.fail_if_over()?;
        let n = match &mut self.kind {
            Kind::Serial(line) => line.write(bytes),
            Kind::Pipes(pipes) => pipes.write(bytes),
        }?;
        self.traffic.up += n as u64;
        self.count_messages(bytes.get(..n).unwrap_or_default());
        Ok(n)
    }

    fn flush(&mut self) -> Result<(), ErrorKind> {
        match &mut self.kind {
            Kind::Serial(line) => line.flush(),
            Kind::Pipes(pipes) => pipes.flush(),
        }?;
        self.fail_if_over()
    }
}

impl<S: ReadReady<Error = ErrorKind>, P: ReadReady<Error = ErrorKind>> ReadReady for Link<S, P> {
    fn read_ready(&mut self) -> Result<bool, ErrorKind> {
        self.fail_if_over()?;
        if !self.waiting.is_empty() {
            return Ok(true);
        }
        match &mut self.kind {
            Kind::Serial(line) => line.read_ready(),
            Kind::Pipes(pipes) => pipes.read_ready(),
        }
    }
}

impl<S: WriteReady<Error = ErrorKind>, P: WriteReady<Error = ErrorKind>> WriteReady for Link<S, P> {
    fn write_ready(&mut self) -> Result<bool, ErrorKind> {
        self.fail_if_over()?;
        match &mut self.kind {
            Kind::Serial(line) => line.write_ready(),
            Kind::Pipes(pipes) => pipes.write_ready(),
        }
    }
}

impl<S: Read<Error = ErrorKind>, P: Read<Error = ErrorKind>> Kind<S, P> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ErrorKind> {
        match self {
            Self::Serial(line) => line.read(buffer),
            Self::Pipes(pipes) => pipes.read(buffer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Link end for tests: delivers its bytes in the given pieces, and accepts all writes, three bytes at a
    /// time.
    struct Pieces(Vec<Vec<u8>>, Vec<u8>);

    impl ErrorType for Pieces {
        type Error = ErrorKind;
    }

    impl Read for Pieces {
        fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ErrorKind> {
            if self.0.is_empty() {
                return Ok(0);
            }
            let mut piece = self.0.remove(0);
            let n = piece.len().min(buffer.len());
            buffer[..n].copy_from_slice(&piece[..n]);
            if n < piece.len() {
                self.0.insert(0, piece.split_off(n));
            }
            Ok(n)
        }
    }

    impl ReadReady for Pieces {
        fn read_ready(&mut self) -> Result<bool, ErrorKind> {
            Ok(!self.0.is_empty())
        }
    }

    impl WriteReady for Pieces {
        fn write_ready(&mut self) -> Result<bool, ErrorKind> {
            Ok(true)
        }
    }

    impl Write for Pieces {
        fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
            let n = bytes.len().min(3);
            self.1.extend(&bytes[..n]);
            Ok(n)
        }

        fn flush(&mut self) -> Result<(), ErrorKind> {
            Ok(())
        }
    }

    /// Returns two messages of the server, cut into pieces whose ends are not those of the messages.
    fn pieces() -> Pieces {
        let bytes = [[vec![7; 100], vec![0]].concat(), vec![8, 0, 9]].concat();
        Pieces(bytes.chunks(70).map(<[u8]>::to_vec).collect(), Vec::new())
    }

    /// Reads until an error or the end of file; returns the bytes and the result of the last read.
    fn read_all(link: &mut Link<Pieces, Pieces>) -> (Vec<u8>, Result<usize, ErrorKind>) {
        let (mut bytes, mut buffer) = (Vec::new(), [0; 48]);
        loop {
            match link.read(&mut buffer) {
                Ok(n @ 1..) => bytes.extend(&buffer[..n]),
                end => return (bytes, end),
            }
        }
    }

    #[test]
    fn link_fails_after_the_last_message() {
        let expected = pieces().0.concat();
        for (last, ends) in [(1, 101), (2, 103)] {
            let mut link: Link<Pieces, Pieces> = Link::pipes(pieces(), Traffic::default(), Some(last));
            assert!(!link.is_over());
            let (bytes, end) = read_all(&mut link);
            assert_eq!((bytes.as_slice(), end), (&expected[..ends], Err(ErrorKind::ConnectionAborted)));
            assert!(link.is_over());
            assert_eq!(
                (link.read_ready(), link.write(&[1])),
                (Err(ErrorKind::ConnectionAborted), Err(ErrorKind::ConnectionAborted))
            );
            assert_eq!(link.traffic, Traffic { up: 0, down: ends as u64, messages: last });
        }
        // Messages that the device sends count too, and the last one is sent completely.
        let mut link: Link<Pieces, Pieces> =
            Link::serial(pieces(), Traffic { messages: 4, ..Traffic::default() }, Some(5));
        assert!(matches!(link.write_all(&[1, 2, 3, 4, 0]), Ok(())));
        assert_eq!(link.flush(), Err(ErrorKind::ConnectionAborted));
        let Kind::Serial(line) = &link.kind else { return };
        assert_eq!(line.1, [1, 2, 3, 4, 0]);
    }

    #[test]
    fn link_without_last_message_passes_and_counts_everything() {
        for last in [None, Some(100)] {
            let mut link: Link<Pieces, Pieces> = Link::pipes(pieces(), Traffic::default(), last);
            assert!(!link.has_ended());
            assert_eq!(read_all(&mut link), (pieces().0.concat(), Ok(0)));
            assert!(link.has_ended());
            assert!(matches!((link.write_all(&[5, 0]), link.flush()), (Ok(()), Ok(()))));
            assert_eq!(link.traffic, Traffic { up: 2, down: 104, messages: 3 });
            assert!(!link.is_over());
        }
    }
}
