//! Conversion between the byte stream that drivers and servers read and write, which is COBS, and packets. A link over packets needs no
//! other part of the protocol.

use super::{PacketCounters, Reassembler, Splitter};

/// Largest number of literal bytes in a COBS block.
const BLOCK: usize = 254;

/// Sender's half: takes packets from encoded frames. It is small and copied: a link that cannot send a packet now keeps the writer from
/// before it.
#[derive(Clone, Copy, Debug)]
pub struct PacketWriter {
    splitter: Splitter,
    /// Length of the frame; 0 between frames.
    length: usize,
    /// Number of the frame's bytes that are in packets.
    taken: usize,
    block: DecodedBlock,
}

/// Position of a decoder in a COBS block.
#[derive(Clone, Copy, Debug, Default)]
struct DecodedBlock {
    /// Number of literal bytes that follow.
    literals: u8,
    /// True if a zero follows the literals, unless the frame ends.
    has_zero: bool,
}

impl DecodedBlock {
    /// Returns the next byte of the frame and removes its code from `encoded`; `None` at the frame's end, and if the code is malformed
    /// or incomplete.
    fn next(&mut self, encoded: &mut &[u8]) -> Option<u8> {
        loop {
            let byte = *encoded.split_off_first()?;
            if self.literals > 0 {
                self.literals -= 1;
                return Some(byte).filter(|byte| *byte != 0);
            }
            self.literals = byte.checked_sub(1)?;
            if core::mem::replace(&mut self.has_zero, byte < u8::MAX) {
                return Some(0);
            }
        }
    }
}

/// Returns the number of bytes of a whole encoded frame; `None` if it has no end or is malformed.
fn decoded_len(frame: &[u8]) -> Option<usize> {
    let end = frame.iter().position(|byte| *byte == 0)?;
    let (mut length, mut at) = (0, 0);
    while at < end {
        let code = usize::from(*frame.get(at)?);
        at += code;
        length += code - 1 + usize::from(code < BLOCK + 1 && at < end);
    }
    (at == end && length > 0).then_some(length)
}

impl PacketWriter {
    /// Creates a writer of packets of at most `packet` bytes; [`super::PACKET_MIN`] is the least.
    #[must_use]
    pub const fn new(packet: usize) -> Self {
        let block = DecodedBlock { literals: 0, has_zero: false };
        Self { splitter: Splitter::new(packet), length: 0, taken: 0, block }
    }

    /// Forgets a frame that was not sent to its end, for a new link.
    pub fn reset(&mut self) {
        if self.length > 0 {
            self.splitter.next_frame();
        }
        (self.length, self.taken, self.block) = (0, 0, DecodedBlock::default());
    }

    /// Writes the next packet to `packet`. `encoded` is the rest of an encoded frame to its end; the bytes of the packet are removed from
    /// it. Returns the packet's length, or `None` if `encoded` is not a whole frame, the frame is longer than
    /// [`super::FRAME_MAX`], or `packet` is too short.
    pub fn write(&mut self, encoded: &mut &[u8], packet: &mut [u8]) -> Option<usize> {
        if self.length == 0 {
            self.length = decoded_len(encoded)?;
        }
        let piece = self.splitter.packet(self.taken, self.length)?;
        let header = piece.header();
        let (before, after) = packet.split_at_mut_checked(header.len())?;
        before.copy_from_slice(header);
        for target in after.get_mut(..piece.content.len())? {
            *target = self.block.next(encoded)?;
        }
        self.taken = piece.content.end;
        if self.taken == self.length {
            // The delimiter, and what is left of the block before it.
            while *encoded.split_off_first()? != 0 {}
            self.splitter.next_frame();
            (self.length, self.taken, self.block) = (0, 0, DecodedBlock::default());
        }
        Some(header.len() + piece.content.len())
    }
}

/// Receiver's half: collects packets, and encodes each complete frame.
#[derive(Debug)]
pub struct PacketReader<B> {
    reassembler: Reassembler<B>,
    /// Length of the frame that is being read; 0 if there is none.
    length: usize,
    /// Position of the next byte in the frame.
    at: usize,
    /// Number of literal bytes of the block that follow.
    literals: usize,
    /// True if a zero of the frame follows the literals.
    has_zero: bool,
    /// True after the code of the last block.
    is_last: bool,
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> PacketReader<B> {
    /// Creates a reader of frames that are at most as long as `buffer`.
    pub fn new(buffer: B) -> Self {
        let reassembler = Reassembler::new(buffer);
        Self { reassembler, length: 0, at: 0, literals: 0, has_zero: false, is_last: false }
    }

    /// Returns the counters of received packets since creation.
    #[must_use]
    pub fn counters(&self) -> PacketCounters {
        self.reassembler.counters()
    }

    /// Forgets incomplete and unread frames, for a new link.
    pub fn reset(&mut self) {
        self.reassembler.reset();
        self.length = 0;
    }

    /// Returns true if a frame can be read. Then no packet must be passed to [`Self::receive`].
    #[must_use]
    pub fn has_frame(&self) -> bool {
        self.length > 0
    }

    /// Takes a packet, and begins the frame that it completes. A frame that was not read to its end is lost.
    pub fn receive(&mut self, packet: &[u8]) {
        self.length = self.reassembler.receive(packet).unwrap_or(0);
        (self.at, self.literals, self.has_zero, self.is_last) = (0, 0, false, false);
    }

    /// Writes the next bytes of the encoded frame to `out` and returns their number; 0 if no frame is left.
    pub fn read(&mut self, out: &mut [u8]) -> usize {
        let mut written = 0;
        for target in out {
            let Some(byte) = self.next() else { break };
            *target = byte;
            written += 1;
        }
        written
    }

    fn next(&mut self) -> Option<u8> {
        if self.length == 0 {
            return None;
        }
        let frame = self.reassembler.frame_mut(self.length);
        if self.literals > 0 {
            let byte = *frame.get(self.at)?;
            self.at += 1;
            self.literals -= 1;
            return Some(byte);
        }
        if self.is_last {
            self.length = 0;
            return Some(0);
        }
        self.at += usize::from(self.has_zero);
        let rest = frame.get(self.at..)?;
        let block = rest.get(..BLOCK).unwrap_or(rest);
        self.literals = block.iter().position(|byte| *byte == 0).unwrap_or(block.len());
        // A full block implies no zero.
        self.has_zero = self.literals < BLOCK;
        self.is_last = self.literals == rest.len();
        u8::try_from(self.literals + 1).ok()
    }
}
