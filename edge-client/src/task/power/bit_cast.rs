//! Integers stored as bit patterns in buffers of floats. There is no memory for a second set of buffers, and the
//! existing ones belong to the caller, as floats. Moving a float preserves all its bits (`to_bits` and `from_bits`
//! convert nothing) on every supported core; no arithmetic is done on these floats.
//!
//! The integer zero and the float zero have the same bits.

/// Returns the integer in a cell.
#[inline(always)]
pub fn to_int(cell: f32) -> i32 {
    cell.to_bits().cast_signed()
}

/// Returns a cell with an integer.
#[inline(always)]
pub fn from_int(integer: i32) -> f32 {
    f32::from_bits(integer.cast_unsigned())
}
