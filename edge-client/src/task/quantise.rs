//! Rounding of floats to the integers to which noise is added.

/// Largest magnitude of a rounded integer. The square of a larger integer would not fit 32 bits.
pub const LARGEST: i32 = (1 << 16) - 1;

/// Returns the integer nearest to half of `doubled`, rounding halves away from zero. NaN becomes 0, and large
/// values saturate.
pub fn halved(doubled: f32) -> i32 {
    // The cast truncates and saturates.
    #[allow(clippy::cast_possible_truncation, reason = "saturates")]
    let doubled = doubled as i32;
    (doubled.clamp(1 - 2 * LARGEST, 2 * LARGEST - 1) + doubled.signum()) / 2
}

/// Returns the square of an integer.
pub fn square(integer: i32) -> u64 {
    let magnitude = integer.unsigned_abs();
    u64::from(magnitude * magnitude)
}
