//! Binary format of the record in flash, little endian.
//!
//! | offset | bytes | content |
//! | --- | --- | --- |
//! | 0 | 1 | version, 2 |
//! | 1 | 1 | mask |
//! | 2 | 8 | campaign |
//! | 10 | 4 | round |
//! | 14 | 4 | hash of the representation that the head was fitted on |
//! | 18 | 4 k C | head, f32, row-major k x C |
//!
//! Every byte after the mask is XORed with the mask. A server can choose the content of a record, so the mask
//! is the smallest one for which no part of the record looks like a copy of a counter in the same flash.
//!
//! The storage library checks the integrity of records. A record of another version or length counts as
//! missing.

use super::counter_copy::has_magic;
use super::{Record, RecordHeader};

/// Version of the format.
const VERSION: u8 = 2;
/// Length of the fixed fields after the mask, in bytes.
const FIELDS: usize = 16;
/// Length of all fields before the head, in bytes.
const HEADER: usize = 2 + FIELDS;

/// Returns the number of bytes of RAM for the record of a `k` x `c` head, including its key.
#[must_use]
pub const fn record_len(k: usize, c: usize) -> usize {
    1 + HEADER + 4 * k * c
}

/// Encodes a record into `out`. Returns `None` if `out` is too short, or if no mask is suitable.
pub fn encode(record: &Record<'_>, out: &mut [u8]) -> Option<usize> {
    let length = HEADER + 4 * record.head.len();
    let out = out.get_mut(..length)?;
    // A mask can turn any four bytes into the start of a magic, but the positions at which one mask does so
    // are at least three bytes apart: every record of less than 768 bytes has a suitable mask. A longer
    // record, chosen by a malicious server, may be refused.
    (0..=u8::MAX).find(|mask| {
        let mut targets = out.iter_mut();
        for_each_byte(record, *mask, |byte| {
            if let Some(target) = targets.next() {
                *target = byte;
            }
        });
        !has_magic(out)
    })?;
    Some(length)
}

/// Returns true if `stored` is an encoding of `record`.
pub fn matches(stored: &[u8], record: &Record<'_>) -> bool {
    let mask = stored.get(1).copied().unwrap_or_default();
    let (mut stored, mut same) = (stored.iter(), true);
    for_each_byte(record, mask, |byte| same &= stored.next() == Some(&byte));
    same && stored.next().is_none()
}

/// Calls `emit` with each byte of a record. Not an iterator, because a chain of five iterators takes ten
/// times the code.
fn for_each_byte(record: &Record<'_>, mask: u8, mut emit: impl FnMut(u8)) {
    emit(VERSION);
    emit(mask);
    let mut masked = |bytes: &[u8]| bytes.iter().for_each(|byte| emit(byte ^ mask));
    masked(&record.campaign.to_le_bytes());
    masked(&record.round.to_le_bytes());
    masked(&record.representation.to_le_bytes());
    record.head.iter().for_each(|value| masked(&value.to_le_bytes()));
}

/// Decodes a record and writes its head to `head`. Returns `None` and leaves `head` unchanged if the version
/// or the length differs or a value is not finite.
pub fn decode(bytes: &[u8], head: &mut [f32]) -> Option<RecordHeader> {
    let ([version, mask], content) = bytes.split_first_chunk()?;
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
