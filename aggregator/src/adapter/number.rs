//! Numbers as they lie in files: little-endian f32, f16 and bf16; from and to the numbers that are computed with.

use half::{bf16, f16};

/// A type of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    Bf16,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
        })
    }
}

impl Kind {
    /// By its name in a header.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::F32, Self::F16, Self::Bf16].into_iter().find(|kind| kind.to_string() == name)
    }

    /// Bytes of one number.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// The numbers that these bytes are; every one is an f32. As many as both have room for.
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
        }
    }
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

    use super::{Kind, widened};

    #[test]
    fn every_half_is_what_the_library_makes_of_it() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (widened(bits), f16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()), "{bits:#06x}");
            let mut value = [0.0];
            Kind::Bf16.decode(&bits.to_le_bytes(), &mut value);
            let theirs = bf16::from_bits(bits).to_f32();
            assert!(value[0].to_bits() == theirs.to_bits() || (value[0].is_nan() && theirs.is_nan()));
        }
    }

    /// Numbers, midpoints and what is next to them: a second rounding would show.
    #[test]
    fn rounding_is_to_the_nearest_and_to_even_where_two_are() {
        for (kind, last) in [(Kind::F16, 0x7bff_u16), (Kind::Bf16, 0x7f7f)] {
            let value = |bits: u16| {
                let mut values = [0.0];
                kind.decode(&bits.to_le_bytes(), &mut values);
                f64::from(values[0])
            };
            let round = |value: f64| {
                let mut bytes = Vec::new();
                kind.encode(&[value, -value], &mut bytes);
                let found = u16::from_le_bytes([bytes[0], bytes[1]]);
                assert_eq!(u16::from_le_bytes([bytes[2], bytes[3]]), found | 0x8000, "{kind} {value:e}");
                found
            };
            for bits in 0..last {
                let (low, high) = (value(bits), value(bits + 1));
                let middle = f64::midpoint(low, high);
                let even = bits + (bits & 1);
                assert_eq!(round(low), bits);
                assert_eq!(round(middle), even, "{kind} {middle:e}");
                assert_eq!(round(middle.next_down()), bits, "{kind} below {middle:e}");
                assert_eq!(round(middle.next_up()), bits + 1, "{kind} above {middle:e}");
            }
            assert_eq!(round(value(last)), last);
        }
    }

    #[test]
    fn names_are_those_of_headers() {
        for kind in [Kind::F32, Kind::F16, Kind::Bf16] {
            assert_eq!(Kind::named(&kind.to_string()), Some(kind));
        }
        assert_eq!(Kind::named("f32"), None);
        assert_eq!(Kind::named("F64"), None);
    }
}
