//! Integers in the buffers of floats, as bit patterns: there is no room for a second set of buffers, and the ones there
//! are belong to the caller, as floats. A float that is only moved keeps all its bits (`to_bits` and `from_bits` do not
//! convert anything), on every core that this crate is built for; nothing here is ever computed with as a float.
//!
//! Zeroed floats are zeroed integers.

/// The integer in a cell.
#[inline(always)]
pub fn to_int(cell: f32) -> i32 {
    cell.to_bits().cast_signed()
}

/// A cell with an integer in it.
#[inline(always)]
pub fn from_int(integer: i32) -> f32 {
    f32::from_bits(integer.cast_unsigned())
}
