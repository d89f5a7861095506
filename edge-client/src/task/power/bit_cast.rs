//! Conversion between integers and the bit patterns of floats, by which buffers of floats store integers.
//! There is no memory for a second set of buffers, and the existing buffers belong to the caller and have the
//! type f32. Moving a float preserves all its bits on every supported core (`to_bits` and `from_bits` convert
//! nothing), and no arithmetic is done on these floats.
//!
//! The integer zero and the float zero have the same bits.

/// Returns the integer in an element of a buffer.
#[inline(always)]
pub fn to_int(cell: f32) -> i32 {
    cell.to_bits().cast_signed()
}

/// Returns the element of a buffer that represents an integer.
#[inline(always)]
pub fn from_int(integer: i32) -> f32 {
    f32::from_bits(integer.cast_unsigned())
}
