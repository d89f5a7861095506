//! Feature sums: exact integer sums of features and their squares, from which the server computes a fleet's
//! scale (SPEC.md, FeatureSums).
//!
//! The values of each feature are converted to integers on a grid, whose unit is a power of two given by the
//! feature's largest value. The sums are stored in the upload's buffer, as limbs of 22 bits in binary32.

use fedspan_protocol::message::{DeclineReason, RoundId};
use fedspan_protocol::tensor::SUMS_COLUMNS;

use crate::kernel::all_within;
use crate::pace::Pace;
use crate::source::{SampleSource, Targets};
use crate::task::Usage;
use crate::task::sample_pass::for_each;

/// Number of values that are sent per feature.
pub const COLUMNS: usize = SUMS_COLUMNS as usize;

/// Number of bits of a limb.
const LIMB: u32 = 22;

/// Exclusive bound on the number of samples: the squares of this many samples fill the limbs.
const SAMPLES_END: u32 = 1 << 28;

/// Difference between the exponents of the largest magnitude and of the grid.
const BITS: i32 = 29;

/// Smallest exponent of a binary32 number.
const LEAST: i32 = -149;

/// Features that are summed.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Number of values of a sample.
    pub features: usize,
    /// Number of targets of a sample.
    pub outputs: usize,
    /// Index of the first feature.
    pub first: usize,
    /// Number of features.
    pub count: usize,
}

/// Computes the sums of some features over all usable samples, one row of `sums` per feature, in two passes.
#[inline(never)]
pub fn run(
    sums: &mut [f32],
    block: Block,
    id: RoundId,
    source: &mut dyn SampleSource,
    pace: Pace<'_>,
) -> Result<Usage, DeclineReason> {
    let Block { features, outputs, first, count } = block;
    let sums = sums.get_mut(..COLUMNS * count).ok_or(DeclineReason::Parameter)?;
    sums.fill(0.0);
    for_each(id, source, features, |x, targets, index| {
        let usable = is_usable(x, targets, index, outputs);
        if usable {
            each_feature(sums, x, first, pace, |row, x| {
                if let Some(largest) = row.first_mut().filter(|largest| x.abs() > **largest) {
                    *largest = x.abs();
                }
            });
        }
        usable
    })?;
    for row in sums.chunks_exact_mut(COLUMNS) {
        if let Some(entry) = row.first_mut() {
            *entry = to_f32(i64::from(grid_exponent(*entry)));
        }
    }
    let usage = for_each(id, source, features, |x, targets, index| {
        let usable = is_usable(x, targets, index, outputs);
        if usable {
            each_feature(sums, x, first, pace, |row, x| {
                let Some((exponent, limbs)) = row.split_first_mut() else { return };
                let Some((sum, squares)) = limbs.split_at_mut_checked(3) else { return };
                let units = i64::from(to_grid_units(x, to_i32(*exponent)));
                add_to_limbs(sum, units);
                add_to_limbs(squares, units * units);
            });
        }
        usable
    })?;
    match usage.samples {
        0 => Err(DeclineReason::NoSamples),
        SAMPLES_END.. => Err(DeclineReason::Parameter),
        _ => Ok(usage),
    }
}

/// Calls `each` with the row of each summed feature and its value in a sample, with pauses.
fn each_feature(
    sums: &mut [f32],
    x: &[f32],
    first: usize,
    pace: Pace<'_>,
    mut each: impl FnMut(&mut [f32], f32),
) {
    pace.split(sums.len() / COLUMNS, 2, |features| {
        let rows = sums.get_mut(COLUMNS * features.start..COLUMNS * features.end).unwrap_or_default();
        for (row, x) in rows.chunks_exact_mut(COLUMNS).zip(x.iter().skip(first + features.start)) {
            each(row, *x);
        }
    });
}

/// Returns true if a sample is usable: all its values are finite, and its class is known.
fn is_usable(x: &[f32], targets: Targets<'_>, index: usize, outputs: usize) -> bool {
    let target = |output| targets.value(index, output, outputs).is_some_and(f32::is_finite);
    all_within(x, f32::MAX) && (0..outputs).all(target)
}

/// Returns the mantissa and the exponent of `|x| = mantissa 2^exponent`.
fn split_float(x: f32) -> (u32, i32) {
    let bits = x.to_bits();
    let (field, fraction) = ((bits >> 23 & 0xFF).cast_signed(), bits & 0x7F_FFFF);
    if field == 0 { (fraction, LEAST) } else { (fraction | 1 << 23, field - 150) }
}

/// Returns the exponent of the grid on which no magnitude up to `largest` has more than 30 bits.
fn grid_exponent(largest: f32) -> i32 {
    // For a subnormal number any sufficiently small exponent is correct.
    (split_float(largest).1 + 23 - BITS).max(LEAST)
}

/// Returns `x` in units of `2^exponent`, rounded to nearest, ties to even.
fn to_grid_units(x: f32, exponent: i32) -> i32 {
    let (mantissa, own_exponent) = split_float(x);
    let shift = own_exponent - exponent;
    let magnitude = if shift >= 0 {
        mantissa << shift.min(6)
    } else {
        // A shift of 25 rounds every mantissa to zero.
        let shift = (-shift).min(25);
        let (quotient, remainder, half) =
            (mantissa >> shift, mantissa & ((1 << shift) - 1), 1 << (shift - 1));
        quotient + u32::from(remainder > half || remainder == half && quotient & 1 == 1)
    };
    let units = magnitude.cast_signed();
    if x.is_sign_negative() { -units } else { units }
}

/// Adds `value` to a number in limbs. All limbs except the last are in 0 to 2^22 - 1.
fn add_to_limbs(limbs: &mut [f32], value: i64) {
    let Some((last, low)) = limbs.split_last_mut() else { return };
    let mut carry = value;
    for limb in low {
        let sum = i64::from(to_i32(*limb)) + carry;
        *limb = to_f32(sum & ((1 << LIMB) - 1));
        carry = sum >> LIMB;
    }
    *last = to_f32(i64::from(to_i32(*last)) + carry);
}

/// Converts a float with an integer value of at most 24 bits.
fn to_i32(value: f32) -> i32 {
    #[allow(clippy::cast_possible_truncation, reason = "an integer of at most 24 bits")]
    let exact = value as i32;
    exact
}

/// Converts an integer of at most 24 bits to a float.
fn to_f32(value: i64) -> f32 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "at most 24 bits")]
    let exact = value as i32 as f32;
    exact
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::cast_precision_loss)]

    use super::{COLUMNS, LIMB, add_to_limbs, grid_exponent, to_grid_units};

    /// Advances a linear congruential generator, and returns its high bits.
    fn next(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *state >> 16
    }

    #[test]
    fn units_are_the_nearest_grid_integers() {
        let mut state = 1;
        for _ in 0..200_000 {
            let largest = f32::from_bits(next(&mut state) as u32 & 0x7FFF_FFFF);
            let other = f32::from_bits(next(&mut state) as u32);
            if !largest.is_finite() || !other.is_finite() {
                continue;
            }
            let x = if other.abs() > largest { largest.copysign(other) } else { other };
            let e = grid_exponent(largest);
            assert!((-149..=98).contains(&e));
            // The quotient is exact in f64, because both operands are a few bits times powers of two.
            let quotient = f64::from(x) * libm::exp2(f64::from(-e / 2)) * libm::exp2(f64::from(-e + e / 2));
            let expected = libm::rint(quotient);
            assert_eq!(f64::from(to_grid_units(x, e)), expected, "{x:e} on 2^{e}");
            assert!(expected.abs() < f64::from(1 << 30));
        }
        for (x, e, expected) in [(0.0, -149, 0), (f32::from_bits(1), -149, 1), (f32::MAX, 98, (1 << 30) - 64)]
        {
            assert_eq!(
                (grid_exponent(x), to_grid_units(x, e), to_grid_units(-x, e)),
                (e, expected, -expected)
            );
        }
        // Ties are rounded to even: 0.5, 1.5 and 2.5 units.
        let e = grid_exponent(1.0);
        let unit = libm::exp2(f64::from(e)) as f32;
        assert_eq!([0.5, 1.5, 2.5, -0.5].map(|x| to_grid_units(x * unit, e)), [0, 2, 2, 0]);
    }

    #[test]
    fn limbs_sum_exactly() {
        let mut state = 2;
        for limbs in [3usize, 4] {
            for _ in 0..200 {
                let mut sums = [0.0f32; COLUMNS];
                let mut exact = 0i128;
                for _ in 0..100 {
                    let wide = next(&mut state).cast_signed();
                    let value = if limbs == 3 { wide % (1 << 30) } else { (wide % (1 << 30)).pow(2) };
                    add_to_limbs(&mut sums[..limbs], value);
                    exact += i128::from(value);
                }
                let to_integer = |limb: f32| limb as i128;
                let sum: i128 =
                    sums[..limbs].iter().enumerate().map(|(i, l)| to_integer(*l) << (LIMB * i as u32)).sum();
                assert_eq!(sum, exact);
                assert!(sums[..limbs - 1].iter().all(|limb| (0.0..4_194_304.0).contains(limb)));
                assert!(sums[limbs - 1].abs() <= 4_194_304.0);
            }
        }
    }
}
