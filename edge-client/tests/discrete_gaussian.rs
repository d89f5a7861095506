//! Tests of samples of the discrete Gaussian against its exact distribution, and tests that the same checks
//! detect faulty samplers.
#![cfg(feature = "privacy")]

use crate::law;
use crate::law::{Tally, upper_gamma};
use crate::sampler::{Fault, Reference, box_muller_f32, box_muller_f64, words};
use fedspan_client::privacy::discrete_gaussian::sample;
use fedspan_client::privacy::{Seed, Variance, noise};

/// Variances from the smallest, sigma = 1/4, to the largest, with scales that are powers of two and scales
/// one above.
const VARIANCES: [(u64, u64); 14] = [
    (1, 16),
    (1, 4),
    (1, 1),
    (2, 1),
    (355, 113),
    (289, 4),
    (1000, 1),
    (4095, 1),
    (1 << 12, 1),
    (1 << 20, 1),
    (1 << 40, 1),
    (12_345_678_901_234, 7),
    (1 << 48, 1),
    ((1 << 56) - 1, 1),
];

fn variance((numerator, denominator): (u64, u64)) -> Variance {
    Variance::new(numerator, denominator).unwrap()
}

/// Collects the statistics of `draws` samples.
fn collect_tally(variance: &Variance, draws: u64, mut draw: impl FnMut(u64) -> i64) -> Tally {
    let mut tally = Tally::new(variance, draws);
    for index in 0..draws {
        tally.add(draw(index));
    }
    tally
}

#[test]
fn samples_follow_the_distribution_at_every_scale() {
    for (index, ratio) in VARIANCES.into_iter().enumerate() {
        let variance = variance(ratio);
        let mut words = words(100 + index as u64);
        let tally = collect_tally(&variance, 1_000_000, |_| sample(&variance, &mut words));
        assert_eq!(tally.first_failed_test(), None, "{ratio:?}");
        assert!(tally.largest <= variance.magnitude_max());
        let fit = tally.fit();
        println!("{ratio:?}: chi-square {:.1} of {} degrees, p {:.3}", fit.statistic, fit.degrees, fit.p);
    }
}

/// The average number of words per sample is within the bound that the module's documentation states.
#[test]
fn sample_takes_five_words_on_average_at_most() {
    const DRAWS: u32 = 100_000;
    // Scales just above a power of two reject the largest fraction of uniform integers.
    let most_rejecting = (0..28).map(|bit| (1u64 << (2 * bit), 1));
    for ratio in VARIANCES.into_iter().chain(most_rejecting) {
        let variance = variance(ratio);
        let (mut source, mut words_drawn) = (words(5), 0u32);
        for _ in 0..DRAWS {
            let _ = sample(&variance, || {
                words_drawn += 1;
                source()
            });
        }
        let average = f64::from(words_drawn) / f64::from(DRAWS);
        println!("{ratio:?}: {average:.2} words");
        assert!(average < 5.0, "{ratio:?}: {average}");
    }
}

/// The statistical tests detect faulty samplers, with as many samples as above or fewer, and accept correct
/// ones. (A scale that is off by one needs 4 million samples at a scale of 32, and cannot be detected at
/// 2^20: the unit tests check the digits for such scales.)
#[test]
fn faulty_samplers_are_detected() {
    let reference = |fault, ratio, draws| {
        let variance = variance(ratio);
        let mut reference = Reference::new(fault, ratio, 11);
        collect_tally(&variance, draws, |_| reference.sample()).first_failed_test()
    };
    for ratio in [(1, 16), (1, 1), (289, 4), (1 << 40, 1)] {
        assert_eq!(reference(Fault::None, ratio, 1_000_000), None, "{ratio:?}");
    }
    // Each fault is tested at a variance where it has an effect.
    for (fault, ratio, draws) in [
        (Fault::TrialOneMore, (289, 4), 300_000),
        (Fault::TrialOfOneMore, (289, 4), 300_000),
        (Fault::TrialOfOneMore, (1, 1), 300_000),
        (Fault::TrialOfOneMore, (1000, 1), 300_000),
        (Fault::SeriesStartsAtTwo, (289, 4), 300_000),
        (Fault::BothZeros, (289, 4), 300_000),
        (Fault::BothZeros, (1, 16), 300_000),
        (Fault::ScaleForCentre, (355, 113), 300_000),
        (Fault::WholeExponent, (289, 4), 300_000),
        (Fault::UniformByModulo, (289, 4), 300_000),
        (Fault::OneMoreScale, (289, 4), 300_000),
        (Fault::OneMoreScale, (1000, 1), 4_000_000),
        (Fault::CandidatesEndAtThree, (289, 4), 300_000),
    ] {
        let failed_test = reference(fault, ratio, draws);
        println!("{fault:?} at {ratio:?}: {failed_test:?}");
        assert!(failed_test.is_some(), "{fault:?} at {ratio:?}");
    }
}

/// On a coarse grid, rounded floats do not follow the discrete Gaussian; on a fine grid, rounded f32 do not
/// reach every integer.
#[test]
fn rounded_floats_are_detected() {
    const DRAWS: u64 = 1_000_000;
    for (ratio, single) in
        [((1, 16), false), ((1, 1), false), ((4, 1), false), ((1, 1), true), ((1 << 48, 1), true)]
    {
        let variance = variance(ratio);
        let sigma = (ratio.0 as f64 / ratio.1 as f64).sqrt();
        let mut words = words(17);
        let float_tally = collect_tally(&variance, DRAWS, |_| match single {
            true => (box_muller_f32(&mut words) * sigma as f32).round() as i64,
            false => (box_muller_f64(&mut words) * sigma).round() as i64,
        });
        println!("{ratio:?}, f32 {single}: {:?}", float_tally.first_failed_test());
        assert!(float_tally.first_failed_test().is_some(), "{ratio:?}, f32 {single}");
    }
}

/// Every integer within three sigma is drawn, so each of two neighbours can send it.
#[test]
fn every_integer_is_drawn() {
    for ratio in [(4, 1), (289, 4), (10_000, 1)] {
        let variance = variance(ratio);
        let largest = (3.0 * (ratio.0 as f64 / ratio.1 as f64).sqrt()) as i64;
        let mut seen = vec![false; 2 * largest as usize + 1];
        let mut words = words(23);
        for _ in 0..2_000_000 {
            let x = sample(&variance, &mut words);
            if let Some(seen) = usize::try_from(x + largest).ok().and_then(|index| seen.get_mut(index)) {
                *seen = true;
            }
        }
        assert!(seen.iter().all(|&seen| seen), "{ratio:?}");
    }
}

/// The test statistics equal known values.
#[test]
fn reference_statistics_match_known_values() {
    // 95th and 99.9th percentiles of chi-square with 1, 10 and 100 degrees of freedom.
    for (degrees, statistic, p) in [
        (1.0, 3.841_459, 0.05),
        (10.0, 18.307_038, 0.05),
        (100.0, 124.342_113, 0.05),
        (10.0, 29.588_298, 0.001),
    ] {
        let tail = upper_gamma(degrees / 2.0, statistic / 2.0);
        assert!((tail / p - 1.0f64).abs() < 1e-5, "{tail} instead of {p}");
    }
    // For sigma = 1 the probability of zero is 1 / theta_3(exp(-1/2)).
    let law = law::Law::new(&variance((1, 1)));
    assert!((law.probability(0, 0) - 0.398_942_279_4).abs() < 1e-8);
    assert!((law.tail_probability(7) / 2.0 / 9.134_7e-12 - 1.0).abs() < 1e-3);
    // At sigma = 64, where the implementation changes from sums to integrals, the two agree.
    let sum = law::Law::new(&variance((4095, 1)));
    let integral = law::Law::new(&variance((4096, 1)));
    for from in [-100i64, 0, 50, 200] {
        let ratio = sum.probability(from, i64::MAX / 2) / integral.probability(from, i64::MAX / 2);
        assert!((ratio - 1.0).abs() < 2e-3, "{from}: {ratio}");
    }
}

/// Long test with 3 x 10^8 samples, drawn as devices draw them, each from its own key stream:
/// `cargo test --release -p fedspan-client --features privacy --test all -- discrete_gaussian:: --ignored --nocapture`
#[test]
#[ignore = "minutes"]
fn a_hundred_million_samples_follow_the_distribution() {
    const DRAWS: u64 = 100_000_000;
    let seed = Seed::new(*b"a hundred million samples of it.");
    for ratio in [(1, 16), (289, 4), (1 << 40, 1)] {
        let variance = variance(ratio);
        let tally = collect_tally(&variance, DRAWS, |index| noise(&seed, index, &variance));
        for (name, result) in [
            ("fit", Some(tally.fit())),
            ("symmetry", Some(tally.test_symmetry())),
            ("low bits", tally.low_bits()),
        ] {
            println!("{ratio:?}: {name} {result:?}");
        }
        println!("{ratio:?}: moments off by {:?} standard errors", tally.moment_deviations());
        println!("{ratio:?}: beyond 4, 5, 6 sigma {:?} of {:?}", tally.tails, tally.expected_tails());
        assert!(tally.fit().p > 1e-4 && tally.test_symmetry().p > 1e-4);
        assert_eq!(tally.first_failed_test(), None, "{ratio:?}");
    }
}
