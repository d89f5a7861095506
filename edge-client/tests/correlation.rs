//! What the work of drawing noise tells of the noise, and what is left of it where a server could see it. Work is
//! counted in words and blocks of the key stream; instructions follow the words.
//!
//! A word of 32 bits more or less goes with the magnitude, as it must where sampling is by rejection: the correlation
//! is 0.03 to 0.09, not 0. It is hidden by the slot in which an update leaves, and by nothing else; there is always one.
#![cfg(feature = "privacy")]

use crate::common::priced_task::private;
use crate::common::problem::{Problem, gradient, problem};
use crate::common::server::{Flash, payload};
use crate::sampler::words;
use fedspan_client::privacy::Variance;
use fedspan_client::privacy::discrete_gaussian::sample;
use fedspan_client::session::Event;
use fedspan_protocol::message::ToServer;
use fedspan_protocol::tensor::Encoding;

/// Words of a block of ChaCha20, which is made at once.
const BLOCK: u32 = 16;

/// `z sqrt 2 2^15` for z = 1/2, 1, 4, and 8, and those around a power of two, where most and fewest uniform integers are
/// thrown away.
const SIGMAS: [u64; 6] = [23_171, 46_341, 185_364, 370_728, (1 << 19) - 1, (1 << 19) + 1];

/// One sample, and the words it took.
fn counted(variance: &Variance, words: &mut impl FnMut() -> u32) -> (i64, u32) {
    let mut taken = 0;
    let drawn = sample(variance, || {
        taken += 1;
        words()
    });
    (drawn, taken)
}

/// Pearson's, of pairs; 0 where one of the two never changes.
fn correlation(pairs: &[(f64, f64)]) -> f64 {
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

fn within(draws: usize) {
    let chance = 5.0 / (draws as f64).sqrt();
    for sigma in SIGMAS {
        let variance = Variance::new(sigma * sigma, 1).unwrap();
        let mut words = words(sigma);
        let drawn: Vec<(i64, u32)> = (0..draws).map(|_| counted(&variance, &mut words)).collect();
        let of = |work: fn(u32) -> u32, noise: fn(i64) -> i64| {
            let pairs = drawn.iter().map(|&(x, taken)| (f64::from(work(taken)), noise(x) as f64));
            correlation(&pairs.collect::<Vec<_>>())
        };
        let (sign, magnitude) = (of(|words| words, |x| x), of(|words| words, i64::abs));
        let (block_sign, block) = (of(|w| w.div_ceil(BLOCK), |x| x), of(|w| w.div_ceil(BLOCK), i64::abs));
        println!(
            "sigma {sigma}: words and noise {sign:.4}, and its magnitude {magnitude:.4}; blocks {block_sign:.4}, {block:.4}"
        );
        assert!(sign.abs() < chance && block_sign.abs() < chance, "sigma {sigma}: {sign}, {block_sign}");
        assert!(block.abs() < 0.01 + chance, "sigma {sigma}: {block}");
        assert!(magnitude < 0.1, "sigma {sigma}: {magnitude}");
    }
}

/// The sign is one bit of work whatever it is; the magnitude is not; whole blocks hardly know it.
#[test]
fn work_tells_nothing_of_the_sign_and_a_little_of_the_magnitude() {
    within(500_000);
}

/// `cargo test --release -p fedspan-client --all-features --test all -- correlation:: --ignored --nocapture`
#[test]
#[ignore = "minutes"]
fn so_of_ten_million_samples() {
    within(10_000_000);
}

/// When an update leaves, counted from the beginning of its computation, if that takes so long.
fn leaves_after(problem: &Problem, slot: u64, took: u64) -> u64 {
    let mut bench = private(problem, 4096, Some(1000), slot, &Flash::default());
    bench.connect(7, 60_000);
    let opened = bench.now;
    let mut sent = Vec::new();
    for (message, body) in problem.server(1, gradient(), Encoding::F32, 4096).opening() {
        sent.extend(bench.once(Event::Message(&payload(&message, &body))));
    }
    // Where the update is there at once, the clock of whoever computed it stands at its end.
    bench.now += took;
    for _ in 0..100 {
        if sent.iter().any(|(message, _)| matches!(message, ToServer::Update(_))) {
            return bench.now - opened;
        }
        sent = bench.all(Event::Tick);
        if sent.is_empty() {
            bench.now = bench.last.wake.as_u64().max(bench.now);
        }
    }
    panic!("no update");
}

/// Whole rounds of 32 x 4 numbers, computed in a millisecond a word: the time of sending against the noise.
#[test]
fn in_a_slot_the_time_of_sending_tells_nothing() {
    const NUMBERS: usize = 32 * 4;
    const ROUNDS: usize = 4_000;
    let problem = problem(6, 2, 1);
    let variance = Variance::new(46_341 * 46_341, 1).unwrap();
    let mut words = words(9);
    let rounds: Vec<(u64, Vec<f64>)> = (0..ROUNDS)
        .map(|_| {
            let drawn: Vec<(i64, u32)> = (0..NUMBERS).map(|_| counted(&variance, &mut words)).collect();
            let took = drawn.iter().map(|&(_, words)| u64::from(words)).sum();
            (took, drawn.iter().map(|&(x, _)| x.abs() as f64).collect())
        })
        .collect();
    // What would be seen without a slot, and what is seen.
    let bare: Vec<f64> = rounds.iter().map(|&(took, _)| took as f64).collect();
    let slotted: Vec<f64> =
        rounds.iter().map(|&(took, _)| leaves_after(&problem, 5_000, took) as f64).collect();
    let with = |times: &[f64], noise: &dyn Fn(&[f64]) -> f64| {
        let pairs = times.iter().zip(&rounds).map(|(&time, (_, noises))| (time, noise(noises)));
        correlation(&pairs.collect::<Vec<_>>())
    };
    let whole = with(&bare, &|noises| noises.iter().sum());
    let single = (0..NUMBERS).map(|at| with(&bare, &|noises| noises[at])).sum::<f64>() / NUMBERS as f64;
    println!("without a slot: time and the magnitude of all noise {whole:.4}, of one number {single:.4}");
    assert!(whole > 0.01, "the test can see it");
    assert!(single < 0.01, "{single}");
    assert!(slotted.iter().all(|&time| time == 5_000.0), "the same time for all");
    assert_eq!(with(&slotted, &|noises| noises.iter().sum()), 0.0);
}
