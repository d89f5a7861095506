//! Tests of the moment attack on records, which compares the leading direction of an upload with each record
//! of the device. Without noise, this direction equals the record of a device that has one, and is close to a
//! record of a device that has twenty. With noise, it is no closer to the device's records than to those of
//! other devices.
#![cfg(all(feature = "power", feature = "privacy", feature = "reveal-moments"))]

use crate::common::power::*;
use crate::common::private::*;
use crate::common::*;
use fedspan_client::{Linear, Mechanism, Task};
use fedspan_protocol::message::{
    DeclineReason, HeadSolve, PowerRows, PowerUpload, RoundId, RoundOpen, Task as Wire, Upload,
};
use fedspan_protocol::tensor::{Encoding, Role};
use nalgebra::DVector;

const D: usize = 20;
const K: usize = 2;
const PRODUCT: PowerUpload = PowerUpload::Product;

fn random_samples(random: &mut Random, m: usize) -> Sliced {
    Sliced::regression(random.normals(m * D), random.normals(m), D, 1)
}

/// Returns the left singular vector of the largest singular value.
fn leading_direction(sent: &M) -> DVector<f64> {
    let eigen = (sent.transpose() * sent).symmetric_eigen();
    let right_vector = eigen.eigenvectors.column(eigen.eigenvalues.imax()).into_owned();
    (sent * right_vector).normalize()
}

/// Returns the largest |cos| between the direction and a record.
fn largest_cosine(direction: &DVector<f64>, samples: &Sliced) -> f64 {
    samples.x64().row_iter().map(|x| (x * direction)[0].abs() / x.norm()).fold(0.0, f64::max)
}

/// Downloads the whole moment matrix, one row per round.
fn download_moments<P: Mechanism>(mut model: Linear<Heap, P>, samples: &Sliced) -> Result<M, DeclineReason> {
    let mut matrix = M::zeros(D, D);
    for first in 0..D {
        let id = RoundId { round: 1 + first as u32, stage: 0 };
        let task = Wire::MomentRows { first: first as u16, count: 1 };
        model.open(&RoundOpen { id, task, tensors: Default::default() })?;
        model.verify()?;
        model.run(id, &mut samples.clone())?;
        for (j, value) in (first..D).zip(collect_upload(&model, 4)) {
            matrix[(first, j)] = value.into();
            matrix[(j, first)] = value.into();
        }
    }
    Ok(matrix)
}

fn model_without_noise() -> Linear<Heap> {
    Linear::new(Heap::new(D, K, 1))
}

#[test]
fn moments_without_noise_reveal_records() {
    let mut random = Random(17);
    println!("m: mean of the largest |cos| with own records, with other records");
    for (m, least_cosine) in [(1, 0.9999), (2, 0.95), (5, 0.9), (20, 0.8), (40, 0.75)] {
        let [mut own_cosine, mut other_cosine] = [0.0; 2];
        for _ in 0..100 {
            let (samples, other_samples) = (random_samples(&mut random, m), random_samples(&mut random, m));
            let direction = leading_direction(&download_moments(model_without_noise(), &samples).unwrap());
            own_cosine += largest_cosine(&direction, &samples) / 100.0;
            other_cosine += largest_cosine(&direction, &other_samples) / 100.0;
        }
        println!("{m}: {own_cosine:.4}, {other_cosine:.4}");
        assert!(
            own_cosine > least_cosine && own_cosine > other_cosine + 0.1,
            "m = {m}: {own_cosine}, {other_cosine}"
        );
    }
}

/// For a device with a single record, every upload without noise reveals that record.
#[test]
fn uploads_without_noise_reveal_a_single_record() {
    let mut random = Random(18);
    for _ in 0..50 {
        let samples = random_samples(&mut random, 1);
        let z = flat(&random.orthonormal(D, K));
        let task = fed_power(1, PowerRows::Features, PRODUCT);
        let (_, product) = run_power_round(&samples, task, &z, K).unwrap();
        let mut model = model_without_noise();
        let start = open(1, Wire::PowerStart, Role::Subspace, Encoding::F32, D, K);
        receive(&mut model, &start, &[&z]).unwrap();
        model.run(start.id, &mut samples.clone()).unwrap();
        let start = collect_upload(&model, 7);
        let head = HeadSolve::LeastSquares { ridge: 0.1 };
        let task = fed_rep(head, Upload::Gradient, 1.0);
        let (_, gradient) =
            fed_rep_round(&mut model_without_noise(), task, &z, &mut samples.clone()).unwrap();
        for (name, sent) in [("FedPower", product), ("power start", start), ("FedRep", gradient)] {
            let cosine = largest_cosine(&leading_direction(&matrix(D, K, &sent)), &samples);
            assert!(cosine > 0.9999, "{name}: {cosine}");
        }
    }
}

/// Returns the mean of the values, and the variance of that mean.
fn mean_and_variance(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    (mean, values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n * (n - 1.0)))
}

/// Returns the average difference, in standard errors, between the largest |cos| with the device's records
/// and the largest |cos| with other records, for uploads with noise. If `aimed`, the server puts a record of
/// the device into the basis.
fn excess_over_others(square: u64, m: usize, iterations: u16, aimed: bool, rounds: u64) -> f64 {
    let mut random = Random(19);
    let (mut own_cosines, mut other_cosines) = (Vec::new(), Vec::new());
    for number in 0..rounds {
        let (samples, other_samples) = (random_samples(&mut random, m), random_samples(&mut random, m));
        let mut basis = random.gaussian(D, K);
        if aimed {
            basis.set_column(0, &samples.x64().row(0).transpose());
        }
        let z = flat(&orthonormal64(&basis));
        let task = fed_power(iterations, PowerRows::Features, PRODUCT);
        let known = Known::new(settings(square, 1 << 15), number);
        let (_, sent) = private_round(&samples, &known, task, &z, K).unwrap();
        let direction = leading_direction(&matrix(D, K, &sent));
        own_cosines.push(largest_cosine(&direction, &samples));
        other_cosines.push(largest_cosine(&direction, &other_samples));
    }
    let ((own_cosines, own_error), (other_cosines, others_error)) =
        (mean_and_variance(&own_cosines), mean_and_variance(&other_cosines));
    let errors = (own_cosines - other_cosines) / (own_error + others_error).sqrt();
    let z = (square as f64 / 65_536.0).sqrt();
    println!(
        "z = {z:.2}, m = {m}, {iterations} iterations, aimed {aimed}: {own_cosines:.4}, others {other_cosines:.4}, excess of \
         {errors:.1} standard errors"
    );
    errors
}

/// Checks that uploads with noise are at most three standard errors closer to the device's records than to
/// other records.
fn assert_no_excess(rounds: u64) {
    for (z, m, iterations) in [(4, 1, 1), (4, 1, 3), (4, 5, 1), (4, 20, 1), (8, 1, 1), (8, 1, 3)] {
        assert!(excess_over_others((z * z) << 16, m, iterations, false, rounds) <= 3.0);
    }
    // Differential privacy bounds the leak but does not exclude it: with little noise and an aimed basis, an
    // upload reveals a record.
    assert!(
        excess_over_others(LEAST, 1, 1, true, rounds) > 10.0,
        "the attack failed despite little noise and an aimed basis"
    );
    excess_over_others(1 << 16, 1, 1, false, rounds);
    excess_over_others(16 << 16, 1, 1, true, rounds);
}

#[test]
fn uploads_with_noise_are_no_closer_to_own_records() {
    assert_no_excess(4_000);
}

/// Long test:
/// `cargo test --release -p fedspan-client --all-features --test all -- attack_moments:: --ignored --nocapture`
#[test]
#[ignore = "minutes"]
fn uploads_with_noise_of_many_rounds_are_no_closer() {
    assert_no_excess(40_000);
}

/// A device with noise declines moments even in a build that can reveal them.
#[test]
fn device_with_noise_declines_moments() {
    let samples = random_samples(&mut Random(20), 1);
    let model = Linear::private(Heap::power(D, K, 1), Known::new(settings(LEAST, 8), 1)).unwrap();
    let capabilities = model.capabilities();
    let moment_rows = Wire::MomentRows { first: 0, count: 1 };
    assert_eq!((capabilities.tasks & moment_rows.bit(), capabilities.roles & Role::Moment.bit()), (0, 0));
    assert_eq!(download_moments(model, &samples).unwrap_err(), DeclineReason::Task);
    // A build that can reveal moments has a warning that the firmware should print.
    assert!(fedspan_client::WARNING.unwrap().contains("moment"));
}
