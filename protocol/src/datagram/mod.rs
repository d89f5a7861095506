//! Frames in datagrams: packets of a radio, or of UDP, which arrive whole or not at all, and in any order.
//!
//! A packet is a whole frame without COBS (its first byte is the frame's header, `0x10` to `0x1f`), or a fragment:
//!
//! | bytes | content |
//! | --- | --- |
//! | 1 | `0x20` plus the number of the frame modulo 16; `0x30` instead of `0x20` for the last fragment |
//! | 1 | offset in the frame, in units of 16 bytes |
//! | up to the packet's end | bytes of the frame; a multiple of 16 except in the last fragment |
//!
//! A frame that is mixed from fragments of two frames is dropped later, because its checksum or tag differs.
//! Lost packets are repaired by the session, which asks for chunks and repeats messages.

mod reassembler;
mod stream;

use core::ops::Range;

pub use reassembler::{PacketCounters, Reassembler};
pub use stream::{PacketReader, PacketWriter};

/// Shortest packet that a link must carry, in bytes: one unit in a fragment.
pub const PACKET_MIN: usize = FRAGMENT + UNIT;

/// Longest frame in packets, in bytes.
pub const FRAME_MAX: usize = UNITS * UNIT;

/// Length of a fragment's header.
const FRAGMENT: usize = 2;
/// Unit of offsets.
const UNIT: usize = 16;
/// Largest number of units of a frame.
const UNITS: usize = 256;

/// First byte of a fragment, without the number of the frame.
const MORE: u8 = 0x20;
/// First byte of the last fragment, without the number of the frame.
const LAST: u8 = 0x30;
/// Bits of the first byte that are the number of the frame.
const NUMBER: u8 = 0x0f;

/// Packet of a frame: a header of 0 or 2 bytes, and a range of the frame's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    header: [u8; FRAGMENT],
    has_header: bool,
    /// Range of the frame.
    pub content: Range<usize>,
}

impl Packet {
    /// Returns the bytes before the content.
    #[must_use]
    pub fn header(&self) -> &[u8] {
        if self.has_header { &self.header } else { &[] }
    }

    /// Writes the packet of this frame to `out`. Returns its length, or `None` if `out` or the frame is too short.
    pub fn write(&self, frame: &[u8], out: &mut [u8]) -> Option<usize> {
        let content = frame.get(self.content.clone())?;
        let bytes = self.header().iter().chain(content);
        let length = self.header().len() + content.len();
        out.get_mut(..length)?.iter_mut().zip(bytes).for_each(|(target, byte)| *target = *byte);
        Some(length)
    }
}

/// Sender's half: splits frames into packets.
#[derive(Clone, Copy, Debug)]
pub struct Splitter {
    packet: usize,
    number: u8,
}

impl Splitter {
    /// Creates a splitter for packets of at most `packet` bytes; [`PACKET_MIN`] is the least.
    #[must_use]
    pub const fn new(packet: usize) -> Self {
        Self { packet: if packet < PACKET_MIN { PACKET_MIN } else { packet }, number: 0 }
    }

    /// Returns the packet that begins at byte `start` of a frame of `length` bytes; `None` after the last one, and if the frame is
    /// longer than [`FRAME_MAX`]. All packets of one frame are requested before [`Self::next_frame`].
    #[must_use]
    pub fn packet(&self, start: usize, length: usize) -> Option<Packet> {
        let remaining = length.checked_sub(start).filter(|remaining| *remaining > 0)?;
        if start == 0 && length <= self.packet {
            return Some(Packet { header: [0; FRAGMENT], has_header: false, content: 0..length });
        }
        let is_last = remaining <= self.packet - FRAGMENT;
        let taken = if is_last { remaining } else { (self.packet - FRAGMENT) / UNIT * UNIT };
        let kind = if is_last { LAST } else { MORE };
        let offset = u8::try_from(start / UNIT).ok().filter(|_| length <= FRAME_MAX)?;
        Some(Packet { header: [kind | self.number, offset], has_header: true, content: start..start + taken })
    }

    /// Begins the next frame.
    pub fn next_frame(&mut self) {
        self.number = (self.number + 1) & NUMBER;
    }
}
