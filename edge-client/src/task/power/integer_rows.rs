//! Rows of a noisy product in integers on a host: the integers of [`round_row`](super::fixed_point::round_row), computed with
//! the host's vectors and stored in 16 bits.

use alloc::vec::Vec;

use fedspan_protocol::message::PowerRows;
use pulp::{Simd, WithSimd};

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::fixed_point::fit_row;
use super::groups::squared_norms;
use super::row::Row;
use crate::privacy::FRACTION;
use crate::source::Targets;

/// Integers of [`WORD`] features.
pub type Word = [i16; WORD];

/// Number of features of a word. The last word of a row ends with zeros.
pub const WORD: usize = 16;

/// Number of rows that are converted together.
pub const ROWS: usize = 16;

/// The number one in fixed point. Of the integers of a row only this one does not fit 16 bits.
pub const ONE: i32 = 1 << FRACTION;

/// Limit of magnitudes: a row with this integer is too long.
pub const LIMIT: f32 = (ONE + 1) as f32;

/// Largest number below one half. Adding one half itself would round up a number just below a half.
pub const HALF: f32 = 0.499_999_97;

/// Returns the number of words of a row of `d` features.
pub const fn words(d: usize) -> usize {
    d.div_ceil(WORD)
}

/// Rows that are converted together.
pub struct Conversion<'a> {
    /// Kind of the rows.
    pub kind: PowerRows,
    /// Samples, at most [`ROWS`] x d.
    pub x: &'a [f32],
    pub d: usize,
    pub targets: Targets<'a>,
    /// Number of the first sample among the targets.
    pub first: usize,
    /// Scratch memory for a target.
    pub y: &'a mut [f32],
    /// Receives the rows. Has room for them, so that no copy of rows is left in memory.
    pub rows: &'a mut Vec<Word>,
    /// For each feature the number of rows that consist of zeros and [`ONE`] at this feature, which are not stored.
    pub units: &'a mut [u32],
}

/// Numbers of converted rows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Converted {
    /// Number of rows of norm over 1, which were scaled to norm 1.
    pub clipped: u32,
    /// Number of unusable rows.
    pub unusable: u32,
}

impl Conversion<'_> {
    /// Converts the rows.
    pub fn run(self) -> Converted {
        #[cfg(target_arch = "x86_64")]
        if let Some(simd) = pulp::x86::V3::try_new() {
            return simd.vectorize(InAvx2(self, simd));
        }
        pulp::Arch::new().dispatch(self)
    }

    /// Converts the rows with a form of rounding.
    #[inline(always)]
    fn convert<S: Simd>(self, simd: S, rounding: impl Rounding) -> Converted {
        let Self { kind, x, d, targets, first, y, rows, units } = self;
        let mut converted = Converted::default();
        let norms: [f32; ROWS] = squared_norms(simd, x, d);
        for (number, (x, norm)) in x.chunks_exact(d).zip(norms).enumerate() {
            let of_sample = Row::new(kind, norm, targets, first + number, y);
            let length = rows.len();
            rows.resize(length + words(d), [0; WORD]);
            let row = rows.get_mut(length..).unwrap_or_default();
            let rounded = of_sample
                .and_then(|of_sample| Some((of_sample, round_row(rounding, row, x, of_sample.factor())?)));
            match rounded {
                Some((of_sample, unit)) => {
                    converted.clipped += u32::from(of_sample.is_clipped());
                    if let Some(count) = unit.and_then(|feature| units.get_mut(feature)) {
                        *count += 1;
                        rows.truncate(length);
                    }
                }
                None => {
                    converted.unusable += 1;
                    rows.truncate(length);
                }
            }
        }
        converted
    }
}

impl WithSimd for Conversion<'_> {
    type Output = Converted;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Converted {
        self.convert(simd, Portable)
    }
}

/// Conversion on a processor with AVX2.
#[cfg(target_arch = "x86_64")]
struct InAvx2<'a>(Conversion<'a>, pulp::x86::V3);

#[cfg(target_arch = "x86_64")]
impl pulp::NullaryFnOnce for InAvx2<'_> {
    type Output = Converted;

    #[inline(always)]
    fn call(self) -> Converted {
        let Self(conversion, simd) = self;
        conversion.convert(simd, simd)
    }
}

/// Writes the row of a sample, like [`round_row`](super::fixed_point::round_row). Returns the feature of a row that consists of
/// zeros and [`ONE`]; returns `None` if the row is not usable.
#[inline(always)]
fn round_row(rounding: impl Rounding, row: &mut [Word], x: &[f32], scale: f32) -> Option<Option<usize>> {
    let mut unit = None;
    let is_usable = fit_row(
        row,
        scale,
        #[inline(always)]
        |row, scale| {
            let scale = scale * ONE as f32;
            unit = None;
            rounding.round(row, x, scale).or_else(|| Portable.round(row, x, scale)).unwrap_or_else(|| {
                unit = x.iter().position(|x| x * scale > 0.0 && magnitude(x * scale) == ONE.unsigned_abs());
                x.iter().map(|x| u64::from(magnitude(x * scale)).pow(2)).sum()
            })
        },
    );
    // A row of norm 1 with this integer has no other.
    is_usable.then_some(unit)
}

/// Form of the rounding of rows.
trait Rounding: Copy {
    /// Writes the integers nearest to `scale x`. Returns their squared norm; `None` if one of them may not fit 16 bits, of which the lowest may then be written.
    fn round(self, row: &mut [Word], x: &[f32], scale: f32) -> Option<u64>;
}

/// Rounding in a form that compilers vectorise.
#[derive(Clone, Copy)]
struct Portable;

impl Rounding for Portable {
    #[inline(always)]
    fn round(self, row: &mut [Word], x: &[f32], scale: f32) -> Option<u64> {
        let row = row.as_flattened_mut().get_mut(..x.len())?;
        let mut bits = 0;
        for (integer, x) in row.iter_mut().zip(x) {
            let value = x * scale;
            let magnitude = magnitude(value).cast_signed();
            bits |= magnitude;
            // All bits of the sign.
            let sign = value.to_bits().cast_signed() >> 31;
            #[allow(clippy::cast_possible_truncation, reason = "the lowest bits")]
            let signed = ((magnitude ^ sign) - sign) as i16;
            *integer = signed;
        }
        if bits >= ONE {
            return None;
        }
        // The sums of the upper and the lower halves of squares do not overflow, since rows have fewer than 2^16 features.
        let (mut lower, mut upper) = (0, 0);
        for integer in row {
            let magnitude = u32::from(integer.unsigned_abs());
            let square = magnitude * magnitude;
            lower += square & 0xffff;
            upper += square >> 16;
        }
        Some(u64::from(lower) + (u64::from(upper) << 16))
    }
}

#[cfg(target_arch = "x86_64")]
impl Rounding for pulp::x86::V3 {
    #[inline(always)]
    fn round(self, row: &mut [Word], x: &[f32], scale: f32) -> Option<u64> {
        let mut squares = avx2::Squares::new(self, scale);
        let (words, rest) = x.as_chunks::<WORD>();
        for (word, x) in row.iter_mut().zip(words) {
            *word = squares.round(x);
        }
        if let Some(word) = row.last_mut().filter(|_| !rest.is_empty()) {
            // Loads with a mask leave the values in vectors.
            let (low, high) = rest.split_at_checked(WORD / 2).unwrap_or((rest, &[]));
            *word = squares.round(&pulp::cast([self.partial_load_f32s(low), self.partial_load_f32s(high)]));
        }
        squares.sum(row)
    }
}

/// Returns the integer nearest to the magnitude of `value`, rounding halves away from zero; large values saturate. The
/// operations are vector instructions, which a cast from a float is not.
#[inline(always)]
fn magnitude(value: f32) -> u32 {
    /// Adding it to a smaller number rounds the number to an integer, in the low bits of the sum.
    const INTEGERS: f32 = 8_388_608.0;
    let magnitude = value.abs();
    let limited = if magnitude < LIMIT { magnitude } else { LIMIT };
    let raised = limited + HALF;
    let sum = raised + INTEGERS;
    let is_rounded_up = u32::from(sum - INTEGERS > raised);
    sum.to_bits() - INTEGERS.to_bits() - is_rounded_up
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::task::quantise::halved;

    fn assert_equal(bits: u32) {
        let v = f32::from_bits(bits);
        if !v.is_nan() {
            let of_device = halved(v * 65_536.0).unsigned_abs().min(ONE.unsigned_abs() + 1);
            assert_eq!(magnitude(v * ONE as f32), of_device, "{v:e}");
        }
    }

    #[test]
    fn rounding_with_vectors_is_the_rounding_of_devices() {
        for bits in (0..=u32::MAX).step_by(4_099) {
            assert_equal(bits);
        }
        // All numbers near a half of a unit, and near the largest integer.
        for integer in -65_540i32..=65_540 {
            let near = f32::to_bits((integer as f32 + 0.5) / 32_768.0);
            (near - 3..=near + 3).for_each(assert_equal);
        }
        for special in [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::MIN_POSITIVE] {
            assert_equal(special.to_bits());
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn avx2_rounds_like_portable_code() {
        let Some(simd) = pulp::x86::V3::try_new() else { return };
        let mut state = 1u32;
        for case in 0..4_000 {
            let d = 1 + case % 70;
            let scale = [3_000.0, 32_700.0, 32_766.6, 32_768.0, 40_000.0, 1e30][case % 6];
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            };
            // Halves of units among other values.
            let x: Vec<f32> = (0..d)
                .map(|i| if i % 3 == 0 { ((next() * 2_000.0).trunc() + 0.5) / scale } else { next() })
                .collect();
            let mut rows = [vec![[0; WORD]; words(d)], vec![[0; WORD]; words(d)]];
            let [portable, with_avx2] = &mut rows;
            let expected = Portable.round(portable, &x, scale);
            let found = simd.vectorize(|| simd.round(with_avx2, &x, scale));
            match found {
                Some(_) => assert_eq!((found, &rows[1]), (expected, &rows[0]), "case {case}: d={d}"),
                // A magnitude of 2^15 - 1 may have saturated, and a sum of 2^31 may overflow.
                None => assert!(
                    expected.is_none_or(|sum| sum >= 1 << 31)
                        || rows[0].as_flattened().iter().any(|&q| q.unsigned_abs() >= 32_767),
                    "case {case}: d={d}"
                ),
            }
        }
    }

    #[test]
    #[ignore = "half a minute: all floats"]
    fn rounding_with_vectors_is_the_rounding_of_devices_for_every_float() {
        (0..=u32::MAX).for_each(assert_equal);
    }
}
