//! Binary format of the record in flash, little endian.
//!
//! | offset | bytes | content |
//! | --- | --- | --- |
//! | 0 | 4 | `FSPR` |
//! | 4 | 2 | number of bytes from offset 8 to the checksum, n = 18 + 4 k C |
//! | 6 | 2 | the same, inverted |
//! | 8 | 1 | version, 2 |
//! | 9 | 1 | mask |
//! | 10 | 8 | campaign |
//! | 18 | 4 | round |
//! | 22 | 4 | hash of the representation that the head was fitted on |
//! | 26 | 4 k C | head, f32, row-major k x C |
//! | 8 + n | 4 | CRC-32C of all bytes before |
//! | 12 + n | 4 | 0xA5, four times |
//!
//! The bytes from offset 10 to the checksum are XORed with the mask. A server can choose the content of a record, so the mask is
//! the smallest one for which no part of the record, nor of the record and what follows it, looks like the start of a
//! [counter](super::counters) in the same flash.
//!
//! A record of another version or length counts as missing.

use fedspan_protocol::frame::crc32c;

use super::counters::has_magic;
use super::{Record, RecordHeader};

/// First bytes of a record.
pub const MAGIC: [u8; 4] = *b"FSPR";
/// Version of the format.
const VERSION: u8 = 2;
/// Length of the fixed fields after the mask, in bytes.
const FIELDS: usize = 16;
/// Length of version, mask and fixed fields.
const HEADER: usize = 2 + FIELDS;
/// Length of what is in front of the version.
pub const FRAME: usize = 8;
/// Last bytes of a record. With them no bytes of a checksum are followed by what another item of the flash begins with.
const END: [u8; 4] = [0xA5; 4];
/// Length of the checksum and the last bytes.
const TRAILER: usize = 8;

/// Returns the number of bytes of RAM for the record of a `k` x `c` head, which is its length in flash.
#[must_use]
pub const fn record_len(k: usize, c: usize) -> usize {
    FRAME + HEADER + 4 * k * c + TRAILER
}

/// Encodes a record into `out`. Returns its length; `None` if `out` is too short, or if no mask is suitable.
pub fn encode(record: &Record<'_>, out: &mut [u8]) -> Option<usize> {
    let content = HEADER + 4 * record.head.len();
    let length = u16::try_from(content).ok()?;
    let out = out.get_mut(..FRAME + content + TRAILER)?;
    // A mask can turn any three bytes into the start of a magic, but the positions at which one mask does so are at least two
    // bytes apart: every record of less than 500 bytes has a suitable mask. A longer record, chosen by a malicious server, may
    // be refused.
    (0..=u8::MAX).find(|mask| {
        let mut targets = out.iter_mut();
        for_each_byte(record, length, *mask, |byte| {
            if let Some(target) = targets.next() {
                *target = byte;
            }
        });
        if let Some((checked, [check @ .., e0, e1, e2, e3])) = out.split_at_mut_checked(FRAME + content) {
            check.iter_mut().zip(crc32c(checked).to_le_bytes()).for_each(|(target, byte)| *target = byte);
            [*e0, *e1, *e2, *e3] = END;
        }
        !has_magic(out.get(1..).unwrap_or_default())
    })?;
    Some(out.len())
}

/// Calls `emit` with each byte of a record up to the checksum. Not an iterator, because a chain of five iterators takes ten times
/// the code.
fn for_each_byte(record: &Record<'_>, length: u16, mask: u8, mut emit: impl FnMut(u8)) {
    MAGIC.into_iter().for_each(&mut emit);
    length.to_le_bytes().into_iter().for_each(&mut emit);
    (!length).to_le_bytes().into_iter().for_each(&mut emit);
    emit(VERSION);
    emit(mask);
    let mut masked = |bytes: &[u8]| bytes.iter().for_each(|byte| emit(byte ^ mask));
    masked(&record.campaign.to_le_bytes());
    masked(&record.round.to_le_bytes());
    masked(&record.representation.to_le_bytes());
    record.head.iter().for_each(|value| masked(&value.to_le_bytes()));
}

/// Returns the length of the record that begins with these bytes; `None` if they are no start of a record.
pub fn length_of(frame: &[u8; FRAME]) -> Option<usize> {
    let [m0, m1, m2, m3, low, high, inverted @ ..] = *frame;
    let length = u16::from_le_bytes([low, high]);
    let is_start = [m0, m1, m2, m3] == MAGIC && inverted == (!length).to_le_bytes();
    is_start.then_some(FRAME + usize::from(length) + TRAILER)
}

/// Returns true if these bytes are a whole record with a right checksum.
pub fn is_whole(record: &[u8]) -> bool {
    record
        .strip_suffix(&END)
        .and_then(<[u8]>::split_last_chunk)
        .is_some_and(|(checked, check)| crc32c(checked).to_le_bytes() == *check)
}

/// Decodes a whole record and writes its head to `head`. Returns `None` and leaves `head` unchanged if the version or the length
/// differs or a value is not finite.
pub fn decode(record: &[u8], head: &mut [f32]) -> Option<RecordHeader> {
    let content = record.get(FRAME..record.len().checked_sub(TRAILER)?)?;
    let ([version, mask], content) = content.split_first_chunk()?;
    let (fields, body) = content.split_first_chunk::<FIELDS>()?;
    let (values, surplus) = body.as_chunks::<4>();
    let value = |bytes: &[u8; 4]| f32::from_le_bytes(bytes.map(|byte| byte ^ mask));
    let fits = *version == VERSION && surplus.is_empty() && values.len() == head.len();
    if !fits || values.iter().any(|bytes| !value(bytes).is_finite()) {
        return None;
    }
    let fields = fields.map(|byte| byte ^ mask);
    let (campaign, fields) = fields.split_first_chunk()?;
    let (round, fields) = fields.split_first_chunk()?;
    let representation = fields.first_chunk()?;
    for (target, bytes) in head.iter_mut().zip(values) {
        *target = value(bytes);
    }
    Some(RecordHeader {
        campaign: u64::from_le_bytes(*campaign),
        round: u32::from_le_bytes(*round),
        representation: u32::from_le_bytes(*representation),
    })
}
