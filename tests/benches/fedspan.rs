//! Benchmarks of the kernels (compared with nalgebra), of the codec (compared with copying the same bytes),
//! and of a simulated round (compared with the arithmetic it contains). Every group runs its baseline, too.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use fedspan_client::Millis;
use fedspan_client::source::Recording;
use fedspan_client::{Linear, Task, Workspace};
use fedspan_engine::aggregate::{RANK_TOLERANCE, RoundAggregate, Rule, SpectralFilter, TRIM, UpdateWeight};
use fedspan_engine::algorithm::{Algorithm, FedRep, FedRepParameters};
use fedspan_engine::{DeviceId, Tensor as Update, Weighting};
use fedspan_protocol::frame::{Decoder, FeedResult, encode};
use fedspan_protocol::message::{
    Descriptors, HeadSolve, RoundId, RoundOpen, Task as WireTask, ToDevice, Upload, decode,
};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};
use fedspan_sim_core::run::{NoProgress, run};
use fedspan_sim_core::scenario::Scenario;
use nalgebra::{DMatrix, DVector};

fn main() {
    divan::main();
}

/// Returns pseudo-random values.
fn pseudo_random_values(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn orthonormal_basis(d: usize, k: usize) -> Vec<f32> {
    let mut b = pseudo_random_values(d * k, 3);
    fedspan_protocol::orthonormal::orthonormalise(&mut b, k).expect("full rank");
    b
}

/// Task of the head in all benchmarked updates.
const HEAD: HeadSolve = HeadSolve::LeastSquares { ridge: 0.0 };

fn round_opening(d: usize, k: usize) -> RoundOpen {
    let tensor = TensorDescriptor::inline(Role::Representation, Encoding::F32, d as u16, k as u16);
    let task =
        WireTask::FedRep { step_size: 0.1, head: HEAD, upload: Upload::Gradient, encoding: Encoding::F32 };
    RoundOpen { id: RoundId { round: 1, stage: 0 }, task, tensors: Descriptors::from_iter([tensor]) }
}

/// Benchmarks one FedRep update with the device's code: solves the head, then computes the gradient factors.
fn update<const D: usize, const K: usize>(bencher: Bencher, m: usize) {
    let x = pseudo_random_values(m * D, 1);
    let y = pseudo_random_values(m, 2);
    let b = orthonormal_basis(D, K);
    let mut client = Linear::new(Workspace::<D, K>::new());
    client.open(&round_opening(D, K)).expect("opens");
    client.tensor_mut(0).expect("there is one").copy_from_slice(&b);
    client.verify().expect("orthonormal");
    let mut source = Recording::regression(&x, &y, D, 1);
    bencher
        .counter(ItemsCount::new(1usize))
        .bench_local(|| client.run(black_box(RoundId { round: 1, stage: 0 }), &mut source).expect("runs"));
}

/// Benchmarks the same update with nalgebra in f32: normal equations, then the rank-one gradient.
fn update_nalgebra(bencher: Bencher, d: usize, k: usize, m: usize) {
    let x = DMatrix::from_row_slice(m, d, &pseudo_random_values(m * d, 1));
    let y = DVector::from_row_slice(&pseudo_random_values(m, 2));
    let b = DMatrix::from_row_slice(d, k, &orthonormal_basis(d, k));
    bencher.counter(ItemsCount::new(1usize)).bench_local(|| {
        let z = black_box(&x) * &b;
        let w = (z.transpose() * &z).cholesky().expect("full rank").solve(&(z.transpose() * &y));
        x.transpose() * (z * w - &y)
    });
}

#[divan::bench_group]
mod update_20_2_20 {
    use super::{Bencher, update, update_nalgebra};

    #[divan::bench]
    fn client(bencher: Bencher) {
        update::<20, 2>(bencher, 20);
    }

    #[divan::bench]
    fn nalgebra(bencher: Bencher) {
        update_nalgebra(bencher, 20, 2, 20);
    }
}

#[divan::bench_group]
mod update_128_8_32 {
    use super::{Bencher, update, update_nalgebra};

    #[divan::bench]
    fn client(bencher: Bencher) {
        update::<128, 8>(bencher, 32);
    }

    #[divan::bench]
    fn nalgebra(bencher: Bencher) {
        update_nalgebra(bencher, 128, 8, 32);
    }
}

/// Benchmarks of one power iteration `X^T (X Z)` on a device's samples, in the shape of the scenario
/// `fedpower-mnist`.
#[divan::bench_group]
mod power_784_10_100 {
    use fedspan_client::memory::PowerWorkspace;
    use fedspan_client::privacy::{EntropySource, Gaussian, MinEntropy, NoiseMultiplier, PrivacySettings};
    use fedspan_client::{Mechanism, Release};
    use fedspan_protocol::message::{PowerRows, PowerUpload};

    use super::*;

    /// Number of features.
    const D: usize = 784;
    /// Width of the subspace.
    const R: usize = 10;
    /// Number of samples.
    const S: usize = 100;

    /// Benchmarks one iteration with the device's code, with or without noise.
    fn client<P: Mechanism>(bencher: Bencher, mut client: Linear<PowerWorkspace<D, R>, P>) {
        let (x, y) = (pseudo_random_values(S * D, 1), pseudo_random_values(S, 2));
        let tensor = TensorDescriptor::inline(Role::Subspace, Encoding::F32, D as u16, R as u16);
        let (rows, upload) = (PowerRows::Features, PowerUpload::Product);
        let task = WireTask::FedPower { iterations: 1, rows, upload, encoding: Encoding::F32 };
        let id = RoundId { round: 1, stage: 0 };
        client.open(&RoundOpen { id, task, tensors: Descriptors::from_iter([tensor]) }).expect("opens");
        client.tensor_mut(0).expect("there is one").copy_from_slice(&orthonormal_basis(D, R));
        client.verify().expect("orthonormal");
        let mut source = Recording::regression(&x, &y, D, 1);
        bencher.counter(ItemsCount::new(S)).bench_local(|| {
            client.prepare(&Release::default()).expect("entropy");
            client.run(black_box(id), &mut source).expect("runs")
        });
    }

    #[divan::bench]
    fn without_noise(bencher: Bencher) {
        client(bencher, Linear::new(PowerWorkspace::new()));
    }

    /// Benchmarks an iteration in integer arithmetic with noise on each of the D x R numbers. The noise is
    /// drawn once per iteration; its cost does not depend on the number of samples.
    #[divan::bench]
    fn with_noise(bencher: Bencher) {
        /// Cheap pseudo-random source, so that the benchmark does not measure a random generator.
        struct Counter(u64);

        impl EntropySource for Counter {
            type Error = core::convert::Infallible;

            fn read(&mut self, samples: &mut [u8]) -> Result<(), Self::Error> {
                for sample in samples {
                    self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    *sample = self.0.to_le_bytes()[7];
                }
                Ok(())
            }
        }

        let multiplier = NoiseMultiplier::from_square(16 << 16).expect("a multiplier");
        let settings =
            PrivacySettings::new(multiplier, u64::MAX, S as u32, Millis::new(1000)).expect("settings");
        let mechanism = Gaussian::new(settings, Counter(1), MinEntropy::new(4).expect("a claim"));
        client(bencher, Linear::private(PowerWorkspace::new(), mechanism).expect("noise"));
    }

    #[divan::bench]
    fn nalgebra(bencher: Bencher) {
        let x = DMatrix::from_row_slice(S, D, &pseudo_random_values(S * D, 1));
        let z = DMatrix::from_row_slice(D, R, &orthonormal_basis(D, R));
        bencher.counter(ItemsCount::new(S)).bench_local(|| x.tr_mul(&(black_box(&x) * &z)));
    }
}

#[divan::bench_group]
mod codec_20_2 {
    use super::*;

    /// Length of a message's body in bytes.
    const BODY: usize = 160;

    #[divan::bench]
    fn encode_frame(bencher: Bencher) {
        let message = ToDevice::RoundOpen(round_opening(20, 2));
        let (body, mut out) = (vec![0x5a; BODY], vec![0; 512]);
        bencher.counter(BytesCount::new(BODY)).bench_local(|| {
            encode(black_box(&message), BODY, |buffer| buffer.copy_from_slice(&body), &mut out).expect("fits")
        });
    }

    #[divan::bench]
    fn decode_frame(bencher: Bencher) {
        let message = ToDevice::RoundOpen(round_opening(20, 2));
        let mut wire = vec![0; 512];
        let length = encode(&message, BODY, |buffer| buffer.fill(0x5a), &mut wire).expect("fits");
        let mut decoder = Decoder::new([0u8; 256]);
        bencher.counter(BytesCount::new(BODY)).bench_local(|| {
            let mut input = black_box(&wire[..length]);
            let FeedResult::Message(bytes) = decoder.feed(&mut input) else {
                unreachable!("one whole frame")
            };
            decode::<ToDevice>(bytes).expect("a message").1.len()
        });
    }

    #[divan::bench]
    fn copy_of_the_same_bytes(bencher: Bencher) {
        let (body, mut out) = (vec![0x5a_u8; BODY], vec![0u8; BODY]);
        bencher.counter(BytesCount::new(BODY)).bench_local(|| {
            black_box(&mut out).copy_from_slice(black_box(&body));
        });
    }
}

#[divan::bench_group(sample_count = 10, sample_size = 1)]
mod simulation {
    use super::*;

    const ROUNDS: usize = 20;
    const CLIENTS: usize = 500;

    /// Benchmarks whole rounds of 500 clients, protocol included; compare the time per item with
    /// `update_20_2_20`.
    #[divan::bench]
    fn twenty_rounds(bencher: Bencher) {
        let text = format!(
            "evaluate_every = 1000\n[data]\nkind = \"linear-regression\"\nclients = {CLIENTS}\nd = 20\nk = 2\n\
             samples = 20\n[model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = {ROUNDS}\nstep_size = 0.25\n"
        );
        let scenario = Scenario::parse("bench", &text, &[]).expect("scenario");
        bencher
            .counter(ItemsCount::new(ROUNDS * CLIENTS))
            .bench_local(|| run(&scenario, 1, &mut NoProgress).expect("runs").counters.counted);
    }
}

/// Benchmarks absorbing `n` updates of 64 x 4 and closing the round, under each aggregation rule.
#[divan::bench(
    args = [
        (Rule::MEAN, 40),
        (Rule::SPECTRAL_FILTER, 40),
        (Rule::GEOMETRIC_MEDIAN, 40),
        (Rule::trimmed_mean(TRIM), 40),
        (Rule::PROJECTOR_MEAN, 40),
        (Rule::PROJECTOR_GEOMETRIC_MEDIAN, 40),
        (Rule::MEAN, 1000),
        (Rule::SPECTRAL_FILTER, 1000),
        (Rule::GEOMETRIC_MEDIAN, 1000),
        (Rule::trimmed_mean(TRIM), 1000),
        (Rule::PROJECTOR_MEAN, 1000),
        (Rule::PROJECTOR_GEOMETRIC_MEDIAN, 1000),
        (Rule::MEAN, 10_000),
        (Rule::SPECTRAL_FILTER, 10_000),
        (Rule::GEOMETRIC_MEDIAN, 10_000),
        (Rule::trimmed_mean(TRIM), 10_000),
    ],
    sample_count = 10
)]
fn aggregate(bencher: Bencher, (rule, n): (Rule, u32)) {
    let (d, k) = (64, 4);
    let common_basis = orthonormal_basis(d, k);
    let reference = fedspan_engine::linalg::from_f32(d, k, &common_basis);
    let update = |device: u32| {
        let values = common_basis
            .iter()
            .zip(pseudo_random_values(d * k, device))
            .map(|(b, noise)| b + 0.1 * noise)
            .collect();
        [Update { role: Role::Representation, rows: d as u16, cols: k as u16, values }]
    };
    let updates: Vec<_> = (0..n).map(update).collect();
    bencher.bench_local(|| {
        let mut round = RoundAggregate::new(rule, Weighting::Samples, d * k);
        for (device, update) in (0..).zip(&updates) {
            round.absorb(DeviceId(device), UpdateWeight::from_samples(40), black_box(update));
        }
        match rule.is_for_subspaces() {
            true => round.take_subspace(&reference).expect("full rank").map(|b| b.iter().copied().collect()),
            false => round.take_vector(&[]),
        }
    });
}

/// Benchmarks a training round of `n` gradients of 64 x 4 under the spectral filter, from the check of the first to the
/// next representation, with the check of the rank and without it (tolerance 1).
#[divan::bench(args = [(40, RANK_TOLERANCE), (40, 1.0), (1000, RANK_TOLERANCE), (1000, 1.0), (10_000, RANK_TOLERANCE)], sample_count = 10)]
fn filter_gradients(bencher: Bencher, (n, rank_tolerance): (u32, f64)) {
    let (d, k) = (64, 4);
    let parameters = FedRepParameters {
        step_size: 0.5,
        head: HeadSolve::LeastSquares { ridge: 0.0 },
        upload: Upload::Gradient,
        download_encoding: Encoding::F32,
        upload_encoding: Encoding::F32,
        weighting: Weighting::Uniform,
        rule: Rule::SpectralFilter(SpectralFilter { rank_tolerance, ..SpectralFilter::default() }),
    };
    let basis = fedspan_engine::linalg::from_f32(d, k, &orthonormal_basis(d, k));
    let server = FedRep::new(basis, parameters).with_outputs(1);
    let update = |device: u32| {
        let (column, head) = (pseudo_random_values(d, device), pseudo_random_values(k, device + n));
        let values = column.iter().flat_map(|u| head.iter().map(move |h| 0.1 * u * h)).collect();
        [Update { role: Role::Gradient, rows: d as u16, cols: k as u16, values }]
    };
    let updates: Vec<_> = (0..n).map(update).collect();
    bencher.bench_local(|| {
        let mut server = server.clone();
        for (device, update) in (0..).zip(&updates) {
            assert!(server.admits(40, black_box(update)), "a gradient of rank one");
            server.absorb(DeviceId(device), UpdateWeight::from_samples(40), update);
        }
        server.finish().expect("full rank");
        server
    });
}
