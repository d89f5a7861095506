//! Tests of entropy sources: stuck, biased, periodic, silent or failing sources give no seed; good sources
//! do, and are rarely rejected.
#![cfg(feature = "privacy")]

use std::convert::Infallible;

use fedspan_client::privacy::{
    EntropyError, EntropySource, HealthFailure, HealthTests, MinEntropy, MinEntropyError, SAMPLES, Seed,
    Variance, WINDOW, draw_seed, noise,
};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use sha2::{Digest, Sha256};

/// Entropy source that takes each sample from a function.
struct FunctionSource<F>(F);

impl<F: FnMut() -> u8> EntropySource for FunctionSource<F> {
    type Error = Infallible;

    fn read(&mut self, samples: &mut [u8]) -> Result<(), Infallible> {
        samples.fill_with(&mut self.0);
        Ok(())
    }
}

fn claim_bits(bits: u8) -> MinEntropy {
    MinEntropy::new(bits).unwrap()
}

fn all_claims() -> impl Iterator<Item = MinEntropy> {
    (1..=8).map(claim_bits)
}

/// Returns a number uniform over 2^bits values, which has exactly this min-entropy.
fn draw_bits(random: &mut ChaCha8Rng, bits: u8) -> u8 {
    (random.next_u32() >> (32 - u32::from(bits))) as u8
}

/// Returns noise that depends on the seed, to compare seeds.
fn fingerprint(seed: &Seed) -> [i64; 8] {
    let variance = Variance::new(1 << 48, 1).unwrap();
    std::array::from_fn(|i| noise(seed, i as u64, &variance))
}

/// Returns `P(Binomial(n, p) >= k)`.
fn binomial_tail(n: u32, p: f64, k: u32) -> f64 {
    let ln = |n: u32| libm::lgamma(f64::from(n) + 1.0);
    (k..=n)
        .map(|i| (ln(n) - ln(i) - ln(n - i) + f64::from(i) * p.ln() + f64::from(n - i) * (-p).ln_1p()).exp())
        .sum()
}

#[test]
fn cutoffs_match_the_recommendation() {
    let alpha = 2f64.powi(-20);
    for claim in all_claims() {
        let (bits, p) = (f64::from(claim.bits()), 2f64.powi(-i32::from(claim.bits())));
        assert_eq!(f64::from(claim.repetition_cutoff()), 1.0 + (20.0 / bits).ceil());
        // Definition of the cutoff: C = 1 + critbinom(W, 2^-H, 1 - alpha).
        let (window, cutoff) = (u32::from(WINDOW), u32::from(claim.proportion_cutoff()));
        assert!(binomial_tail(window, p, cutoff) <= alpha, "{bits}");
        assert!(binomial_tail(window, p, cutoff - 1) > alpha, "{bits}");
        // The module's documentation states this bound for the 511 samples after the first one of a window.
        assert!(binomial_tail(window - 1, p, cutoff - 1) <= 3.0 * alpha, "{bits}");
    }
    for bits in [0, 9, 255] {
        assert_eq!(MinEntropy::new(bits), Err(MinEntropyError { bits }));
    }
}

#[test]
fn stuck_source_is_detected_at_the_cutoff() {
    for claim in all_claims() {
        let run = claim.repetition_cutoff();
        for value in [0x00, 0x5A, 0xFF] {
            let failure = HealthFailure::Repetition { run };
            let expected = EntropyError::Health { failure, samples: run.into(), claim };
            assert_eq!(draw_seed(&mut FunctionSource(|| value), claim).unwrap_err(), expected);
        }
        // The source is stuck only at the end, after 990 good samples.
        let (mut random, mut reads) = (ChaCha8Rng::seed_from_u64(1), 0);
        let mut source = FunctionSource(|| {
            reads += 1;
            if reads > 990 { 7 } else { (random.next_u32() as u8).max(8) }
        });
        match draw_seed(&mut source, claim).unwrap_err() {
            EntropyError::Health { failure: HealthFailure::Repetition { run: found }, samples, .. } => {
                assert_eq!((found, samples), (run, 990 + u32::from(run)));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn run_below_the_cutoff_is_accepted() {
    for claim in all_claims() {
        let mut tests = HealthTests::new(claim);
        let run = claim.repetition_cutoff() - 1;
        // Each run has a new value, so that no other test fails.
        for value in 0..20 {
            (0..run).for_each(|_| tests.test(value).unwrap());
        }
        assert_eq!(tests.samples(), 20 * u32::from(run));
    }
}

#[test]
fn proportions_are_counted_from_the_first_sample_of_a_window() {
    for claim in all_claims() {
        let cutoff = claim.proportion_cutoff();
        let (mut tests, mut random) = (HealthTests::new(claim), ChaCha8Rng::seed_from_u64(2));
        let mut last = 0;
        // The other values are never zero and never repeat at once.
        let mut other_value = || {
            last = (last + 1 + random.next_u32() % 200) % 255;
            1 + last as u8
        };
        // Two of three samples are zero, until the count is one below the cutoff.
        let mut zeros = 0;
        for position in 0..WINDOW {
            let zero = position % 3 < 2 && zeros < cutoff - 1;
            zeros += u16::from(zero);
            tests.test(if zero { 0 } else { other_value() }).unwrap();
        }
        assert_eq!(zeros, cutoff - 1);
        // Zeros are not counted in a window that begins with another sample.
        for position in 0..WINDOW {
            tests.test(if position % 3 > 0 { 0 } else { other_value() }).unwrap();
        }
        // In the next window, zeros are counted up to the cutoff.
        let (mut count, mut of) = (0, 0);
        let failure = loop {
            let zero = of % 3 < 2;
            (count, of) = (count + u16::from(zero), of + 1);
            if let Err(failure) = tests.test(if zero { 0 } else { other_value() }) {
                break failure;
            }
            assert!(of < WINDOW);
        };
        assert_eq!((failure, count), (HealthFailure::Proportion { count, of }, cutoff));
    }
}

/// A source with a quarter of the claimed entropy is rejected, because one value is too frequent. For a
/// source with half of the claimed entropy the result is only printed.
#[test]
fn biased_source_is_rejected() {
    const RUNS: u32 = 1000;
    for claim in all_claims() {
        for (share, min_refused) in [(4.0, 900), (2.0, 0)] {
            let p = 2f64.powf(-f64::from(claim.bits()) / share);
            let mut random = ChaCha8Rng::seed_from_u64(6);
            let mut source = FunctionSource(|| {
                let frequent = f64::from(random.next_u32()) < p * 2f64.powi(32);
                if frequent { 0x80 } else { random.next_u32() as u8 }
            });
            let refused = (0..RUNS).filter(|_| draw_seed(&mut source, claim).is_err()).count();
            println!(
                "{} bits claimed, one value of probability {p:.3}: {refused} of {RUNS} refused",
                claim.bits()
            );
            assert!(refused >= min_refused, "{} bits: {refused}", claim.bits());
        }
    }
}

#[test]
fn periodic_source_is_rejected_for_any_period() {
    for bits in [1, 4, 8] {
        for period in 1..=SAMPLES - 32 {
            let mut random = ChaCha8Rng::seed_from_u64(period as u64);
            let cycle: Vec<u8> = (0..period).map(|_| random.next_u32() as u8).collect();
            let mut reads = 0;
            let mut source = FunctionSource(|| {
                reads += 1;
                cycle[(reads - 1) % period]
            });
            match draw_seed(&mut source, claim_bits(bits)).unwrap_err() {
                EntropyError::Health {
                    failure: HealthFailure::Recurrence { period: found },
                    samples,
                    ..
                } => {
                    assert_eq!((found as usize, samples as usize), (period, period + 32));
                }
                // For a short period another test may fail earlier.
                EntropyError::Health { samples, .. } => assert!(samples as usize <= period + 32, "{period}"),
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Sources with exactly the claimed entropy are rejected no more often than the bound of false alarms allows.
#[test]
fn good_sources_are_rarely_rejected() {
    const RUNS: u32 = 10_000;
    let alpha = 2f64.powi(-20);
    let bound = f64::from(RUNS) * (SAMPLES as f64 * alpha + 2.0 * 3.0 * alpha + 2f64.powi(-22));
    for claim in all_claims() {
        let mut random = ChaCha8Rng::seed_from_u64(claim.bits().into());
        let mut refused = 0;
        for _ in 0..RUNS {
            refused += u32::from(
                draw_seed(&mut FunctionSource(|| draw_bits(&mut random, claim.bits())), claim).is_err(),
            );
        }
        println!("{} bits: {refused} of {RUNS} refused, bound {bound:.1}", claim.bits());
        assert!(f64::from(refused) <= bound + 5.0 * bound.sqrt(), "{}: {refused}", claim.bits());
    }
}

/// A seed is the hash of all tested samples, so a change of any sample changes the seed.
#[test]
fn seed_depends_on_all_samples() {
    let mut random = ChaCha8Rng::seed_from_u64(4);
    let samples: Vec<u8> = (0..SAMPLES).map(|_| random.next_u32() as u8).collect();
    let seed_of = |samples: &[u8]| {
        let mut remaining = samples.iter().copied();
        let seed = draw_seed(&mut FunctionSource(|| remaining.next().unwrap()), claim_bits(8)).unwrap();
        assert_eq!(remaining.next(), None);
        fingerprint(&seed)
    };
    let hash = Sha256::new_with_prefix(b"fedspan entropy 1").chain_update(&samples).finalize();
    let expected = fingerprint(&Seed::new(hash.into()));
    assert_eq!(seed_of(&samples), expected);
    for index in (0..SAMPLES).step_by(31) {
        let mut changed_samples = samples.clone();
        changed_samples[index] ^= 1;
        assert_ne!(seed_of(&changed_samples), expected, "{index}");
    }
}

/// Error of a source. Its number shows that the error reaches the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClockError(u8);

impl std::fmt::Display for ClockError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "clock error {}", self.0)
    }
}

/// Source whose read number `fails`, if any, fails, and whose reads write only the first `writes` bytes.
struct Faulty {
    random: ChaCha8Rng,
    reads: u32,
    fails: Option<u32>,
    writes: usize,
}

impl EntropySource for Faulty {
    type Error = ClockError;

    fn read(&mut self, samples: &mut [u8]) -> Result<(), ClockError> {
        let read = self.reads;
        self.reads += 1;
        if self.fails == Some(read) {
            return Err(ClockError(3));
        }
        let writes = self.writes.min(samples.len());
        self.random.fill_bytes(&mut samples[..writes]);
        Ok(())
    }
}

#[test]
fn failed_source_gives_no_seed_and_may_retry() {
    for fails in 0..16 {
        let random = ChaCha8Rng::seed_from_u64(8);
        let mut source = Faulty { random, reads: 0, fails: Some(fails), writes: usize::MAX };
        let error = draw_seed(&mut source, claim_bits(8)).unwrap_err();
        assert_eq!(error, EntropyError::Source { error: ClockError(3), samples: 64 * fails });
        assert_eq!(source.reads, fails + 1, "the failed source was read again in the same draw");
        // The health tests start again with the next draw.
        draw_seed(&mut source, claim_bits(8)).unwrap();
        assert_eq!(source.reads, fails + 1 + 16);
    }
}

#[test]
fn unwritten_samples_are_detected() {
    for writes in [0, 1, 32, 60] {
        let mut source = Faulty { random: ChaCha8Rng::seed_from_u64(9), reads: 0, fails: None, writes };
        let error = draw_seed(&mut source, claim_bits(8)).unwrap_err();
        assert!(
            matches!(error, EntropyError::Health { samples, .. } if samples <= 64),
            "{writes}: {error:?}"
        );
    }
}

#[test]
fn errors_carry_numbers() {
    let error: EntropyError<ClockError> = EntropyError::Source { error: ClockError(3), samples: 128 };
    assert_eq!(error.to_string(), "entropy source failed after 128 samples: clock error 3");
    let error = draw_seed(&mut FunctionSource(|| 9), claim_bits(4)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "entropy source failed after 6 samples: 6 equal samples in a row; claimed are 4 bits a byte \
         (cutoffs 6 in a row, 62 in a window)"
    );
    assert_eq!(
        MinEntropy::new(9).unwrap_err().to_string(),
        "claimed min-entropy is 9 bits a byte; allowed: 1 to 8"
    );
    assert_eq!(Variance::new(1, 17).unwrap_err().to_string(), "variance 1/17 is below 1/16");
}
