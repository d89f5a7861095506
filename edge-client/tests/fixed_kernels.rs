//! Tests of fixed-point kernels against exact arithmetic: scales, products, sums, and the head.
#![cfg(feature = "i16")]

use crate::common::fixed::{largest_magnitude, unit_bound};
use crate::common::*;
use fedspan_client::kernel::fixed::product::{products, residuals};
use fedspan_client::kernel::fixed::scale::{narrow, quantise, quantise_columns, scaled};
use fedspan_client::kernel::fixed::{Scale, Sums, head, sums};
use fedspan_client::pace::Pace;
use proptest::prelude::*;

/// Strategy for finite floats of all exponents.
fn finite_floats() -> impl Strategy<Value = f32> {
    any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |v| v.is_finite())
}

/// Strategy for blocks of `n` values, of similar size or of any sizes.
fn blocks(n: usize) -> impl Strategy<Value = Vec<f32>> {
    let alike = (-60i32..60, prop::collection::vec(-1.0f32..1.0, n))
        .prop_map(|(e, v)| v.into_iter().map(|v| v * 2f32.powi(e)).collect());
    prop_oneof![alike, prop::collection::vec(finite_floats(), n)]
}

fn integer_vectors(n: impl Into<prop::collection::SizeRange>) -> impl Strategy<Value = Vec<i16>> {
    prop::collection::vec(prop_oneof![-32767i16..=32767, Just(32767), Just(-32767), Just(0)], n)
}

fn value(integer: i32, scale: Scale) -> f64 {
    f64::from(integer) * 2f64.powi(scale.exponent())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1024) })]

    #[test]
    fn rounding_changes_a_value_by_half_a_unit_at_most(values in (1usize..40).prop_flat_map(blocks)) {
        let scale = Scale::of(&values).unwrap();
        let step = 2f64.powi(scale.exponent());
        let size = largest_magnitude(values.iter().map(|&v| f64::from(v)));
        prop_assert!(step <= unit_bound(size), "{step:e} for {size:e}");
        for &v in &values {
            let integer = scale.integer(v);
            prop_assert!(integer.abs() <= 32767);
            prop_assert!((value(integer, scale) - f64::from(v)).abs() <= step / 2.0, "{v:e}");
            prop_assert_eq!(scale.integer(-v), -integer);
        }
        prop_assert_eq!(Scale::from_bits(scale.to_bits()), scale);
        prop_assert_ne!(scale.to_bits(), i16::MIN);
    }

    #[test]
    fn finer_scale_does_not_fit(values in prop::collection::vec(-1.0f32..1.0, 1..9)) {
        prop_assume!(values.iter().any(|v| v.abs() > 1e-30));
        let scale = Scale::of(&values).unwrap();
        prop_assert!(values.iter().any(|&v| scale.integer(v).abs() >= 1 << 14));
    }

    #[test]
    fn non_finite_block_has_no_scale(mut values in blocks(7), index in 0usize..7, value_index in 0usize..3) {
        values[index] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][value_index];
        let mut integers = [7; 7];
        prop_assert_eq!(quantise(&values, &mut integers), None);
        prop_assert_eq!(integers, [7; 7]);
    }

    #[test]
    fn columns_equal_the_transposed_block(rows in 1usize..9, columns in 1usize..6, seed in any::<u64>()) {
        let values = Random(seed).normals(rows * columns);
        let (mut flat, mut transposed) = (vec![0; rows * columns], vec![0; rows * columns]);
        prop_assert_eq!(quantise(&values, &mut flat), quantise_columns(&values, columns, &mut transposed));
        for i in 0..rows {
            for j in 0..columns {
                prop_assert_eq!(flat[i * columns + j], transposed[j * rows + i]);
            }
        }
    }

    /// A scaled integer is rounded once to 24 bits, or twice if the result is subnormal.
    #[test]
    fn scaling_rounds_correctly(integer in any::<i32>(), exponent in -300i32..300) {
        let exact = f64::from(integer) * 2f64.powi(exponent);
        let result = scaled(integer, exponent);
        let expected = exact as f32;
        if expected.is_normal() || expected == 0.0 && exact == 0.0 || expected.is_infinite() {
            prop_assert_eq!(result.to_bits(), expected.to_bits());
        } else {
            prop_assert!((f64::from(result) - exact).abs() <= 2f64.powi(-149));
        }
    }

    #[test]
    fn products_are_exact_up_to_halvings(a in integer_vectors(1..300), seed in any::<u64>()) {
        let n = a.len();
        let mut random = Random(seed);
        let b: Vec<i16> = (0..n).map(|_| (random.below(65535) as i32 - 32767) as i16).collect();
        for b in [b, a.clone()] {
            let exact: i64 = a.iter().zip(&b).map(|(&a, &b)| i64::from(a) * i64::from(b)).sum();
            let (mut product, mut without_target) = ([0.0], [0.0]);
            let exponent = products(&a, &b, 0, &mut product);
            let integer = product[0].to_bits().cast_signed();
            prop_assert!(integer.unsigned_abs() < 1 << 30);
            let error = f64::from(integer) * 2f64.powi(exponent) - exact as f64;
            prop_assert!(error.abs() <= if n > 1 { n as f64 } else { 0.0 }, "{error} off {exact}");
            prop_assert_eq!(residuals(&a, &b, 0, &mut without_target), exponent);
            prop_assert_eq!(without_target[0].to_bits(), product[0].to_bits());
        }
    }

    #[test]
    fn residual_is_exact_to_30_bits(
        a in integer_vectors(1..40),
        seed in any::<u64>(),
        sizes in (-60i32..60, -120i32..60),
    ) {
        let mut random = Random(seed);
        let b: Vec<i16> = a.iter().map(|_| (random.below(65535) as i32 - 32767) as i16).collect();
        let product: i64 = a.iter().zip(&b).map(|(&a, &b)| i64::from(a) * i64::from(b)).sum();
        let product = product as f64 * 2f64.powi(sizes.0);
        let y = random.normal() as f32 * 2f32.powi(sizes.1);
        let mut residual = [y];
        let exponent = residuals(&a, &b, sizes.0, &mut residual);
        let step = 2f64.powi(exponent);
        let value = f64::from(residual[0].to_bits().cast_signed()) * step;
        let exact = product - f64::from(y);
        prop_assert!((value - exact).abs() <= 1.5 * step, "{value:e} for {exact:e}");
        // The step is no coarser than 30 bits of the target and the halvings of the products require.
        let needed = (2f64.powi(-29) * f64::from(y).abs()).max(2.0 * a.len() as f64 * 2f64.powi(sizes.0));
        prop_assert!(step <= needed.max(2f64.powi(-124)), "{step:e}");
        // The residual is then rounded to 15 bits.
        let mut narrowed = [0];
        let scale = narrow(&residual, exponent, &mut narrowed);
        let step = 2f64.powi(scale.exponent());
        prop_assert!((f64::from(narrowed[0]) * step - value).abs() <= step / 2.0);
        prop_assert!(value == 0.0 || step == 2f64.powi(-124) || i32::from(narrowed[0]).abs() >= 1 << 14);
    }

    #[test]
    fn narrowed_integers_fit_and_are_nearest(
        wide in prop::collection::vec(any::<i32>(), 1..9),
        shift in 0u32..32,
    ) {
        let wide: Vec<i32> = wide.iter().map(|v| v >> shift).collect();
        let floats: Vec<f32> = wide.iter().map(|v| f32::from_bits(v.cast_unsigned())).collect();
        let mut narrowed = vec![0; wide.len()];
        let scale = narrow(&floats, 3, &mut narrowed);
        let step = 2f64.powi(scale.exponent());
        for (&wide, &narrowed) in wide.iter().zip(&narrowed) {
            prop_assert!(narrowed > i16::MIN);
            prop_assert!((f64::from(narrowed) * step - f64::from(wide) * 8.0).abs() <= step / 2.0);
        }
        prop_assert!(wide.iter().all(|v| *v == 0) || narrowed.iter().any(|v| v.unsigned_abs() >= 1 << 14));
    }

    /// For samples of any sizes in any order, the error of the sums is at most `(m + 2) 2^-28` of the largest
    /// products.
    #[test]
    fn sums_do_not_wrap_and_keep_28_bits(seed in any::<u64>(), m in 1usize..200, spread in 0usize..120) {
        let mut random = Random(seed);
        let (k, c) = (1 + random.below(5), 1 + random.below(3));
        let (mut gram, mut rhs, mut outer) = (vec![0.0; k * k], vec![0.0; k * c], vec![0.0; k * c]);
        let mut scales = [Sums::new(); 3];
        let (mut exact_gram, mut exact_rhs, mut bound) = (vec![0.0; k * k], vec![0.0; k * c], [0.0, 0.0]);
        for _ in 0..m {
            let sizes = [(); 2].map(|()| 2f32.powi(random.below(spread + 1) as i32 - spread as i32 / 2));
            let z: Vec<f32> = random.normals(k).iter().map(|v| v * sizes[0]).collect();
            let y: Vec<f32> = random.normals(c).iter().map(|v| v * sizes[1]).collect();
            let (mut zi, mut yi) = (vec![0; k], vec![0; c]);
            let (a, b) = (quantise(&z, &mut zi).unwrap(), quantise(&y, &mut yi).unwrap());
            if let Some(aligned) = scales[0].align(&mut gram, a, a) {
                aligned.add_squares(&mut gram, &zi);
            }
            if let Some(aligned) = scales[1].align(&mut rhs, a, b) {
                aligned.add_products(&mut rhs, &zi, &yi);
            }
            if let Some(aligned) = scales[2].align(&mut outer, a, b) {
                aligned.add_outer(&mut outer, &z, a, &yi);
            }
            let (z, y): (Vec<f64>, Vec<f64>) = (
                zi.iter().map(|&v| value(v.into(), a)).collect(),
                yi.iter().map(|&v| value(v.into(), b)).collect(),
            );
            for i in 0..k {
                for j in i..k {
                    exact_gram[i * k + j] += z[i] * z[j];
                }
                for j in 0..c {
                    exact_rhs[i * c + j] += z[i] * y[j];
                }
            }
            bound[0] += largest_magnitude(z.iter().copied()).powi(2);
            bound[1] += largest_magnitude(z.iter().copied()) * largest_magnitude(y.iter().copied());
        }
        for (buffer, scale) in [&mut gram, &mut rhs, &mut outer].into_iter().zip(scales) {
            sums::to_floats(buffer, scale.exponent());
        }
        prop_assert_eq!(bits(&rhs), bits(&outer));
        for (computed, exact, bound) in [(&gram, &exact_gram, bound[0]), (&rhs, &exact_rhs, bound[1])] {
            let slack = (m as f64 + 2.0) * 2f64.powi(-28) * bound;
            for (&computed, exact) in computed.iter().zip(exact) {
                let error = (f64::from(computed) - exact).abs();
                prop_assert!(error <= slack + 2f64.powi(-24) * exact.abs(), "{error:e} over {slack:e}");
            }
        }
    }
}

/// With 300 000 products of the largest size, the sums never wrap.
#[test]
fn largest_products_do_not_wrap() {
    let (mut sum, mut scale) = ([0.0; 1], Sums::new());
    let x = [f32::from_bits(0x3f7f_feff)];
    let mut xi = [0];
    let a = quantise(&x, &mut xi).unwrap();
    assert_eq!(xi, [32767]);
    for _ in 0..300_000 {
        let aligned = scale.align(&mut sum, a, a).unwrap();
        aligned.add_squares(&mut sum, &xi);
        assert!(sum[0].to_bits().cast_signed() > 0);
    }
    sums::to_floats(&mut sum, scale.exponent());
    let exact = 300_000.0 * value(32767, a).powi(2);
    assert!((f64::from(sum[0]) / exact - 1.0).abs() <= 1e-4);
}

/// The head from exact sums is the minimum-norm least-squares solution if no direction is near the cut.
#[test]
fn head_is_the_least_squares_solution_above_the_cut() {
    let mut random = Random(11);
    let mut worst = Worst::default();
    for case in 0..600 {
        let (k, c) = (1 + case % 8, 1 + random.below(4));
        let rank = if case % 3 == 0 { 1 + random.below(k) } else { k };
        let condition = [1.0, 3.0, 30.0, 200.0][case % 4];
        let mut values = geometric(rank, condition);
        values.resize(k, 0.0);
        let m = k + 4 + random.below(20);
        let z = random.with_singular_values(m, &values);
        let y = random.gaussian(m, c);
        // The sums may have any scale, because only their quotient matters.
        let g = z.transpose() * &z * 2f64.powi(20);
        let mut gram = flat(&M::from_fn(k, k, |i, j| if i <= j { g[(i, j)] } else { 0.0 }));
        let mut w = flat(&(z.transpose() * &y * 2f64.powi(20)));
        head::solve(&mut gram, &mut w, &mut vec![0.0; k], true, Pace::NONE);
        let exact = Svd::new(&z).minimum_norm(&y, 1e-6);
        let error = (matrix(k, c, &w) - &exact).norm() / (exact.norm() + y.norm());
        // The bound has the square of the condition, as is known of the normal equations (Higham, Accuracy
        // and Stability, 20.4).
        let bound = 32.0 * EPS * (k as f64) * condition * condition;
        assert!(error <= bound, "{error:e} over {bound:e}: k={k} rank={rank} condition={condition}");
        worst.record_largest("head, share of the bound", error / bound);
    }
}
