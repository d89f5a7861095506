//! Items in two slots each: a new version is written to the slot that does not hold the present one, so that a cut of power at any byte leaves
//! the old version or the new one. A version that is damaged later looks like one that was never finished: the older one is then read, or none.

use fedspan_protocol::frame::crc32c;

use crate::nor::{Broken, Medium};

/// Bytes of a slot: header and content.
const SLOT: usize = 512;
/// Bytes of a header: sequence number, length of the content, and checksum of both and of the content.
const HEADER: usize = 2 + 2 + 4;
/// Longest content in bytes.
pub const CONTENT_MAX: usize = SLOT - HEADER;

/// Reason why an item cannot be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotError {
    /// The medium cannot be read or written.
    Broken,
    /// Both slots have been written, and neither holds a version of the item.
    Damaged,
    /// The item is longer than [`CONTENT_MAX`], or than the buffer into which it is to be read.
    Length {
        /// Length of the item in bytes.
        got: usize,
    },
}

impl From<Broken> for SlotError {
    fn from(Broken: Broken) -> Self {
        Self::Broken
    }
}

/// State of a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slot {
    /// Nothing was written.
    Blank,
    /// A write was cut off, or the slot is damaged.
    Torn,
    /// A version with its sequence number and the length of its content.
    Version(u16, usize),
}

/// Returns the offset of a slot of an item.
const fn offset(item: usize, slot: usize) -> usize {
    SLOT * (2 * item + slot)
}

/// Returns the header of a version.
fn header(sequence: u16, content: &[u8]) -> Option<[u8; HEADER]> {
    let mut header = [0; HEADER];
    let (fields, check) = header.split_last_chunk_mut::<4>()?;
    let (number, length) = fields.split_first_chunk_mut()?;
    *number = sequence.to_le_bytes();
    length.copy_from_slice(&u16::try_from(content.len()).ok()?.to_le_bytes());
    *check = (crc32c(fields) ^ crc32c(content)).to_le_bytes();
    Some(header)
}

/// Reads a slot, and its content into the buffer.
fn read_slot(medium: &mut impl Medium, at: usize, content: &mut [u8; CONTENT_MAX]) -> Result<Slot, Broken> {
    let mut found = [0; HEADER];
    medium.read(at, &mut found)?;
    if found == [0xff; HEADER] {
        return Ok(Slot::Blank);
    }
    let [n0, n1, l0, l1, ..] = found;
    let (sequence, length) = (u16::from_le_bytes([n0, n1]), u16::from_le_bytes([l0, l1]));
    let Some(content) = content.get_mut(..length.into()) else { return Ok(Slot::Torn) };
    medium.read(at + HEADER, content)?;
    let is_whole = header(sequence, content) == Some(found);
    Ok(if is_whole { Slot::Version(sequence, content.len()) } else { Slot::Torn })
}

/// Reads the present version of an item into the buffer. Returns its slot, its sequence number and its length; `None` if no write has ended yet.
fn present(
    medium: &mut impl Medium,
    item: usize,
    content: &mut [u8; CONTENT_MAX],
) -> Result<Option<(usize, u16, usize)>, SlotError> {
    let first = read_slot(medium, offset(item, 0), content)?;
    let mut other = [0; CONTENT_MAX];
    let second = read_slot(medium, offset(item, 1), &mut other)?;
    match (first, second) {
        // Sequence numbers of two versions differ by one, and may wrap.
        (Slot::Version(sequence, length), Slot::Version(next, _)) if next != sequence.wrapping_add(1) => {
            Ok(Some((0, sequence, length)))
        }
        (_, Slot::Version(sequence, length)) => {
            *content = other;
            Ok(Some((1, sequence, length)))
        }
        (Slot::Version(sequence, length), _) => Ok(Some((0, sequence, length))),
        // The first write goes to the first slot: if it was cut off, the other one is blank.
        (_, Slot::Blank) => Ok(None),
        (_, Slot::Torn) => Err(SlotError::Damaged),
    }
}

/// Reads an item, and returns its length; `None` if it was never written.
///
/// # Errors
/// [`SlotError`] if the item cannot be read.
pub fn load(medium: &mut impl Medium, item: usize, bytes: &mut [u8]) -> Result<Option<usize>, SlotError> {
    let mut content = [0; CONTENT_MAX];
    let Some((_, _, length)) = present(medium, item, &mut content)? else { return Ok(None) };
    let (Some(target), Some(content)) = (bytes.get_mut(..length), content.get(..length)) else {
        return Err(SlotError::Length { got: length });
    };
    target.copy_from_slice(content);
    Ok(Some(length))
}

/// Writes an item. If the power is cut during the call, the item is the old or the new one.
///
/// # Errors
/// [`SlotError`] if the item cannot be written, or if its present version cannot be read.
pub fn save(medium: &mut impl Medium, item: usize, bytes: &[u8]) -> Result<(), SlotError> {
    let mut content = [0; CONTENT_MAX];
    let (slot, sequence) = match present(medium, item, &mut content)? {
        Some((slot, sequence, _)) => (1 - slot, sequence.wrapping_add(1)),
        None => (0, 0),
    };
    let too_long = SlotError::Length { got: bytes.len() };
    let header = header(sequence, bytes).filter(|_| bytes.len() <= CONTENT_MAX).ok_or(too_long)?;
    let at = offset(item, slot);
    // The header follows its content: until it is whole, the other slot is the present one.
    medium.write(at + HEADER, bytes)?;
    medium.write(at, &header)?;
    Ok(())
}
