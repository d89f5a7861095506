//! Tests that audit the claimed epsilon. The attacker knows everything except the sender (white box: records,
//! basis, variance, the best statistic) and guesses from the uploads which of two neighbours sent them. Under
//! (epsilon, delta)-differential privacy every event has `P <= e^epsilon Q + delta`, where `P` and `Q` are
//! its probabilities for the two neighbours, so counts of the event give a lower bound of epsilon. This bound
//! must not exceed the claim, and it must come close to the claim, because otherwise the audit could not
//! detect a fault. For mechanisms with a fault the bound exceeds the claim.
//!
//! The two neighbours attain the sensitivity. The event is "the statistic reaches a threshold"; the threshold
//! is chosen on one half of the releases, and the event is counted on the other half.
#![cfg(all(feature = "power", feature = "privacy"))]

use crate::attack::{
    Device, Pair, at_least, at_most, claimed_epsilon, normal_quantile, samples_from_rows, unit_vector,
};
use crate::common::power::identity_columns;
use crate::common::private::settings;

/// Error level of each bound: both bounds of an audit hold with a probability of at least 95 %.
const LEVEL: f64 = 0.025;

/// Squared noise multiplier of z = 2, in units of 2^-16.
const SQUARE_OF_TWO: u64 = 4 << 16;

/// Delta at which the claim of one release is 1.36.
const DELTA: f64 = 1e-3;

/// Statistics of the releases of the first neighbour and of the second.
type Statistics = [Vec<f64>; 2];

/// Draws `releases` releases of each neighbour and computes N statistics of each release. The noise differs
/// between the parts of an audit.
fn draw_statistics<const N: usize>(
    audit: u64,
    part: u64,
    releases: u64,
    draw: impl Fn(bool, u64) -> [f64; N],
) -> [Statistics; N] {
    let first = (audit * 2 + part) << 40;
    let releases_of_both = [true, false].map(|neighbour| {
        let start = first + (u64::from(neighbour) << 39);
        (start..start + releases).map(|number| draw(neighbour, number)).collect::<Vec<_>>()
    });
    std::array::from_fn(|index| {
        releases_of_both.each_ref().map(|draws| draws.iter().map(|values| values[index]).collect())
    })
}

/// Counts the statistics that reach a threshold.
fn count_reaching(statistics: &[f64], threshold: f64) -> u64 {
    statistics.iter().filter(|&&statistic| statistic >= threshold).count() as u64
}

/// Returns the lower bound of epsilon from the counts of the event that the statistic reaches `threshold`.
fn epsilon_at_least(statistics: &Statistics, threshold: f64, delta: f64) -> f64 {
    let draws = statistics[0].len() as u64;
    let [p, q] = statistics.each_ref().map(|values| count_reaching(values, threshold));
    let excess = at_least(p, draws, LEVEL) - delta;
    if excess <= 0.0 { 0.0 } else { (excess / at_most(q, draws, LEVEL)).ln().max(0.0) }
}

/// Returns the largest bound and its threshold. The thresholds that are tried cut off a geometric series of
/// fractions of the first neighbour's releases.
fn best_threshold(statistics: &Statistics, delta: f64) -> (f64, f64) {
    let mut sorted = statistics[0].clone();
    sorted.sort_by(f64::total_cmp);
    let mut reaching = sorted.len() as f64;
    let mut best = (f64::NEG_INFINITY, f64::INFINITY);
    while reaching > 10.0 {
        reaching *= 0.9;
        let threshold = sorted[sorted.len() - 1 - reaching as usize];
        let bound = epsilon_at_least(statistics, threshold, delta);
        best = if bound > best.0 { (bound, threshold) } else { best };
    }
    best
}

/// Runs an audit: tries all statistics on the first half of the releases, and counts the event of the best
/// one on the second half.
fn run_audit<const N: usize>(
    number: u64,
    releases: u64,
    delta: f64,
    draw: impl Fn(bool, u64) -> [f64; N],
) -> f64 {
    let first = draw_statistics(number, 0, releases, &draw);
    let tried = first.iter().map(|candidate| best_threshold(candidate, delta)).enumerate();
    let (best, (_, threshold)) = tried.max_by(|(_, a), (_, b)| a.0.total_cmp(&b.0)).unwrap();
    let second = draw_statistics(number, 1, releases, &draw);
    epsilon_at_least(&second[best], threshold, delta)
}

/// Creates the worst pair: the records of one device are `times` copies of the first unit vector, those of
/// the other device are copies of the second, and the basis spans both.
fn worst_pair(square: u64, times: usize) -> Pair {
    let device = |axis| Device {
        samples: samples_from_rows(&vec![unit_vector(2, axis); times]),
        z: identity_columns(2, 2),
        k: 2,
        settings: settings(square, 1 << 15),
    };
    Pair::new(device(0), device(1))
}

/// Returns the epsilon that the privacy account claims for this many releases, from the settings alone.
fn claimed_by_account(square: u64, releases: f64, delta: f64) -> f64 {
    claimed_epsilon((releases * 65_536.0 / square as f64).sqrt(), delta)
}

/// Runs `audits` audits of one release. Checks that the ratio of the bound to the claim is at least 0.8, and
/// that it exceeds 1 no more often than bounds at this level may fail by chance.
fn confirm_claim(audits: u64, square: u64, delta: f64, bound: impl Fn(&Pair, u64) -> f64) {
    let pair = worst_pair(square, 1);
    assert!(pair.mu > 0.999 * (65_536.0 / square as f64).sqrt(), "the pair does not attain the sensitivity");
    let claim = claimed_by_account(square, 1.0, delta);
    let mut shares: Vec<f64> = (0..audits).map(|number| bound(&pair, number) / claim).collect();
    shares.sort_by(f64::total_cmp);
    let (smallest, median) = (shares[0], shares[shares.len() / 2]);
    let largest = shares[shares.len() - 1];
    let exceeding = shares.iter().filter(|&&share| share > 1.0).count() as u64;
    println!(
        "claimed {claim:.4} at delta {delta:e}: {audits} audits confirm {smallest:.3}, {median:.3}, \
         {largest:.3} of it (least, median, most), {exceeding} of them more than all"
    );
    assert!(smallest >= 0.8 && exceeding <= by_chance(audits) && largest < 1.05, "{shares:?}");
}

/// Returns the number of audits that may exceed a correct claim: each does so with a probability of at most
/// `2 LEVEL`.
fn by_chance(audits: u64) -> u64 {
    (audits as f64 * 2.0 * LEVEL) as u64
}

/// Checks two claims by counts of events.
fn confirm_two_claims(audits: u64, releases: u64) {
    for (square, delta) in [(SQUARE_OF_TWO, DELTA), (1 << 16, 1e-2)] {
        confirm_claim(audits, square, delta, |pair, number| {
            run_audit(number, releases, delta, |neighbour, number| {
                [pair.statistic(&pair.device(neighbour).release(number))]
            })
        });
    }
}

#[test]
fn audit_confirms_the_claim() {
    confirm_two_claims(1, 200_000);
}

/// Checks a claim at a delta that is too small for counts. For Gaussian noise the two error rates give a
/// lower bound of `mu`, and with it of epsilon at any delta.
fn confirm_by_guesses(audits: u64, releases: u64) {
    confirm_claim(audits, 16 << 16, 1e-5, |pair, number| {
        let [guesses] = draw_statistics(number, 0, releases, |neighbour, number| {
            [pair.statistic(&pair.device(neighbour).release(number))]
        });
        let [hits, false_alarms] = guesses.each_ref().map(|values| count_reaching(values, 0.0));
        let rates = [releases - hits, false_alarms].map(|count| at_most(count, releases, LEVEL));
        claimed_epsilon(-rates.iter().map(|&rate| normal_quantile(rate)).sum::<f64>(), 1e-5)
    });
}

#[test]
fn error_rates_confirm_the_claim_at_a_small_delta() {
    confirm_by_guesses(1, 300_000);
}

/// Faults of a mechanism. The test builds each faulty mechanism from parts of the shipped code, which cannot
/// be configured to have these faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The noise has half of the claimed multiplier.
    NoiseHalved,
    /// Records have norm 4 and are not clipped; the output is clipped after the noise was added. The device
    /// gets 16 copies of norm 1 of each record, and the test scales its output down to norm 1.
    ClippedAfterNoise,
    /// Two rounds use the same seed.
    SeedReused,
    /// Records have norm 2 and are not clipped. The device gets four copies of norm 1 of each record.
    RecordNotClipped,
}

/// Audits a mechanism with this fault. Returns the bound and the claim.
fn audit_of(fault: Option<Fault>, number: u64, releases: u64) -> (f64, f64) {
    let (square, times) = match fault {
        Some(Fault::NoiseHalved) => (SQUARE_OF_TWO / 4, 1),
        Some(Fault::ClippedAfterNoise) => (SQUARE_OF_TWO, 16),
        Some(Fault::RecordNotClipped) => (SQUARE_OF_TWO, 4),
        _ => (SQUARE_OF_TWO, 1),
    };
    let pair = worst_pair(square, times);
    // The basis of the second round has the two directions in reverse order.
    let reversed_basis = |device: &Device| Device { z: vec![0.0, 1.0, 1.0, 0.0], ..device.clone() };
    let second = Pair::new(reversed_basis(&pair.first), reversed_basis(&pair.second));
    let two_rounds = matches!(fault, None | Some(Fault::SeedReused));
    let bound = run_audit(number, releases, DELTA, |neighbour, number| {
        let mut sent = pair.device(neighbour).release(number);
        if !two_rounds {
            if fault == Some(Fault::ClippedAfterNoise) {
                clip_output(&mut sent, times);
            }
            return [pair.statistic(&sent); 2];
        }
        let second_number = if fault.is_none() { number | 1 << 63 } else { number };
        let second_sent = second.device(neighbour).release(second_number);
        // The first statistic uses both rounds, the second one only their difference, which is free of noise
        // if a seed repeats.
        let (a, b) = (pair.statistic(&sent), second.statistic(&second_sent));
        let difference: Vec<f32> = sent.iter().zip(&second_sent).map(|(a, b)| a - b).collect();
        [a + b, pair.statistic(&difference)]
    });
    (bound, claimed_by_account(SQUARE_OF_TWO, if two_rounds { 2.0 } else { 1.0 }, DELTA))
}

/// Scales an output `A Z` down so that `s A Z` has at most norm 1.
fn clip_output(sent: &mut [f32], rows: usize) {
    let square: f32 = sent.iter().map(|value| value * value).sum();
    let norm = rows as f32 * square.sqrt();
    sent.iter_mut().for_each(|value| *value /= norm.max(1.0));
}

/// Checks that audits exceed the claim for every fault, and not without a fault.
fn assert_faults_are_detected(audits: u64, releases: u64) {
    let faults =
        [Fault::NoiseHalved, Fault::ClippedAfterNoise, Fault::SeedReused, Fault::RecordNotClipped].map(Some);
    for fault in faults.into_iter().chain([None]) {
        let mut smallest = f64::INFINITY;
        let mut exceeding = 0;
        for number in 0..audits {
            let (bound, claim) = audit_of(fault, number, releases);
            exceeding += u64::from(bound > claim);
            smallest = smallest.min(bound / claim);
        }
        println!(
            "{fault:?}: {exceeding} of {audits} audits of 4 x {releases} exceed the claim, \
             {smallest:.2} of it or more"
        );
        match fault {
            Some(_) => assert_eq!(exceeding, audits, "{fault:?}"),
            None => assert!(exceeding <= by_chance(audits), "{exceeding}"),
        }
    }
}

#[test]
fn audit_detects_every_fault() {
    assert_faults_are_detected(1, 20_000);
}

/// Long test:
/// `cargo test --release -p fedspan-client --all-features --test all -- audit:: --ignored --nocapture`
#[test]
#[ignore = "minutes"]
fn twenty_audits_confirm_the_claim_and_detect_every_fault() {
    confirm_two_claims(20, 500_000);
    confirm_by_guesses(20, 500_000);
    assert_faults_are_detected(20, 20_000);
}

/// The confidence bounds have their stated coverage, which is computed exactly over all possible counts.
#[test]
fn probability_bounds_match_clopper_and_pearson() {
    // Values of a table for 5 hits of 10 and 0 of 10.
    assert!(
        (at_least(5, 10, LEVEL) - 0.187_086).abs() < 1e-6 && (at_most(5, 10, LEVEL) - 0.812_914).abs() < 1e-6
    );
    assert!((at_most(0, 10, LEVEL) - 0.308_498).abs() < 1e-6 && at_least(0, 10, LEVEL) == 0.0);
    for (draws, p) in [(30u64, 0.3f64), (30, 0.02), (200, 0.5), (200, 0.004)] {
        let mut misses = [0.0; 2];
        let mut term = (1.0 - p).powi(draws as i32);
        for count in 0..=draws {
            misses[0] += if at_least(count, draws, LEVEL) > p { term } else { 0.0 };
            misses[1] += if at_most(count, draws, LEVEL) < p { term } else { 0.0 };
            term *= (draws - count) as f64 / (count + 1) as f64 * p / (1.0 - p);
        }
        assert!(misses.iter().all(|&miss| miss <= LEVEL), "{draws} {p}: {misses:?}");
    }
}

/// The claim in this file equals that of the privacy account (`aggregator/PRIVACY.md`).
#[test]
fn claims_match_the_privacy_account() {
    for (releases, z, epsilon) in
        [(1.0f64, 4.0, 0.926_341_504), (100.0, 20.0, 1.993_091_404), (50.0, 10.0, 2.943_225_24)]
    {
        assert!((claimed_epsilon(releases.sqrt() / z, 1e-5) - epsilon).abs() < 1e-8);
    }
}
