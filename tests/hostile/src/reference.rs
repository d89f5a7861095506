//! Second implementation of the frame layer: a literal transcription of `protocol/SPEC.md` without state. It
//! decodes a whole sequence between two delimiters, and the streaming decoder must agree with it.

use fedspan_protocol::frame::{HEADER_ANSWER, HEADER_CRC32C, HEADER_SEALED, HEADER_SHORT};

/// CRC of each byte value.
const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ (0x82F6_3B78 & (crc & 1).wrapping_neg());
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// Computes CRC-32C with a table that is computed from the polynomial.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| (crc >> 8) ^ TABLE[(crc as u8 ^ byte) as usize])
}

/// COBS-encodes bytes and adds the delimiter.
#[must_use]
pub fn stuff(plain: &[u8]) -> Vec<u8> {
    let mut wire = Vec::with_capacity(plain.len() + plain.len() / 254 + 2);
    let pieces: Vec<&[u8]> = plain.split(|byte| *byte == 0).collect();
    for (index, piece) in pieces.iter().enumerate() {
        let is_last = index + 1 == pieces.len();
        let mut remaining = *piece;
        while remaining.len() > 253 {
            let (block, tail) = remaining.split_at(254);
            wire.push(255);
            wire.extend_from_slice(block);
            remaining = tail;
            if remaining.is_empty() && is_last {
                // A full block at the end needs no further code byte.
                wire.push(0);
                return wire;
            }
        }
        wire.push(remaining.len() as u8 + 1);
        wire.extend_from_slice(remaining);
    }
    wire.push(0);
    wire
}

/// Decodes COBS between two delimiters; `None` if the sequence is invalid.
#[must_use]
pub fn unstuff(sequence: &[u8]) -> Option<Vec<u8>> {
    let mut plain = Vec::with_capacity(sequence.len());
    let mut remaining = sequence;
    while let Some((&code, tail)) = remaining.split_first() {
        let (block, tail) = tail.split_at_checked(usize::from(code).checked_sub(1)?)?;
        plain.extend_from_slice(block);
        if code != 255 && !tail.is_empty() {
            plain.push(0);
        }
        remaining = tail;
    }
    Some(plain)
}

/// Returns header, message and CRC-32C of a plain frame, before COBS encoding.
#[must_use]
pub fn plain(message: &[u8]) -> Vec<u8> {
    let mut plain = vec![HEADER_CRC32C];
    plain.extend_from_slice(message);
    plain.extend_from_slice(&crc32c(&plain).to_le_bytes());
    plain
}

/// Returns a COBS-encoded plain frame of any message bytes.
#[must_use]
pub fn encode_plain(message: &[u8]) -> Vec<u8> {
    stuff(&plain(message))
}

/// A frame that is not dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Message of a plain frame with a correct CRC.
    Checked(Vec<u8>),
    /// Whole sealed frame, unchecked.
    Sealed(Vec<u8>),
}

/// Reads the sequence between two delimiters as a frame of at most `limit` bytes.
#[must_use]
pub fn read(sequence: &[u8], limit: usize) -> Option<Frame> {
    let plain = unstuff(sequence).filter(|plain| plain.len() <= limit)?;
    let (checked, check) = plain.split_last_chunk::<4>()?;
    match checked.split_first()? {
        (&HEADER_CRC32C, message) if crc32c(checked).to_le_bytes() == *check => {
            Some(Frame::Checked(message.to_vec()))
        }
        (&(HEADER_SEALED | HEADER_ANSWER | HEADER_SHORT), _) => Some(Frame::Sealed(plain)),
        _ => None,
    }
}

/// Returns the message of a plain frame; `None` for any other sequence.
#[must_use]
pub fn open(sequence: &[u8], limit: usize) -> Option<Vec<u8>> {
    match read(sequence, limit)? {
        Frame::Checked(message) => Some(message),
        Frame::Sealed(_) => None,
    }
}

/// Returns the sequences between the delimiters of a stream, without empty ones and without the incomplete
/// end.
pub fn sequences(stream: &[u8]) -> impl Iterator<Item = &[u8]> {
    let end = stream.iter().rposition(|byte| *byte == 0).unwrap_or(0);
    stream[..end].split(|byte| *byte == 0).filter(|sequence| !sequence.is_empty())
}
