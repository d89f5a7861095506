//! Tests of the fixed-point mean: its value, its independence of the order of updates, and its bounds.

use fedspan_engine::aggregate::{FixedPointMean, MAGNITUDE_MAX};
use proptest::prelude::*;

/// Step of the fixed-point grid, as documented.
const STEP: f64 = 1.0 / (1u64 << 40) as f64;

/// Length of the vectors.
const LEN: usize = 3;

/// Fixed-point mean of vectors with their weights.
fn fixed_point_mean(updates: &[(u32, [f32; LEN])]) -> FixedPointMean {
    let mut mean = FixedPointMean::new(LEN);
    for (weight, values) in updates {
        // The values may be passed in several slices, split at any place.
        let (head, tail) = values.split_at(*weight as usize % (LEN + 1));
        mean.absorb(*weight, [head, tail]);
    }
    mean
}

/// Random values of all accepted magnitudes, from far below the grid step to the bound.
fn random_value() -> impl Strategy<Value = f32> {
    let magnitude = (-60i32..=22, 0.5f32..1.0, any::<bool>());
    magnitude.prop_map(|(exponent, mantissa, negative)| {
        let value = mantissa * 2f32.powi(exponent);
        if negative { -value } else { value }
    })
}

/// Random lists of vectors with their weights.
fn random_updates() -> impl Strategy<Value = Vec<(u32, [f32; LEN])>> {
    let weight = prop_oneof![3 => 1u32..100, 1 => any::<u32>()];
    proptest::collection::vec((weight, [random_value(), random_value(), random_value()]), 1..40)
}

/// Nearest multiple of the grid step, as an integer. The product of an f32 and 2^40 is exact in f64.
fn grid_steps(value: f32) -> i128 {
    (f64::from(value) / STEP).round_ties_even() as i128
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn mean_is_order_free_bit_for_bit(
        (sorted, shuffled) in random_updates().prop_flat_map(|u| (Just(u.clone()), Just(u).prop_shuffle()))
    ) {
        let (a, b) = (fixed_point_mean(&sorted), fixed_point_mean(&shuffled));
        prop_assert_eq!(&a, &b);
        let bits = |m: &FixedPointMean| m.value().map(|v| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
        prop_assert_eq!(bits(&a), bits(&b));
    }

    #[test]
    fn mean_is_weighted_mean_of_rounded_values(updates in random_updates()) {
        let weight: u128 = updates.iter().map(|(w, _)| u128::from(*w)).sum();
        let result = fixed_point_mean(&updates);
        prop_assert_eq!(u128::from(result.weight()), weight);
        let Some(values) = result.value() else {
            prop_assert_eq!(weight, 0);
            return Ok(());
        };
        for (index, value) in values.iter().enumerate() {
            // The sum is exact in integers; the mean may differ by a few units in the last place.
            let sum: i128 = updates.iter().map(|(w, v)| i128::from(*w) * grid_steps(v[index])).sum();
            let exact = sum as f64 / weight as f64 * STEP;
            prop_assert!((value - exact).abs() <= exact.abs() * 1e-15, "{value:e} {exact:e}");
            // The mean of the unrounded values may differ by half a step, plus the rounding of f64.
            let total: f64 = updates.iter().map(|(w, v)| f64::from(*w) * f64::from(v[index])).sum();
            let magnitude_sum: f64 =
                updates.iter().map(|(w, v)| f64::from(*w) * f64::from(v[index]).abs()).sum();
            let bound = STEP / 2.0 + magnitude_sum / weight as f64 * 1e-14;
            prop_assert!((value - total / weight as f64).abs() <= bound);
        }
    }

    /// Tests all bit patterns, and multiples of half a step, which round to even.
    #[test]
    fn value_is_rounded_to_nearest_step(bits in any::<u32>(), halves in -(1i32 << 23)..1 << 23) {
        for value in [f32::from_bits(bits), (f64::from(halves) * STEP / 2.0) as f32] {
            let bounded = value.clamp(-MAGNITUDE_MAX, MAGNITUDE_MAX);
            let expected = if value.is_nan() { 0 } else { grid_steps(bounded) };
            let rounded = fixed_point_mean(&[(1, [value; LEN])]).value().unwrap();
            prop_assert_eq!(rounded, vec![expected as f64 * STEP; LEN]);
        }
    }

    #[test]
    fn single_update_returns_rounded_value(weight in 1u32.., value in random_value()) {
        let result = fixed_point_mean(&[(weight, [value, -value, 0.0])]).value().unwrap();
        prop_assert!((result[0] - f64::from(value)).abs() <= STEP / 2.0 + f64::from(value).abs() * 1e-15);
        prop_assert_eq!(result[0], -result[1]);
        prop_assert_eq!(result[2], 0.0);
    }
}

#[test]
fn invalid_values_saturate_in_any_order() {
    let invalid = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    let ones = [1.0, 1.0, 1.0];
    let bound = f64::from(MAGNITUDE_MAX);
    let expected = vec![(bound + 1.0) / 2.0, (1.0 - bound) / 2.0, 0.5];
    assert_eq!(fixed_point_mean(&[(1, invalid), (1, ones)]).value().unwrap(), expected);
    assert_eq!(fixed_point_mean(&[(1, ones), (1, invalid)]).value().unwrap(), expected);
    assert_eq!(
        fixed_point_mean(&[(1, [f32::MAX, f32::MIN, 0.0])]).value().unwrap(),
        vec![bound, -bound, 0.0]
    );
}

#[test]
fn largest_sums_do_not_overflow() {
    let mut mean = FixedPointMean::new(1);
    for _ in 0..10_000 {
        mean.absorb(u32::MAX, [[MAGNITUDE_MAX].as_slice()]);
    }
    assert_eq!(mean.value().unwrap(), vec![f64::from(MAGNITUDE_MAX)]);
    // The documented range is 2^32 updates of weight 2^32 - 1 at the bound.
    let largest_term = grid_steps(MAGNITUDE_MAX) * i128::from(u32::MAX);
    assert!(largest_term.checked_mul(1 << 32).is_some());
}

#[test]
fn empty_mean_is_none() {
    let mut mean = FixedPointMean::new(2);
    assert_eq!(mean.value(), None);
    mean.absorb(0, [[5.0, 5.0].as_slice()]);
    assert_eq!((mean.value(), mean.weight()), (None, 0));
    mean.absorb(3, [[1.0, 2.0].as_slice()]);
    assert_eq!(mean.value().unwrap(), vec![1.0, 2.0]);
    mean.reset();
    assert_eq!(mean, FixedPointMean::new(2));
}

/// Tests sums that leave 64 bits, with the largest values and weights that are added in 64 bits, and larger ones in between.
#[test]
fn sums_beyond_64_bits_are_exact() {
    let largest = 2048.0f32.next_down();
    for weights in [&[1][..], &[2047], &[2048], &[2048, 1], &[2047, 3, 2049, 1 << 20]] {
        for values in [[largest, -largest, 2048.0], [largest, 0.3, 4096.5]] {
            let mut mean = FixedPointMean::new(LEN);
            let mut sums = [0i128; LEN];
            for (index, weight) in weights.iter().cycle().take(10_000).enumerate() {
                let (head, tail) = values.split_at(index % (LEN + 1));
                mean.absorb(*weight, [head, tail]);
                for (sum, value) in sums.iter_mut().zip(values) {
                    *sum += i128::from(*weight) * grid_steps(value);
                }
            }
            let expected = sums.map(|sum| sum as f64 / (mean.weight() as f64 / STEP));
            assert_eq!(mean.value().unwrap(), expected, "{weights:?}");
        }
    }
}
