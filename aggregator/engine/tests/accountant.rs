//! Tests of the privacy account: compared with tables, with an integral of the densities, and with laws that
//! every privacy account satisfies.

use fedspan_engine::privacy::calibration::{max_releases, noise_multiplier};
use fedspan_engine::privacy::fedpower::{Calibration, Products, paper_multiplier};
use fedspan_engine::privacy::{
    Composition, Delta, Epsilon, NoiseMultiplier, ParameterError, Releases, renyi,
};
use fedspan_engine::random::{Purpose, Stream, stream};
use proptest::prelude::*;

fn epsilon(value: f64) -> Epsilon {
    Epsilon::new(value).unwrap()
}

fn delta(value: f64) -> Delta {
    Delta::new(value).unwrap()
}

fn releases(value: u32) -> Releases {
    Releases::new(value).unwrap()
}

fn multiplier(value: f64) -> NoiseMultiplier {
    NoiseMultiplier::new(value).unwrap()
}

/// Composition of `count` releases with the noise multiplier `z`.
fn compose_repeated(z: f64, count: u32) -> Composition {
    Composition::repeated(multiplier(z), releases(count))
}

/// Composition of one release whose parameter is `mu` up to rounding.
fn composition_of_mu(mu: f64) -> Composition {
    compose_repeated(1.0 / mu, 1)
}

/// Random number whose decimal logarithm is uniform between the exponents.
fn random_magnitude(random: &mut Stream, from_exponent: f64, to_exponent: f64) -> f64 {
    libm::pow(10.0, from_exponent + (to_exponent - from_exponent) * random.uniform())
}

/// Reference for delta: the integral of `max(0, p - e^epsilon q)` for the densities `p` of N(mu, 1) and `q`
/// of N(0, 1), computed without tail functions.
///
/// The integrand is positive from `x = mu + a` on, `a = epsilon/mu - mu/2`; at a distance `t` beyond this
/// point it is `p (1 - e^(-mu t))`. With the substitution `t = e^v` the trapezoidal rule is exact to
/// rounding, since the integrand is analytic in a strip and decays fast at both ends. The code represents `a`
/// as a sum of two floats, since its square is in an exponent.
mod oracle {
    /// `ln delta` for `a` of at least -40.
    pub fn ln_delta(mu: f64, epsilon: f64) -> f64 {
        let centre = epsilon / mu;
        let centre_low = f64::mul_add(-centre, mu, epsilon) / mu;
        let half_mu = 0.5 * mu;
        let a = centre - half_mu;
        let minus_half_mu = a - centre;
        let a_low = (centre - (a - minus_half_mu)) - (half_mu + minus_half_mu) + centre_low;
        // exp(-(a + t)^2 / 2), without the factor exp(-a^2 / 2) if that is small.
        let exponent = |t: f64| {
            if a > 0.0 { -t * (a + a_low + 0.5 * t) } else { -0.5 * (a + a_low + t) * (a + a_low + t) }
        };
        let log_factor =
            if a > 0.0 { -0.5 * a * a - a * a_low - f64::mul_add(a, a, -(a * a)) / 2.0 } else { 0.0 };
        let t_max = if a > 0.0 { 90.0 / (a + (a * a + 90.0).sqrt()) } else { 10.0 - a };
        let t_min = 1e-10 / (a.abs() + mu + 1.0);
        let step = if a < -2.0 { 1.0 / 512.0 } else { 1.0 / 64.0 };
        let steps = ((t_max / t_min).ln() / step).ceil() as u32;
        // The sum starts with the small terms.
        let term = |index: u32| {
            let t = t_max * libm::exp(-step * f64::from(index));
            libm::exp(exponent(t)) * -libm::expm1(-mu * t) * t
        };
        let sum: f64 = (0..=steps).rev().map(term).sum();
        log_factor + libm::log(sum * step) - 0.918_938_533_204_672_7
    }

    /// Epsilon at this `delta`; 0 if delta at epsilon 0 is already smaller.
    pub fn epsilon(mu: f64, delta: f64) -> f64 {
        let ln = libm::log(delta);
        let mut below = 0.0;
        if ln_delta(mu, below) <= ln {
            return 0.0;
        }
        // Classical upper bound (the conversion of zCDP).
        let mut above = 0.5 * mu * mu + mu * (-2.0 * ln).sqrt();
        while (above - below) > 1e-15 * above {
            let middle = 0.5 * (below + above);
            if middle <= below || middle >= above {
                break;
            }
            *(if ln_delta(mu, middle) > ln { &mut below } else { &mut above }) = middle;
        }
        above
    }
}

/// Values of `mu`, `epsilon`, `ln delta` and `ln (1 - delta)`, computed with 400 digits from the closed form.
const PROFILE: [(f64, f64, f64, f64); 18] = [
    (1e-6, 0.0, -14.734_449_091_168_988, -3.989_423_599_789_087_6e-7),
    (1e-6, 1e-6, -16.300_631_083_676_993, -8.331_551_571_616_288e-8),
    (1e-6, 3.7e-5, -706.458_452_221_234_8, 0.0),
    (0.001, 0.01, -62.455_877_437_764_09, -7.512_025_722_358_202e-28),
    (0.25, 0.9263, -11.512_254_952_899_248, -0.000_010_006_757_436_574_692),
    (0.5, 0.1, -1.837_214_006_084_878, -0.173_473_426_107_403_38),
    (1.0, 5.0, -14.361_320_786_606_816, -5.793_723_370_280_694e-7),
    (1.0, 0.0, -0.959_916_333_695_622_3, -0.482_764_581_033_673_3),
    (1.5, 40.0, -342.920_522_209_183_4, 0.0),
    (5.0, 12.5, -0.860_192_349_749_233, -0.550_052_874_983_967_5),
    (5.0, 100.0, -158.417_925_673_341_07, 0.0),
    (5.0, 0.5, -0.016_010_014_832_908_787, -4.142_535_152_911_503),
    (20.0, 1000.0, -805.707_747_545_284_3, 0.0),
    (30.0, 1000.0, -172.364_639_137_491_45, 0.0),
    (40.0, 700.0, -0.006_699_144_232_918_063, -5.009_123_189_351_336),
    (10.0, 5.0, -6.215_993_399_515_113_5e-6, -11.988_388_114_748_65),
    (1000.0, 500_000.0, -0.693_945_382_801_532_8, -0.692_349_614_937_059_6),
    (1000.0, 504_260.0, -11.495_497_378_561_579, -0.000_010_175_860_190_156_143),
];

#[test]
fn oracle_matches_closed_form() {
    let mut worst: f64 = 0.0;
    for (mu, epsilon, expected_ln, _) in PROFILE {
        let ln_delta = oracle::ln_delta(mu, epsilon);
        assert!(
            (ln_delta - expected_ln).abs() < 1e-14 * (10.0 + expected_ln.abs()),
            "{mu} {epsilon}: {ln_delta}, not {expected_ln}"
        );
        worst = worst.max((ln_delta - expected_ln).abs());
    }
    println!("the oracle's ln delta is off by {worst:.1e}");
    // At epsilon 0, delta is the total variation distance of the two Gaussians.
    for mu in [1e-6, 1e-3, 0.1, 1.0, 3.0, 8.0] {
        let distance = libm::erf(mu / 8f64.sqrt());
        assert!((oracle::ln_delta(mu, 0.0) - distance.ln()).abs() < 2e-14, "mu = {mu}");
    }
}

/// The computed delta is not below the closed form, and exceeds it by at most the allowed rounding error,
/// which is largest where `a` is a difference of large numbers.
#[test]
fn delta_matches_closed_form() {
    let mut worst: f64 = 0.0;
    for (mu, epsilon_value, exact_ln, exact_ln_complement) in PROFILE.into_iter().filter(|row| row.1 > 0.0) {
        let account_delta = composition_of_mu(mu).delta(epsilon(epsilon_value));
        if exact_ln < -745.0 {
            assert_eq!(account_delta, f64::from_bits(1), "delta is not the smallest float");
            continue;
        }
        let excess = if exact_ln < -0.4 {
            libm::log(account_delta) - exact_ln
        } else {
            exact_ln_complement - libm::log(1.0 - account_delta)
        };
        assert!(
            excess > -1e-14 * (1.0 + exact_ln.abs()),
            "{mu} {epsilon_value}: {account_delta:e}, below by {excess}"
        );
        assert!(excess < 1e-10, "{mu} {epsilon_value}: {account_delta:e}, above by {excess}");
        worst = worst.max(excess);
    }
    println!("ln delta is above by {worst:.1e} at most");
}

/// Compares the exact, the Renyi and the classical epsilon with a table. The exact values also equal those of
/// a privacy loss distribution accountant.
#[test]
fn account_matches_golden_table() {
    for (count, z, exact_epsilon, renyi_epsilon, classical_epsilon) in [
        (1, 4.0, 0.926_341_503_998, 1.012_286_638, 1.230_881_478),
        (100, 20.0, 1.993_091_404_42, 2.165_715_545, 2.524_262_956),
        (50, 10.0, 2.943_225_239_8, 3.188_971_159, 3.643_070_212),
    ] {
        let (account, delta) = (compose_repeated(z, count), delta(1e-5));
        let account_epsilon = account.epsilon(delta);
        assert!((account_epsilon - exact_epsilon).abs() < 1e-11, "{account_epsilon}, not {exact_epsilon}");
        let bound = renyi::epsilon(account, delta);
        assert!((bound.epsilon - renyi_epsilon).abs() < 1e-9, "{bound:?}, not {renyi_epsilon}");
        // Classical conversion of zCDP (Mironov 2017), on which the calibration of the FedPower paper is
        // based.
        let mu: f64 = account.mu();
        assert!((0.5 * mu * mu + mu * (2.0 * 1e5f64.ln()).sqrt() - classical_epsilon).abs() < 1e-9);
        println!(
            "T = {count}, z = {z}: {account_epsilon:.4}, Renyi {:.4} at order {:.2}",
            bound.epsilon, bound.order
        );
    }
    // Other libraries use the orders 1.1, 1.2, ..., 10.9, 11, 12, ..., 63. The results agree to the four
    // digits that they print.
    let orders = || (1..100).map(|tenth| 1.0 + f64::from(tenth) / 10.0).chain((11..64).map(f64::from));
    for (count, z, printed) in [(1, 4.0, 1.0126), (100, 20.0, 2.1657), (50, 10.0, 3.1890)] {
        let epsilon_at_order =
            |order| renyi::epsilon_at(compose_repeated(z, count), delta(1e-5), order).unwrap().epsilon;
        let best_epsilon = orders().map(epsilon_at_order).fold(f64::INFINITY, f64::min);
        assert!((best_epsilon - printed).abs() < 0.5e-4, "{best_epsilon}, not {printed}");
    }
    assert_eq!(
        renyi::epsilon_at(compose_repeated(4.0, 1), delta(1e-5), 1.0),
        Err(ParameterError::Order(1.0))
    );
}

#[test]
fn epsilon_bounds_oracle_tightly() {
    let mut worst: f64 = 0.0;
    let mut zeros: u32 = 0;
    for index in 0..1000 {
        let random = &mut stream(7, Purpose::Test, index);
        let count = random_magnitude(random, 0.0, 4.0) as u32;
        // `mu` is from 1e-6 to 1e3, and delta is down to 1e-300. A third of the pairs are in the usual range.
        let (mu, delta_value) = if index % 3 == 0 {
            (random_magnitude(random, -2.0, 1.0), random_magnitude(random, -10.0, -2.0))
        } else {
            (random_magnitude(random, -6.0, 3.0), random_magnitude(random, -300.0, -0.2))
        };
        let z = f64::from(count).sqrt() / mu;
        let account = compose_repeated(z, count);
        let (account_epsilon, exact_epsilon) =
            (account.epsilon(delta(delta_value)), oracle::epsilon(f64::from(count).sqrt() / z, delta_value));
        assert!(
            account_epsilon >= exact_epsilon,
            "T = {count}, z = {z}, delta = {delta_value:e}: {account_epsilon} below {exact_epsilon}"
        );
        zeros += u32::from(exact_epsilon == 0.0);
        assert!(
            account_epsilon <= exact_epsilon * (1.0 + 1e-4),
            "T = {count}, z = {z}, delta = {delta_value:e}: {account_epsilon} above {exact_epsilon}"
        );
        if exact_epsilon > 0.0 {
            worst = worst.max(account_epsilon / exact_epsilon - 1.0);
        }
        // The inverse computation: delta at this epsilon equals the requested delta.
        if account_epsilon > 0.0 {
            let recomputed_delta = account.delta(epsilon(account_epsilon));
            assert!(
                recomputed_delta <= delta_value * (1.0 + 1e-9)
                    && recomputed_delta >= delta_value * (1.0 - 1e-9),
                "{recomputed_delta:e}, not {delta_value:e}"
            );
        }
    }
    println!("epsilon is above by a part of {worst:.1e} at most; it is 0 in {zeros} of 1000");
    assert!(zeros < 200);
}

#[test]
fn calibrated_noise_meets_budget_tightly() {
    let mut worst: f64 = 0.0;
    for index in 0..200 {
        let random = &mut stream(8, Purpose::Test, index);
        let count = releases(random_magnitude(random, 0.0, 5.0) as u32);
        let (budget, delta_value) =
            (random_magnitude(random, -4.0, 3.0), random_magnitude(random, -30.0, -0.5));
        let z = noise_multiplier(epsilon(budget), delta(delta_value), count).unwrap();
        let spent = Composition::repeated(z, count).epsilon(delta(delta_value));
        assert!(spent <= budget, "{spent} over {budget}");
        assert!(spent >= budget * (1.0 - 1e-6), "{spent} leaves of {budget}, delta = {delta_value:e}");
        worst = worst.max(1.0 - spent / budget);
        let exact_epsilon = oracle::epsilon(f64::from(count.get()).sqrt() / z.get(), delta_value);
        assert!(exact_epsilon <= budget, "{exact_epsilon} over {budget}");
        // The noise allows exactly the number of releases for which it was calibrated.
        assert_eq!(max_releases(z, epsilon(budget), delta(delta_value)), count.get());
        // Theorem 6 of the FedPower paper requires more noise.
        assert!(paper_multiplier(epsilon(budget), delta(delta_value), count) > z.get());
    }
    println!("calibrated noise leaves a part of {worst:.1e} of epsilon at most");
}

#[test]
fn max_releases_is_largest_within_budget() {
    for (z, budget) in [(4.0, 1.0), (20.0, 1.0), (100.0, 0.5), (3.0, 10.0), (1000.0, 8.0)] {
        let max_count = max_releases(multiplier(z), epsilon(budget), delta(1e-5));
        assert!(max_count > 0 && compose_repeated(z, max_count).epsilon(delta(1e-5)) <= budget);
        assert!(compose_repeated(z, max_count + 1).epsilon(delta(1e-5)) > budget);
    }
    assert_eq!(max_releases(multiplier(1.0), epsilon(0.5), delta(1e-5)), 0);
    assert_eq!(max_releases(multiplier(1e9), epsilon(1.0), delta(1e-5)), u32::MAX);
}

/// Uses the setting of the paper's Model I: n = 2 000 000 records on m = 20 machines, rank 5, T = 10, delta =
/// 1e-4.
#[test]
fn paper_calibration_adds_six_to_nine_times_the_noise() {
    let products = Products::new(5, 20.0 / 2e6).unwrap();
    let (paper, tight) = (Calibration::Paper, Calibration::Tight);
    let sensitivities = products.sensitivity(paper) / products.sensitivity(tight);
    assert!(
        (sensitivities - 10f64.sqrt()).abs() < 1e-14,
        "the sensitivities do not differ by 2 sqrt 5 / sqrt 2"
    );
    for (budget, z_paper, z_tight, ratio) in [
        (0.5, 54.289_123_395_3, 18.637_793_464_2, 9.2112),
        (1.0, 27.144_561_697_7, 10.074_077_397_1, 8.5207),
        (10.0, 2.714_456_169_77, 1.439_674_751_78, 5.9624),
    ] {
        let noise =
            |calibration| products.noise(calibration, epsilon(budget), delta(1e-4), releases(10)).unwrap();
        let multiplier_of = |calibration| noise(calibration) / products.sensitivity(calibration);
        assert!(
            (multiplier_of(paper) / z_paper - 1.0).abs() < 1e-10
                && (multiplier_of(tight) / z_tight - 1.0).abs() < 1e-10
        );
        assert!((noise(paper) / noise(tight) - ratio).abs() < 0.5e-4);
        println!(
            "epsilon {budget}: nu = {:.4e} and {:.4e}, ratio {:.1}",
            noise(paper),
            noise(tight),
            noise(paper) / noise(tight)
        );
    }
    assert_eq!(Calibration::default().as_str(), "tight");
    assert_eq!(Products::new(0, 1.0), Err(ParameterError::Rank(0)));
    assert_eq!(Products::new(5, 0.0), Err(ParameterError::Weight(0.0)));
}

/// Compares the sensitivity with `|(u u^T - v v^T) Z|` for random records `u` and `v` in the unit ball and
/// random bases `Z` in 6 dimensions.
#[test]
fn tight_sensitivity_is_attained_and_never_exceeded() {
    const D: usize = 6;
    let dot = |x: &[f64; D], y: &[f64; D]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
    let product_change = |u: &[f64; D], v: &[f64; D], basis: &[[f64; D]]| {
        let column =
            |z: &[f64; D]| (0..D).map(|i| (u[i] * dot(u, z) - v[i] * dot(v, z)).powi(2)).sum::<f64>();
        basis.iter().map(column).sum::<f64>().sqrt()
    };
    for rank in 1..=5u32 {
        let products = Products::new(rank, 1.0).unwrap();
        let (tight, paper) =
            (products.sensitivity(Calibration::Tight), products.sensitivity(Calibration::Paper));
        assert!(tight < paper);
        let mut largest_change: f64 = 0.0;
        for index in 0..20_000 {
            let random = &mut stream(9, Purpose::Test, index);
            let mut vector = || {
                let x: [f64; D] = std::array::from_fn(|_| random.normal());
                x.map(|value| value / dot(&x, &x).sqrt())
            };
            let mut u = vector();
            let mut v = vector();
            let mut basis: Vec<[f64; D]> = Vec::new();
            while basis.len() < rank as usize {
                let mut z = vector();
                for _ in 0..2 {
                    for column in &basis {
                        let along = dot(&z, column);
                        z.iter_mut().zip(column).for_each(|(z, column)| *z -= along * column);
                    }
                }
                basis.push(z.map(|value| value / dot(&z, &z).sqrt()));
            }
            match index % 3 {
                0 => u = u.map(|value| value * 0.5),
                1 => v = basis[0],
                _ => {}
            }
            largest_change = largest_change.max(product_change(&u, &v, &basis));
            // This pair of records attains the bound: two basis vectors, or for one column the basis vector
            // and zero.
            let attained_change = match basis.get(1) {
                Some(second) => product_change(&basis[0], second, &basis),
                None => product_change(&basis[0], &[0.0; D], &basis),
            };
            assert!((attained_change - tight).abs() < 1e-12);
        }
        assert!(largest_change <= tight + 1e-12, "rank {rank}: {largest_change} over {tight}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn cost_grows_with_releases_and_shrinks_with_noise_and_delta(
        count in 1u32..10_000, z in -1.0f64..3.0, delta_value in -100.0f64..-0.5, extra_releases in 1u32..50,
        factor in 0.01f64..0.99
    ) {
        let (z, delta_value) = (libm::pow(10.0, z), libm::pow(10.0, delta_value));
        let spent = |count, z, delta_value| compose_repeated(z, count).epsilon(delta(delta_value));
        let reference = spent(count, z, delta_value);
        let higher_costs = [
            spent(count + extra_releases, z, delta_value),
            spent(count, z * factor, delta_value),
            spent(count, z, delta_value * factor),
        ];
        for higher_cost in higher_costs {
            prop_assert!(
                higher_cost > reference || (higher_cost == reference && reference == 0.0),
                "{higher_cost} {reference}"
            );
        }
        let cost = |budget: f64| compose_repeated(z, count).delta(epsilon(budget));
        for budget in [1e-3, 1.0, 30.0] {
            let (smaller_delta, larger_delta) = (cost(budget * factor), cost(budget));
            prop_assert!(
                smaller_delta > larger_delta
                    || (smaller_delta == larger_delta && !(1e-300..=1.0 - 1e-10).contains(&smaller_delta)),
                "{smaller_delta} {larger_delta}"
            );
        }
        // A smaller epsilon requires more noise.
        let noise =
            |budget| noise_multiplier(epsilon(budget), delta(delta_value), releases(count)).unwrap().get();
        prop_assert!(noise(factor) > noise(1.0));
    }

    #[test]
    fn renyi_account_bounds_exact_one_with_best_order(
        mu in -6.0f64..3.0, delta_exponent in -300.0f64..-0.01, order_excess in 0.001f64..1000.0
    ) {
        let (account, delta) =
            (composition_of_mu(libm::pow(10.0, mu)), delta(libm::pow(10.0, delta_exponent)));
        let bound = renyi::epsilon(account, delta);
        prop_assert!(bound.epsilon >= account.epsilon(delta));
        let other_bound = renyi::epsilon_at(account, delta, 1.0 + order_excess).unwrap();
        prop_assert!(other_bound.epsilon >= bound.epsilon * (1.0 - 1e-12), "{bound:?} {other_bound:?}");
    }

    #[test]
    fn composition_is_order_free_and_one_gaussian(
        releases_with_noise in proptest::collection::vec((-2.0f64..4.0, 1u32..1000), 1..40),
        turn in 0usize..40
    ) {
        let releases_with_noise: Vec<_> = releases_with_noise
            .into_iter()
            .map(|(z, n)| (multiplier(libm::pow(10.0, z)), releases(n)))
            .collect();
        let composition = Composition::new(&releases_with_noise);
        let mut reordered = releases_with_noise.clone();
        reordered.rotate_left(turn % releases_with_noise.len());
        reordered.reverse();
        prop_assert_eq!(Composition::new(&reordered), composition);
        let sum: f64 = releases_with_noise.iter().map(|(z, n)| f64::from(n.get()) / z.get() / z.get()).sum();
        prop_assert!(composition.mu() >= sum.sqrt() && composition.mu() < sum.sqrt() * (1.0 + 1e-13));
        let single = composition_of_mu(sum.sqrt());
        let (composed_epsilon, single_epsilon) =
            (composition.epsilon(delta(1e-6)), single.epsilon(delta(1e-6)));
        prop_assert!(
            (composed_epsilon - single_epsilon).abs() <= 1e-11 * single_epsilon,
            "{composed_epsilon} {single_epsilon}"
        );
        // One more release always increases `mu`.
        let one_more: Vec<_> = releases_with_noise.iter().copied().chain([releases_with_noise[0]]).collect();
        prop_assert!(Composition::new(&one_more).mu() > composition.mu());
    }
}

#[test]
fn account_holds_at_extreme_floats() {
    let delta_1e5 = delta(1e-5);
    // Without releases nothing is spent.
    let nothing = Composition::new(&[]);
    assert_eq!(
        (nothing.mu(), nothing.epsilon(delta_1e5), nothing.delta(epsilon(1.0))),
        (0.0, 0.0, f64::from_bits(1))
    );
    // With so much noise, delta at epsilon 0 is below the given delta, so epsilon is 0.
    for z in [1e6, 1e150, 1e300, f64::MAX] {
        assert_eq!(compose_repeated(z, 1).epsilon(delta_1e5), 0.0, "z = {z}");
        assert!(compose_repeated(z, 1).delta(epsilon(1.0)) < 1e-300);
        assert!(compose_repeated(z, u32::MAX).mu() > 0.0);
    }
    assert!(compose_repeated(1e300, 1).epsilon(delta(1e-305)) > 0.0);
    // With so little noise, epsilon is infinite.
    for z in [1e-10, 1e-160, 1e-308, f64::from_bits(1)] {
        let account = compose_repeated(z, 3);
        assert_eq!(
            (account.epsilon(delta_1e5), account.delta(epsilon(1e3))),
            (f64::INFINITY, 1.0),
            "z = {z}"
        );
        assert!(renyi::epsilon(account, delta_1e5).epsilon > 1e19);
        assert_eq!(max_releases(multiplier(z), epsilon(1e3), delta_1e5), 0);
        let mixed = Composition::new(&[(multiplier(z), releases(1)), (multiplier(1.0), releases(2))]);
        assert_eq!(mixed.epsilon(delta_1e5), f64::INFINITY);
    }
    let huge = compose_repeated(1e-8, 1);
    assert!((huge.epsilon(delta_1e5) / 5e15 - 1.0).abs() < 1e-6);
    // Calibration handles the smallest and the largest budgets.
    for (budget, delta_value) in
        [(f64::MIN_POSITIVE, 1e-300), (f64::MAX, 0.5), (1e-300, 1.0 - 1e-15), (1e300, 1e-300)]
    {
        match noise_multiplier(epsilon(budget), delta(delta_value), releases(3)) {
            Ok(z) => assert!(Composition::repeated(z, releases(3)).epsilon(delta(delta_value)) <= budget),
            Err(error) => assert!(matches!(error, ParameterError::OutOfReach { releases: 3, .. }), "{error}"),
        }
    }
}

#[test]
fn invalid_parameter_is_refused_with_its_value() {
    for invalid in [0.0, -1.0, f64::INFINITY, f64::NEG_INFINITY] {
        assert_eq!(Epsilon::new(invalid), Err(ParameterError::Epsilon(invalid)));
        assert_eq!(NoiseMultiplier::new(invalid), Err(ParameterError::NoiseMultiplier(invalid)));
    }
    for invalid in [0.0, 1.0, -0.1, 2.0, f64::INFINITY] {
        assert_eq!(Delta::new(invalid), Err(ParameterError::Delta(invalid)));
    }
    assert!(matches!(Epsilon::new(f64::NAN), Err(ParameterError::Epsilon(invalid)) if invalid.is_nan()));
    assert!(matches!(Delta::new(f64::NAN), Err(ParameterError::Delta(invalid)) if invalid.is_nan()));
    assert!(
        matches!(NoiseMultiplier::new(f64::NAN), Err(ParameterError::NoiseMultiplier(invalid)) if invalid.is_nan())
    );
    assert_eq!(Releases::new(0), Err(ParameterError::Releases(0)));
    assert_eq!(Delta::new(1.5).unwrap_err().to_string(), "delta is 1.5, must be above 0 and below 1");
}
