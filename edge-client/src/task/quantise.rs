//! Floats as integers, for noise that is added to integers.

/// Integers of magnitude over this are not made: their squares have room in 32 bits.
pub const LARGEST: i32 = (1 << 16) - 1;

/// The integer next to half of `twice`, halves away from zero. A NaN is 0, what is too large the largest there is.
pub fn halved(twice: f32) -> i32 {
    // Truncated, and saturated.
    #[allow(clippy::cast_possible_truncation, reason = "saturates")]
    let twice = twice as i32;
    (twice.clamp(1 - 2 * LARGEST, 2 * LARGEST - 1) + twice.signum()) / 2
}

/// Its square.
pub fn square(integer: i32) -> u64 {
    let magnitude = integer.unsigned_abs();
    u64::from(magnitude * magnitude)
}
