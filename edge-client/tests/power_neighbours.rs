//! Tests of FedPower with noise on neighbours: one record is replaced by any other record. The sums then
//! differ by at most the sensitivity, the outputs are on the same grid, and all other reports are equal.
#![cfg(all(feature = "power", feature = "privacy"))]

use crate::common::power::*;
use crate::common::private::*;
use crate::common::*;
use fedspan_client::privacy::sensitivity;
use fedspan_client::task::Usage;
use fedspan_client::{Linear, Task};
use fedspan_protocol::message::{DeclineReason, PowerRows, PowerUpload};

const FEATURES: PowerRows = PowerRows::Features;
const PRODUCT: PowerUpload = PowerUpload::Product;

/// Returns the noisy integers of a release, always with the same noise. Returns `None` if the basis is
/// declined.
fn release_integers(
    samples: &Sliced,
    rows: PowerRows,
    z: &[f32],
    k: usize,
    rows_max: u32,
) -> Option<Vec<i128>> {
    let known = Known::new(settings(LEAST, rows_max), 1);
    match private_round(samples, &known, fed_power(1, rows, PRODUCT), z, k) {
        Ok((_, sent)) => Some(noisy_integers(&sent, known.settings.grid(), samples.len())),
        Err(DeclineReason::NotOrthonormal { .. }) => None,
        Err(reason) => panic!("{reason:?}"),
    }
}

/// Returns the distance between the sums of two sets of samples, relative to the sensitivity. The noise is
/// the same, so the difference of two releases is that of the sums.
fn share_of_sensitivity(a: &Sliced, b: &Sliced, rows: PowerRows, z: &[f32], k: usize, rows_max: u32) -> f64 {
    let releases = (release_integers(a, rows, z, k, rows_max), release_integers(b, rows, z, k, rows_max));
    let (Some(a_sums), Some(b_sums)) = releases else { return 0.0 };
    let square: i128 = a_sums.iter().zip(&b_sums).map(|(a, b)| (a - b) * (a - b)).sum();
    let grid = settings(LEAST, rows_max).grid();
    let bound = sensitivity(a.features as u16, k as u16, grid);
    assert!(square <= i128::from(bound * bound), "{} over {bound}", (square as f64).sqrt());
    (square as f64).sqrt() / bound as f64
}

/// Returns samples that start with this record.
fn samples_with(record: &(Vec<f32>, f32), other_samples: &Sliced) -> Sliced {
    let Labels::Values(y) = &other_samples.labels else { panic!() };
    let x = [record.0.clone(), other_samples.x.clone()].concat();
    Sliced::regression(x, [vec![record.1], y.clone()].concat(), other_samples.features, 1)
}

fn zero_samples(d: usize) -> Sliced {
    Sliced::regression(Vec::new(), Vec::new(), d, 1)
}

/// Returns a random record: of any size, along an axis, at the edge of clipping, with values that are not
/// finite, or with random bits.
fn random_record(random: &mut Random, d: usize) -> (Vec<f32>, f32) {
    let mut x = random.normals(d);
    let target = [1.0, random.normal() as f32, 0.0, 1e19, f32::NAN][random.below(5)];
    let norm = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    let mut scale = |by: f64| x.iter_mut().for_each(|x| *x = (f64::from(*x) * by) as f32);
    match random.below(12) {
        0 => scale(1.0 / norm),
        1 => scale((1.0 + f64::from(f32::EPSILON)) / norm),
        2 => scale((1.0 - f64::from(f32::EPSILON)) / norm),
        3 => scale(1e18 / norm),
        4 => scale(1e-41 / norm),
        5 => scale(random.unit() / norm),
        6 => x.fill((1.0 / d as f32).sqrt()),
        7 => {
            x.fill(0.0);
            let index = random.below(d);
            x[index] = [1.0, -1.0, 1.0 + f32::EPSILON, 2.0][random.below(4)];
        }
        8 => {
            let index = random.below(d);
            x[index] =
                [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN_POSITIVE][random.below(5)];
        }
        9 => x.fill(0.0),
        10 => x.iter_mut().for_each(|x| *x = f32::from_bits(random.next() as u32)),
        // The values are odd multiples of half a unit of the grid, which all round in the same direction.
        _ => x.iter_mut().for_each(|x| *x = x.signum() * ((*x * 9.0).trunc() + 0.5) / 32_768.0),
    }
    (x, target)
}

#[test]
fn record_changes_a_sum_by_the_sensitivity_at_most() {
    let mut random = Random(1);
    let mut worst = Worst::default();
    for case in 0..60_000 {
        let k = 1 + case % 4;
        let d = k + random.below([1, 3, 30][case % 3]);
        let rows_max = [1 << 6, 1 << 15, 1 << 20, 1 << 26, 1 << 30][case % 5];
        let mut z = flat(&random.orthonormal(d, k));
        match case % 7 {
            0 => z = identity_columns(d, k),
            // The basis is as far from orthonormal as a device tolerates.
            1 => z.iter_mut().for_each(|z| *z *= 1.0004),
            2 => {
                let index = random.below(d * k);
                z[index] += 4e-4;
            }
            _ => {}
        }
        let (u, v) = (random_record(&mut random, d), random_record(&mut random, d));
        let other_samples = if case % 2 == 0 {
            zero_samples(d)
        } else {
            Sliced::regression(random.normals(3 * d), random.normals(3), d, 1)
        };
        let rows = ROWS[case / 2 % 2];
        let share = share_of_sensitivity(
            &samples_with(&u, &other_samples),
            &samples_with(&v, &other_samples),
            rows,
            &z,
            k,
            rows_max,
        );
        worst.record_largest(if k == 1 { "share, one column" } else { "share, more columns" }, share);
        if rows_max == 1 << 30 {
            worst.record_largest("share, coarsest grid", share);
        }
    }
}

/// The worst pair is two orthogonal unit vectors in the span of the basis, or for one column a unit vector
/// and a zero record.
#[test]
fn worst_pair_attains_the_sensitivity_to_a_percent() {
    let mut random = Random(2);
    let mut worst = Worst::default();
    for (d, k) in [(2, 1), (2, 2), (5, 2), (5, 5), (12, 3), (40, 8)] {
        let unit = |i: usize| ((0..d).map(|j| if i == j { 1.0 } else { 0.0 }).collect::<Vec<f32>>(), 1.0);
        let second_record = if k == 1 { (vec![0.0; d], 1.0) } else { unit(1) };
        let z = identity_columns(d, k);
        let (a, b) =
            (samples_with(&unit(0), &zero_samples(d)), samples_with(&second_record, &zero_samples(d)));
        let on_axes = share_of_sensitivity(&a, &b, FEATURES, &z, k, 1 << 15);
        assert!(on_axes > 0.99, "d={d} k={k}: {on_axes}");
        // The worst pair is the same in any other basis and with one more record.
        let z = flat(&random.orthonormal(d, k));
        let column = |j: usize| (z.iter().skip(j).step_by(k).copied().collect::<Vec<f32>>(), 1.0);
        let other_samples = Sliced::regression(random.normals(d), vec![1.0], d, 1);
        let second_record = if k == 1 { (vec![f32::NAN; d], 1.0) } else { column(1) };
        let in_other_basis = share_of_sensitivity(
            &samples_with(&column(0), &other_samples),
            &samples_with(&second_record, &other_samples),
            FEATURES,
            &z,
            k,
            1 << 15,
        );
        assert!(in_other_basis > 0.99, "d={d} k={k}: {in_other_basis}");
        worst.record_largest("share", on_axes.max(in_other_basis));
    }
}

/// Hill climbing from many starts, which keeps any change of the records and the basis that increases the
/// distance, does not exceed the sensitivity.
#[test]
fn hill_climbing_does_not_exceed_the_sensitivity() {
    let mut random = Random(3);
    let mut worst = Worst::default();
    for (start, rows_max) in [1 << 15, 1 << 20, 1 << 25, 1 << 30, 1 << 30].into_iter().enumerate() {
        for k in [1, 2, 3] {
            let d = k + start % 3;
            let mut z = random.orthonormal(d, k);
            let mut pair = [random.normals(d), random.normals(d)];
            let mut best = 0.0;
            for step in 0..1500 {
                let size = 10f64.powf(-5.0 * random.unit());
                let mut changed_pair = pair.clone();
                let mut changed_basis = z.clone();
                if step % 3 == 0 {
                    changed_basis += random.gaussian(d, k) * size;
                    changed_basis = orthonormal64(&changed_basis);
                } else {
                    let moved_record = &mut changed_pair[step % 2];
                    let norm = moved_record.iter().map(|x| x * x).sum::<f32>().sqrt();
                    moved_record.iter_mut().for_each(|x| *x += (random.normal() * size) as f32 * norm);
                }
                let samples_of = |x: &Vec<f32>| samples_with(&(x.clone(), 1.0), &zero_samples(d));
                let share = share_of_sensitivity(
                    &samples_of(&changed_pair[0]),
                    &samples_of(&changed_pair[1]),
                    FEATURES,
                    &flat(&changed_basis),
                    k,
                    rows_max,
                );
                if share >= best {
                    (best, pair, z) = (share, changed_pair, changed_basis);
                }
            }
            worst.record_largest(["finest", "2^-10", "2^-5", "1", "1"][start], best);
            if rows_max == 1 << 15 {
                assert!(best > 0.99, "d={d} k={k}: {best}");
            }
        }
    }
}

/// Every output times `s 2^g` is an integer, and the output is computed from that integer, `s` and `g` alone.
/// The low bits of floats, which distinguish records in sums of floats, therefore reveal nothing. If `s` is a
/// power of two, the product in floats is exact and an integer; for any other `s`, the nearest integer gives
/// the same float again.
#[test]
fn neighbours_outputs_are_on_the_same_grid() {
    let mut random = Random(4);
    for case in 0..100_000u64 {
        let (d, k) = (2 + random.below(2), 1 + random.below(2));
        let z = flat(&random.orthonormal(d, k));
        let known = Known::new(settings(LEAST << random.below(4), 1 << 16), case);
        let (other_count, iterations) = (random.below(4), 1 + random.below(2) as u16);
        let other_samples =
            Sliced::regression(random.normals(other_count * d), random.normals(other_count), d, 1);
        let task = fed_power(iterations, ROWS[random.below(2)], PRODUCT);
        let unit = (1u32 << known.settings.grid()) as f32 * (other_samples.len() + 1) as f32;
        for _ in 0..2 {
            let samples = samples_with(&random_record(&mut random, d), &other_samples);
            let (_, sent) = private_round(&samples, &known, task, &z, k).unwrap();
            for value in sent {
                let exact = f64::from(value) * f64::from(unit);
                let integer = exact.round();
                assert!(!samples.len().is_power_of_two() || integer == exact, "{value:e}");
                assert_eq!((integer as f32 / unit).to_bits(), value.to_bits());
            }
        }
    }
}

/// The answer has the same form for any records: no decline and no reported count depends on them.
#[test]
fn neighbours_send_equal_reports() {
    let mut random = Random(5);
    for case in 0..4000 {
        let k = 1 + case % 4;
        let d = k + 2 + random.below(6);
        let m = 1 + random.below(6);
        let z = flat(&random.orthonormal(d, k));
        let known = Known::new(settings(LEAST, 1 << 15), case as u64);
        let mut samples = zero_samples(d);
        for _ in 0..m {
            samples = samples_with(&random_record(&mut random, d), &samples);
        }
        for rows in ROWS {
            for upload in UPLOADS {
                let task = fed_power(1 + (case % 3) as u16, rows, upload);
                let (usage, sent) = private_round(&samples, &known, task, &z, k).unwrap();
                assert_eq!(usage, Usage { samples: m as u32, skipped: 0 });
                assert!(sent.iter().all(|v| v.is_finite()));
            }
        }
    }
    // Unknown classes do not change the answer either.
    let mut model = Linear::private(Heap::power(3, 1, 2), Known::new(settings(LEAST, 8), 9)).unwrap();
    for classes in [vec![0, 1, 1], vec![0, 9, 1], vec![9, 9, 9]] {
        let unknown = classes.iter().filter(|&&class| class > 1).count() as u32;
        let mut source = Sliced::classification(vec![0.3; 9], classes, 3, 2);
        let task = fed_power(1, PowerRows::Weighted, PRODUCT);
        let (usage, _) = power_round(&mut model, task, &identity_columns(3, 1), &mut source).unwrap();
        assert_eq!(usage, Usage { samples: 3, skipped: 0 });
        assert_eq!(model.usage(), Usage { samples: 3 - unknown, skipped: unknown });
        assert_eq!(model.upload().len(), 1);
    }
}
