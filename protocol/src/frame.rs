//! Frames on a byte stream: encoder and decoder with COBS (consistent overhead byte stuffing), a length limit
//! and a check.
//!
//! A frame is `header | message | check`, COBS-encoded and terminated by one zero byte. The header's low
//! nibble is the protection: 0 is CRC-32C (Castagnoli), 1 to 3 are authenticated encryption
//! ([`secure`](crate::secure)). The high nibble is the frame format, 1.
//!
//! After *any* error (overflow, bad COBS, bad check, unknown header) the decoder discards everything up to
//! and including the next zero byte, and counts the error. A frame can therefore not be hidden in the tail of
//! an oversized frame, for any split of the stream into reads.
//!
//! This crate contains its own COBS code because the available decoders panic on some inputs or accept such a
//! hidden frame; the tests compare it with the `cobs` crate.

use core::ops::Range;

pub use crate::checksum::Digest as Crc32c;
use crate::checksum::Digest;
use crate::limits::{CHECK, HEADER, wire_capacity};
use crate::message::Message;
use crate::{Error, cobs, codec};

/// Header of a frame protected by CRC-32C.
pub const HEADER_CRC32C: u8 = 0x10;

/// Header of a sealed frame.
pub const HEADER_SEALED: u8 = 0x11;

/// Header of the first sealed frame: the server's answer to a hello.
pub const HEADER_ANSWER: u8 = 0x12;

/// Header of a sealed frame with a short counter and a short tag.
pub const HEADER_SHORT: u8 = 0x13;

/// Returns the CRC-32C (Castagnoli) of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    let mut digest = Digest::new();
    digest.update(bytes);
    digest.finish()
}

/// Returns the CRC-32C of `f32` values in little-endian byte order. It identifies the representation that a
/// head was fitted on.
#[must_use]
pub fn crc32c_f32(values: &[f32]) -> u32 {
    let mut digest = Digest::new();
    #[cfg(all(feature = "wide", not(target_os = "none"), target_endian = "little"))]
    digest.update(bytemuck::cast_slice(values));
    #[cfg(not(all(feature = "wide", not(target_os = "none"), target_endian = "little")))]
    {
        /// Number of values per call, few enough for the stack of a device.
        const FLOATS: usize = 16;
        let mut bytes = [0u8; 4 * FLOATS];
        for block in values.chunks(FLOATS) {
            for (target, value) in bytes.chunks_exact_mut(4).zip(block) {
                target.copy_from_slice(&value.to_le_bytes());
            }
            digest.update(bytes.get(..4 * block.len()).unwrap_or_default());
        }
    }
    digest.finish()
}

/// Encodes `message` and a body of `body_len` bytes, written by `fill`, as one frame into `out`. Returns the
/// number of bytes on the wire, including the delimiter.
///
/// The frame is built and COBS-encoded in place, without other memory. A buffer of [`wire_capacity`] bytes
/// for the frame's length is always sufficient.
///
/// # Errors
/// [`Error::BufferTooSmall`] if the frame does not fit; the content of `out` is then unspecified. If even the
/// message without its body does not fit, `needed` is only a lower bound.
pub fn encode<M: Message>(
    message: &M,
    body_len: usize,
    mut fill: impl FnMut(&mut [u8]),
    out: &mut [u8],
) -> Result<usize, Error> {
    let envelope = Envelope { before: HEADER, after: CHECK };
    encode_in(envelope, message, body_len, &mut fill, close_with_crc, out)
}

/// Writes the header and the CRC-32C of a frame.
pub(crate) fn close_with_crc(frame: &mut [u8]) {
    if let Some((checked, check)) = frame.split_last_chunk_mut::<CHECK>() {
        if let Some(header) = checked.first_mut() {
            *header = HEADER_CRC32C;
        }
        *check = crc32c(checked).to_le_bytes();
    }
}

/// Number of bytes around the message and its body in a decoded frame.
#[derive(Clone, Copy)]
pub(crate) struct Envelope {
    /// Header and counter or nonce.
    pub before: usize,
    /// Check or tag.
    pub after: usize,
}

/// Encodes a frame with any protection. `close` writes the header and the check, and may encrypt the message.
pub(crate) fn encode_in<M: Message>(
    envelope: Envelope,
    message: &M,
    body_len: usize,
    fill: &mut dyn FnMut(&mut [u8]),
    mut close: impl FnMut(&mut [u8]),
    out: &mut [u8],
) -> Result<usize, Error> {
    let capacity = out.len();
    let (start, end) = plain_frame(capacity);
    let target = out.get_mut(start.saturating_add(envelope.before)..end).unwrap_or_default();
    let head_len = codec::write(message, target)
        .ok_or(Error::BufferTooSmall { needed: capacity.saturating_add(1), got: capacity })?;
    complete_frame(envelope, start..end, head_len, body_len, fill, &mut close, out)
}

/// Returns the range of the unencoded frame in a buffer of `length` bytes. The last byte of the buffer is
/// reserved for the delimiter. The encoder moves the frame to the front and adds at most one byte in 254; the
/// range starts so late that the encoder never overwrites unread bytes.
fn plain_frame(length: usize) -> (usize, usize) {
    let end = length.saturating_sub(1);
    (end.div_ceil(255), end)
}

/// Adds the body and the envelope to the message of `head_len` bytes in `range`, and encodes the frame.
#[cfg_attr(target_os = "none", inline(never))]
fn complete_frame(
    envelope: Envelope,
    range: Range<usize>,
    head_len: usize,
    body_len: usize,
    fill: &mut dyn FnMut(&mut [u8]),
    close: &mut dyn FnMut(&mut [u8]),
    out: &mut [u8],
) -> Result<usize, Error> {
    let capacity = out.len();
    let start = range.start;
    let head_end = envelope.before + head_len;
    let body_end = head_end.saturating_add(body_len);
    let len = body_end.saturating_add(envelope.after);
    let needed = wire_capacity(len);
    let small = Error::BufferTooSmall { needed, got: capacity };
    let frame = out.get_mut(range).and_then(|bytes| bytes.get_mut(..len)).ok_or(small)?;
    fill(frame.get_mut(head_end..body_end).unwrap_or_default());
    close(frame);
    cobs::encode_in_place(out, start, start + len).ok_or(small)
}

/// Reason why a frame was discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(all(feature = "defmt", target_os = "none"), derive(defmt::Format))]
#[non_exhaustive]
pub enum FrameError {
    /// The frame is longer than the receiver's buffer.
    Oversize,
    /// The bytes are not COBS (a zero inside a block), or too few for a header and a check.
    Framing,
    /// The check does not match.
    Check,
    /// The header has another frame format or protection.
    Header(u8),
}

/// Numbers of accepted and discarded frames, by reason of the discard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameCounters {
    /// Number of frames with a correct check.
    pub accepted: u32,
    /// Number of frames longer than the buffer.
    pub oversize: u32,
    /// Number of frames that are not valid COBS or too short.
    pub framing: u32,
    /// Number of frames with a wrong check.
    pub check: u32,
    /// Number of frames with an unknown header.
    pub header: u32,
    /// Number of complete sealed frames, whose tags the decoder does not verify.
    pub sealed: u32,
}

/// Result of [`Decoder::feed`].
#[derive(Debug, PartialEq, Eq)]
pub enum FeedResult<'a> {
    /// The input is consumed and no frame is complete.
    NeedMore,
    /// Message and body of one frame with a correct check.
    Message(&'a [u8]),
    /// Complete sealed frame, which is unverified until a [`Channel`](crate::secure::Channel) opens it.
    Sealed(&'a mut [u8]),
    /// A frame was discarded; reported at the end of the frame.
    Dropped(FrameError),
}

/// Frame decoder over a byte stream, in a buffer of the caller whose length is the frame limit. The end of
/// the stream needs no call: an unfinished frame is not reported.
#[derive(Debug)]
pub struct Decoder<B> {
    buffer: B,
    /// Number of decoded bytes of the current frame.
    len: usize,
    /// Number of remaining bytes of the current COBS block; 0 before a code byte.
    block: u8,
    /// True if the current block ends with an implied zero.
    zero_after: bool,
    /// True if only delimiters have been read since the last frame.
    empty: bool,
    /// Reason why the current frame is being discarded.
    discard: Option<FrameError>,
    counters: FrameCounters,
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Decoder<B> {
    /// Creates a decoder whose frame limit is the length of `buffer`.
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

    /// Returns the counters since creation.
    #[must_use]
    pub fn counters(&self) -> FrameCounters {
        self.counters
    }

    /// Returns true if a frame has begun and not yet ended.
    #[must_use]
    pub fn is_mid_frame(&self) -> bool {
        !self.empty
    }

    /// Discards an unfinished frame, for use after an interruption of the link.
    pub fn reset(&mut self) {
        self.len = 0;
        self.block = 0;
        self.zero_after = false;
        self.empty = true;
        self.discard = None;
    }

    /// Replaces the buffer, and with it the frame limit. An unfinished frame is lost.
    pub fn set_buffer(&mut self, buffer: B) {
        self.buffer = buffer;
        self.reset();
    }

    /// Consumes `input` up to the end of at most one frame.
    // A device has one call, which takes less flash inlined.
    #[inline(always)]
    pub fn feed(&mut self, input: &mut &[u8]) -> FeedResult<'_> {
        while let Some((&byte, after)) = input.split_first() {
            if byte == 0 {
                *input = after;
                match self.finish() {
                    Ok(Some(Decoded::Checked(end))) => {
                        let message = self.buffer.as_ref().get(HEADER..end).unwrap_or_default();
                        return FeedResult::Message(message);
                    }
                    Ok(Some(Decoded::Sealed(end))) => {
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
                *input = after;
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
            // Cannot fail, because `chunk` has at most `block` bytes, and a block has at most 254.
            self.block -= u8::try_from(chunk.len()).unwrap_or(self.block);
            *input = input.get(chunk.len()..).unwrap_or_default();
        }
        FeedResult::NeedMore
    }

    /// Appends decoded bytes to the current frame, or discards the frame if it is too long.
    fn push(&mut self, bytes: &[u8]) {
        match self.buffer.as_mut().get_mut(self.len..self.len + bytes.len()) {
            Some(target) => {
                target.copy_from_slice(bytes);
                self.len += bytes.len();
            }
            None => self.discard = Some(FrameError::Oversize),
        }
    }

    /// Ends the frame at a delimiter and classifies it. Returns `None` for an empty frame.
    fn finish(&mut self) -> Result<Option<Decoded>, FrameError> {
        let (len, block, empty, discard) = (self.len, self.block, self.empty, self.discard);
        self.reset();
        if empty {
            return Ok(None);
        }
        let decoded = match discard {
            Some(reason) => Err(reason),
            None if block != 0 => Err(FrameError::Framing),
            None => check_frame(self.buffer.as_ref().get(..len).unwrap_or_default()),
        };
        let counter = match decoded {
            Ok(Decoded::Checked(_)) => &mut self.counters.accepted,
            Ok(Decoded::Sealed(_)) => &mut self.counters.sealed,
            Err(FrameError::Oversize) => &mut self.counters.oversize,
            Err(FrameError::Framing) => &mut self.counters.framing,
            Err(FrameError::Check) => &mut self.counters.check,
            Err(FrameError::Header(_)) => &mut self.counters.header,
        };
        *counter = counter.saturating_add(1);
        decoded.map(Some)
    }
}

/// Classification of a decoded frame, with the end of its content in the buffer.
#[derive(Clone, Copy)]
enum Decoded {
    /// End of the message of a frame with a correct check.
    Checked(usize),
    /// End of a sealed frame.
    Sealed(usize),
}

/// Verifies a decoded frame as far as possible without a key.
fn check_frame(frame: &[u8]) -> Result<Decoded, FrameError> {
    let (checked, check) = frame.split_last_chunk::<CHECK>().ok_or(FrameError::Framing)?;
    match checked.first() {
        Some(&HEADER_CRC32C) if crc32c(checked).to_le_bytes() == *check => {
            Ok(Decoded::Checked(checked.len()))
        }
        Some(&HEADER_CRC32C) => Err(FrameError::Check),
        Some(&(HEADER_SEALED | HEADER_ANSWER | HEADER_SHORT)) => Ok(Decoded::Sealed(frame.len())),
        Some(&other) => Err(FrameError::Header(other)),
        None => Err(FrameError::Framing),
    }
}
