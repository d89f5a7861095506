//! A record as bytes: little-endian, with a version in front.
//!
//! | offset | bytes | what |
//! | --- | --- | --- |
//! | 0 | 1 | version, 1 |
//! | 1 | 8 | campaign |
//! | 9 | 4 | round |
//! | 13 | 4 | hash of the representation that the head was fitted on |
//! | 17 | 4 k C | head, f32, row-major k x C |
//!
//! Integrity is the storage's business. A record of another version or length is no record.

use super::{Loaded, Record};

const VERSION: u8 = 1;
const HEADER: usize = 17;

/// Bytes of the record of a head of `k` x `c`.
#[must_use]
pub const fn record_len(k: usize, c: usize) -> usize {
    HEADER + 4 * k * c
}

/// Writes a record; `None` if `out` is too short.
pub fn write(record: &Record<'_>, out: &mut [u8]) -> Option<usize> {
    let length = HEADER + 4 * record.head.len();
    for (place, byte) in out.get_mut(..length)?.iter_mut().zip(bytes(record)) {
        *place = byte;
    }
    Some(length)
}

/// Whether `stored` is this record.
pub fn is(stored: &[u8], record: &Record<'_>) -> bool {
    stored.iter().copied().eq(bytes(record))
}

fn bytes(record: &Record<'_>) -> impl Iterator<Item = u8> {
    [VERSION]
        .into_iter()
        .chain(record.campaign.to_le_bytes())
        .chain(record.round.to_le_bytes())
        .chain(record.representation.to_le_bytes())
        .chain(record.head.iter().flat_map(|value| value.to_le_bytes()))
}

/// Reads a record; the head goes into `head`. `None`, with `head` unchanged, if it is of another version or
/// length, or holds a number that is not finite.
pub fn read(bytes: &[u8], head: &mut [f32]) -> Option<Loaded> {
    let (header, body) = bytes.split_first_chunk::<HEADER>()?;
    let (values, rest) = body.as_chunks::<4>();
    let fits = header.first() == Some(&VERSION) && rest.is_empty() && values.len() == head.len();
    if !fits || values.iter().any(|value| !f32::from_le_bytes(*value).is_finite()) {
        return None;
    }
    let (_, fields) = header.split_first()?;
    let (campaign, fields) = fields.split_first_chunk()?;
    let (round, fields) = fields.split_first_chunk()?;
    let representation = fields.first_chunk()?;
    for (place, value) in head.iter_mut().zip(values) {
        *place = f32::from_le_bytes(*value);
    }
    Some(Loaded {
        campaign: u64::from_le_bytes(*campaign),
        round: u32::from_le_bytes(*round),
        representation: u32::from_le_bytes(*representation),
    })
}
