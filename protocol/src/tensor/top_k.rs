//! Blocks of the largest values: top-k sparsification in each block of 32 elements (Stich, Cordonnier and Jaggi, "Sparsified SGD
//! with Memory", 2018), with kept values of 8 bits.
//!
//! A block of n elements keeps its `n / 4` largest magnitudes, rounded up; of equal magnitudes those of lower index. Bytes: a
//! binary32 scale, a mask of n bits (bit 0 of the first byte is element 0), one signed byte for each kept element, in
//! ascending order of index. Kept elements are `scale * byte`, the others are 0.

use super::{I8_BLOCK, quantum};
use crate::Error;

/// Bytes of a block's scale.
const SCALE: usize = 4;

/// Returns the number of elements that a block of `elements` keeps.
const fn kept(elements: usize) -> usize {
    elements.div_ceil(4)
}

/// Returns the length of a block of `elements`, in bytes; 0 without elements.
const fn block_len(elements: usize) -> usize {
    if elements == 0 { 0 } else { SCALE + elements.div_ceil(8) + kept(elements) }
}

/// Returns the length of `elements` elements, in bytes.
pub(super) const fn byte_len(elements: usize) -> usize {
    (elements / I8_BLOCK).saturating_mul(block_len(I8_BLOCK)).saturating_add(block_len(elements % I8_BLOCK))
}

/// Returns the number of elements of whole blocks that fit `room` bytes.
pub(super) const fn elements_within(room: usize) -> usize {
    room / block_len(I8_BLOCK) * I8_BLOCK
}

/// Encodes finite values, blocks one after the other.
pub(super) fn encode(values: &[f32], out: &mut [u8]) {
    for (target, block) in out.chunks_mut(block_len(I8_BLOCK)).zip(values.chunks(I8_BLOCK)) {
        encode_block(block, target);
    }
}

/// Decodes blocks.
///
/// # Errors
/// [`Error::Malformed`] if a mask has another number of elements than a block keeps.
pub(super) fn decode(bytes: &[u8], out: &mut [f32]) -> Result<(), Error> {
    for (block, raw) in out.chunks_mut(I8_BLOCK).zip(bytes.chunks(block_len(I8_BLOCK))) {
        decode_block(raw, block)?;
    }
    Ok(())
}

/// Encodes one block of at most 32 values.
fn encode_block(block: &[f32], target: &mut [u8]) {
    let mut mask = 0u32;
    let mut scale = 0.0;
    for index in 0..kept(block.len()) {
        let largest = largest_outside(block, mask);
        mask |= 1 << largest;
        if index == 0 {
            scale = block.get(largest).map_or(0.0, |value| value.abs()) / 127.0;
        }
    }
    let Some((head, rest)) = target.split_first_chunk_mut::<SCALE>() else { return };
    *head = scale.to_le_bytes();
    let Some((bits, quanta)) = rest.split_at_mut_checked(block.len().div_ceil(8)) else { return };
    bits.iter_mut().zip(mask.to_le_bytes()).for_each(|(target, byte)| *target = byte);
    let marked = block.iter().enumerate().filter(|(index, _)| mask >> index & 1 == 1);
    for (target, (_, value)) in quanta.iter_mut().zip(marked) {
        *target = quantum(*value, scale);
    }
}

/// Returns the index of the largest magnitude outside the mask; of equal ones the lowest.
fn largest_outside(block: &[f32], mask: u32) -> usize {
    let mut found = (0, -1.0);
    for (index, value) in block.iter().enumerate() {
        if mask >> index & 1 == 0 && value.abs() > found.1 {
            found = (index, value.abs());
        }
    }
    found.0
}

/// Decodes one block.
fn decode_block(raw: &[u8], block: &mut [f32]) -> Result<(), Error> {
    let (head, rest) = raw.split_first_chunk::<SCALE>().ok_or(Error::Malformed)?;
    let (bits, quanta) = rest.split_at_checked(block.len().div_ceil(8)).ok_or(Error::Malformed)?;
    let scale = f32::from_le_bytes(*head);
    let mask = bits.iter().rev().fold(0u32, |mask, byte| mask << 8 | u32::from(*byte));
    let is_within = block.len() == I8_BLOCK || mask >> block.len() == 0;
    if !is_within || mask.count_ones() as usize != kept(block.len()) {
        return Err(Error::Malformed);
    }
    let mut quanta = quanta.iter();
    for (index, target) in block.iter_mut().enumerate() {
        *target = match mask >> index & 1 {
            0 => 0.0,
            _ => quanta.next().map_or(0.0, |quantum| scale * f32::from(quantum.cast_signed())),
        };
    }
    Ok(())
}
