//! Mills' ratio of the standard normal distribution, and its derivative.

/// `ln sqrt(2 pi)`.
pub(super) const LN_SQRT_2PI: f64 = 0.918_938_533_204_672_7;

/// Smallest argument for which the continued fraction is used.
const FRACTION: f64 = 2.0;

/// Mills' ratio at a point, and its negative derivative.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Mills {
    /// Mills' ratio `R(x) = Q(x) / phi(x)`, that is `sqrt(pi / 2) erfcx(x / sqrt 2)`.
    pub ratio: f64,
    /// Negative derivative `-R'(x) = 1 - x R(x)`, which is above 0.
    pub neg_derivative: f64,
}

/// Computes Mills' ratio and its negative derivative for `x` of at least -1, with relative errors below 2e-15
/// (ratio) and 5e-15 (derivative).
///
/// For `x` below 2 it uses `erfc`, and `1 - x R` loses less than three bits by cancellation. For larger `x`
/// it uses Laplace's continued fraction `R = 1 / (x + t)`, `t = 1 / (x + 2 / (x + 3 / (x + ...)))`, evaluated
/// from its end. All terms are positive, and the negative derivative is `t R`, without cancellation. The
/// relative truncation errors are below 1e-16.
pub(super) fn mills(x: f64) -> Mills {
    if x < FRACTION {
        let root = std::f64::consts::FRAC_1_SQRT_2;
        // The first factor is sqrt(pi / 2).
        let ratio = 1.253_314_137_315_500_3 * libm::exp(0.5 * x * x) * libm::erfc(x * root);
        return Mills { ratio, neg_derivative: 1.0 - x * ratio };
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 16 to 121")]
    let terms = 16 + (420.0 / (x * x)) as u32;
    let tail = (1..=terms).rev().fold(0.0, |tail, n| f64::from(n) / (x + tail));
    let ratio = 1.0 / (x + tail);
    Mills { ratio, neg_derivative: tail * ratio }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of `x`, `R` and `1 - x R`, computed with 60 digits.
    const TABLE: [(f64, f64, f64); 15] = [
        (-1.0, 3.477_051_811_703_694_4, 4.477_051_811_703_695),
        (-0.5, 1.964_017_495_357_993_9, 1.982_008_747_678_997),
        (0.0, 1.253_314_137_315_500_3, 1.0),
        (0.25, 1.037_824_575_853_726_8, 0.740_543_856_036_568_2),
        (0.5, 0.876_364_456_453_692_3, 0.561_817_771_773_153_8),
        (1.0, 0.655_679_542_418_798_4, 0.344_320_457_581_201_56),
        (1.5, 0.515_815_638_217_963_4, 0.226_276_542_673_054_97),
        (1.9999, 0.421_384_955_976_444_4, 0.157_272_226_542_708_84),
        (2.0, 0.421_369_229_288_054_5, 0.157_261_541_423_891_07),
        (2.0001, 0.421_353_503_668_125_96, 0.157_250_857_313_381_15),
        (2.5, 0.354_265_111_329_793_66, 0.114_337_221_675_515_83),
        (3.0, 0.304_590_298_710_103_3, 0.086_229_103_869_690_11),
        (5.0, 0.192_808_104_715_315_76, 0.035_959_476_423_421_18),
        (10.0, 0.099_028_596_471_731_93, 0.009_714_035_282_680_786),
        (41.0, 0.024_375_760_354_110_872, 0.000_593_825_481_454_193_5),
    ];

    #[test]
    fn mills_ratio_matches_table() {
        let mut worst = [0.0f64; 2];
        for (x, ratio, neg_derivative) in TABLE {
            let got = mills(x);
            let errors = [(got.ratio / ratio - 1.0).abs(), (got.neg_derivative / neg_derivative - 1.0).abs()];
            assert!(errors[0] < 2e-15 && errors[1] < 5e-15, "R({x}): {got:?}, off by {errors:?}");
            worst = [worst[0].max(errors[0]), worst[1].max(errors[1])];
        }
        println!("R is off by a part of {:.1e}, 1 - x R by {:.1e}", worst[0], worst[1]);
    }

    /// Compares with a longer continued fraction, and for `x` from 2 to 5 also with `erfc`.
    #[test]
    fn mills_ratio_formulas_agree() {
        for step in 0..4000 {
            let x = 2.0 + f64::from(step) * 0.01;
            let longer_tail = (1..=400).rev().fold(0.0, |tail, n| f64::from(n) / (x + tail));
            let got = mills(x);
            assert!((got.ratio * (x + longer_tail) - 1.0).abs() < 1e-15, "x = {x}");
            assert!((got.neg_derivative * (x + longer_tail) / longer_tail - 1.0).abs() < 2e-15, "x = {x}");
            if x < 5.0 {
                let erfc_ratio = 1.253_314_137_315_500_3
                    * libm::exp(0.5 * x * x)
                    * libm::erfc(x * std::f64::consts::FRAC_1_SQRT_2);
                assert!((erfc_ratio / got.ratio - 1.0).abs() < 2e-14, "x = {x}");
            }
        }
    }
}
