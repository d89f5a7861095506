//! Tests of single FedPower rounds with noise: when and how the seed is drawn, the cost of a round, the state
//! after a declined round, and the bits of a completed one.
#![cfg(all(feature = "power", feature = "privacy"))]

use crate::common::power::*;
use crate::common::private::*;
use crate::common::server::{Bench, Flash, Server};
use crate::common::*;
use fedspan_client::memory::Memory;
use fedspan_client::privacy::{EntropyError, EntropySource, Gaussian, HealthFailure, MinEntropy, noise};
use fedspan_client::session::Config;
use fedspan_client::{Linear, Mechanism, Release, Task};
use fedspan_protocol::message::{DeclineReason, PowerRows, PowerUpload, RoundId};
use fedspan_protocol::tensor::{Encoding, Role};

const FEATURES: PowerRows = PowerRows::Features;
const PRODUCT: PowerUpload = PowerUpload::Product;
const BOTH: PowerUpload = PowerUpload::ProductAndBasis;

/// Returns samples and a basis whose values are sums of few powers of two, so that any implementation has the
/// same floats.
fn exact_samples() -> (Sliced, Vec<f32>) {
    let x = vec![0.5, 0.25, 0.0, -0.5, 0.125, 1.0, 0.25, -0.25, 3.0, 0.0, 0.0, 0.0625];
    (Sliced::regression(x, vec![1.0, -0.5, 0.25, 2.0], 3, 1), identity_columns(3, 2))
}

/// The bits of a round are the same on every core. They equal those of a second implementation in another
/// language, with rational numbers, except for the last bits of two numbers, because that implementation
/// clips rows by a larger margin (`power_private.rs` checks all bits with wide integers).
#[test]
fn golden_round_has_the_same_bits() {
    let (samples, z) = exact_samples();
    let known = Known::new(settings(1 << 16, 100), 42);
    let variance = known.settings.variance(3, 2).unwrap();
    assert_eq!((known.settings.grid(), variance.ratio()), (15, (46_368 * 46_368 + 16, 1)));
    for (rows, iterations, upload, expected) in [
        (
            FEATURES,
            1,
            PRODUCT,
            vec![0x3ef9_4f00, 0xbd88_a800, 0xbe5f_1000, 0xbf6b_6f80, 0xbed0_e500, 0xbd5e_d800],
        ),
        (
            PowerRows::Weighted,
            2,
            BOTH,
            vec![
                0xbc28_0000,
                0xbf01_cc80,
                0xbe36_fe00,
                0x3e39_ce00,
                0x3e79_8600,
                0x3f34_0300,
                0x3f3e_5a00,
                0xbea8_a400,
                0xbeaf_9400,
                0xbf6f_5800,
                0xbf12_f600,
                0x3e07_0800,
            ],
        ),
        (
            FEATURES,
            3,
            PowerUpload::Basis,
            vec![0x3f0a_3162, 0x3f20_280e, 0xbef1_f0d6, 0x3f47_671f, 0x3f32_56da, 0x3d32_7a47],
        ),
    ] {
        let (_, sent) = private_round(&samples, &known, fed_power(iterations, rows, upload), &z, 2).unwrap();
        let sent_bits = bits(&sent);
        assert_eq!(sent_bits, expected, "{rows:?} {iterations} {upload:?}");
    }
}

/// Number of passes over the samples in a round: a host keeps the rows of the first pass.
fn passes(iterations: u16) -> usize {
    if cfg!(feature = "wide") { 1 } else { iterations.into() }
}

/// The seed is drawn once per round, before any sample is read, for any number of iterations.
#[test]
fn seed_is_drawn_before_any_sample_is_read() {
    let (samples, z) = exact_samples();
    for iterations in [1, 3] {
        let known = Known::new(settings(LEAST, 8), 1);
        let mut source = Watched { samples: samples.clone(), log: known.log.clone() };
        let mut model = Linear::private(Heap::power(3, 2, 1), known.clone()).unwrap();
        power_round(&mut model, fed_power(iterations, FEATURES, PRODUCT), &z, &mut source).unwrap();
        let expected = [&["seed"][..], &["rewind", "next", "next"].repeat(passes(iterations))].concat();
        assert_eq!(*known.log.borrow(), expected);
    }
}

#[test]
fn round_without_entropy_reads_and_sends_nothing() {
    let (samples, z) = exact_samples();
    let mut known = Known::new(settings(LEAST, 8), 1);
    known.entropy_fails = true;
    let log = known.log.clone();
    let mut source = Watched { samples, log: log.clone() };
    let mut model = Linear::private(Heap::power(3, 2, 1), known).unwrap();
    let task = fed_power(2, FEATURES, PRODUCT);
    assert_eq!(power_round(&mut model, task, &z, &mut source).unwrap_err(), DeclineReason::Entropy);
    assert_eq!(*log.borrow(), ["seed"]);
}

/// SplitMix64 as an entropy source with an optional fault.
struct TestEntropy {
    random: Random,
    reads: u32,
    fault: EntropyFault,
}

/// Fault of the entropy source.
#[derive(Clone, Copy, PartialEq)]
enum EntropyFault {
    None,
    /// Returns the same samples for every seed, as after a reset, so that all health tests pass.
    Repeating,
    /// Always returns the same byte, so that a health test fails.
    Stuck,
    /// Fails to read.
    ReadError,
}

impl EntropySource for TestEntropy {
    type Error = &'static str;

    fn read(&mut self, samples: &mut [u8]) -> Result<(), Self::Error> {
        self.reads += 1;
        if self.fault == EntropyFault::ReadError {
            return Err("silent");
        }
        if self.fault == EntropyFault::Repeating && self.reads % 16 == 1 {
            self.random = Random(1);
        }
        let stuck = self.fault == EntropyFault::Stuck;
        samples.fill_with(|| if stuck { 3 } else { self.random.next() as u8 });
        Ok(())
    }
}

fn mechanism(fault: EntropyFault) -> Gaussian<TestEntropy> {
    let source = TestEntropy { random: Random(1), reads: 0, fault };
    Gaussian::new(settings(LEAST, 8), source, MinEntropy::new(8).unwrap())
}

/// Each round has a different seed. If the source fails, the mechanism reports the reason.
#[test]
fn mechanism_draws_one_seed_per_round() {
    let (samples, z) = exact_samples();
    let task = fed_power(1, FEATURES, PRODUCT);
    let mut model = Linear::private(Heap::power(3, 2, 1), mechanism(EntropyFault::None)).unwrap();
    let mut seen = Vec::new();
    for _ in 0..20 {
        let (_, sent) = power_round(&mut model, task, &z, &mut samples.clone()).unwrap();
        assert!(!seen.contains(&bits(&sent)), "the same noise twice");
        // A retry sends the same bytes.
        assert_eq!(bits(&collect_upload(&model, 2)), bits(&sent));
        seen.push(bits(&sent));
    }
    assert!(model.mechanism().failure().is_none());
    for (fault, failure) in [
        (EntropyFault::ReadError, EntropyError::Source { error: "silent", samples: 0 }),
        (
            EntropyFault::Stuck,
            EntropyError::Health {
                failure: HealthFailure::Repetition { run: 4 },
                samples: 4,
                claim: MinEntropy::new(8).unwrap(),
            },
        ),
    ] {
        let mut model = Linear::private(Heap::power(3, 2, 1), mechanism(fault)).unwrap();
        for failures in 1..=3 {
            let error = power_round(&mut model, task, &z, &mut samples.clone()).unwrap_err();
            assert_eq!(error, DeclineReason::Entropy);
            assert_eq!(model.mechanism().failure(), Some(&failure));
            assert_eq!(model.mechanism().failures(), failures);
        }
        // Fitting a head needs no seed.
        assert!(model.set_representation(&z).is_ok());
        assert!(model.fit_head(EXACT, &mut samples.clone()).is_ok());
        assert!(!format!("{:?}", model.mechanism()).contains("random"));
    }
}

/// If a source repeats its samples, or those of another device, the noise still differs, because the seed
/// depends on device, campaign, round and spent budget.
#[test]
fn releases_have_distinct_seeds() {
    let variance = settings(LEAST, 8).variance(3, 2).unwrap();
    let mut mechanism = mechanism(EntropyFault::Repeating);
    let mut noise_of = |release: &Release| {
        mechanism.prepare(release).unwrap();
        let seed = mechanism.draw_seed().unwrap();
        // The seed can be drawn only once per release.
        assert!(mechanism.draw_seed().is_err());
        [0, 1, 2, 3].map(|i| noise(&seed, i, &variance))
    };
    let first = Release { device: 1, campaign: 1, round: RoundId { round: 1, stage: 0 }, spent: 0 };
    let releases = [
        first,
        Release { device: 2, ..first },
        Release { device: 1 << 63, ..first },
        Release { campaign: 2, ..first },
        Release { round: RoundId { round: 2, stage: 0 }, ..first },
        Release { round: RoundId { round: 1, stage: 1 }, ..first },
        Release { spent: 1, ..first },
        Release { spent: 1 << 63, ..first },
    ];
    let noises = releases.map(|release| noise_of(&release));
    for (n, values) in noises.iter().enumerate() {
        assert!(!noises[..n].contains(values), "{n}");
        assert_eq!(noise_of(&releases[n]), *values, "the source did not repeat its values");
    }
}

/// Whole sessions with the same basis run three rounds, three more after a reset, and the same on a second
/// board whose entropy source returns the same samples. No update repeats.
#[test]
fn repeated_entropy_reveals_no_difference() {
    let (samples, z) = exact_samples();
    let (flash, another) = (Flash::default(), Flash::default());
    let mut seen = Vec::new();
    for (device, flash, first) in [(1, &flash, 1), (1, &flash, 4), (2, &another, 1), (2, &another, 4)] {
        let model = Linear::private(Heap::power(3, 2, 1), mechanism(EntropyFault::Repeating)).unwrap();
        let config = Config { device, ..problem::session_config(256) };
        let mut bench = Bench::with_task(config, model, samples.clone(), flash.clone());
        bench.connect(7, 60_000);
        for round in first..first + 3 {
            let tensors = vec![(Role::Subspace, 3, 2, z.clone())];
            let task = fed_power(1, FEATURES, PRODUCT);
            let mut server = Server::new(round, task, Encoding::F32, 256, tensors);
            let (message, body) = server.opening_messages().remove(0);
            assert!(bench.receive_message(&message, &body).is_empty());
            for (message, body) in bench.wake_up() {
                server.handle_message(message, body);
            }
            let sent = bits(&server.update_values(0));
            assert!(!seen.contains(&sent));
            seen.push(sent);
        }
    }
    assert_eq!(seen.len(), 12);
}

#[test]
fn round_costs_its_iterations() {
    let known = Known::new(settings(1 << 18, 8), 1);
    let model = Linear::private(Heap::power(3, 2, 1), known).unwrap();
    for iterations in [1, 2, 700, u16::MAX] {
        for upload in UPLOADS {
            assert_eq!(model.cost(&fed_power(iterations, FEATURES, upload)), u64::from(iterations) << 28);
        }
    }
    // The largest cost of a round does not overflow.
    let known = Known::new(settings(LEAST, 8), 1);
    let release = u64::from(known.settings.release());
    let model = Linear::private(Heap::power(3, 2, 1), known).unwrap();
    assert_eq!(model.cost(&fed_power(u16::MAX, FEATURES, PRODUCT)), release * 65_535);
    assert_eq!(Linear::new(Heap::power(3, 2, 1)).cost(&fed_power(9, FEATURES, PRODUCT)), 0);
}

/// A round that fails after reading samples leaves neither sums without noise nor a record in memory.
#[test]
fn declined_round_leaves_no_data() {
    let (samples, z) = exact_samples();
    for failing in 1..=passes(3) {
        let mut source = Sliced { failing_pass: Some(failing), ..samples.clone() };
        let known = Known::new(settings(LEAST, 8), 1);
        let mut model = Linear::private(Heap::power(3, 2, 1), known).unwrap();
        let task = fed_power(3, FEATURES, BOTH);
        let error = power_round(&mut model, task, &z, &mut source).unwrap_err();
        assert_eq!((error, source.passes), (DeclineReason::Device, failing));
        assert!(collect_upload(&model, 4).iter().all(|v| v.to_bits() == 0));
    }
    let no_samples = Sliced::regression(Vec::new(), Vec::new(), 3, 1);
    let known = Known::new(settings(LEAST, 8), 1);
    let error = private_round(&no_samples, &known, fed_power(1, FEATURES, BOTH), &z, 2).unwrap_err();
    assert_eq!(error, DeclineReason::NoSamples);
    // The memory of the last row is zeroed also after a successful round.
    let mut memory = Heap::power(3, 2, 1);
    let mut model = Linear::private(&mut memory, known).unwrap();
    power_round(&mut model, fed_power(1, FEATURES, BOTH), &z, &mut samples.clone()).unwrap();
    let parts = memory.parts();
    assert!([parts.residual, parts.z, parts.y].iter().all(|part| part.iter().all(|v| v.to_bits() == 0)));
}

/// After a round the model has no valid representation and keeps the earlier head, as it does without noise.
#[test]
fn round_invalidates_the_representation_and_keeps_the_head() {
    let (samples, z) = exact_samples();
    let known = Known::new(settings(LEAST, 8), 1);
    let mut model = Linear::private(Heap::power(3, 2, 1), known).unwrap();
    model.set_representation(&z).unwrap();
    model.fit_head(EXACT, &mut samples.clone()).unwrap();
    let fitted_on = model.head_fitted_on();
    power_round(&mut model, fed_power(1, FEATURES, PRODUCT), &z, &mut samples.clone()).unwrap();
    assert!(model.representation().is_none());
    assert_eq!(model.head_fitted_on(), fitted_on);
}

/// While an update is pending, the firmware may set another representation and fit a head. The device then
/// sends the noisy product unchanged, the new representation as basis, and nothing of the head.
#[test]
fn head_fitted_during_upload_does_not_leave() {
    let (samples, z) = exact_samples();
    let known = Known::new(settings(LEAST, 8), 1);
    let mut model = Linear::private(Heap::power(3, 2, 1), known).unwrap();
    power_round(&mut model, fed_power(1, FEATURES, BOTH), &z, &mut samples.clone()).unwrap();
    let emit_tensor = |model: &Linear<_, _>, index| {
        let mut out = [f32::NAN; 6];
        Task::emit(model, index, 0, &mut out);
        out
    };
    let product = emit_tensor(&model, 0);
    let other_basis = [0.0, 1.0, 0.0, 0.0, 1.0, 0.0];
    model.set_representation(&other_basis).unwrap();
    model.fit_head(EXACT, &mut samples.clone()).unwrap();
    assert_eq!((emit_tensor(&model, 0), emit_tensor(&model, 1)), (product, other_basis));
    assert_eq!(model.upload().len(), 2, "the number of uploaded tensors changed");
}

/// In each encoding, the basis is orthonormalised after decoding and rounded to the grid.
#[test]
fn basis_is_orthonormal_to_the_grid() {
    let mut random = Random(1);
    let (d, k) = (12, 3);
    let samples = decaying_samples(&mut random, d, 1, 5, 0.8);
    for encoding in [Encoding::F32, Encoding::F16, Encoding::I8] {
        let mut z = flat(&random.orthonormal(d, k));
        if encoding == Encoding::F32 {
            z.iter_mut().for_each(|z| *z *= 1.0004);
        }
        let known = Known::new(settings(LEAST, 8), 1);
        let mut model = Linear::private(Heap::power(d, k, 1), known).unwrap();
        let round = open(1, fed_power(1, FEATURES, BOTH), Role::Subspace, encoding, d, k);
        receive(&mut model, &round, &[&z]).unwrap();
        model.run(round.id, &mut samples.clone()).unwrap();
        let sent = collect_upload(&model, 5);
        let basis = matrix(d, k, &sent[d * k..]);
        let error = norm2(&(basis.transpose() * &basis - M::identity(k, k)));
        assert!(error <= 2f64.powi(-10), "{encoding:?}: {error:e}");
        assert!(sent[d * k..].iter().all(|v| (v * 32_768.0).fract() == 0.0));
        let distance = (basis - matrix(d, k, &z)).norm();
        assert!(distance <= if encoding == Encoding::I8 { 0.05 } else { 2e-3 }, "{distance:e}");
    }
}
