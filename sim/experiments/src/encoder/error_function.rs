//! The error function with the bits of libm, written without branches like the functions of
//! [`elementary`](fedspan_client::kernel::elementary). Its ranges, polynomials and their coefficients are those of fdlibm (Sun Microsystems
//! 1993; in `f32` by Taylor), which libm follows too.

use fedspan_client::kernel::elementary::exp;

/// Returns the polynomial with these coefficients, in ascending order, by Horner's rule.
#[inline(always)]
fn polynomial<const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut value = coefficients[N - 1];
    let mut index = N - 1;
    while index > 0 {
        index -= 1;
        value = coefficients[index] + x * value;
    }
    value
}

/// Returns the error function of x, the value of `libm::erff`.
#[inline(always)]
#[must_use]
pub fn erf(x: f32) -> f32 {
    /// Twice the inverse root of pi, minus one, times eight.
    const TINY: f32 = 1.027_033_3;
    /// The error function of one.
    const ERROR_AT_ONE: f32 = 0.845_062_9;
    /// One over 0.35.
    const INVERSE: f32 = f32::from_bits(0x4036_db6d);
    /// Two to the power of -28.
    const TINIEST: f32 = f32::from_bits(0x3180_0000);
    let size = x.abs();
    let z = x * x;
    let numerator =
        polynomial(z, [0.128_379_17, -0.325_042_1, -0.028_481_75, -0.005_770_270_2, -2.376_301_7e-5]);
    let denominator =
        polynomial(z, [1.0, 0.397_917_2, 0.065_022_25, 0.005_081_306, 1.324_947_4e-4, -3.960_228_2e-6]);
    let small = x + x * (numerator / denominator);
    let tiny = 0.125 * (8.0 * x + TINY * x);
    let s = size - 1.0;
    let numerator = polynomial(
        s,
        [
            -0.002_362_118_6,
            0.414_856_1,
            -0.372_207_88,
            0.318_346_62,
            -0.110_894_695,
            0.035_478_305,
            -0.002_166_375_5,
        ],
    );
    let denominator = polynomial(
        s,
        [1.0, 0.106_420_88, 0.540_397_94, 0.071_828_656, 0.126_171_22, 0.013_637_084, 0.011_984_5],
    );
    let near_one = 1.0 - ERROR_AT_ONE - numerator / denominator;
    // The other values are computed for an argument in their range, so that none is infinite.
    let bounded = size.clamp(1.0, 6.0);
    let s = 1.0 / (bounded * bounded);
    let middle = polynomial(
        s,
        [
            -0.009_864_944,
            -0.693_858_56,
            -10.558_626,
            -62.375_33,
            -162.396_67,
            -184.605_09,
            -81.287_44,
            -9.814_329,
        ],
    ) / polynomial(
        s,
        [
            1.0,
            19.651_272,
            137.657_76,
            434.565_9,
            645.387_27,
            429.008_15,
            108.635,
            6.570_249_6,
            -0.060_424_414,
        ],
    );
    let large = polynomial(
        s,
        [-0.009_864_943, -0.799_283_27, -17.757_956, -160.636_38, -637.566_47, -1_025.095_1, -483.519_2],
    ) / polynomial(
        s,
        [1.0, 30.338_06, 325.792_5, 1_536.729_6, 3_199.858_2, 2_553.050_3, 474.528_53, -22.440_952],
    );
    let quotient = if size < INVERSE { middle } else { large };
    let rounded = f32::from_bits(bounded.to_bits() & 0xffff_e000);
    let tail = exp(-rounded * rounded - 0.5625) * exp((rounded - bounded) * (rounded + bounded) + quotient)
        / bounded;
    let value = 1.0 - if size < 1.25 { near_one } else { tail };
    let value = if size >= 6.0 { 1.0 } else { value };
    let value = value.copysign(x);
    let value = if size < 0.843_75 { small } else { value };
    let value = if size < TINIEST { tiny } else { value };
    if x.is_nan() { x } else { value }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic)]

    use super::erf;

    /// Asserts that every value of `step` values, of all exponents and signs, has the bits of libm.
    fn assert_bits(step: usize) {
        for bits in (0..=u32::MAX).step_by(step) {
            let x = f32::from_bits(bits);
            let (value, expected) = (erf(x), libm::erff(x));
            assert!(
                value.to_bits() == expected.to_bits() || value.is_nan() && expected.is_nan(),
                "{x:e}, bits {bits:#x}: {value:e} is not {expected:e}"
            );
        }
    }

    #[test]
    fn error_function_has_the_bits_of_libm() {
        assert_bits(997);
    }

    #[test]
    #[ignore = "takes minutes"]
    fn error_function_has_all_bits_of_libm() {
        assert_bits(1);
    }
}
