//! Numbers as they lie in files, little-endian: from and to the numbers that are computed with, and what a mean is of each type.

use half::{bf16, f16};

/// A type of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    Bf16,
    /// IEEE 754 binary64.
    F64,
    /// 8 bits with a sign.
    I8,
    /// 8 bits.
    U8,
    /// 16 bits with a sign.
    I16,
    /// 16 bits.
    U16,
    /// 32 bits with a sign.
    I32,
    /// 32 bits.
    U32,
    /// 64 bits with a sign.
    I64,
    /// 64 bits.
    U64,
    /// A byte that is 0 or 1.
    Bool,
    /// 8 bits, 4 of them an exponent.
    F8E4M3,
    /// 8 bits, 5 of them an exponent.
    F8E5M2,
    /// 8 bits, all of them an exponent.
    F8E8M0,
    /// Two binary32.
    C64,
}

/// Rules for the mean of numbers of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeRule {
    /// The weighted mean, rounded once to the type.
    Mean,
    /// The largest: integers that differ are counters, and no client's may run ahead of it.
    Largest,
    /// The value that all have; nothing is between two of them.
    Equal,
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.about().0)
    }
}

impl Dtype {
    /// All of them.
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

    /// Name in headers, bytes of a number, and rule.
    const fn about(self) -> (&'static str, usize, MergeRule) {
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

    /// The type of a name in a header.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.about().0 == name)
    }

    /// Bytes of one number.
    #[must_use]
    pub fn size(self) -> usize {
        self.about().1
    }

    /// The rule for their mean.
    #[must_use]
    pub fn rule(self) -> MergeRule {
        self.about().2
    }

    /// Whether factors may be of this type: the numbers are f32.
    #[must_use]
    pub fn is_factor_dtype(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    /// The numbers of factors that these bytes are; every one is an f32. As many as both have room for; others are 0.
    pub fn decode(self, bytes: &[u8], values: &mut [f32]) {
        match self {
            Self::F32 => {
                for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
                    *value = f32::from_le_bytes(*bytes);
                }
            }
            Self::F16 => {
                for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
                    *value = widened(u16::from_le_bytes(*bytes));
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

    /// The f64 next to one number; 0 for types without numbers.
    #[must_use]
    pub fn number(self, bytes: &[u8]) -> f64 {
        match self {
            Self::F64 => f64::from_le_bytes(array(bytes)),
            Self::F32 | Self::F16 | Self::Bf16 => {
                let mut value = [0.0];
                self.decode(bytes, &mut value);
                value[0].into()
            }
            #[allow(clippy::cast_precision_loss, reason = "for norms")]
            _ => self.integer(bytes) as f64,
        }
    }

    /// One integer, or 0 or 1; 0 for types without integers.
    #[must_use]
    pub fn integer(self, bytes: &[u8]) -> i128 {
        match self {
            Self::I8 => i8::from_le_bytes(array(bytes)).into(),
            Self::U8 => u8::from_le_bytes(array(bytes)).into(),
            Self::I16 => i16::from_le_bytes(array(bytes)).into(),
            Self::U16 => u16::from_le_bytes(array(bytes)).into(),
            Self::I32 => i32::from_le_bytes(array(bytes)).into(),
            Self::U32 => u32::from_le_bytes(array(bytes)).into(),
            Self::I64 => i64::from_le_bytes(array(bytes)).into(),
            Self::U64 => u64::from_le_bytes(array(bytes)).into(),
            Self::Bool => i128::from(array::<1>(bytes) != [0]),
            _ => 0,
        }
    }

    /// One number as people write it; its bytes for types without numbers.
    #[must_use]
    pub fn shown(self, bytes: &[u8]) -> String {
        match self {
            Self::Bool => (array::<1>(bytes) != [0]).to_string(),
            _ if self.rule() == MergeRule::Largest => self.integer(bytes).to_string(),
            _ if self.rule() == MergeRule::Mean => self.number(bytes).to_string(),
            _ => bytes.iter().fold("0x".to_owned(), |text, byte| text + &format!("{byte:02x}")),
        }
    }

    /// The bytes of the nearest numbers, ties to even, after what is there already.
    pub fn encode(self, values: &[f64], bytes: &mut Vec<u8>) {
        match self {
            Self::F32 => {
                values.iter().for_each(|value| bytes.extend_from_slice(&nearest(*value).to_le_bytes()))
            }
            Self::F16 => {
                values.iter().for_each(|value| bytes.extend(f16::from_f32(odd(*value)).to_le_bytes()));
            }
            Self::Bf16 => {
                values.iter().for_each(|value| bytes.extend(bf16::from_f32(odd(*value)).to_le_bytes()))
            }
            Self::F64 => values.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes())),
            // There is no mean of these.
            _ => {}
        }
    }
}

/// The first number that is NaN or infinite, and its place.
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

/// The first number in which two blocks differ.
pub(super) fn differing(dtype: Dtype, left: &[u8], right: &[u8]) -> Option<usize> {
    left.iter().zip(right).position(|(left, right)| left != right).map(|byte| byte / dtype.size())
}

/// The first bytes; zeros where there are fewer.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut found = [0; N];
    found.iter_mut().zip(bytes).for_each(|(found, byte)| *found = *byte);
    found
}

/// A binary16, whose bits these are, without a branch: a compiler makes several of them at once.
fn widened(bits: u16) -> f32 {
    const EXPONENT: u32 = 0x7c00 << 13;
    /// From the bias of one exponent to that of the other.
    const BIAS: u32 = (127 - 15) << 23;
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let exponent = magnitude & EXPONENT;
    let normal = magnitude + BIAS;
    // The exponent that says infinity and NaN, too.
    let special = normal + BIAS;
    // 2^-14 and a fraction, without the 2^-14.
    let small = (f32::from_bits(magnitude + BIAS + (1 << 23)) - f32::from_bits(BIAS + (1 << 23))).to_bits();
    let found = if exponent == EXPONENT {
        special
    } else if exponent == 0 {
        small
    } else {
        normal
    };
    f32::from_bits(found | u32::from(bits & 0x8000) << 16)
}

/// Ties to even.
#[allow(clippy::cast_possible_truncation, reason = "rounded, which is what it is for")]
fn nearest(value: f64) -> f32 {
    value as f32
}

/// Of the two f32 around a value that is none, the one whose last bit is 1: rounded again to fewer bits it is what the
/// value itself would be (Boldo and Melquiond 2008, "Emulation of FMA and correctly rounded sums").
fn odd(value: f64) -> f32 {
    let near = nearest(value);
    let back = f64::from(near);
    if back == value || near.to_bits() & 1 == 1 || !near.is_finite() {
        return near;
    }
    // Away from zero bits ascend; zero itself is below every magnitude.
    let up = value.abs() > back.abs();
    let bits = near.to_bits();
    let magnitude = if up { (bits & 0x7fff_ffff) + 1 } else { (bits & 0x7fff_ffff) - 1 };
    f32::from_bits(magnitude | if value < 0.0 { 0x8000_0000 } else { 0 })
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::{Dtype, widened};

    #[test]
    fn every_half_is_what_the_library_makes_of_it() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (widened(bits), f16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()), "{bits:#06x}");
            let mut value = [0.0];
            Dtype::Bf16.decode(&bits.to_le_bytes(), &mut value);
            let theirs = bf16::from_bits(bits).to_f32();
            assert!(value[0].to_bits() == theirs.to_bits() || (value[0].is_nan() && theirs.is_nan()));
        }
    }

    /// Numbers, midpoints and what is next to them: a second rounding would show.
    #[test]
    fn rounding_is_to_the_nearest_and_to_even_where_two_are() {
        for (dtype, last) in [(Dtype::F16, 0x7bff_u16), (Dtype::Bf16, 0x7f7f)] {
            let value = |bits: u16| {
                let mut values = [0.0];
                dtype.decode(&bits.to_le_bytes(), &mut values);
                f64::from(values[0])
            };
            let round = |value: f64| {
                let mut bytes = Vec::new();
                dtype.encode(&[value, -value], &mut bytes);
                let found = u16::from_le_bytes([bytes[0], bytes[1]]);
                assert_eq!(u16::from_le_bytes([bytes[2], bytes[3]]), found | 0x8000, "{dtype} {value:e}");
                found
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
    fn names_are_those_of_headers() {
        for dtype in Dtype::ALL {
            assert_eq!(Dtype::from_name(&dtype.to_string()), Some(dtype));
        }
        assert_eq!(Dtype::from_name("f32"), None);
        assert_eq!(Dtype::from_name("F4"), None);
    }
}
