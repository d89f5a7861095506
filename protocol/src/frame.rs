//! Frames on a byte stream: COBS, a length limit and a check.
//!
//! A frame is `header | message | check`, COBS-encoded and ended by one zero byte. The header's low
//! nibble names the protection: 0 is CRC-32C (Castagnoli), 1 and 2 are authenticated encryption
//! ([`secure`](crate::secure)); the high nibble is the frame format, 1.
//!
//! After *any* error (overflow, bad COBS, bad check, unknown header) everything up to and including
//! the next zero byte is thrown away, and counted. A frame can therefore not hide in the tail of an
//! oversized one, however the stream is cut into reads.
//!
//! COBS is written by hand, because the decoders at hand either panic on
//! some inputs or accept exactly such a hidden frame; the `cobs` crate is the oracle in the tests.

use core::ops::Range;

pub use crate::checksum::Digest as Crc32c;
use crate::checksum::{Digest, FLOATS};
use crate::limits::{CHECK, HEADER, wire_capacity};
use crate::message::Message;
use crate::{Error, cobs, codec};

/// Header of a frame that is protected by CRC-32C.
pub const HEADER_CRC32C: u8 = 0x10;

/// Header of a frame that is sealed.
pub const HEADER_SEALED: u8 = 0x11;

/// Header of the first sealed frame, a server's answer to hello.
pub const HEADER_ANSWER: u8 = 0x12;

/// CRC-32C (Castagnoli) of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    let mut digest = Digest::new();
    digest.update(bytes);
    digest.finish()
}

/// CRC-32C of a sequence of `f32` in little-endian byte order: the hash that ties a head to the
/// representation it was fitted on.
#[must_use]
pub fn crc32c_f32(values: &[f32]) -> u32 {
    let mut digest = Digest::new();
    let mut bytes = [0u8; 4 * FLOATS];
    for block in values.chunks(FLOATS) {
        for (place, value) in bytes.chunks_exact_mut(4).zip(block) {
            place.copy_from_slice(&value.to_le_bytes());
        }
        digest.update(bytes.get(..4 * block.len()).unwrap_or_default());
    }
    digest.finish()
}

/// Encodes `message` and a body of `body_len` bytes, written by `fill`, as one frame into `out`.
/// Returns the number of bytes on the wire, delimiter included.
///
/// The frame is built and COBS-encoded in place: `out` is all the memory this takes. It must hold
/// [`wire_capacity`] bytes of the frame, and that is enough.
///
/// # Errors
/// [`Error::BufferTooSmall`] if the frame does not fit; nothing useful is in `out` then. Where not even
/// the message without its body fits, `needed` is only known to be more than there is.
pub fn encode<M: Message>(
    message: &M,
    body_len: usize,
    mut fill: impl FnMut(&mut [u8]),
    out: &mut [u8],
) -> Result<usize, Error> {
    let envelope = Envelope { before: HEADER, after: CHECK };
    encode_in(envelope, message, body_len, &mut fill, close_with_crc, out)
}

/// Writes header and check.
pub(crate) fn close_with_crc(frame: &mut [u8]) {
    if let Some((checked, check)) = frame.split_last_chunk_mut::<CHECK>() {
        if let Some(header) = checked.first_mut() {
            *header = HEADER_CRC32C;
        }
        *check = crc32c(checked).to_le_bytes();
    }
}

/// What is around the message and its body in a decoded frame, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Envelope {
    /// The header and what belongs to it.
    pub before: usize,
    /// The check or the tag.
    pub after: usize,
}

/// Encodes a frame of any kind: `close` writes what is around the message, and may change it.
pub(crate) fn encode_in<M: Message>(
    envelope: Envelope,
    message: &M,
    body_len: usize,
    fill: &mut dyn FnMut(&mut [u8]),
    mut close: impl FnMut(&mut [u8]),
    out: &mut [u8],
) -> Result<usize, Error> {
    let got = out.len();
    let (start, end) = plain_frame(got);
    let place = out.get_mut(start.saturating_add(envelope.before)..end).unwrap_or_default();
    let head_len =
        codec::write(message, place).ok_or(Error::BufferTooSmall { needed: got.saturating_add(1), got })?;
    complete(envelope, start..end, head_len, body_len, fill, &mut close, out)
}

/// Where a frame is built in a buffer of `length` bytes. The last byte is the delimiter's. The frame starts so
/// far in that the encoder, which moves it to the front and adds at most one byte in 254, never overtakes what
/// it has still to read.
fn plain_frame(length: usize) -> (usize, usize) {
    let end = length.saturating_sub(1);
    (end.div_ceil(255), end)
}

/// Gives the `head_len` bytes of message in `place` their body and envelope, and encodes them.
#[cfg_attr(target_os = "none", inline(never))]
fn complete(
    envelope: Envelope,
    place: Range<usize>,
    head_len: usize,
    body_len: usize,
    fill: &mut dyn FnMut(&mut [u8]),
    close: &mut dyn FnMut(&mut [u8]),
    out: &mut [u8],
) -> Result<usize, Error> {
    let got = out.len();
    let start = place.start;
    let head_end = envelope.before + head_len;
    let body_end = head_end.saturating_add(body_len);
    let len = body_end.saturating_add(envelope.after);
    let needed = wire_capacity(len);
    let small = Error::BufferTooSmall { needed, got };
    let frame = out.get_mut(place).and_then(|place| place.get_mut(..len)).ok_or(small)?;
    fill(frame.get_mut(head_end..body_end).unwrap_or_default());
    close(frame);
    cobs::encode_in_place(out, start, start + len).ok_or(small)
}

/// Why a frame was thrown away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FrameError {
    /// Longer than the receiver's buffer.
    Oversize,
    /// Not COBS: a zero where a block should go on, or too short to hold header and check.
    Framing,
    /// The check does not match.
    Check,
    /// A header of another frame format or protection.
    Header(u8),
}

/// How many frames were accepted and thrown away, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameCounters {
    /// Frames whose check matched.
    pub accepted: u32,
    /// Frames longer than the buffer.
    pub oversize: u32,
    /// Sequences that are not COBS.
    pub framing: u32,
    /// Frames with a wrong check.
    pub check: u32,
    /// Frames with an unknown header.
    pub header: u32,
    /// Sealed frames, handed on to be opened.
    pub sealed: u32,
}

/// What [`Decoder::feed`] found.
#[derive(Debug, PartialEq, Eq)]
pub enum FeedResult<'a> {
    /// The input is used up; no frame is complete.
    NeedMore,
    /// The message (and body) of one checked frame.
    Message(&'a [u8]),
    /// A whole sealed frame, of which nothing is known until a
    /// [`Channel`](crate::secure::Channel) has opened it.
    Sealed(&'a mut [u8]),
    /// A frame was thrown away (reported when its end is seen).
    Dropped(FrameError),
}

/// Takes a byte stream apart into frames, in a buffer that the caller gives: its length is the frame
/// limit. End of stream needs no call: an unfinished frame is simply never reported.
#[derive(Debug)]
pub struct Decoder<B> {
    buffer: B,
    len: usize,
    /// Bytes of the current COBS block still to come; 0 means that a code byte is next.
    block: u8,
    /// The current block ends with an implied zero.
    zero_after: bool,
    /// Nothing but delimiters since the last frame.
    empty: bool,
    discard: Option<FrameError>,
    counters: FrameCounters,
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Decoder<B> {
    /// A decoder whose frame limit is the length of `buffer`.
    pub fn new(buffer: B) -> Self {
        Self {
            buffer,
            len: 0,
            block: 0,
            zero_after: false,
            empty: true,
            discard: None,
            counters: FrameCounters::default(),
        }
    }

    /// Counters since creation.
    #[must_use]
    pub fn counters(&self) -> FrameCounters {
        self.counters
    }

    /// A frame has begun and not ended.
    #[must_use]
    pub fn is_mid_frame(&self) -> bool {
        !self.empty
    }

    /// Forgets an unfinished frame: for a link that went down and came up again.
    pub fn reset(&mut self) {
        self.len = 0;
        self.block = 0;
        self.zero_after = false;
        self.empty = true;
        self.discard = None;
    }

    /// Exchanges the buffer, and with it the frame limit, between frames; what is unfinished is lost.
    pub fn set_buffer(&mut self, buffer: B) {
        self.buffer = buffer;
        self.reset();
    }

    /// Consumes bytes from `input` up to the end of at most one frame and moves `input` on.
    pub fn feed(&mut self, input: &mut &[u8]) -> FeedResult<'_> {
        while let Some((&byte, rest)) = input.split_first() {
            if byte == 0 {
                *input = rest;
                match self.finish() {
                    Ok(Some(Judged::Checked(end))) => {
                        let message = self.buffer.as_ref().get(HEADER..end).unwrap_or_default();
                        return FeedResult::Message(message);
                    }
                    Ok(Some(Judged::Sealed(end))) => {
                        return FeedResult::Sealed(self.buffer.as_mut().get_mut(..end).unwrap_or_default());
                    }
                    Ok(None) => continue,
                    Err(reason) => return FeedResult::Dropped(reason),
                }
            }
            self.empty = false;
            if self.discard.is_some() {
                let skip = cobs::first_zero(input).unwrap_or(input.len());
                *input = input.get(skip..).unwrap_or_default();
                continue;
            }
            if self.block == 0 {
                *input = rest;
                if self.zero_after {
                    self.push(&[0]);
                }
                self.block = byte - 1;
                self.zero_after = byte != 0xff;
                continue;
            }
            let run = input.len().min(usize::from(self.block));
            let chunk = input.get(..run).unwrap_or_default();
            let chunk = match cobs::first_zero(chunk) {
                Some(zero) => chunk.get(..zero).unwrap_or_default(),
                None => chunk,
            };
            self.push(chunk);
            // `chunk` is at most `block` bytes long, which is at most 254.
            self.block -= u8::try_from(chunk.len()).unwrap_or(self.block);
            *input = input.get(chunk.len()..).unwrap_or_default();
        }
        FeedResult::NeedMore
    }

    fn push(&mut self, bytes: &[u8]) {
        match self.buffer.as_mut().get_mut(self.len..self.len + bytes.len()) {
            Some(place) => {
                place.copy_from_slice(bytes);
                self.len += bytes.len();
            }
            None => self.discard = Some(FrameError::Oversize),
        }
    }

    /// At a delimiter: what is in the buffer, `None` for an empty frame.
    fn finish(&mut self) -> Result<Option<Judged>, FrameError> {
        let (len, block, empty, discard) = (self.len, self.block, self.empty, self.discard);
        self.reset();
        if empty {
            return Ok(None);
        }
        let judged = match discard {
            Some(reason) => Err(reason),
            None if block != 0 => Err(FrameError::Framing),
            None => check(self.buffer.as_ref().get(..len).unwrap_or_default()),
        };
        let counter = match judged {
            Ok(Judged::Checked(_)) => &mut self.counters.accepted,
            Ok(Judged::Sealed(_)) => &mut self.counters.sealed,
            Err(FrameError::Oversize) => &mut self.counters.oversize,
            Err(FrameError::Framing) => &mut self.counters.framing,
            Err(FrameError::Check) => &mut self.counters.check,
            Err(FrameError::Header(_)) => &mut self.counters.header,
        };
        *counter = counter.saturating_add(1);
        judged.map(Some)
    }
}

/// A decoded frame that is not thrown away.
#[derive(Clone, Copy)]
enum Judged {
    /// Its check is right, and its message ends here.
    Checked(usize),
    /// It ends here.
    Sealed(usize),
}

/// Verifies a decoded frame as far as that is possible without a key.
fn check(frame: &[u8]) -> Result<Judged, FrameError> {
    let (checked, check) = frame.split_last_chunk::<CHECK>().ok_or(FrameError::Framing)?;
    match checked.first() {
        Some(&HEADER_CRC32C) if crc32c(checked).to_le_bytes() == *check => Ok(Judged::Checked(checked.len())),
        Some(&HEADER_CRC32C) => Err(FrameError::Check),
        Some(&(HEADER_SEALED | HEADER_ANSWER)) => Ok(Judged::Sealed(frame.len())),
        Some(&other) => Err(FrameError::Header(other)),
        None => Err(FrameError::Framing),
    }
}
