//! From f32 to integers that share a scale, and back, by shifts of bits.

/// Magnitude bits of an integer.
const BITS: i32 = 15;

/// Half of what is lost of a mantissa of 24 bits.
const HALF: u32 = 1 << (24 - BITS - 1);

/// Blocks whose largest magnitude is below 2^-110 share the scale of that size: then no exponent that occurs
/// in f32 is out of range, and subnormal values are zero without a case of their own.
const FIELD_MIN: u16 = 17;

/// The power of two that a block of integers is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Exponent field of an f32 whose 15 leading bits are an integer's.
    field: u16,
}

impl Scale {
    /// The scale of a block of zeros.
    pub const LEAST: Self = Self { field: FIELD_MIN };

    /// The finest scale in which no value of the block needs more than 15 bits. `None` if one of them is not
    /// finite.
    #[must_use]
    pub fn of(values: &[f32]) -> Option<Self> {
        let most = super::super::largest(values).to_bits();
        if most >= f32::INFINITY.to_bits() {
            return None;
        }
        // A mantissa that rounds up to the next power of two carries into the exponent.
        let field = u16::try_from((most + HALF) >> 23).unwrap_or(u16::MAX);
        Some(Self { field: field.max(FIELD_MIN) })
    }

    /// `e` of `value = integer 2^e`.
    #[must_use]
    pub fn exponent(self) -> i32 {
        i32::from(self.field) - 127 - (BITS - 1)
    }

    /// The integer nearest to a value of the block, ties away from zero; within 32767.
    #[must_use]
    #[inline(always)]
    pub fn integer(self, value: f32) -> i32 {
        let bits = value.to_bits();
        // The mantissa stands at the top; one bit more than needed stays, to round by.
        let shift = (u32::from(self.field) + 16).wrapping_sub(bits << 1 >> 24);
        if shift > 31 {
            return 0;
        }
        let magnitude = ((((bits << 8) | (1 << 31)) >> shift) + 1) >> 1;
        let sign = bits.cast_signed() >> 31;
        (magnitude.cast_signed() ^ sign) - sign
    }

    /// The same, to be stored.
    #[must_use]
    #[inline(always)]
    pub fn short(self, value: f32) -> i16 {
        #[allow(clippy::cast_possible_truncation, reason = "within 32767 for every value of the block")]
        let integer = self.integer(value) as i16;
        integer
    }

    /// As a number to keep.
    #[must_use]
    pub fn to_bits(self) -> i16 {
        self.field.cast_signed()
    }

    /// From [`Self::to_bits`].
    #[must_use]
    pub fn from_bits(bits: i16) -> Self {
        Self { field: bits.cast_unsigned() }
    }
}

impl Default for Scale {
    fn default() -> Self {
        Self::LEAST
    }
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
