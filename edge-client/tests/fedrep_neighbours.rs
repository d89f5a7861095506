//! Tests of FedRep with noise on neighbours: one record is replaced by any other record, and the head is
//! fitted again. The integers of the two gradients then differ by at most twice the radius, and both outputs
//! are on the same grid.
#![cfg(feature = "privacy")]

use crate::common::clipped::*;
use crate::common::*;
use fedspan_client::privacy::Clip;
use fedspan_protocol::message::{HeadSolve, Task as Wire, Upload};

fn exact_task() -> Wire {
    fed_rep(EXACT, Upload::Gradient, 0.25)
}

/// Record: features and a target.
type Record = (Vec<f32>, f32);

/// Returns samples that start with this record.
fn samples_with(record: &Record, other_samples: &Sliced) -> Sliced {
    let Labels::Values(y) = &other_samples.labels else { panic!() };
    let x = [record.0.clone(), other_samples.x.clone()].concat();
    Sliced::regression(x, [vec![record.1], y.clone()].concat(), other_samples.features, 1)
}

fn random_samples(random: &mut Random, m: usize, d: usize) -> Sliced {
    Sliced::regression(random.normals(m * d), random.normals(m), d, 1)
}

/// Returns the distance between the gradients of two sets of samples, relative to the sensitivity.
fn share_of_sensitivity(
    a: &Sliced,
    b: &Sliced,
    task: Wire,
    basis: &[f32],
    clip: Clip,
    streamed: bool,
) -> f64 {
    let round_of = |samples: &Sliced| run_new_device(samples, clip, task, basis, streamed).unwrap();
    let (a, b) = (round_of(a), round_of(b));
    assert_eq!(a.usage, b.usage);
    let square: i128 = a.integers.iter().zip(&b.integers).map(|(a, b)| (a - b) * (a - b)).sum();
    let bound = i128::from(clip.sensitivity());
    assert!(square <= bound * bound, "{} over {bound}", (square as f64).sqrt());
    (square as f64).sqrt() / bound as f64
}

/// Returns a random record: of any size, with values that are not finite, or with random bits.
fn random_record(random: &mut Random, d: usize) -> Record {
    let (mut x, mut y) = (random.normals(d), random.normal() as f32);
    let size = 10f32.powi(random.below(24) as i32 - 12);
    match random.below(8) {
        0 => x.iter_mut().for_each(|x| *x = f32::from_bits(random.next() as u32)),
        1 => {
            let index = random.below(d);
            x[index] = [f32::NAN, f32::INFINITY, f32::MAX, f32::MIN_POSITIVE][random.below(4)];
        }
        2 => x.fill(0.0),
        3 => y = [0.0, f32::NAN, 1e12, f32::INFINITY, 1e-40][random.below(5)],
        4 => y *= size,
        _ => x.iter_mut().for_each(|x| *x *= size),
    }
    (x, y)
}

#[test]
fn record_changes_a_gradient_by_twice_the_radius_at_most() {
    let mut random = Random(1);
    let mut worst = Worst::default();
    for case in 0..60_000 {
        let k = 1 + case % 4;
        let d = k + random.below([1, 3, 30][case % 3]);
        let m = [0, 1, k, 3 * k][case / 2 % 4];
        let b = flat(&random.orthonormal(d, k));
        let other_samples = random_samples(&mut random, m, d);
        let (u, v) = (random_record(&mut random, d), random_record(&mut random, d));
        let clip = Clip::new(10f32.powf(4.0 * random.unit() as f32 - 3.0)).unwrap();
        let head = match case % 5 {
            0 => HeadSolve::Gradient { steps: 3, step_size: 0.1 },
            1 => HeadSolve::LeastSquares { ridge: 0.1 },
            _ => EXACT,
        };
        let task = fed_rep(head, Upload::Gradient, 0.1);
        let share = share_of_sensitivity(
            &samples_with(&u, &other_samples),
            &samples_with(&v, &other_samples),
            task,
            &b,
            clip,
            case % 2 == 0,
        );
        worst.record_largest(["one record", "two", "k + 1", "3 k + 1"][case / 2 % 4], share);
    }
    // Random pairs of records come close to the bound.
    assert!(worst.get("3 k + 1") > 0.9);
}

/// A record is mirrored at the span of the representation: its projection stays the same, and its residual
/// has the opposite effect on the gradient.
#[test]
fn mirrored_record_attains_twice_the_radius() {
    let mut random = Random(2);
    let mut worst = Worst::default();
    for (d, k, m) in [(2, 1, 1), (3, 2, 4), (12, 3, 8), (40, 8, 30)] {
        let b = random.orthonormal(d, k);
        let other_samples = random_samples(&mut random, m, d);
        let x = random.gaussian(d, 1) * 30.0;
        let inside = &b * b.transpose() * &x;
        let outside = (&x - &inside) * 30.0;
        let u = (flat(&(&inside + &outside)), 1e4);
        let v = (flat(&(&inside - &outside)), 1e4);
        for streamed in [false, true] {
            let clip = Clip::new(1.0).unwrap();
            let share = share_of_sensitivity(
                &samples_with(&u, &other_samples),
                &samples_with(&v, &other_samples),
                exact_task(),
                &flat(&b),
                clip,
                streamed,
            );
            worst.record_largest("share", share);
            assert!(share > 0.999, "d={d} k={k} {streamed}: {share}");
        }
    }
}

/// Hill climbing from many starts, which keeps any change of the pair, the other records or the
/// representation that increases the distance, does not exceed the bound.
#[test]
fn hill_climbing_does_not_exceed_the_bound() {
    let mut random = Random(3);
    let mut worst = Worst::default();
    for start in 0..24 {
        let (k, m) = (1 + start % 3, 1 + start % 4);
        let d = k + 1 + start % 2;
        let clip = Clip::new([0.3, 3.0][start % 2]).unwrap();
        let mut b = random.orthonormal(d, k);
        let mut other_samples = random_samples(&mut random, m, d);
        let mut pair = [0; 2].map(|_| (random.normals(d), random.normal() as f32));
        let mut best = 0.0;
        for step in 0..1500 {
            let size = 10f64.powf(2.0 - 5.0 * random.unit());
            let (mut changed_pair, mut changed_basis, mut changed_samples) =
                (pair.clone(), b.clone(), other_samples.clone());
            let shift = |random: &mut Random, x: &mut [f32]| {
                let norm = x.iter().map(|x| x * x).sum::<f32>().sqrt();
                x.iter_mut().for_each(|x| *x += (random.normal() * size) as f32 * norm);
            };
            match step % 6 {
                0 => changed_basis = power::orthonormal64(&(changed_basis + random.gaussian(d, k) * size)),
                1 => shift(&mut random, &mut changed_samples.x),
                2 => changed_pair[step / 6 % 2].1 *= (random.normal() * size) as f32,
                _ => shift(&mut random, &mut changed_pair[step % 2].0),
            }
            let share = share_of_sensitivity(
                &samples_with(&changed_pair[0], &changed_samples),
                &samples_with(&changed_pair[1], &changed_samples),
                exact_task(),
                &flat(&changed_basis),
                clip,
                false,
            );
            if share >= best {
                (best, pair, b, other_samples) = (share, changed_pair, changed_basis, changed_samples);
            }
        }
        worst.record_largest("share", best);
        assert!(best > 0.9, "start {start}: {best}");
    }
}

/// Every output is an integer times the unit of the grid. The low bits of floats, which distinguish records
/// in sums of floats, therefore reveal nothing.
#[test]
fn neighbours_outputs_are_on_the_same_grid() {
    let mut random = Random(4);
    for _ in 0..20_000 {
        let (d, k) = (2 + random.below(2), 1 + random.below(2));
        let b = flat(&random.orthonormal(d, k));
        let clip = Clip::new(10f32.powi(random.below(20) as i32 - 10)).unwrap();
        let count = random.below(4);
        let other_samples = random_samples(&mut random, count, d);
        for _ in 0..2 {
            let samples = samples_with(&random_record(&mut random, d), &other_samples);
            // The function that subtracts the noise asserts that every output is an integer.
            let outcome = run_new_device(&samples, clip, exact_task(), &b, random.below(2) == 0).unwrap();
            assert!(squared_norm(&outcome.integers) <= i128::from(clip.units()).pow(2));
        }
    }
}
