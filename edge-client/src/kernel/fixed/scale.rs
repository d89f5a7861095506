//! Scale of a block of integers, and conversion between f32 and integers with a common exponent by shifting
//! bits.

/// Number of magnitude bits of an integer.
const BITS: i32 = 15;

/// Half a unit of the last mantissa bit that rounding keeps.
const HALF: u32 = 1 << (24 - BITS - 1);

/// Bias of the exponent field of an f32, which is also its largest exponent.
const BIAS: i32 = 127;

/// Smallest exponent. All blocks whose largest magnitude is below 2^-110 share this exponent: shifts then
/// stay in range for every exponent of f32, and subnormal values become zero without a special case.
pub(super) const LEAST: i16 = -110 - 14;

/// Power of two that is the unit of a block of integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Exponent `e` of the unit `2^e`.
    exponent: i16,
}

impl Scale {
    /// Scale of a block of zeros.
    pub const LEAST: Self = Self { exponent: LEAST };

    /// Returns the finest scale in which every value of the block fits 15 bits. Returns `None` if a value is
    /// not finite.
    #[must_use]
    pub fn of(values: &[f32]) -> Option<Self> {
        let largest_bits = super::super::largest(values).to_bits();
        if largest_bits >= f32::INFINITY.to_bits() {
            return None;
        }
        // A mantissa that rounds up to the next power of two carries into the exponent.
        let exponent_field = ((largest_bits + HALF) >> 23).cast_signed();
        Some(Self::new(exponent_field - BIAS - (BITS - 1)))
    }

    /// Returns the scale with this exponent, clamped to the range of exponents.
    fn new(exponent: i32) -> Self {
        Self { exponent: i16::try_from(exponent).unwrap_or(i16::MAX).max(LEAST) }
    }

    /// Returns the exponent `e` of `value = integer 2^e`.
    #[must_use]
    pub fn exponent(self) -> i32 {
        i32::from(self.exponent)
    }

    /// Returns the integer nearest to a value, ties away from zero; at most 32767 for values of the block.
    #[must_use]
    #[inline(always)]
    pub fn integer(self, value: f32) -> i32 {
        integer(i32::from(self.exponent), value)
    }

    /// Returns the integer of [`Self::integer`] as i16.
    #[must_use]
    #[inline(always)]
    pub fn short(self, value: f32) -> i16 {
        #[allow(clippy::cast_possible_truncation, reason = "within 32767 for every value of the block")]
        let integer = self.integer(value) as i16;
        integer
    }

    /// Encodes the scale as a number that is never [`i16::MIN`].
    #[must_use]
    pub fn to_bits(self) -> i16 {
        self.exponent
    }

    /// Decodes a scale from [`Self::to_bits`].
    #[must_use]
    pub fn from_bits(bits: i16) -> Self {
        Self { exponent: bits }
    }
}

impl Default for Scale {
    fn default() -> Self {
        Self::LEAST
    }
}

/// Returns `value / 2^exponent`, rounded to nearest with ties away from zero. Requires a quotient below 2^30
/// and an exponent that is not below [`Scale::LEAST`].
#[inline(always)]
pub(super) fn integer(exponent: i32, value: f32) -> i32 {
    let bits = value.to_bits();
    // The mantissa is in the top bits; one additional bit is kept for rounding.
    let shift = (exponent + (BIAS + 30)).wrapping_sub((bits << 1 >> 24).cast_signed()).cast_unsigned();
    if shift > 31 {
        return 0;
    }
    let magnitude = ((((bits << 8) | (1 << 31)) >> shift) + 1) >> 1;
    let sign = bits.cast_signed() >> 31;
    (magnitude.cast_signed() ^ sign) - sign
}

/// Converts a block to integers. Returns `None` and writes nothing if a value is not finite.
#[inline(never)]
pub fn quantise(values: &[f32], integers: &mut [i16]) -> Option<Scale> {
    let scale = Scale::of(values)?;
    for (integer, &value) in integers.iter_mut().zip(values) {
        *integer = scale.short(value);
    }
    Some(scale)
}

/// Converts a row-major matrix with `columns` columns to integers in column-major order. Returns `None` and
/// writes nothing if a value is not finite.
#[inline(never)]
pub fn quantise_columns(values: &[f32], columns: usize, integers: &mut [i16]) -> Option<Scale> {
    let scale = Scale::of(values)?;
    let rows = values.len().checked_div(columns)?;
    for (first, column) in integers.chunks_exact_mut(rows.max(1)).enumerate() {
        for (integer, &value) in column.iter_mut().zip(values.iter().skip(first).step_by(columns)) {
            *integer = scale.short(value);
        }
    }
    Some(scale)
}

/// Rounds 32-bit integers in units of `2^exponent`, stored as the bits of floats, to 15 bits. Returns their
/// scale.
#[inline(never)]
pub fn narrow(wide: &[f32], exponent: i32, integers: &mut [i16]) -> Scale {
    let largest_magnitude = wide
        .iter()
        .fold(0, |largest_magnitude, v| largest_magnitude.max(v.to_bits().cast_signed().unsigned_abs()));
    if largest_magnitude == 0 {
        integers.fill(0);
        return Scale::LEAST;
    }
    // Number of surplus bits of the largest integer, plus one if that integer rounds up to the next power of
    // two.
    let mut shift = 32 - BITS - largest_magnitude.leading_zeros().cast_signed();
    if shift > 0 && (largest_magnitude >> (shift - 1)) >= (1 << (BITS + 1)) - 1 {
        shift += 1;
    }
    // Keeps the exponent of the result at or above the smallest.
    shift = shift.max(i32::from(LEAST) - exponent);
    if shift <= 0 {
        for (integer, wide) in integers.iter_mut().zip(wide) {
            *integer = to_i16(wide.to_bits().cast_signed() << shift.unsigned_abs());
        }
    } else {
        let down = shift.unsigned_abs();
        for (integer, wide) in integers.iter_mut().zip(wide) {
            // One additional bit is kept for rounding.
            *integer = to_i16((wide.to_bits().cast_signed().unbounded_shr(down - 1) + 1) >> 1);
        }
    }
    Scale::new(exponent + shift)
}

/// Converts an integer of at most 15 bits and a sign.
#[allow(clippy::cast_possible_truncation, reason = "the shift leaves 15 bits")]
fn to_i16(integer: i32) -> i16 {
    integer as i16
}

/// Returns `value 2^exponent`, rounded to f32.
#[must_use]
#[inline(never)]
pub fn scaled(value: i32, exponent: i32) -> f32 {
    #[allow(clippy::cast_precision_loss, reason = "rounds to 24 bits, which the error bound counts")]
    let value = value as f32;
    let bits = value.to_bits();
    let field = (bits << 1 >> 24).cast_signed().saturating_add(exponent);
    // The slower function handles zero and subnormal results.
    if bits != 0 && (1..255).contains(&field) {
        f32::from_bits(bits.wrapping_add(exponent.cast_unsigned() << 23))
    } else {
        libm::scalbnf(value, exponent)
    }
}
