//! Box-Muller transforms side by side in the host's vectors, with the bits of [`single`].
//!
//! The logarithm, the sine and the cosine have the operations of `libm` in the same order, without its branches. Angles so close to
//! a multiple of pi/2 that `libm` reduces them in more than one step are left to it.

use core::f64::consts::TAU;

use pulp::{Arch, Simd, WithSimd};

/// Largest number of transforms in a block.
pub const BLOCK: usize = 32;

/// Random bits of a block: those of the radii, then those of the angles.
pub type Bits = [[u64; BLOCK]; 2];

/// Uniform number from the open interval (0, 1).
#[inline(always)]
pub fn uniform(bits: u64) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "53 bits are exact")]
    let steps = (bits >> 11) as f64;
    (steps + 0.5) * (1.0 / 9_007_199_254_740_992.0)
}

/// Transforms random bits of a radius and of an angle into two standard normal numbers.
#[must_use]
pub fn single(radius: u64, angle: u64) -> [f64; 2] {
    let radius = libm::sqrt(-2.0 * libm::log(uniform(radius)));
    let angle = TAU * uniform(angle);
    [radius * libm::cos(angle), radius * libm::sin(angle)]
}

/// Computes the first `count` transforms of a block: their first numbers, then their second numbers.
#[must_use]
pub fn block(bits: &Bits, count: usize) -> [[f64; BLOCK]; 2] {
    let mut normals = [[0.0; BLOCK]; 2];
    let are_exact = Arch::new().dispatch(Kernel { bits, count: count.min(BLOCK), normals: &mut normals });
    if !are_exact {
        let [first, second] = &mut normals;
        let [radii, angles] = bits;
        for (((first, second), radius), angle) in first.iter_mut().zip(second).zip(radii).zip(angles) {
            [*first, *second] = single(*radius, *angle);
        }
    }
    normals
}

/// Computation of a block. Returns false if an angle must be left to `libm`.
struct Kernel<'a> {
    bits: &'a Bits,
    count: usize,
    normals: &'a mut [[f64; BLOCK]; 2],
}

impl WithSimd for Kernel<'_> {
    type Output = bool;

    /// The loop has no branches, so that the compiler vectorises it.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> bool {
        let Self { bits: [radii, angles], count, normals: [first, second] } = self;
        let pairs = first.iter_mut().zip(second).zip(radii.iter().zip(angles));
        pairs.take(count).fold(true, |are_exact, ((first, second), (radius, angle))| {
            let radius = (-2.0 * log(uniform(*radius))).sqrt();
            let SineCosine { sine, cosine, is_exact } = sine_cosine(TAU * uniform(*angle));
            *first = radius * cosine;
            *second = radius * sine;
            are_exact & is_exact
        })
    }
}

/// Natural logarithm of a number from 2^-54 to 1, as in `libm::log`.
#[inline(always)]
fn log(x: f64) -> f64 {
    const LN2_HI: f64 = 6.931_471_803_691_238e-1;
    const LN2_LO: f64 = 1.908_214_929_270_587_7e-10;
    const LG1: f64 = 6.666_666_666_666_735e-1;
    const LG2: f64 = 3.999_999_999_940_942e-1;
    const LG3: f64 = 2.857_142_874_366_239e-1;
    const LG4: f64 = 2.222_219_843_214_978_4e-1;
    const LG5: f64 = 1.818_357_216_161_805e-1;
    const LG6: f64 = 1.531_383_769_920_937_3e-1;
    const LG7: f64 = 1.479_819_860_511_658_6e-1;
    /// Bits of a number slightly above sqrt(1/2).
    const SQRT_HALF: u64 = 0x3fe6_a09e << 32;
    /// 2^52: added to it, an integer stands in the last bits of the sum.
    const TWO_52: f64 = 4_503_599_627_370_496.0;
    // x = 2^exponent (1 + f) with sqrt(1/2) < 1 + f < sqrt(2).
    let bits = x.to_bits() + (1.0f64.to_bits() - SQRT_HALF);
    let exponent = f64::from_bits(bits >> 52 | TWO_52.to_bits()) - (TWO_52 + 1023.0);
    let f = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) + SQRT_HALF) - 1.0;
    let half_square = 0.5 * f * f;
    let s = f / (2.0 + f);
    let z = s * s;
    let w = z * z;
    let even = w * (LG2 + w * (LG4 + w * LG6));
    let odd = z * (LG1 + w * (LG3 + w * (LG5 + w * LG7)));
    s * (half_square + (odd + even)) + exponent * LN2_LO - half_square + f + exponent * LN2_HI
}

/// Sine and cosine of an angle.
struct SineCosine {
    sine: f64,
    cosine: f64,
    /// False if the values may differ from those of `libm`.
    is_exact: bool,
}

/// Upper end of the numbers whose first 32 bits are at most `high`.
const fn upper_end(high: u64) -> f64 {
    f64::from_bits(high << 32 | 0xffff_ffff)
}

/// Sine and cosine of an angle from 0 to 2 pi, as in `libm::sin` and `libm::cos`.
#[inline(always)]
fn sine_cosine(angle: f64) -> SineCosine {
    /// First 33 bits of pi/2.
    const HALF_PI: f64 = 1.570_796_326_734_125_6;
    /// pi/2 without its first 33 bits.
    const HALF_PI_TAIL: f64 = 6.077_100_506_506_192e-11;
    /// Angles up to pi/4, 3 pi/4, 5 pi/4 and 7 pi/4.
    const ENDS: [f64; 4] =
        [upper_end(0x3fe9_21fb), upper_end(0x4002_d97c), upper_end(0x400f_6a7a), upper_end(0x4015_fdbc)];
    /// Smallest distance to a multiple of pi/2, except for the first, at which one step of reduction is exact enough.
    const LEAST_DISTANCE: f64 = 1.0 / 8192.0;
    let [is_above_0, is_above_1, is_above_2, is_above_3] = ENDS.map(|end| angle > end);
    let count = |condition: bool| if condition { 1.0 } else { 0.0 };
    let quarters = (count(is_above_0) + count(is_above_1)) + (count(is_above_2) + count(is_above_3));
    // x + y = angle - quarters pi/2.
    let (near, tail) = (angle - quarters * HALF_PI, quarters * HALF_PI_TAIL);
    let x = near - tail;
    let y = (near - x) - tail;
    let (first_sine, other_sine) = sine_near_zero(x, y);
    let near_sine = if is_above_0 { other_sine } else { first_sine };
    let near_cosine = cosine_near_zero(x, y);
    let swaps = (is_above_0 & !is_above_1) | (is_above_2 & !is_above_3);
    let (sine, cosine) = if swaps { (near_cosine, near_sine) } else { (near_sine, near_cosine) };
    SineCosine {
        sine: if is_above_1 & !is_above_3 { -sine } else { sine },
        cosine: if is_above_0 & !is_above_2 { -cosine } else { cosine },
        is_exact: x.abs() >= LEAST_DISTANCE,
    }
}

/// Sine of `x`, and sine of `x + y`, with |x| up to pi/4.
#[inline(always)]
fn sine_near_zero(x: f64, y: f64) -> (f64, f64) {
    const S1: f64 = -1.666_666_666_666_663_2e-1;
    const S2: f64 = 8.333_333_333_322_49e-3;
    const S3: f64 = -1.984_126_982_985_795e-4;
    const S4: f64 = 2.755_731_370_707_006_8e-6;
    const S5: f64 = -2.505_076_025_340_686_3e-8;
    const S6: f64 = 1.589_690_995_211_55e-10;
    let z = x * x;
    let w = z * z;
    let r = S2 + z * (S3 + z * S4) + z * w * (S5 + z * S6);
    let v = z * x;
    (x + v * (S1 + z * r), x - ((z * (0.5 * y - v * r) - y) - v * S1))
}

/// Cosine of `x + y`, with |x| up to pi/4.
#[inline(always)]
fn cosine_near_zero(x: f64, y: f64) -> f64 {
    const C1: f64 = 4.166_666_666_666_66e-2;
    const C2: f64 = -1.388_888_888_887_411e-3;
    const C3: f64 = 2.480_158_728_947_673e-5;
    const C4: f64 = -2.755_731_435_139_066_3e-7;
    const C5: f64 = 2.087_572_321_298_175e-9;
    const C6: f64 = -1.135_964_755_778_819_5e-11;
    let z = x * x;
    let w = z * z;
    let r = z * (C1 + z * (C2 + z * C3)) + w * w * (C4 + z * (C5 + z * C6));
    let half = 0.5 * z;
    let w = 1.0 - half;
    w + (((1.0 - w) - half) + (z * r - x * y))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bits of a uniform number, near a multiple of 1/8 in half of the cases. At its multiples the angle passes from one range
    /// of `libm` to the next.
    fn bits() -> impl Strategy<Value = u64> {
        let near = (0..=8u64, 0..64u32, any::<u64>())
            .prop_map(|(eighth, shift, offset)| (eighth << 61).wrapping_add(offset >> shift))
            .prop_flat_map(|above| prop_oneof![Just(above), Just(above.wrapping_neg())]);
        prop_oneof![any::<u64>(), near]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        #[test]
        fn block_has_the_bits_of_single_transforms(
            radii in proptest::array::uniform32(bits()),
            angles in proptest::array::uniform32(bits()),
            count in 0..=BLOCK,
        ) {
            let [first, second] = block(&[radii, angles], count);
            for index in 0..count {
                let expected = single(radii[index], angles[index]).map(f64::to_bits);
                prop_assert_eq!([first[index].to_bits(), second[index].to_bits()], expected);
            }
        }
    }

    /// The law above would hold for blocks that are all left to `libm`, too.
    #[test]
    fn nearly_all_blocks_are_computed_in_vectors() {
        let mut random = crate::random::stream(3, crate::random::Purpose::Truth, 0);
        let are_exact = (0..1_000).filter(|_| {
            let bits = core::array::from_fn(|_| core::array::from_fn(|_| random.bits()));
            Arch::new().dispatch(Kernel { bits: &bits, count: BLOCK, normals: &mut [[0.0; BLOCK]; 2] })
        });
        assert!(are_exact.count() > 950);
    }
}
