//! A record as bytes: little-endian, with a version in front.
//!
//! | offset | bytes | what |
//! | --- | --- | --- |
//! | 0 | 1 | version, 2 |
//! | 1 | 1 | mask |
//! | 2 | 8 | campaign |
//! | 10 | 4 | round |
//! | 14 | 4 | hash of the representation that the head was fitted on |
//! | 18 | 4 k C | head, f32, row-major k x C |
//!
//! Every byte behind the mask is exclusive-ored with it. A server chooses what a record says: the mask is the smallest
//! with which no part of the record reads like one of the numbers that lie in the same flash.
//!
//! Integrity is the storage's business. A record of another version or length is no record.

use super::counter_copy::has_magic;
use super::{Record, RecordHeader};

const VERSION: u8 = 2;
const FIELDS: usize = 16;
const HEADER: usize = 2 + FIELDS;

/// Bytes of the record of a head of `k` x `c`, with its name, which is written with it.
#[must_use]
pub const fn record_len(k: usize, c: usize) -> usize {
    1 + HEADER + 4 * k * c
}

/// Writes a record; `None` if `out` is too short.
pub fn encode(record: &Record<'_>, out: &mut [u8]) -> Option<usize> {
    let length = HEADER + 4 * record.head.len();
    let out = out.get_mut(..length)?;
    // A mask can make the beginning of a magic out of any four bytes, but such places are three bytes apart or more:
    // there is a mask for every record of less than 768 bytes, and a server that means harm finds longer ones refused.
    (0..=u8::MAX).find(|mask| {
        let mut places = out.iter_mut();
        for_each_byte(record, *mask, |byte| {
            if let Some(place) = places.next() {
                *place = byte;
            }
        });
        !has_magic(out)
    })?;
    Some(length)
}

/// Whether `stored` is this record.
pub fn matches(stored: &[u8], record: &Record<'_>) -> bool {
    let mask = stored.get(1).copied().unwrap_or_default();
    let (mut stored, mut same) = (stored.iter(), true);
    for_each_byte(record, mask, |byte| same &= stored.next() == Some(&byte));
    same && stored.next().is_none()
}

/// The bytes of a record. Not an iterator: a chain of five is ten times the code.
fn for_each_byte(record: &Record<'_>, mask: u8, mut emit: impl FnMut(u8)) {
    emit(VERSION);
    emit(mask);
    let mut masked = |bytes: &[u8]| bytes.iter().for_each(|byte| emit(byte ^ mask));
    masked(&record.campaign.to_le_bytes());
    masked(&record.round.to_le_bytes());
    masked(&record.representation.to_le_bytes());
    record.head.iter().for_each(|value| masked(&value.to_le_bytes()));
}

/// Reads a record; the head goes into `head`. `None`, with `head` unchanged, if it is of another version or
/// length, or holds a number that is not finite.
pub fn decode(bytes: &[u8], head: &mut [f32]) -> Option<RecordHeader> {
    let ([version, mask], rest) = bytes.split_first_chunk()?;
    let (fields, body) = rest.split_first_chunk::<FIELDS>()?;
    let (values, rest) = body.as_chunks::<4>();
    let value = |bytes: &[u8; 4]| f32::from_le_bytes(bytes.map(|byte| byte ^ mask));
    let fits = *version == VERSION && rest.is_empty() && values.len() == head.len();
    if !fits || values.iter().any(|bytes| !value(bytes).is_finite()) {
        return None;
    }
    let fields = fields.map(|byte| byte ^ mask);
    let (campaign, fields) = fields.split_first_chunk()?;
    let (round, fields) = fields.split_first_chunk()?;
    let representation = fields.first_chunk()?;
    for (place, bytes) in head.iter_mut().zip(values) {
        *place = value(bytes);
    }
    Some(RecordHeader {
        campaign: u64::from_le_bytes(*campaign),
        round: u32::from_le_bytes(*round),
        representation: u32::from_le_bytes(*representation),
    })
}
