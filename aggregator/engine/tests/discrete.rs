//! Tests that discrete Gaussian noise costs at most what the account charges. Devices add discrete noise; the
//! account charges continuous noise whose variance is smaller by 16 squared grid units.

use fedspan_engine::privacy::{Composition, Epsilon, NoiseMultiplier, Releases};

/// Difference between the variances of the discrete noise and of the continuous noise that is charged, in
/// squared grid units.
const EXTRA_VARIANCE: f64 = 16.0;

/// Probabilities of the discrete Gaussian from `-reach` to `reach`.
fn discrete_probabilities(variance: f64, reach: i64) -> Vec<f64> {
    let weight = |x: i64| (-(x * x) as f64 / (2.0 * variance)).exp();
    let total: f64 = (-reach..=reach).map(weight).sum();
    (-reach..=reach).map(|x| weight(x) / total).collect()
}

/// Exact delta of discrete noise for a shift by `shift` grid units:
/// `sum max(0, P(x) - e^epsilon P(x - shift))`, except for the tails beyond twelve sigma.
fn one_coordinate(variance: f64, shift: i64, epsilon: f64) -> f64 {
    let reach = (12.0 * variance.sqrt()) as i64 + shift;
    let probabilities = discrete_probabilities(variance, reach);
    let probability = |x: i64| probabilities.get((x + reach) as usize).copied().unwrap_or(0.0);
    (-reach..=reach).map(|x| (probability(x) - epsilon.exp() * probability(x - shift)).max(0.0)).sum()
}

/// Exact delta of discrete noise in two coordinates, except for the tails beyond nine sigma.
fn two_coordinates(variance: f64, shift: (i64, i64), epsilon: f64) -> f64 {
    let reach = (9.0 * variance.sqrt()) as i64 + shift.0.max(shift.1);
    let probabilities = discrete_probabilities(variance, reach);
    let probability = |x: i64| probabilities.get((x + reach) as usize).copied().unwrap_or(0.0);
    let mut sum = 0.0;
    for x in -reach..=reach {
        for y in -reach..=reach {
            sum += (probability(x) * probability(y)
                - epsilon.exp() * probability(x - shift.0) * probability(y - shift.1))
            .max(0.0);
        }
    }
    sum
}

/// Delta that the account charges: that of continuous noise whose variance is smaller by [`EXTRA_VARIANCE`].
fn account_delta(variance: f64, sensitivity: f64, epsilon: f64) -> f64 {
    let multiplier = NoiseMultiplier::new((variance - EXTRA_VARIANCE).sqrt() / sensitivity).unwrap();
    Composition::repeated(multiplier, Releases::new(1).unwrap()).delta(Epsilon::new(epsilon).unwrap())
}

/// Epsilons at which the deltas are compared.
const EPSILONS: [f64; 7] = [0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0];

#[test]
fn discrete_noise_costs_at_most_its_charge() {
    for sigma in [5.0f64, 6.0, 8.0, 12.0, 40.0, 200.0] {
        let variance = sigma * sigma;
        for shift in [1, 2, 3, 5, 11, 40] {
            for epsilon in EPSILONS {
                let exact = one_coordinate(variance, shift, epsilon);
                let charged = account_delta(variance, shift as f64, epsilon);
                // The margin covers the rounding of the sums.
                assert!(
                    exact <= charged + 1e-15,
                    "sigma {sigma}, shift {shift}, epsilon {epsilon}: {exact} over {charged}"
                );
            }
        }
    }
}

#[test]
fn discrete_noise_costs_at_most_its_charge_in_two_coordinates() {
    for sigma in [5.0f64, 7.0, 15.0] {
        for shift in [(1, 1), (3, 4), (0, 7), (5, 12)] {
            let sensitivity = f64::hypot(shift.0 as f64, shift.1 as f64);
            for epsilon in EPSILONS {
                let exact = two_coordinates(sigma * sigma, shift, epsilon);
                let charged = account_delta(sigma * sigma, sensitivity, epsilon);
                assert!(exact <= charged + 1e-14, "{sigma}, {shift:?}, {epsilon}: {exact} over {charged}");
            }
        }
    }
}

/// On a fine grid, discrete noise costs the same as continuous noise. On a coarse grid the extra variance is
/// necessary: without it, discrete noise can be less private than continuous noise of the same variance.
#[test]
fn difference_to_continuous_noise_vanishes_on_fine_grid() {
    let ratio = |sigma: f64| {
        let shift = (sigma / 4.0) as i64;
        one_coordinate(sigma * sigma, shift, 0.5) / account_delta(sigma * sigma, shift as f64, 0.5)
    };
    assert!(ratio(8.0) < 0.75, "{}", ratio(8.0));
    assert!((ratio(2000.0) - 1.0).abs() < 1e-4, "{}", ratio(2000.0));
    let ratio_to_equal_variance = |sigma: f64, shift: i64, epsilon: f64| {
        let multiplier = NoiseMultiplier::new(sigma / shift as f64).unwrap();
        let composition = Composition::repeated(multiplier, Releases::new(1).unwrap());
        one_coordinate(sigma * sigma, shift, epsilon) / composition.delta(Epsilon::new(epsilon).unwrap())
    };
    assert!(ratio_to_equal_variance(1.0, 1, 1.0) > 1.0, "{}", ratio_to_equal_variance(1.0, 1, 1.0));
}

/// Numerical check of the lemma behind the extra variance: rounding continuous noise at random, by a discrete
/// Gaussian around it, gives a discrete Gaussian whose variance is the sum of the two variances, up to a
/// small factor.
#[test]
fn randomly_rounded_continuous_noise_matches_discrete_noise() {
    // The factor in the lemma decreases with the rounding variance: from visible to nearly the rounding error
    // of f64.
    for (rounding, factor) in [(0.25, 2e-2), (1.0, 1e-7), (4.0, 1e-13)] {
        let noise = 9.0;
        let weight = |x: f64, y: f64| (-(x - y) * (x - y) / (2.0 * rounding)).exp();
        let total_weight = |y: f64| (-60..=60).map(|x| weight(f64::from(x), y)).sum::<f64>();
        // The trapezoidal rule is exact to rounding for a smooth density that vanishes at both ends.
        let (step, reach) = (1.0 / 64.0, 40 * 64);
        let rounded_density = |x: f64| {
            (-reach..=reach)
                .map(|i| f64::from(i) * step)
                .map(|y| (-y * y / (2.0 * noise)).exp() * weight(x, y) / total_weight(y))
                .sum::<f64>()
                * step
                / (std::f64::consts::TAU * noise).sqrt()
        };
        let probabilities = discrete_probabilities(noise + rounding, 60);
        for x in 0..15 {
            let relative_error = rounded_density(f64::from(x)) / probabilities[(x + 60) as usize] - 1.0;
            assert!(relative_error.abs() < factor, "variance {rounding}, {x}: {relative_error:e}");
        }
    }
}
