//! From f32 to integers that share a scale, and back, by shifts of bits.

/// Magnitude bits of an integer.
const BITS: i32 = 15;

/// Half of what is lost of a mantissa of 24 bits.
const HALF: u32 = 1 << (24 - BITS - 1);

/// Bias of the exponent field of an f32, and the bits behind the leading one.
const BIAS: i32 = 127;

/// Blocks whose largest magnitude is below 2^-110 share the scale of that size: then no exponent that occurs
/// in f32 is out of range, and subnormal values are zero without a case of their own.
pub(super) const LEAST: i16 = -110 - 14;

/// The power of two that a block of integers is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    exponent: i16,
}

impl Scale {
    /// The scale of a block of zeros.
    pub const LEAST: Self = Self { exponent: LEAST };

    /// The finest scale in which no value of the block needs more than 15 bits. `None` if one of them is not
    /// finite.
    #[must_use]
    pub fn of(values: &[f32]) -> Option<Self> {
        let most = super::super::largest(values).to_bits();
        if most >= f32::INFINITY.to_bits() {
            return None;
        }
        // A mantissa that rounds up to the next power of two carries into the exponent.
        let field = ((most + HALF) >> 23).cast_signed();
        Some(Self::new(field - BIAS - (BITS - 1)))
    }

    /// The scale with this exponent, or the nearest that there is.
    fn new(exponent: i32) -> Self {
        Self { exponent: i16::try_from(exponent).unwrap_or(i16::MAX).max(LEAST) }
    }

    /// `e` of `value = integer 2^e`.
    #[must_use]
    pub fn exponent(self) -> i32 {
        i32::from(self.exponent)
    }

    /// The integer nearest to a value, ties away from zero; within 32767 for values of the block.
    #[must_use]
    #[inline(always)]
    pub fn integer(self, value: f32) -> i32 {
        integer(i32::from(self.exponent), value)
    }

    /// The same, to be stored.
    #[must_use]
    #[inline(always)]
    pub fn short(self, value: f32) -> i16 {
        #[allow(clippy::cast_possible_truncation, reason = "within 32767 for every value of the block")]
        let integer = self.integer(value) as i16;
        integer
    }

    /// As a number to keep; never [`i16::MIN`].
    #[must_use]
    pub fn to_bits(self) -> i16 {
        self.exponent
    }

    /// From [`Self::to_bits`].
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

/// `value / 2^exponent` to the nearest, ties away from zero, for quotients below 2^30 and exponents from
/// [`Scale::LEAST`] on.
#[inline(always)]
pub(super) fn integer(exponent: i32, value: f32) -> i32 {
    let bits = value.to_bits();
    // The mantissa stands at the top; one bit more than needed stays, to round by.
    let shift = (exponent + (BIAS + 30)).wrapping_sub((bits << 1 >> 24).cast_signed()).cast_unsigned();
    if shift > 31 {
        return 0;
    }
    let magnitude = ((((bits << 8) | (1 << 31)) >> shift) + 1) >> 1;
    let sign = bits.cast_signed() >> 31;
    (magnitude.cast_signed() ^ sign) - sign
}

/// Writes a block as integers. `None`, with nothing written, if a value is not finite.
#[inline(never)]
pub fn quantise(values: &[f32], integers: &mut [i16]) -> Option<Scale> {
    let scale = Scale::of(values)?;
    for (integer, &value) in integers.iter_mut().zip(values) {
        *integer = scale.short(value);
    }
    Some(scale)
}

/// Writes a matrix, row-major with `columns` columns, as integers column after column. `None`, with nothing
/// written, if a value is not finite.
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

/// Integers of 15 bits from wide ones, which are counted in `2^exponent` and kept as the bits of floats.
#[inline(never)]
pub fn narrow(wide: &[f32], exponent: i32, integers: &mut [i16]) -> Scale {
    let most = wide.iter().fold(0, |most, v| most.max(v.to_bits().cast_signed().unsigned_abs()));
    if most == 0 {
        integers.fill(0);
        return Scale::LEAST;
    }
    // As many bits as the largest has, one more where it would round up to the next power of two.
    let mut shift = 32 - BITS - most.leading_zeros().cast_signed();
    if shift > 0 && (most >> (shift - 1)) >= (1 << (BITS + 1)) - 1 {
        shift += 1;
    }
    // There is no scale below the least.
    shift = shift.max(i32::from(LEAST) - exponent);
    if shift <= 0 {
        for (integer, wide) in integers.iter_mut().zip(wide) {
            *integer = short(wide.to_bits().cast_signed() << shift.unsigned_abs());
        }
    } else {
        let down = shift.unsigned_abs();
        for (integer, wide) in integers.iter_mut().zip(wide) {
            // One bit more than needed stays, to round by.
            *integer = short((wide.to_bits().cast_signed().unbounded_shr(down - 1) + 1) >> 1);
        }
    }
    Scale::new(exponent + shift)
}

#[allow(clippy::cast_possible_truncation, reason = "the shift leaves 15 bits")]
fn short(integer: i32) -> i16 {
    integer as i16
}

/// `value 2^exponent`, rounded to f32.
#[must_use]
#[inline(never)]
pub fn scaled(value: i32, exponent: i32) -> f32 {
    #[allow(clippy::cast_precision_loss, reason = "rounds to 24 bits, which the error bound counts")]
    let value = value as f32;
    let bits = value.to_bits();
    let field = (bits << 1 >> 24).cast_signed().saturating_add(exponent);
    // Zero, and what is not normal any more, takes the long way.
    if bits != 0 && (1..255).contains(&field) {
        f32::from_bits(bits.wrapping_add(exponent.cast_unsigned() << 23))
    } else {
        libm::scalbnf(value, exponent)
    }
}
