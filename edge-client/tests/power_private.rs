//! Tests of FedPower with noise: the upload is exactly the integers of wide arithmetic plus the noise of
//! their coordinates, its mean is the product without noise, and its bits do not depend on batches.
#![cfg(all(feature = "power", feature = "privacy"))]

use crate::common::power::*;
use crate::common::private::*;
use crate::common::*;
use fedspan_client::Linear;
use fedspan_client::memory::PowerWorkspace;
use fedspan_client::task::{PowerCounts, Usage};
use fedspan_protocol::message::{DeclineReason, PowerRows, PowerUpload};
use fedspan_protocol::orthonormal::orthonormalise;

const FEATURES: PowerRows = PowerRows::Features;
const BOTH: PowerUpload = PowerUpload::ProductAndBasis;

#[test]
fn upload_is_wide_integers_plus_noise() {
    let mut random = Random(1);
    for case in 0..300 {
        let k = 1 + case % 9;
        let d = if case % 5 == 0 { k } else { k + random.below(20) };
        let (c, m) = (1 + random.below(3), 1 + random.below(40));
        let mut samples = decaying_samples(&mut random, d, c, m, [0.2, 0.9, 30.0][case % 3]);
        if case % 4 == 0 {
            let index = random.below(m * d);
            samples.x[index] = [f32::NAN, f32::INFINITY, 3e38, 1e-40][case / 4 % 4];
        }
        let z = flat(&random.orthonormal(d, k));
        let rows_max = [1 << 8, 1 << 15, 1 << 18, 1 << 30][case % 4];
        let known = Known::new(settings(LEAST << (case % 12), rows_max), case as u64);
        for rows in ROWS {
            for iterations in [1, 2, 3] {
                let expected = noisy_oracle(&samples, &known, rows, iterations, &z, k);
                let run_round = |upload| {
                    let task = fed_power(iterations as u16, rows, upload);
                    private_round(&samples, &known, task, &z, k)
                };
                let Some((mut product, basis)) = expected else {
                    // On a grid of 1 the noisy product of a small model often has zero columns.
                    assert!(rows_max == 1 << 30 && d * k < 9, "d={d} k={k} m={m}");
                    assert_eq!(run_round(BOTH).unwrap_err(), DeclineReason::UpdateNonFinite);
                    continue;
                };
                let (usage, sent) = run_round(BOTH).unwrap();
                assert_eq!(usage, Usage { samples: m as u32, skipped: 0 });
                assert_eq!(bits(&sent[..d * k]), bits(&product), "d={d} k={k} m={m} p={iterations}");
                assert_eq!(bits(&sent[d * k..]), bits(&basis));
                assert_eq!(bits(&run_round(PowerUpload::Product).unwrap().1), bits(&product));
                match orthonormalise(&mut product, k) {
                    Ok(()) => assert_eq!(bits(&run_round(PowerUpload::Basis).unwrap().1), bits(&product)),
                    Err(_) => assert!(run_round(PowerUpload::Basis).is_err()),
                }
            }
        }
    }
}

/// Asserts that a round of `iterations` sends the integers of wide arithmetic plus noise.
fn assert_wide_integers(samples: &Sliced, rows_max: u32, iterations: u16, z: &[f32], k: usize) {
    let known = Known::new(settings(LEAST, rows_max), 9);
    // On a grid of 1 a noisy product can have zero columns.
    let Some((product, _)) = noisy_oracle(samples, &known, FEATURES, iterations.into(), z, k) else { return };
    let task = fed_power(iterations, FEATURES, PowerUpload::Product);
    let (_, sent) = private_round(samples, &known, task, z, k).unwrap();
    assert_eq!(bits(&sent), bits(&product), "d={} k={k} m={}", samples.features, samples.len());
}

/// Hosts sum rows in blocks, keep them for later iterations, and count rows of a single largest integer apart.
#[test]
fn many_rows_are_summed_like_few() {
    let mut random = Random(3);
    for case in 0..40 {
        let (d, m) = (1 + [0, 1, 15, 31, 69][case % 5], [64, 65, 128, 500][case % 4]);
        let k = (1 + case % 3).min(d);
        let mut samples = decaying_samples(&mut random, d, 1, m, 2.0);
        for _ in 0..m / 3 {
            // A row with one value, which is clipped to 1 or -1.
            let (row, feature) = (random.below(m), random.below(d));
            samples.x[row * d..(row + 1) * d].fill(0.0);
            samples.x[row * d + feature] = [1.0, -1.0, 7.0, -0.5][random.below(4)];
        }
        let z = flat(&random.orthonormal(d, k));
        for iterations in [1, 3] {
            for rows_max in [1 << 15, 1 << 20] {
                assert_wide_integers(&samples, rows_max, iterations, &z, k);
            }
        }
    }
}

#[test]
#[ignore = "half a minute: more rows than a host keeps"]
fn rows_over_the_memory_of_a_host_are_read_again() {
    let (d, m) = (2_000, 17_000);
    let mut random = Random(4);
    let samples = Sliced::regression(random.normals(m * d), random.normals(m), d, 1);
    let z = flat(&random.orthonormal(d, 2));
    assert_wide_integers(&samples, 1 << 15, 2, &z, 2);
}

/// Without their noise, the integers are close to the product in f32, up to the rounding of rows, projections
/// and products.
#[test]
fn upload_without_its_noise_is_the_plain_product() {
    let mut random = Random(2);
    let mut worst = Worst::default();
    for case in 0..100 {
        let k = 1 + case % 6;
        let (d, m) = (k + random.below(40), 1 + random.below(60));
        let samples = decaying_samples(&mut random, d, 1, m, [0.3, 1.0, 10.0][case % 3]);
        let z = flat(&random.orthonormal(d, k));
        for rows in ROWS {
            for grid in [15, 10] {
                let sums = exact_sums(&samples, rows, &integer_basis(&z, k).unwrap(), k, grid);
                let (_, plain) =
                    run_power_round(&samples, fed_power(1, rows, PowerUpload::Product), &z, k).unwrap();
                let unit = f64::from(1u32 << grid) * m as f64;
                let error = sums
                    .iter()
                    .zip(&plain)
                    .map(|(&sum, &plain)| (sum as f64 / unit - f64::from(plain)).powi(2))
                    .sum::<f64>()
                    .sqrt();
                // A rounded row, projection or basis is off by sqrt(d)/2 units, or more if a row is rounded
                // again. A product is off by half a unit of its grid.
                let rounding_error = (4.0 * (d as f64).sqrt() + 4.0) * 2f64.powi(-15);
                let bound = rounding_error + 0.5 * ((d * k) as f64).sqrt() * 2f64.powi(-(grid as i32));
                assert!(error <= bound, "{error:e} over {bound:e}: d={d} k={k} m={m}");
                worst.record_largest("integers against f32, share of the bound", error / bound);
            }
        }
    }
}

/// The mean of many releases is the product without noise, with the stated variance.
#[test]
fn noise_has_mean_zero_and_the_stated_variance() {
    let mut random = Random(3);
    let (d, k, m, draws) = (6, 2, 512, 4000);
    let samples = decaying_samples(&mut random, d, 1, m, 0.9);
    let z = flat(&random.orthonormal(d, k));
    let task = fed_power(1, FEATURES, PowerUpload::Product);
    let (_, plain) = run_power_round(&samples, task, &z, k).unwrap();
    let settings = settings(LEAST, 1 << 15);
    let (variance, 1) = settings.variance(d as u16, k as u16).unwrap().ratio() else { panic!() };
    let sigma = (variance as f64).sqrt() / (f64::from(1 << 15) * m as f64);
    let (mut sums, mut squares) = (vec![0.0; d * k], 0.0);
    for number in 0..draws {
        let (_, sent) = private_round(&samples, &Known::new(settings, number), task, &z, k).unwrap();
        for ((sum, sent), plain) in sums.iter_mut().zip(sent).zip(&plain) {
            let error = f64::from(sent) - f64::from(*plain);
            *sum += error;
            squares += error * error;
        }
    }
    let draws = draws as f64;
    for sum in sums {
        assert!((sum / draws).abs() <= 4.5 * sigma / draws.sqrt(), "{:e} of {sigma:e}", sum / draws);
    }
    let count = draws * (d * k) as f64;
    let spread = squares / count / (sigma * sigma) - 1.0;
    assert!(spread.abs() <= 5.0 * (2.0 / count).sqrt(), "{spread:e}");
}

#[test]
fn order_and_batches_change_no_bit() {
    let mut random = Random(4);
    for k in [1, 3, 4, 7] {
        let (d, m) = (9, 30);
        let mut samples = decaying_samples(&mut random, d, 2, m, 0.8);
        samples.x[5 * d] = f32::NAN;
        let z = flat(&random.orthonormal(d, k));
        let known = Known::new(settings(LEAST, 1 << 10), 4);
        for rows in ROWS {
            let task = fed_power(2, rows, BOTH);
            let expected = private_round(&samples, &known, task, &z, k).unwrap();
            for at_once in [1, 2, 3, 4, 5, 8, 29] {
                let result = private_round(&samples.clone().at_once(at_once), &known, task, &z, k).unwrap();
                assert_eq!((result.0, bits(&result.1)), (expected.0, bits(&expected.1)));
            }
            for _ in 0..5 {
                let mut order: Vec<usize> = (0..m).collect();
                for i in (1..m).rev() {
                    order.swap(i, random.below(i + 1));
                }
                let mut shuffled = samples.clone();
                let (mut x, mut y) = (Vec::new(), Vec::new());
                for i in order {
                    let (row, target) = samples.get(i);
                    x.extend(row);
                    let fedspan_client::source::Targets::Values(target) = target else { panic!() };
                    y.extend(target);
                }
                (shuffled.x, shuffled.labels) = (x, Labels::Values(y));
                let result = private_round(&shuffled, &known, task, &z, k).unwrap();
                assert_eq!(bits(&result.1), bits(&expected.1));
            }
            // Another type of memory gives the same bits.
            if k == 4 {
                let memory = PowerWorkspace::<9, 4, 2>::new();
                let mut model = Linear::private(memory, known.clone()).unwrap();
                let result = power_round(&mut model, task, &z, &mut samples.clone()).unwrap();
                assert_eq!(bits(&result.1), bits(&expected.1));
                let result = power_round(&mut model, task, &z, &mut samples.clone()).unwrap();
                assert_eq!(bits(&result.1), bits(&expected.1), "data of the previous round is left");
            }
        }
    }
}

/// Rows beyond the limit of the settings are ignored and counted.
#[test]
fn rows_over_the_limit_are_ignored_and_counted() {
    let mut random = Random(5);
    let (d, k, m) = (6, 2, 20);
    let mut samples = decaying_samples(&mut random, d, 1, m, 2.0);
    samples.x[3 * d] = f32::NAN;
    let z = flat(&random.orthonormal(d, k));
    let task = fed_power(2, FEATURES, PowerUpload::Product);
    for rows_max in [1, 7, 19, 20, 21] {
        let known = Known::new(settings(LEAST, rows_max), 5);
        let mut model = Linear::private(Heap::power(d, k, 1), known.clone()).unwrap();
        let result = power_round(&mut model, task, &z, &mut samples.clone().at_once(3)).unwrap();
        let rows = rows_max.min(m as u32);
        assert_eq!(result.0, Usage { samples: rows, skipped: 0 });
        let unusable = u32::from(rows > 3);
        assert_eq!(model.usage(), Usage { samples: rows - unusable, skipped: unusable });
        let PowerCounts { clipped, .. } = model.power_counts();
        assert!(clipped > 0 || rows < 3, "{clipped}");
        let beyond = m as u32 - rows;
        assert_eq!(model.power_counts(), PowerCounts { rows, clipped, unusable, beyond });
        let ignored: Vec<usize> = (rows as usize..m).collect();
        let expected = private_round(&samples.without(&ignored), &known, task, &z, k).unwrap();
        assert_eq!(bits(&result.1), bits(&expected.1));
    }
}

/// The widest basis is accepted although its roundings add up; a basis that is not orthonormal in integers is
/// declined.
#[test]
fn bases_are_certified_in_integers() {
    let mut random = Random(6);
    let mut worst = Worst::default();
    for (d, k) in [(64, 64), (65, 64), (130, 64), (400, 64), (60, 32), (3000, 2), (3000, 64)] {
        let z = flat(&random.orthonormal(d, k));
        let zq = integer_basis(&z, k).unwrap();
        let row_sum = (0..k)
            .map(|i| {
                (0..k)
                    .map(|j| {
                        let dot: i128 = zq.chunks(k).map(|row| row[i] * row[j]).sum();
                        (dot - if i == j { 1 << 30 } else { 0 }).abs()
                    })
                    .sum::<i128>()
            })
            .max()
            .unwrap();
        worst.record_largest("row sum over 2^20", row_sum as f64 / f64::from(1 << 20));
        assert!(row_sum <= 1 << 20);
        let samples = Sliced::regression(random.normals(2 * d), vec![1.0; 2], d, 1);
        let known = Known::new(settings(LEAST, 1 << 15), 6);
        let task = fed_power(1, FEATURES, PowerUpload::Product);
        assert!(private_round(&samples, &known, task, &z, k).is_ok(), "d={d} k={k}");
    }
    // All entries are equal and round in the same direction, so the column's length is too far from 1.
    let d = 8000;
    let samples = Sliced::regression(vec![0.1; 2 * d], vec![1.0; 2], d, 1);
    let z = vec![1.0 / (d as f32).sqrt(); d];
    let length_error: i128 = integer_basis(&z, 1).unwrap().iter().map(|q| q * q).sum::<i128>() - (1 << 30);
    assert!(length_error.abs() > 1 << 20, "{length_error}");
    let known = Known::new(settings(LEAST, 1 << 15), 6);
    let task = fed_power(1, FEATURES, PowerUpload::Product);
    let error = private_round(&samples, &known, task, &z, 1).unwrap_err();
    assert_eq!(
        error,
        DeclineReason::NotOrthonormal { error: length_error.unsigned_abs() as f32 / 2f32.powi(30) }
    );
    // A basis that is far from orthonormal is declined as it is without noise.
    let skewed = [1.0, 0.002, 0.0, 1.0];
    let samples = Sliced::regression(vec![0.1; 4], vec![1.0; 2], 2, 1);
    assert!(matches!(
        private_round(&samples, &known, task, &skewed, 2),
        Err(DeclineReason::NotOrthonormal { error }) if (error - 0.002).abs() < 1e-6
    ));
}
