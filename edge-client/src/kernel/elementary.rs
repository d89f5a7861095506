//! Elementary functions with the bits of libm, written without branches, so that a compiler computes them for all lanes
//! of a host's vector at once. A device, where one value is computed at a time, calls libm.
//!
//! The argument reductions, polynomials and their coefficients are those of fdlibm (Sun Microsystems 1993; in `f32` by Taylor), which
//! libm follows too. Both sides of each condition of libm are computed, and the result is selected. NaNs stay NaNs; their payload may differ.

/// Number of values that are computed together: the lanes of the widest vectors.
pub const LANES: usize = 16;

const LN2_HI: f32 = f32::from_bits(0x3f31_7200);
const LN2_LO: f32 = f32::from_bits(0x35bf_be8e);
const INV_LN2: f32 = f32::from_bits(0x3fb8_aa3b);
const LN2_HALF: f32 = f32::from_bits(0x3eb1_7218);
/// One and a half times the logarithm of 2.
const LN2_THREE_HALVES: f32 = f32::from_bits(0x3f85_1592);

/// Sums with this value are integers: one and a half times 2^23.
const ROUNDING: f32 = 12_582_912.0;

/// Returns `2^exponent` for integers from -126 to 127.
#[inline(always)]
fn power_of_two(exponent: f32) -> f32 {
    // The last bits of the sum are the integer. The conversion `as i32` would be done for each lane by itself.
    let bits = (exponent + ROUNDING).to_bits() << 23;
    f32::from_bits(bits.wrapping_add(1.0_f32.to_bits()))
}

/// Returns the integer that the argument reductions of libm use: x over the logarithm of 2, rounded to the nearest
/// integer; exactly one if x is close enough, and zero if less than half. For results below 2^22.
#[inline(always)]
fn reduction(x: f32) -> f32 {
    let size = x.abs();
    let quotient = INV_LN2 * size + 0.5;
    let nearest = (quotient + ROUNDING) - ROUNDING;
    let truncated = if nearest > quotient { nearest - 1.0 } else { nearest };
    let near = if size > LN2_HALF { 1.0 } else { 0.0 };
    (if size > LN2_THREE_HALVES { truncated } else { near }).copysign(x)
}

/// Returns the exponential of x, the value of `libm::expf`.
#[inline(always)]
#[must_use]
pub fn exp(x: f32) -> f32 {
    const P1: f32 = f32::from_bits(0x3e2a_aa8f);
    const P2: f32 = f32::from_bits(0xbb35_5215);
    /// The exponential is infinite from here on.
    const OVERFLOW: f32 = f32::from_bits(0x42b1_7218);
    /// The exponential is zero from here on.
    const UNDERFLOW: f32 = f32::from_bits(0xc2cf_f1b5);
    /// Smaller values are returned with one added.
    const SMALL: f32 = f32::from_bits(0x3900_0000);
    let k = reduction(x.clamp(UNDERFLOW, OVERFLOW));
    let (high, low) = (x - k * LN2_HI, k * LN2_LO);
    let reduced = high - low;
    let square = reduced * reduced;
    let c = reduced - square * (P1 + square * P2);
    let y = 1.0 + (reduced * c / (2.0 - c) - low + high);
    // The first of two factors is exact, so the product is rounded once.
    let shift = if k > 127.0 { 127.0 } else { 0.0 };
    let shift = if k < -126.0 { -102.0 } else { shift };
    let scaled = y * power_of_two(shift) * power_of_two(k - shift);
    let value = if x.abs() <= SMALL { 1.0 + x } else { scaled };
    let value = if x >= OVERFLOW { f32::INFINITY } else { value };
    let value = if x <= UNDERFLOW { 0.0 } else { value };
    if x.is_nan() { x } else { value }
}

/// Returns `1 / (1 + exp(-x))`, a value from 0 to 1; 0 if the exponential is infinite.
#[inline(always)]
#[must_use]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Returns the value of `libm::expm1f` for x from -0.6 to 20.
#[inline(always)]
fn exp_minus_one(x: f32) -> f32 {
    const LN2_HI: f32 = f32::from_bits(0x3f31_7180);
    const LN2_LO: f32 = f32::from_bits(0x3717_f7d1);
    const Q1: f32 = f32::from_bits(0xbd08_8868);
    const Q2: f32 = f32::from_bits(0x3acf_3010);
    /// Smaller values are returned unchanged.
    const SMALL: f32 = f32::from_bits(0x3300_0000);
    let k = reduction(x);
    let (high, low) = (x - k * LN2_HI, k * LN2_LO);
    let reduced = high - low;
    let c = (high - reduced) - low;
    let half = 0.5 * reduced;
    let half_square = reduced * half;
    let r1 = 1.0 + half_square * (Q1 + half_square * Q2);
    let t = 3.0 - r1 * half;
    let e = half_square * ((r1 - t) / (6.0 - reduced * t));
    let e = reduced * (e - c) - c - half_square;
    let difference = reduced - e;
    let (power, inverse) = (power_of_two(k), power_of_two(-k));
    let below = (difference + (1.0 - inverse)) * power;
    let above = (reduced - (e + inverse) + 1.0) * power;
    let one = if reduced < -0.25 { -2.0 * (e - (reduced + 0.5)) } else { 1.0 + 2.0 * difference };
    let value = if k < 23.0 { below } else { above };
    let value = if k == 1.0 { one } else { value };
    let value = if k == 0.0 { difference } else { value };
    let value = if k == -1.0 { 0.5 * difference - 0.5 } else { value };
    if x.abs() < SMALL { x } else { value }
}

/// Returns the hyperbolic tangent of x, the value of `libm::tanhf`.
#[inline(always)]
#[must_use]
pub fn tanh(x: f32) -> f32 {
    /// Half the logarithm of 3.
    const LARGE: f32 = f32::from_bits(0x3f0c_9f54);
    /// Half the logarithm of 5/3.
    const SMALL: f32 = f32::from_bits(0x3e82_c578);
    let size = x.abs();
    let bounded = size.min(10.0);
    let t = exp_minus_one(if size > SMALL { 2.0 * bounded } else { -2.0 * bounded });
    let part = if size > SMALL { t } else { -t };
    let quotient = if size > LARGE { 2.0 } else { part } / (t + 2.0);
    let value = if size > LARGE { 1.0 - quotient } else { quotient };
    let value = if size > 10.0 { 1.0 } else { value };
    let value = if size < f32::MIN_POSITIVE { size } else { value };
    let value = value.copysign(x);
    if x.is_nan() { x } else { value }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic)]

    use super::{exp, tanh};

    /// Asserts that two functions have the same bits for every value of `step` values, of all exponents and signs.
    #[track_caller]
    fn assert_bits(step: usize, function: impl Fn(f32) -> f32, expected: impl Fn(f32) -> f32) {
        for bits in (0..=u32::MAX).step_by(step) {
            let x = f32::from_bits(bits);
            let (value, expected) = (function(x), expected(x));
            assert!(
                value.to_bits() == expected.to_bits() || value.is_nan() && expected.is_nan(),
                "{x:e}, bits {bits:#x}: {value:e} is not {expected:e}"
            );
        }
    }

    #[test]
    fn functions_have_the_bits_of_libm() {
        assert_bits(997, exp, libm::expf);
        assert_bits(997, tanh, libm::tanhf);
    }

    /// Takes minutes: every value there is.
    #[test]
    #[ignore = "takes minutes"]
    fn functions_have_all_bits_of_libm() {
        assert_bits(1, exp, libm::expf);
        assert_bits(1, tanh, libm::tanhf);
    }
}
