//! Tests of data-dependent starts and of FedAvg, against f64.
#![cfg(all(feature = "shared-head", feature = "reveal-moments"))]

use crate::common::*;
use fedspan_client::task::Usage;
use fedspan_client::{Linear, Task};
use fedspan_protocol::message::{DeclineReason, RoundId, RoundOpen, Task as Wire};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

/// Computes the moment matrix `(1/m) sum |y|^2 x x^T`.
fn moment_matrix(samples: &Sliced) -> M {
    let (x, y) = (samples.x64(), samples.y64());
    let mut sum = M::zeros(samples.features, samples.features);
    for (x, y) in x.row_iter().zip(y.row_iter()) {
        sum += x.transpose() * x * y.norm_squared();
    }
    sum / samples.len() as f64
}

fn random_samples(random: &mut Random, d: usize, c: usize, m: usize) -> Sliced {
    Sliced::regression(random.normals(m * d), random.normals(m * c), d, c)
}

/// Runs a power step with the basis `q`. Returns the usage of samples and the upload.
fn run_power_step(samples: &Sliced, q: &[f32], k: usize) -> Result<(Usage, Vec<f32>), DeclineReason> {
    let (d, c) = (samples.features, samples.outputs);
    let mut model = Linear::new(Heap::new(d, k, c));
    let round = open(1, Wire::PowerStart, Role::Subspace, Encoding::F32, d, k);
    receive(&mut model, &round, &[q])?;
    let usage = model.run(round.id, &mut samples.clone())?;
    assert!(model.representation().is_none(), "the overwritten buffer still counts as a representation");
    assert_eq!(model.upload().first().unwrap().role, Role::Subspace);
    Ok((usage, collect_upload(&model, 9)))
}

#[test]
fn power_step_equals_moment_matrix_times_basis() {
    let mut random = Random(1);
    let mut worst = Worst::default();
    for case in 0..150 {
        let k = 1 + case % 6;
        let (d, c, m) = (k + random.below(20), 1 + random.below(3), 1 + random.below(60));
        let samples = random_samples(&mut random, d, c, m);
        let q = flat(&random.orthonormal(d, k));
        let (usage, sent) = run_power_step(&samples, &q, k).unwrap();
        assert_eq!(usage, Usage { samples: m as u32, skipped: 0 });
        let expected = moment_matrix(&samples) * matrix(d, k, &q);
        let size = moment_matrix(&samples).norm();
        let error = (matrix(d, k, &sent) - &expected).norm() / size;
        assert!(error <= 1e-5, "{error:e}");
        worst.record_largest("power step, relative error", error);
    }
}

/// Downloads rows of the moment matrix. Returns the usage of samples and the upload.
fn download_rows(
    samples: &Sliced,
    k: usize,
    first: u16,
    count: u16,
) -> Result<(Usage, Vec<f32>), DeclineReason> {
    let (d, c) = (samples.features, samples.outputs);
    let mut model = Linear::new(Heap::new(d, k, c));
    let id = RoundId { round: 1, stage: 0 };
    let task = Wire::MomentRows { first, count };
    model.open(&RoundOpen { id, task, tensors: Default::default() })?;
    model.verify()?;
    let usage = model.run(id, &mut samples.clone())?;
    assert_eq!(model.upload().first().unwrap().role, Role::Moment);
    Ok((usage, collect_upload(&model, 4)))
}

#[test]
fn moment_rows_equal_the_upper_half() {
    let mut random = Random(2);
    let mut worst = Worst::default();
    for _ in 0..60 {
        let (d, k, c) = (8, 4, 1 + random.below(2));
        let m = 1 + random.below(50);
        let samples = random_samples(&mut random, d, c, m);
        let expected = moment_matrix(&samples);
        // The rows of the upper triangle have 8+7+6+5 = 26 elements and 4+3+2+1 = 10; a round sends at most d
        // k = 32.
        for (first, count) in [(0u16, 4u16), (4, 4), (3, 1), (7, 1)] {
            let (_, sent) = download_rows(&samples, k, first, count).unwrap();
            let (first, count) = (usize::from(first), usize::from(count));
            let expected_values: Vec<f64> = (first..first + count)
                .flat_map(|i| (i..d).map(move |j| (i, j)))
                .map(|position| expected[position])
                .collect();
            assert_eq!(sent.len(), expected_values.len());
            for (a, b) in sent.iter().zip(&expected_values) {
                let error = (f64::from(*a) - b).abs() / expected.norm();
                assert!(error <= 1e-5);
                worst.record_largest("moment rows, relative error", error);
            }
        }
        for (first, count) in [(0, 6), (8, 1), (7, 2), (0, 0), (u16::MAX, u16::MAX)] {
            assert_eq!(download_rows(&samples, k, first, count).unwrap_err(), DeclineReason::Parameter);
        }
    }
}

/// An unusable sample is counted as skipped and has no other effect on the start.
#[test]
fn starts_skip_non_finite_samples() {
    let mut random = Random(3);
    let (d, k, m) = (8, 3, 20);
    let clean = random_samples(&mut random, d, 1, m);
    let q = flat(&random.orthonormal(d, k));
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
        for in_target in [true, false] {
            let mut dirty = clean.clone();
            match &mut dirty.labels {
                Labels::Values(y) if in_target => y[5] = value,
                _ => dirty.x[5 * d..6 * d].fill(value),
            }
            let expected = Usage { samples: m as u32 - 1, skipped: 1 };
            let valid_samples = clean.without(&[5]);
            let (usage, sent) = run_power_step(&dirty, &q, k).unwrap();
            assert_eq!(usage, expected, "power, {value} in target: {in_target}");
            assert_eq!(bits(&sent), bits(&run_power_step(&valid_samples, &q, k).unwrap().1));
            let (usage, sent) = download_rows(&dirty, k, 0, 2).unwrap();
            assert_eq!(usage, expected, "moments, {value} in target: {in_target}");
            assert_eq!(bits(&sent), bits(&download_rows(&valid_samples, k, 0, 2).unwrap().1));
        }
    }
}

/// A sample that is out of range in one column is left out of all columns, because the mean is over one set
/// of samples.
#[test]
fn power_step_uses_the_same_samples_for_all_columns() {
    // The second sample overflows only in column 0.
    let q = identity(2);
    let samples = Sliced::regression(vec![1.0, 2.0, 3e30, 1.0, 3.0, 1.0], vec![1.0, 1e10, 1.0], 2, 1);
    let (usage, sent) = run_power_step(&samples, &q, 2).unwrap();
    assert_eq!(usage, Usage { samples: 2, skipped: 1 });
    assert_eq!(bits(&sent), bits(&run_power_step(&samples.without(&[1]), &q, 2).unwrap().1));
}

#[test]
fn starts_without_samples_are_declined() {
    let no_samples = Sliced::regression(Vec::new(), Vec::new(), 4, 1);
    assert_eq!(run_power_step(&no_samples, &identity(4), 4).unwrap_err(), DeclineReason::NoSamples);
    assert_eq!(download_rows(&no_samples, 4, 0, 2).unwrap_err(), DeclineReason::NoSamples);
}

#[test]
fn fedavg_equals_f64() {
    let mut random = Random(4);
    let mut worst = Worst::default();
    for case in 0..150 {
        let k = 1 + case % 5;
        let (d, c, m) = (k + random.below(15), 1 + random.below(3), 2 + random.below(40));
        let samples = random_samples(&mut random, d, c, m);
        let (x, y) = (samples.x64(), samples.y64());
        // The representation of a trained model need not be orthonormal.
        let (b, w) = (random.normals(d * k), random.normals(k * c));
        let (eta, eta_h) = (0.003f32, 0.01f32);
        for local_steps in [1u16, 3] {
            let (mut b64, mut w64) = (matrix(d, k, &b), matrix(k, c, &w));
            for _ in 0..local_steps {
                let s = x.transpose() * (&x * &b64 * &w64 - &y) / m as f64;
                let (gb, gw) = (&s * w64.transpose(), b64.transpose() * &s);
                b64 -= gb * f64::from(eta);
                w64 -= gw * f64::from(eta_h);
            }
            let task =
                Wire::FedAvg { step_size: eta, head_step_size: eta_h, local_steps, encoding: Encoding::F32 };
            let descriptor =
                |role, rows, cols| TensorDescriptor::inline(role, Encoding::F32, rows as u16, cols as u16);
            let tensors = [descriptor(Role::Representation, d, k), descriptor(Role::SharedHead, k, c)]
                .into_iter()
                .collect();
            let round = RoundOpen { id: RoundId { round: 1, stage: 0 }, task, tensors };
            let mut model = Linear::new(Heap::new(d, k, c));
            receive(&mut model, &round, &[&b, &w]).unwrap();
            let usage = model.run(round.id, &mut samples.clone().at_once(3)).unwrap();
            assert_eq!(usage, Usage { samples: m as u32, skipped: 0 });
            let sent = collect_upload(&model, 11);
            let (sent_b, sent_w) = sent.split_at(d * k);
            for (name, sent, expected) in
                [("FedAvg B", matrix(d, k, sent_b), b64), ("FedAvg W", matrix(k, c, sent_w), w64)]
            {
                let error = (sent - &expected).norm() / expected.norm();
                assert!(error <= 1e-5, "{name}: {error:e} after {local_steps} steps");
                worst.record_largest(name, error);
            }
        }
    }
}
