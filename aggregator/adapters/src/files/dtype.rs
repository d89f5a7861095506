//! Element types (dtypes) of tensors: conversion between little-endian bytes and f32 or f64, and the rule by
//! which values of each dtype are merged.

use half::{bf16, f16};

/// Element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// Upper 16 bits of an IEEE 754 binary32 (bfloat16).
    Bf16,
    /// IEEE 754 binary64.
    F64,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 16-bit integer.
    I16,
    /// Unsigned 16-bit integer.
    U16,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 64-bit integer.
    I64,
    /// Unsigned 64-bit integer.
    U64,
    /// Boolean: a byte 0 or 1.
    Bool,
    /// 8-bit float with 4 bits of exponent and 3 of mantissa.
    F8E4M3,
    /// 8-bit float with 5 bits of exponent and 2 of mantissa.
    F8E5M2,
    /// 8-bit exponent without sign and mantissa.
    F8E8M0,
    /// Complex number of two IEEE 754 binary32.
    C64,
}

/// Rule by which the clients' values of a dtype are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeRule {
    /// Weighted mean, rounded once to the dtype.
    Mean,
    /// Largest value. Integers are counters, and the merged counter must not be smaller than that of any
    /// client.
    Largest,
    /// Common value. Clients with different values are refused, because these dtypes have no mean.
    Equal,
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.properties().0)
    }
}

impl Dtype {
    /// All dtypes.
    pub const ALL: [Self; 17] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::F64,
        Self::I8,
        Self::U8,
        Self::I16,
        Self::U16,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
        Self::Bool,
        Self::F8E4M3,
        Self::F8E5M2,
        Self::F8E8M0,
        Self::C64,
    ];

    /// Name in headers, size of an element in bytes, and merge rule.
    const fn properties(self) -> (&'static str, usize, MergeRule) {
        match self {
            Self::F32 => ("F32", 4, MergeRule::Mean),
            Self::F16 => ("F16", 2, MergeRule::Mean),
            Self::Bf16 => ("BF16", 2, MergeRule::Mean),
            Self::F64 => ("F64", 8, MergeRule::Mean),
            Self::I8 => ("I8", 1, MergeRule::Largest),
            Self::U8 => ("U8", 1, MergeRule::Largest),
            Self::I16 => ("I16", 2, MergeRule::Largest),
            Self::U16 => ("U16", 2, MergeRule::Largest),
            Self::I32 => ("I32", 4, MergeRule::Largest),
            Self::U32 => ("U32", 4, MergeRule::Largest),
            Self::I64 => ("I64", 8, MergeRule::Largest),
            Self::U64 => ("U64", 8, MergeRule::Largest),
            Self::Bool => ("BOOL", 1, MergeRule::Equal),
            Self::F8E4M3 => ("F8_E4M3", 1, MergeRule::Equal),
            Self::F8E5M2 => ("F8_E5M2", 1, MergeRule::Equal),
            Self::F8E8M0 => ("F8_E8M0", 1, MergeRule::Equal),
            Self::C64 => ("C64", 8, MergeRule::Equal),
        }
    }

    /// Dtype with this name in headers; `None` if the name is unknown.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.properties().0 == name)
    }

    /// Size of an element, in bytes.
    #[must_use]
    pub fn size(self) -> usize {
        self.properties().1
    }

    /// Merge rule.
    #[must_use]
    pub fn rule(self) -> MergeRule {
        self.properties().2
    }

    /// True for the dtypes that factors may have. Every value of these dtypes is exact in f32.
    #[must_use]
    pub fn is_factor_dtype(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    /// Decodes values of a factor dtype until either slice ends. Fills `values` with 0 for other dtypes.
    pub fn decode(self, bytes: &[u8], values: &mut [f32]) {
        match self {
            Self::F32 => {
                for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
                    *value = f32::from_le_bytes(*bytes);
                }
            }
            Self::F16 => {
                for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
                    *value = half_to_f32(u16::from_le_bytes(*bytes));
                }
            }
            Self::Bf16 => {
                for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
                    *value = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
                }
            }
            _ => values.fill(0.0),
        }
    }

    /// Value of one element as f64, rounded to nearest; 0 for dtypes without numbers.
    #[must_use]
    pub fn number(self, bytes: &[u8]) -> f64 {
        match self {
            Self::F64 => f64::from_le_bytes(padded_array(bytes)),
            Self::F32 | Self::F16 | Self::Bf16 => {
                let mut value = [0.0];
                self.decode(bytes, &mut value);
                value[0].into()
            }
            #[allow(clippy::cast_precision_loss, reason = "for norms")]
            _ => self.integer(bytes) as f64,
        }
    }

    /// Value of one integer or boolean; 0 for other dtypes.
    #[must_use]
    pub fn integer(self, bytes: &[u8]) -> i128 {
        match self {
            Self::I8 => i8::from_le_bytes(padded_array(bytes)).into(),
            Self::U8 => u8::from_le_bytes(padded_array(bytes)).into(),
            Self::I16 => i16::from_le_bytes(padded_array(bytes)).into(),
            Self::U16 => u16::from_le_bytes(padded_array(bytes)).into(),
            Self::I32 => i32::from_le_bytes(padded_array(bytes)).into(),
            Self::U32 => u32::from_le_bytes(padded_array(bytes)).into(),
            Self::I64 => i64::from_le_bytes(padded_array(bytes)).into(),
            Self::U64 => u64::from_le_bytes(padded_array(bytes)).into(),
            Self::Bool => i128::from(padded_array::<1>(bytes) != [0]),
            _ => 0,
        }
    }

    /// Text of one element for messages: a number, or the bytes in hexadecimal digits for dtypes without
    /// numbers.
    #[must_use]
    pub fn format(self, bytes: &[u8]) -> String {
        match self {
            Self::Bool => (padded_array::<1>(bytes) != [0]).to_string(),
            _ if self.rule() == MergeRule::Largest => self.integer(bytes).to_string(),
            _ if self.rule() == MergeRule::Mean => self.number(bytes).to_string(),
            _ => bytes.iter().fold("0x".to_owned(), |text, byte| text + &format!("{byte:02x}")),
        }
    }

    /// Appends the values to `bytes`, rounded to nearest, ties to even. Appends nothing for dtypes without a
    /// mean.
    pub fn encode(self, values: &[f64], bytes: &mut Vec<u8>) {
        match self {
            Self::F32 => {
                values.iter().for_each(|value| bytes.extend_from_slice(&round_to_f32(*value).to_le_bytes()))
            }
            Self::F16 => {
                values
                    .iter()
                    .for_each(|value| bytes.extend(f16::from_f32(round_to_odd(*value)).to_le_bytes()));
            }
            Self::Bf16 => values
                .iter()
                .for_each(|value| bytes.extend(bf16::from_f32(round_to_odd(*value)).to_le_bytes())),
            Self::F64 => values.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes())),
            _ => {}
        }
    }
}

/// Index and value of the first element that is NaN or infinite.
pub(super) fn not_finite(dtype: Dtype, bytes: &[u8]) -> Option<(usize, f64)> {
    if dtype.rule() != MergeRule::Mean {
        return None;
    }
    if !dtype.is_factor_dtype() {
        let numbers = bytes.chunks_exact(dtype.size()).map(|bytes| dtype.number(bytes));
        return numbers.enumerate().find(|(_, value)| !value.is_finite());
    }
    let mut values = [0.0_f32; 256];
    bytes.chunks(values.len() * dtype.size()).enumerate().find_map(|(number, group)| {
        let values = &mut values[..group.len() / dtype.size()];
        dtype.decode(group, values);
        let index = values.iter().position(|value| !value.is_finite())?;
        Some((number * 256 + index, values[index].into()))
    })
}

/// Index of the first element in which two blocks differ.
pub(super) fn differing(dtype: Dtype, first: &[u8], second: &[u8]) -> Option<usize> {
    first.iter().zip(second).position(|(first, second)| first != second).map(|byte| byte / dtype.size())
}

/// First N bytes, padded with zeros.
fn padded_array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut padded = [0; N];
    padded.iter_mut().zip(bytes).for_each(|(target, byte)| *target = *byte);
    padded
}

/// Converts binary16 bits to f32 without branches, so that the compiler can vectorise the loop.
fn half_to_f32(bits: u16) -> f32 {
    const EXPONENT: u32 = 0x7c00 << 13;
    /// Difference of the exponent biases, in exponent bits.
    const BIAS: u32 = (127 - 15) << 23;
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let exponent = magnitude & EXPONENT;
    let normal = magnitude + BIAS;
    // Infinity and NaN: adds the difference a second time to reach the largest exponent.
    let special = normal + BIAS;
    // Subnormal: builds 2^-14 plus the fraction, and subtracts 2^-14.
    let subnormal =
        (f32::from_bits(magnitude + BIAS + (1 << 23)) - f32::from_bits(BIAS + (1 << 23))).to_bits();
    let converted = if exponent == EXPONENT {
        special
    } else if exponent == 0 {
        subnormal
    } else {
        normal
    };
    f32::from_bits(converted | u32::from(bits & 0x8000) << 16)
}

/// Nearest f32, ties to even.
#[allow(clippy::cast_possible_truncation, reason = "rounding is intended")]
fn round_to_f32(value: f64) -> f32 {
    value as f32
}

/// Rounds to odd: returns an exact value as it is, and otherwise the one of the two neighbouring f32 whose
/// last bit is 1. Rounding the result to fewer bits gives the same number as rounding `value` directly (Boldo
/// and Melquiond 2008, "Emulation of FMA and correctly rounded sums").
fn round_to_odd(value: f64) -> f32 {
    let rounded = round_to_f32(value);
    let widened = f64::from(rounded);
    if widened == value || rounded.to_bits() & 1 == 1 || !rounded.is_finite() {
        return rounded;
    }
    // The bit patterns of f32 magnitudes are ordered like the magnitudes.
    let was_rounded_toward_zero = value.abs() > widened.abs();
    let bits = rounded.to_bits();
    let magnitude = if was_rounded_toward_zero { (bits & 0x7fff_ffff) + 1 } else { (bits & 0x7fff_ffff) - 1 };
    f32::from_bits(magnitude | if value < 0.0 { 0x8000_0000 } else { 0 })
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::{Dtype, half_to_f32};

    #[test]
    fn half_conversion_matches_the_half_crate() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (half_to_f32(bits), f16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()), "{bits:#06x}");
            let mut value = [0.0];
            Dtype::Bf16.decode(&bits.to_le_bytes(), &mut value);
            let theirs = bf16::from_bits(bits).to_f32();
            assert!(value[0].to_bits() == theirs.to_bits() || (value[0].is_nan() && theirs.is_nan()));
        }
    }

    /// Tests values, midpoints and their neighbours, for which rounding twice would give other results.
    #[test]
    fn encoding_rounds_to_nearest_even() {
        for (dtype, last) in [(Dtype::F16, 0x7bff_u16), (Dtype::Bf16, 0x7f7f)] {
            let value = |bits: u16| {
                let mut values = [0.0];
                dtype.decode(&bits.to_le_bytes(), &mut values);
                f64::from(values[0])
            };
            let round = |value: f64| {
                let mut bytes = Vec::new();
                dtype.encode(&[value, -value], &mut bytes);
                let rounded = u16::from_le_bytes([bytes[0], bytes[1]]);
                assert_eq!(u16::from_le_bytes([bytes[2], bytes[3]]), rounded | 0x8000, "{dtype} {value:e}");
                rounded
            };
            for bits in 0..last {
                let (low, high) = (value(bits), value(bits + 1));
                let middle = f64::midpoint(low, high);
                let even = bits + (bits & 1);
                assert_eq!(round(low), bits);
                assert_eq!(round(middle), even, "{dtype} {middle:e}");
                assert_eq!(round(middle.next_down()), bits, "{dtype} below {middle:e}");
                assert_eq!(round(middle.next_up()), bits + 1, "{dtype} above {middle:e}");
            }
            assert_eq!(round(value(last)), last);
        }
    }

    #[test]
    fn names_round_trip() {
        for dtype in Dtype::ALL {
            assert_eq!(Dtype::from_name(&dtype.to_string()), Some(dtype));
        }
        assert_eq!(Dtype::from_name("f32"), None);
        assert_eq!(Dtype::from_name("F4"), None);
    }
}
