//! Tests of noise from a seed: it is the same on every host and in any order, differs for each coordinate,
//! and has the right distribution.
#![cfg(feature = "privacy")]

use crate::law::Tally;
use fedspan_client::Release;
use fedspan_client::privacy::discrete_gaussian::sample;
use fedspan_client::privacy::{SEED, Seed, Variance, noise};
use fedspan_protocol::message::RoundId;
use proptest::prelude::*;
use rand_chacha::ChaCha20Rng;
use rand_core::{Rng, SeedableRng};

const COUNTING: [u8; SEED] = {
    let mut bytes = [0; SEED];
    let mut index = 0;
    while index < SEED {
        bytes[index] = index as u8;
        index += 1;
    }
    bytes
};

/// Returns the key stream of a coordinate from an independent ChaCha20. That implementation counts blocks in
/// 64 bits, of which the upper half is the start of the client's nonce.
fn reference_stream(seed: [u8; SEED], coordinate: u64) -> ChaCha20Rng {
    let mut stream = ChaCha20Rng::from_seed(seed);
    stream.set_stream(coordinate);
    stream.set_word_pos(u128::from(u32::from_le_bytes(*b"nois")) << 32 << 4);
    stream
}

/// The expected values are those of a second implementation of cipher and sampler, in another language, with
/// rational numbers and without size limits.
#[test]
fn noise_equals_a_second_implementation() {
    let seed = Seed::new(COUNTING);
    let coordinates = [0, 1, 2, 3, 4, 5, 6, 1 << 32, u64::MAX];
    let golden: [((u64, u64), [i64; 9]); 7] = [
        ((1, 16), [0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ((1, 1), [1, 0, 1, 1, 1, -1, 0, 2, 0]),
        ((355, 113), [1, -1, -2, 1, 1, -1, 0, 2, 0]),
        ((289, 4), [-2, -1, -2, 9, -6, -8, 6, 1, 3]),
        ((1 << 40, 1), [360520, -937355, -391016, -293937, 1418509, 1835248, -1674019, 166297, -525688]),
        (
            (12_345_678_901_234, 7),
            [360520, -937355, -391016, -1621969, 1697964, -1228814, 634434, 166297, 546152],
        ),
        (
            ((1 << 56) - 1, 1),
            [
                206787474, 271273990, -50050111, -37623983, -469293462, 127004091, 475908723, 171590413,
                67288141,
            ],
        ),
    ];
    for ((numerator, denominator), expected) in golden {
        let variance = Variance::new(numerator, denominator).unwrap();
        assert_eq!(coordinates.map(|i| noise(&seed, i, &variance)), expected, "{numerator}/{denominator}");
    }
    let variance = Variance::new(1 << 48, 1).unwrap();
    let sum =
        (0..300).fold(0u64, |sum, i| sum.wrapping_mul(31).wrapping_add_signed(noise(&seed, i, &variance)));
    assert_eq!(sum, 8_611_281_136_691_914_224);
}

/// The expected seeds of releases are HKDF by Python's `hmac` and `hashlib`, from the same drawn seed.
#[test]
fn derived_seed_equals_python() {
    let release = |device, campaign, round, stage, spent| {
        let round = RoundId { round, stage };
        Release { device, campaign, round, spent }
    };
    let golden = [
        (release(0, 0, 0, 0, 0), "760886a85bc3c048ab1d1ecd19081d3d5e0ffb4fb559b3838f9162e917fe4f1b"),
        (release(0xABCD, 0, 0, 0, 0), "2ec6fcf85acc80bd889c4e3915f2c171257f7479a915bd02f45f72f19331fc70"),
        (release(0xABCD, 7, 1, 0, 0), "2ec7dc6e78ff0412ba63b30dcd957bdae770eb5b50576c9d85b9180e18435dfb"),
        (release(0xABCD, 7, 1, 0, 3), "0dbb1f6246d740951cd198703ec4db01ce1097192fbc7506e5407d40f5b61308"),
        (release(0xABCD, 7, 1, 1, 3), "0d65a7b36598c543ced2985431f60345e021af128ab6cc1f0dcfec6bb2587433"),
        (release(0xABCD, 7, 2, 1, 3), "5d3ba6490ede9be4611c1400313b092c259ae51f8ff5b89f95cfaef5a82a0f3c"),
        (release(0xABCD, 8, 2, 1, 3), "37bedb0ea3a7ff16ce021e9448d3301d4c3c8a7ff1a39c97aee20bb4ce8cf6ba"),
        (release(8, 0xABCD, 2, 1, 3), "ae802b3257badf80822ead154bb63ae974ad06efe05416808ec17bb7365bf982"),
        (
            release(0x0F1E_2D3C_4B5A_6978, 0x0123_4567_89AB_CDEF, 0xFEDC_BA98, 0x1234, 0x8877_6655_4433_2211),
            "5bd97d1b63073882b027eeb7f9c584b817c3c85318950e8eea73dc78f0b7f553",
        ),
    ];
    let variance = Variance::new(1 << 55, 1).unwrap();
    let fingerprint = |seed: &Seed| [0, 1, 2, 3, 4, 5, 6, 7].map(|i| noise(seed, i, &variance));
    for (release, expected) in golden {
        let bytes = std::array::from_fn(|i| u8::from_str_radix(&expected[2 * i..2 * i + 2], 16).unwrap());
        let derived = Seed::new(COUNTING).of_release(&release);
        assert_eq!(fingerprint(&derived), fingerprint(&Seed::new(bytes)), "{release:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2048) })]

    #[test]
    fn noise_is_a_sample_of_the_coordinates_stream(
        bytes in any::<[u8; SEED]>(),
        coordinate in any::<u64>(),
        numerator in 1..1u64 << 56,
        denominator in 1..1u64 << 16,
    ) {
        let Ok(variance) = Variance::new(numerator, denominator) else { return Ok(()) };
        let mut stream = reference_stream(bytes, coordinate);
        let expected = sample(&variance, || stream.next_u32());
        prop_assert_eq!(noise(&Seed::new(bytes), coordinate, &variance), expected);
    }
}

#[test]
fn order_and_repetition_change_nothing() {
    let (seed, variance) = (Seed::new(COUNTING), Variance::new(1 << 40, 1).unwrap());
    let forward: Vec<i64> = (0..4096).map(|i| noise(&seed, i, &variance)).collect();
    let backward: Vec<i64> = (0..4096).rev().map(|i| noise(&seed, i, &variance)).collect();
    assert!(forward.iter().eq(backward.iter().rev()));
    // Multiples of an odd number visit all coordinates.
    for step in (0..4096u64).map(|i| i * 1027 % 4096) {
        assert_eq!(noise(&Seed::new(COUNTING), step, &variance), forward[step as usize]);
    }
}

/// Returns the correlation of pairs in standard errors.
fn correlation_in_errors(pairs: impl Iterator<Item = (i64, i64)>, sigma: f64) -> f64 {
    let (mut sum, mut n) = (0.0, 0.0f64);
    for (a, b) in pairs {
        sum += a as f64 / sigma * (b as f64 / sigma);
        n += 1.0;
    }
    sum / n.sqrt()
}

#[test]
fn coordinates_and_seeds_have_independent_noise() {
    const DRAWS: u64 = 200_000;
    let variance = Variance::new(1 << 40, 1).unwrap();
    let sigma = f64::from(1 << 20);
    let mut other_seed = COUNTING;
    other_seed[31] ^= 0x80;
    let (seed, other_seed) = (Seed::new(COUNTING), Seed::new(other_seed));
    let mut tally = Tally::new(&variance, DRAWS);
    (0..DRAWS).for_each(|i| tally.add(noise(&seed, i, &variance)));
    assert_eq!(tally.first_failed_test(), None);
    for distance in [1, 2, 3, 1 << 32, 1 << 63] {
        let pairs = (0..DRAWS).map(|i| (noise(&seed, i, &variance), noise(&seed, i ^ distance, &variance)));
        let correlation = correlation_in_errors(pairs, sigma);
        // The tolerance is higher because pairs `i, i ^ away` occur twice for some distances.
        assert!(correlation.abs() < 5.0 * 1.5, "{distance}: {correlation}");
    }
    let pairs = (0..DRAWS).map(|i| (noise(&seed, i, &variance), noise(&other_seed, i, &variance)));
    let correlation = correlation_in_errors(pairs, sigma);
    assert!(correlation.abs() < 5.0, "{correlation}");
}

#[test]
fn seed_is_not_printed() {
    assert_eq!(format!("{:?}", Seed::new([0xAB; SEED])), "Seed { secret }");
}
