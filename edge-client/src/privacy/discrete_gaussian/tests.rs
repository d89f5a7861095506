//! Tests of the parts of the sampler: exhaustively on short bit strings, against known digits, and in the far
//! tails.

extern crate std;

use std::collections::BTreeMap;
use std::vec::Vec;

use super::*;

/// Returns a SplitMix64 generator of words.
fn words(mut state: u64) -> impl FnMut() -> u32 {
    move || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 32) as u32
    }
}

/// Bits read from a recorded string.
type Tape<'a> = Bits<&'a mut dyn FnMut() -> u32>;

/// Applies `draw` to each of the 2^length bit strings. Returns how often each result occurs, and how many
/// strings are too short. The probability P of a result then satisfies
/// `count / 2^length <= P <= (count + short) / 2^length`, exactly.
fn count_outcomes<T: Ord>(length: u32, mut draw: impl FnMut(&mut Tape<'_>) -> T) -> (BTreeMap<T, u64>, u64) {
    let (mut counts, mut short) = (BTreeMap::new(), 0);
    for prefix in 0..1u32 << length {
        let (mut calls, mut later) = (0, words(prefix.into()));
        let mut tape = || {
            calls += 1;
            // Bits after the end of the string have no effect if they are not read.
            if calls == 1 { prefix | later().unbounded_shl(length) } else { later() }
        };
        let mut bits = Bits::new(&mut tape as &mut dyn FnMut() -> u32);
        let outcome = draw(&mut bits);
        let unread_bits = bits.bits_left;
        if u32::BITS * calls - unread_bits <= length {
            *counts.entry(outcome).or_insert(0) += 1;
        } else {
            short += 1;
        }
    }
    (counts, short)
}

/// Asserts that the probabilities match the counts, and that at most a fraction `max_undecided` of the
/// strings is too short.
fn assert_law<T: Ord + Copy + fmt::Debug>(
    length: u32,
    max_undecided: f64,
    draw: impl FnMut(&mut Tape<'_>) -> T,
    law: impl Fn(T) -> f64,
) {
    let (counts, short) = count_outcomes(length, draw);
    let (total, short) = ((length as f64).exp2(), short as f64);
    assert!(short <= max_undecided * total, "{} undecided", short / total);
    for (&outcome, &count) in &counts {
        let (count, exact) = (count as f64, law(outcome) * total);
        assert!(count <= exact * (1.0 + 1e-12), "{outcome:?}: {count} of {exact}");
        assert!(exact <= (count + short) * (1.0 + 1e-12), "{outcome:?}: {count} and {short} of {exact}");
    }
}

#[test]
fn trials_with_small_denominators_are_exact() {
    for q in 1..=24u128 {
        for p in 0..=q {
            let (counts, short) = count_outcomes(12, |bits| bits.bernoulli(p, q));
            let (yes, no) =
                (counts.get(&true).copied().unwrap_or(0), counts.get(&false).copied().unwrap_or(0));
            if p == q {
                assert_eq!((yes, no, short), (1 << 12, 0, 0));
            } else {
                // The trial succeeds for the bit strings below the first twelve digits of p/q; one string is
                // equal to these digits.
                assert_eq!(u128::from(yes), (p << 12) / q, "{p}/{q}");
                assert_eq!((yes + no, short), ((1 << 12) - 1, 1), "{p}/{q}");
            }
        }
    }
}

/// Tests trials whose probability has known binary digits: the digits of `p / (2^length - 1)` repeat those of
/// p, and the digits of `p / 2^length` are those of p once.
#[test]
fn trials_with_large_denominators_are_exact() {
    let mut random = words(3);
    let mut wide = || (0..4).fold(0u128, |value, _| value << 32 | u128::from(random()));
    for length in [33, 64, 65, 113, 126] {
        for _ in 0..20 {
            let mask = (1u128 << length) - 1;
            let p = wide() & mask;
            let digits: Vec<bool> = (0..length).rev().map(|bit| p >> bit & 1 == 1).collect();
            let recurring: Vec<bool> = digits.iter().copied().cycle().take(300).collect();
            let ended: Vec<bool> =
                digits.iter().copied().chain(core::iter::repeat(false)).take(300).collect();
            for (q, digits) in [(mask, recurring), (mask + 1, ended)] {
                if p == q {
                    continue;
                }
                for (differs, &digit) in digits.iter().enumerate() {
                    let mut used = 0;
                    let mut bits = digits[..differs].iter().copied().chain([!digit]);
                    let mut drawn = Bits::new(|| {
                        let word = bits.by_ref().take(32).enumerate();
                        used += 32;
                        word.fold(0, |word, (position, bit)| word | u32::from(bit) << position)
                    });
                    assert_eq!(drawn.bernoulli(p, q), digit, "{p}/{q}, digit {differs}");
                    let unread_bits = drawn.bits_left as usize;
                    assert_eq!(used - unread_bits, differs + 1);
                }
            }
        }
    }
}

#[test]
fn uniform_integers_are_exact() {
    for n in [1, 2, 3, 5, 6, 7, 8, 11, 1000, 1024] {
        let (counts, _) = count_outcomes(14, |bits| bits.below(n));
        assert_eq!(counts.len(), n as usize);
        let first = counts[&0];
        assert!(counts.values().all(|&count| count == first), "{n}: {counts:?}");
    }
}

#[test]
fn exponentials_are_exact_to_22_bits() {
    let exponents =
        [(0, 1), (1, 7), (1, 3), (1, 2), (3, 4), (1, 1), (4, 3), (5, 2), (7, 2), (1u128 << 112, 1 << 113)];
    for (p, q) in exponents {
        let yes = (-(p as f64) / q as f64).exp();
        assert_law(22, 5e-3, |bits| bits.exponential(p, q), |outcome| if outcome { yes } else { 1.0 - yes });
    }
}

#[test]
fn laplace_is_exact_to_22_bits() {
    for scale in [1, 2, 3] {
        let ratio = (-1.0 / f64::from(scale)).exp();
        let zero = (1.0 - ratio) / (1.0 + ratio);
        let law = |(magnitude, negative): (u64, bool)| {
            assert!(magnitude != 0 || !negative);
            zero * ratio.powi(magnitude as i32)
        };
        assert_law(22, 0.25, |bits| bits.laplace(scale), law);
    }
}

/// Tests values beyond 6 sigma, which occur once in 500 million samples. Their probability is the product of
/// two factors that can be counted: the probability of the candidate, and the probability of its acceptance.
#[test]
fn tails_beyond_six_sigma_are_exact() {
    const DRAWS: u32 = 10_000_000;
    let mut bits = Bits::new(words(7));
    let assert_near = |count: u32, probability: f64| {
        let expected = f64::from(DRAWS) * probability;
        let deviation = (f64::from(count) - expected).abs();
        assert!(expected > 5.0 && deviation < 5.0 * expected.sqrt(), "{count} instead of {expected}");
    };
    // For sigma = 10 and t = 11: candidates of at least 60, at least 110, and at least 13 t = 143.
    let mut beyond = [0; 3];
    let from = [60, 110, 143];
    for _ in 0..DRAWS {
        let (magnitude, _) = bits.laplace(11);
        for (count, from) in beyond.iter_mut().zip(from) {
            *count += u32::from(magnitude >= from);
        }
    }
    let ratio = (-1.0f64 / 11.0).exp();
    for (count, from) in beyond.into_iter().zip(from) {
        assert_near(count, 2.0 * ratio.powi(from as i32) / (1.0 + ratio));
    }
    // Probabilities of accepting candidates of 6.0, 6.1 and 6.2 sigma.
    for magnitude in [60u32, 61, 62] {
        let distance = u128::from(magnitude) * 11 - 100;
        let divisor = 2 * 100 * 121;
        let accepted = (0..DRAWS).filter(|_| bits.exponential(distance * distance, divisor)).count();
        let deviation = f64::from(magnitude) - 100.0 / 11.0;
        assert_near(accepted as u32, (-deviation * deviation / 200.0).exp());
    }
}

/// Returns the bits of a candidate with scale 1 and remainder 0: `high` successful trials of exp(-1), a
/// failed trial if `high` is below 64, and a sign.
fn candidate(high: usize) -> Vec<bool> {
    let mut bits = Vec::from([true]);
    // The trial with probability 1/2 succeeds and the trial with 1/3 fails: an odd number.
    bits.extend([false, true].repeat(high));
    if high < 64 {
        // The trial with probability 1/2 fails.
        bits.extend([true, true]);
    }
    bits.push(false);
    bits
}

#[test]
fn candidates_of_64_scales_are_rejected() {
    for (tape, magnitude) in [(candidate(63), 63), ([candidate(64), candidate(5)].concat(), 5)] {
        let mut next = tape.iter().copied();
        let mut words = 0;
        let mut bits = Bits::new(|| {
            words += 1;
            next.by_ref()
                .take(32)
                .enumerate()
                .fold(0, |word, (position, bit)| word | u32::from(bit) << position)
        });
        assert_eq!(bits.laplace(1), (magnitude, false));
        let unread_bits = bits.bits_left as usize;
        assert_eq!(32 * words - unread_bits, tape.len());
    }
}

#[test]
fn variances_out_of_bounds_are_rejected() {
    let scale = |numerator, denominator| Variance::new(numerator, denominator).unwrap().scale;
    assert_eq!(scale(1, 16), 1);
    assert_eq!(scale(1, 1), 2);
    assert_eq!(scale(399, 100), 2);
    assert_eq!(scale(4, 1), 3);
    assert_eq!(scale(1 << 48, 1), (1 << 24) + 1);
    assert_eq!(scale((1 << 56) - 1, 1), 1 << 28);
    assert_eq!(scale(1 << 52, 1 << 56), 1);
    assert_eq!(Variance::new((1 << 56) - 1, 1).unwrap().magnitude_max(), (1 << 34) - 1);
    assert_eq!(Variance::new(7, 0), Err(VarianceError::ZeroDenominator { numerator: 7 }));
    for (numerator, denominator) in [(0, 1), (1, 17), ((1 << 52) - 1, 1 << 56)] {
        let error = VarianceError::TooSmall { numerator, denominator };
        assert_eq!(Variance::new(numerator, denominator), Err(error));
    }
    for (numerator, denominator) in
        [(1 << 56, 1), (u64::MAX, 1), (1 << 56, (1 << 56) + 1), (u64::MAX, u64::MAX), (256 << 48, 256)]
    {
        let error = VarianceError::TooLarge { numerator, denominator };
        assert_eq!(Variance::new(numerator, denominator), Err(error));
    }
}

/// Tests the largest numbers that occur, with overflow checks: the outermost candidates, at the limits of the
/// variance.
#[test]
fn largest_numbers_do_not_overflow() {
    let edges = [(1, 16), (1 << 52, 1 << 56), ((1 << 56) - 1, 1 << 56), ((1 << 56) - 1, 1), (255 << 48, 255)];
    for (numerator, denominator) in edges {
        let variance = Variance::new(numerator, denominator).unwrap();
        let slope = variance.denominator.checked_mul(variance.scale.into()).unwrap();
        let weight = u128::from(slope) * u128::from(variance.scale);
        assert!(weight <= WEIGHT_MAX && u128::from(numerator) < WEIGHT_MAX);
        let max_product = variance.magnitude_max().checked_mul(slope).unwrap();
        assert!(max_product < 1 << 62);
        let distance = u128::from(max_product.abs_diff(numerator));
        let divisor = 2 * u128::from(numerator) * weight;
        assert!(distance.checked_mul(distance).unwrap() < 1 << 124 && divisor < 1 << 113 && divisor > 0);
    }
}
