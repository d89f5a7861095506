//! Tests of FedPower without noise: products, bases and iterations against f64, clipped and unusable rows,
//! and bits that do not depend on batches.
#![cfg(feature = "power")]

use crate::common::power::*;
use crate::common::*;
use fedspan_client::Linear;
use fedspan_client::pace::{Paced, Pacer};
use fedspan_client::task::{PowerCounts, Usage};
use fedspan_protocol::message::{DeclineReason, PowerRows, PowerUpload};

const FEATURES: PowerRows = PowerRows::Features;
const PRODUCT: PowerUpload = PowerUpload::Product;

/// Returns the counts of rows after a round.
fn count_rows(samples: &Sliced, rows: PowerRows) -> PowerCounts {
    let mut model = Linear::new(Heap::power(samples.features, 1, samples.outputs));
    let z = identity_columns(samples.features, 1);
    power_round(&mut model, fed_power(1, rows, PRODUCT), &z, &mut samples.clone()).unwrap();
    model.power_counts()
}

#[test]
fn all_uploads_equal_f64() {
    let mut random = Random(1);
    let mut worst = Worst::default();
    for case in 0..240 {
        let k = 1 + case % 9;
        let d = if case % 4 == 0 { k } else { k + random.below(30) };
        let (c, m) = (1 + random.below(3), 4 * d + random.below(60));
        let size = [0.1, 0.7, 3.0][case % 3];
        let samples = decaying_samples(&mut random, d, c, m, size);
        let z = flat(&random.orthonormal(d, k));
        for rows in ROWS {
            let a = moment64(&samples, rows);
            for iterations in [1, 2, 4] {
                // Rounding a product has an effect on its orthonormal factor that grows as the least singular
                // value shrinks; with more iterations the columns converge to each other.
                let y = oracle(&a, &matrix(d, k, &z), iterations, PRODUCT).remove(0);
                let condition = Svd::new(&y).condition();
                for upload in UPLOADS {
                    let (usage, sent) =
                        run_power_round(&samples, fed_power(iterations, rows, upload), &z, k).unwrap();
                    assert_eq!(usage, Usage { samples: m as u32, skipped: 0 });
                    let expected = oracle(&a, &matrix(d, k, &z), iterations, upload);
                    let sent = split_tensors(d, k, &sent);
                    assert_eq!(sent.len(), expected.len());
                    for (number, (sent, expected)) in sent.iter().zip(&expected).enumerate() {
                        let is_basis = number == 1 || upload == PowerUpload::Basis;
                        let depends_on_condition = is_basis || iterations > 1;
                        let bound = 64.0 * EPS * if depends_on_condition { condition * 8.0 } else { 1.0 };
                        let error = (sent - expected).norm() / expected.norm();
                        assert!(
                            error <= bound,
                            "{upload:?} {number}: {error:e} over {bound:e}: d={d} k={k} m={m} p={iterations}"
                        );
                        worst.record_largest(
                            if depends_on_condition { "sensitive" } else { "one product" },
                            error / bound,
                        );
                    }
                }
            }
        }
    }
}

/// Local iterations find the leading eigenvectors of the device's moment matrix.
#[test]
fn local_iterations_converge_to_the_leading_subspace() {
    let mut random = Random(2);
    for (d, k, m) in [(12, 1, 200), (20, 3, 100), (30, 5, 300), (8, 8, 60)] {
        let samples = decaying_samples(&mut random, d, 1, m, 0.5);
        let z = flat(&random.orthonormal(d, k));
        for rows in ROWS {
            let eigen = moment64(&samples, rows).symmetric_eigen();
            let mut order: Vec<usize> = (0..d).collect();
            order.sort_by(|&i, &j| eigen.eigenvalues[j].total_cmp(&eigen.eigenvalues[i]));
            let top = M::from_fn(d, k, |i, j| eigen.eigenvectors[(i, order[j])]);
            let distance = |iterations| {
                let task = fed_power(iterations, rows, PowerUpload::Basis);
                let (_, sent) = run_power_round(&samples, task, &z, k).unwrap();
                let basis = matrix(d, k, &sent);
                norm2(&(&basis - &top * (top.transpose() * &basis)))
            };
            assert!(distance(60) <= 1e-4, "d={d} k={k}: {:e}", distance(60));
            assert!(k == d || distance(1) > 1e-2);
        }
    }
}

#[test]
fn batches_change_no_bit() {
    let mut random = Random(3);
    for k in [1, 2, 3, 4, 5, 8] {
        let mut samples = decaying_samples(&mut random, 11, 2, 45, 0.8);
        // There are unusable samples at every position within a group of four.
        for row in [0, 6, 13, 27, 44] {
            samples.x[row * 11 + row % 11] = f32::NAN;
        }
        let z = flat(&random.orthonormal(11, k));
        for rows in ROWS {
            let task = fed_power(2, rows, PowerUpload::ProductAndBasis);
            let expected = run_power_round(&samples.without(&[0, 6, 13, 27, 44]), task, &z, k).unwrap();
            for at_once in [1, 2, 3, 4, 5, 7, 8, 16, 44, usize::MAX] {
                let (usage, sent) = run_power_round(&samples.clone().at_once(at_once), task, &z, k).unwrap();
                assert_eq!(usage, Usage { samples: 40, skipped: 5 });
                assert_eq!(bits(&sent), bits(&expected.1), "k={k}, {at_once} at once");
            }
        }
    }
}

/// Hosts process blocks of rows with their vectors; with pauses, they compute like devices.
#[test]
fn blocks_of_rows_have_the_bits_of_single_rows() {
    let mut random = Random(9);
    for case in 0..300 {
        let d = [1, 3, 4, 7, 8, 9, 16, 23, 37, 101][case % 10];
        let k = (1 + case % 14).min(d);
        let m = 1 + random.below(3 * 64);
        let mut samples = decaying_samples(&mut random, d, 2, m, [0.3, 1.0, 5.0][case % 3]);
        for _ in 0..case % 4 {
            samples.x[random.below(m * d)] = [f32::NAN, f32::INFINITY, 3e38][case % 3];
        }
        let z = flat(&random.orthonormal(d, k));
        let at_once = [1, 3, 5, 11, usize::MAX][case % 5];
        for rows in ROWS {
            let task = fed_power(2, rows, PowerUpload::ProductAndBasis);
            let run = |quota| {
                let pause = || ();
                let pacer = Pacer::new(quota, &pause);
                let mut model = Linear::new(Paced::new(Heap::power(d, k, 2), &pacer));
                power_round(&mut model, task, &z, &mut samples.clone()).map(|(_, sent)| bits(&sent))
            };
            let mut model = Linear::new(Heap::power(d, k, 2));
            let result = power_round(&mut model, task, &z, &mut samples.clone().at_once(at_once));
            let message = format!("d={d} k={k} m={m}, {at_once} at once");
            assert_eq!(result.map(|(_, sent)| bits(&sent)), run(u32::MAX), "{message}");
        }
    }
}

#[test]
fn rows_over_norm_one_are_clipped_to_one() {
    let mut random = Random(4);
    let (d, k, m) = (9, 3, 24);
    let z = flat(&random.orthonormal(d, k));
    for size in [1.0f64, 2.0, 1e3, 1e9, 1e18] {
        // Vectors along an axis have norms without rounding.
        let x: Vec<f32> = (0..m * d).map(|i| if i % d == (i / d) % d { size as f32 } else { 0.0 }).collect();
        let samples_of = |x| Sliced::regression(x, vec![1.0; m], d, 1);
        let (_, sent) =
            run_power_round(&samples_of(x.clone()), fed_power(1, FEATURES, PRODUCT), &z, k).unwrap();
        let unit = x.iter().map(|x| x.signum() * x.abs().min(1.0)).collect();
        let (_, expected) =
            run_power_round(&samples_of(unit), fed_power(1, FEATURES, PRODUCT), &z, k).unwrap();
        let error = (matrix(d, k, &sent) - matrix(d, k, &expected)).norm();
        assert!(error <= 4.0 * EPS, "{size:e}: {error:e}");
        let clipped = if size > 1.0 { m as u32 } else { 0 };
        assert_eq!(
            count_rows(&samples_of(x), FEATURES),
            PowerCounts { rows: m as u32, clipped, ..PowerCounts::NOTHING }
        );
    }
}

/// A row is clipped by the norm of its weighted features, also if feature and weight are at opposite ends of
/// f32.
#[test]
fn clipping_uses_the_weighted_row() {
    let z = [1.0, 0.0];
    for (x, y, expected, clipped) in [
        (0.5f32, 2.0f32, 1.0f32, 0),
        (0.5, 4.0, 1.0, 1),
        (0.5, 0.5, 0.0625, 0),
        (1e18, 1e-18, 1.0, 0),
        (1e-18, 1e18, 1.0, 0),
        (1e-18, 1e19, 1.0, 1),
        (1e19, 1e19, 1.0, 1),
        (1e19, 0.0, 0.0, 0),
        (0.0, 1e19, 0.0, 0),
        (1e-30, 1e19, 1e-22, 0),
    ] {
        let samples = Sliced::regression(vec![x, 0.0], vec![y], 2, 1);
        let (usage, sent) =
            run_power_round(&samples, fed_power(1, PowerRows::Weighted, PRODUCT), &z, 1).unwrap();
        assert_eq!(usage, Usage { samples: 1, skipped: 0 });
        assert!((sent[0] - expected).abs() <= 1e-5 * expected, "{x} {y}: {}", sent[0]);
        assert_eq!(sent[1], 0.0);
        let row_counts = count_rows(&samples, PowerRows::Weighted);
        // The product of 1e18 and 1e-18 is 1 up to rounding, so either count is right.
        if (f64::from(x) * f64::from(y) - 1.0).abs() > 1e-6 || x == 0.5 {
            assert_eq!(row_counts, PowerCounts { rows: 1, clipped, ..PowerCounts::NOTHING }, "{x} {y}");
        }
    }
}

#[test]
fn unusable_rows_are_skipped_and_counted() {
    let mut random = Random(5);
    let (d, k, m) = (7, 4, 20);
    let clean = decaying_samples(&mut random, d, 1, m, 0.5);
    let z = flat(&random.orthonormal(d, k));
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1e20] {
        for in_target in [true, false] {
            let mut dirty = clean.clone();
            match &mut dirty.labels {
                Labels::Values(y) if in_target => y[5] = value,
                _ => dirty.x[5 * d + 2] = value,
            }
            for rows in ROWS {
                let task = fed_power(2, rows, PowerUpload::Basis);
                let is_unusable = !in_target || rows == PowerRows::Weighted;
                let expected = if is_unusable { clean.without(&[5]) } else { clean.clone() };
                let (usage, sent) = run_power_round(&dirty, task, &z, k).unwrap();
                let skipped = u32::from(is_unusable);
                assert_eq!(usage, Usage { samples: m as u32 - skipped, skipped }, "{value} {rows:?}");
                let expected_counts =
                    PowerCounts { rows: m as u32 - skipped, unusable: skipped, ..count_rows(&dirty, rows) };
                assert_eq!(count_rows(&dirty, rows), expected_counts);
                assert_eq!(bits(&sent), bits(&run_power_round(&expected, task, &z, k).unwrap().1));
            }
        }
    }
}

#[test]
fn unknown_classes_matter_only_if_targets_do() {
    let mut random = Random(6);
    let x = decaying_samples(&mut random, 5, 1, 12, 0.5).x;
    let classes: Vec<u8> = (0..12).map(|i| i % 4).collect();
    let samples = Sliced::classification(x, classes, 5, 3);
    let z = flat(&random.orthonormal(5, 2));
    let mut model = Linear::new(Heap::power(5, 2, 3));
    for (rows, skipped) in [(FEATURES, 0), (PowerRows::Weighted, 3)] {
        let task = fed_power(1, rows, PRODUCT);
        let (usage, _) = power_round(&mut model, task, &z, &mut samples.clone()).unwrap();
        assert_eq!(usage, Usage { samples: 12 - skipped, skipped });
        assert_eq!(model.power_counts().unusable, skipped);
    }
}

#[test]
fn zero_rows_count_but_give_no_basis() {
    let mut random = Random(7);
    let (d, k) = (6, 2);
    let z = flat(&random.orthonormal(d, k));
    let zero_rows = Sliced::regression(vec![0.0; 8 * d], vec![0.0; 8], d, 1);
    for rows in ROWS {
        let (usage, sent) = run_power_round(&zero_rows, fed_power(1, rows, PRODUCT), &z, k).unwrap();
        assert_eq!(usage, Usage { samples: 8, skipped: 0 });
        assert!(sent.iter().all(|&v| v == 0.0));
        // As many zero rows as other rows halve the product.
        let ordinary = decaying_samples(&mut random, d, 1, 8, 0.5);
        let mut with_zero_rows = ordinary.clone();
        with_zero_rows.x.extend(vec![0.0; 8 * d]);
        let Labels::Values(y) = &mut with_zero_rows.labels else { panic!() };
        y.extend(vec![1.0; 8]);
        let (_, product) = run_power_round(&ordinary, fed_power(1, rows, PRODUCT), &z, k).unwrap();
        let (usage, halved) = run_power_round(&with_zero_rows, fed_power(1, rows, PRODUCT), &z, k).unwrap();
        assert_eq!(usage.samples, 16);
        assert_eq!(bits(&product.iter().map(|v| v / 2.0).collect::<Vec<_>>()), bits(&halved));
        // A product of deficient rank gives no basis, neither between iterations nor for the upload.
        for task in [fed_power(2, rows, PRODUCT), fed_power(1, rows, PowerUpload::Basis)] {
            assert_eq!(run_power_round(&zero_rows, task, &z, k).unwrap_err(), DeclineReason::UpdateNonFinite);
            let single_row = Sliced::regression(ordinary.x[..d].to_vec(), vec![1.0], d, 1);
            assert_eq!(
                run_power_round(&single_row, task, &z, k).unwrap_err(),
                DeclineReason::UpdateNonFinite
            );
        }
    }
}
