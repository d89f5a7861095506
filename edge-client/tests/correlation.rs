//! Tests of the correlation between noise and the work of drawing it, and of the correlation that remains in
//! the time at which an update is sent. Work is counted in words and in blocks of the key stream; the number
//! of instructions is nearly proportional to the words.
//!
//! Sampling is by rejection, so the number of words depends slightly on the magnitude of the noise: the
//! correlation is 0.03 to 0.09. An observer cannot see this only because each update is sent at the end of a
//! time slot, which every device with noise has.
#![cfg(feature = "privacy")]

use crate::common::priced_task::priced_bench;
use crate::common::problem::{Problem, create_problem, gradient_task};
use crate::common::server::{Flash, payload};
use crate::sampler::words;
use fedspan_client::privacy::Variance;
use fedspan_client::privacy::discrete_gaussian::sample;
use fedspan_client::session::Event;
use fedspan_protocol::message::ToServer;
use fedspan_protocol::tensor::Encoding;

/// Number of words in a block of ChaCha20, which is computed as a whole.
const BLOCK: u32 = 16;

/// Standard deviations `z sqrt 2 2^15` for z = 1/2, 1, 4 and 8, and two next to a power of two, at which the
/// fewest and the most uniform integers are rejected.
const SIGMAS: [u64; 6] = [23_171, 46_341, 185_364, 370_728, (1 << 19) - 1, (1 << 19) + 1];

/// Draws a sample, and returns it with the number of words taken.
fn draw_counted(variance: &Variance, words: &mut impl FnMut() -> u32) -> (i64, u32) {
    let mut words_taken = 0;
    let value = sample(variance, || {
        words_taken += 1;
        words()
    });
    (value, words_taken)
}

/// Returns Pearson's correlation of pairs, or 0 if one of the two variables is constant.
fn pearson_correlation(pairs: &[(f64, f64)]) -> f64 {
    let n = pairs.len() as f64;
    let (a, b) = pairs.iter().fold((0.0, 0.0), |(a, b), pair| (a + pair.0 / n, b + pair.1 / n));
    let [mut ab, mut aa, mut bb] = [0.0; 3];
    for pair in pairs {
        let (a, b) = (pair.0 - a, pair.1 - b);
        ab += a * b;
        aa += a * a;
        bb += b * b;
    }
    if aa == 0.0 || bb == 0.0 { 0.0 } else { ab / (aa * bb).sqrt() }
}

/// Checks the correlations of noise and work over `draws` samples for each standard deviation.
fn check_correlations(draws: usize) {
    let chance = 5.0 / (draws as f64).sqrt();
    for sigma in SIGMAS {
        let variance = Variance::new(sigma * sigma, 1).unwrap();
        let mut words = words(sigma);
        let samples: Vec<(i64, u32)> = (0..draws).map(|_| draw_counted(&variance, &mut words)).collect();
        let correlation_of = |work: fn(u32) -> u32, noise: fn(i64) -> i64| {
            let pairs = samples.iter().map(|&(x, words)| (f64::from(work(words)), noise(x) as f64));
            pearson_correlation(&pairs.collect::<Vec<_>>())
        };
        let (sign, magnitude) =
            (correlation_of(|words| words, |x| x), correlation_of(|words| words, i64::abs));
        let (block_sign, block) =
            (correlation_of(|w| w.div_ceil(BLOCK), |x| x), correlation_of(|w| w.div_ceil(BLOCK), i64::abs));
        println!(
            "sigma {sigma}: words and noise {sign:.4}, and its magnitude {magnitude:.4}; blocks {block_sign:.4}, {block:.4}"
        );
        assert!(sign.abs() < chance && block_sign.abs() < chance, "sigma {sigma}: {sign}, {block_sign}");
        assert!(block.abs() < 0.01 + chance, "sigma {sigma}: {block}");
        assert!(magnitude < 0.1, "sigma {sigma}: {magnitude}");
    }
}

/// The number of words is independent of the sign and slightly correlated with the magnitude; the number of
/// blocks hardly is.
#[test]
fn work_is_independent_of_the_sign_and_little_correlated_with_the_magnitude() {
    check_correlations(500_000);
}

/// Long test:
/// `cargo test --release -p fedspan-client --all-features --test all -- correlation:: --ignored --nocapture`
#[test]
#[ignore = "minutes"]
fn work_of_ten_million_samples_is_little_correlated() {
    check_correlations(10_000_000);
}

/// Returns the time from the start of a computation that takes
/// `computing_time` milliseconds until its update is sent.
fn time_until_update(problem: &Problem, slot: u64, computing_time: u64) -> u64 {
    let mut bench = priced_bench(problem, 4096, Some(1000), slot, &Flash::default());
    bench.connect(7, 60_000);
    let start = bench.now;
    let mut sent = Vec::new();
    for (message, body) in problem.server(1, gradient_task(), Encoding::F32, 4096).opening_messages() {
        sent.extend(bench.handle_event(Event::Message(&payload(&message, &body))));
    }
    // The computation of the fake task takes no time, so the clock is advanced by its duration here.
    bench.now += computing_time;
    for _ in 0..100 {
        if sent.iter().any(|(message, _)| matches!(message, ToServer::Update(_))) {
            return bench.now - start;
        }
        sent = bench.handle_until_idle(Event::Tick);
        if sent.is_empty() {
            bench.now = bench.last.wake.as_u64().max(bench.now);
        }
    }
    panic!("no update");
}

/// Whole rounds of 32 x 4 numbers take one millisecond per word; the time of sending does not depend on the
/// noise.
#[test]
fn time_of_sending_in_a_slot_is_independent_of_the_noise() {
    const NUMBERS: usize = 32 * 4;
    const ROUNDS: usize = 4_000;
    let problem = create_problem(6, 2, 1);
    let variance = Variance::new(46_341 * 46_341, 1).unwrap();
    let mut words = words(9);
    let rounds: Vec<(u64, Vec<f64>)> = (0..ROUNDS)
        .map(|_| {
            let samples: Vec<(i64, u32)> =
                (0..NUMBERS).map(|_| draw_counted(&variance, &mut words)).collect();
            let computing_time = samples.iter().map(|&(_, words)| u64::from(words)).sum();
            (computing_time, samples.iter().map(|&(x, _)| x.abs() as f64).collect())
        })
        .collect();
    // The first list has the times at which updates would be sent without a slot, the second one those with a
    // slot.
    let times_without_slot: Vec<f64> =
        rounds.iter().map(|&(computing_time, _)| computing_time as f64).collect();
    let times_with_slot: Vec<f64> = rounds
        .iter()
        .map(|&(computing_time, _)| time_until_update(&problem, 5_000, computing_time) as f64)
        .collect();
    let correlation_with = |times: &[f64], noise: &dyn Fn(&[f64]) -> f64| {
        let pairs = times.iter().zip(&rounds).map(|(&time, (_, noises))| (time, noise(noises)));
        pearson_correlation(&pairs.collect::<Vec<_>>())
    };
    let all_noise = correlation_with(&times_without_slot, &|noises| noises.iter().sum());
    let single =
        (0..NUMBERS).map(|index| correlation_with(&times_without_slot, &|noises| noises[index])).sum::<f64>()
            / NUMBERS as f64;
    println!("without a slot: time and the magnitude of all noise {all_noise:.4}, of one number {single:.4}");
    assert!(all_noise > 0.01, "the test would not detect the correlation");
    assert!(single < 0.01, "{single}");
    assert!(times_with_slot.iter().all(|&time| time == 5_000.0), "the response times differ");
    assert_eq!(correlation_with(&times_with_slot, &|noises| noises.iter().sum()), 0.0);
}
