//! Tests of a FedRep round in 16-bit fixed point: projection and gradient are within the stated bound of
//! exact arithmetic on the same head, for any samples. Further tests check that bits do not depend on
//! batches, and that unsupported rounds are declined.
#![cfg(feature = "i16")]

use crate::common::fixed::{HeapFixed, gradient_bounds, largest_magnitude, sample_bounds};
use crate::common::*;
use fedspan_client::memory::{FixedWorkspace, Memory};
use fedspan_client::task::Usage;
use fedspan_client::task::representation_hash;
use fedspan_client::{Linear, NotReady, Task};
use fedspan_protocol::message::{DeclineReason, HeadSolve, Numeric, Task as Wire, Upload};
use fedspan_protocol::tensor::{Encoding, Role};
use proptest::prelude::*;

const RIDGE: HeadSolve = HeadSolve::LeastSquares { ridge: 0.1 };
const STEPS: HeadSolve = HeadSolve::Gradient { steps: 3, step_size: 0.1 };

/// Kinds of random samples.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Normal,
    Classes,
    /// Each sample is multiplied by a power of two with an exponent of at most this magnitude.
    Sizes(i32),
    /// Each value is multiplied by a power of two with an exponent of at most this magnitude.
    Wild(i32),
    /// The first feature is a million times as large as the others.
    Dominated,
    /// All samples are multiples of one direction.
    Line,
    Zero,
    Subnormal,
}

const KINDS: [Kind; 10] = [
    Kind::Normal,
    Kind::Classes,
    Kind::Sizes(10),
    Kind::Sizes(30),
    Kind::Wild(30),
    Kind::Wild(100),
    Kind::Dominated,
    Kind::Line,
    Kind::Zero,
    Kind::Subnormal,
];

/// Draws `m` samples of a kind.
fn random_samples(random: &mut Random, kind: Kind, d: usize, c: usize, m: usize) -> Sliced {
    let mut x = random.normals(m * d);
    let random_size = |random: &mut Random, max_exponent: i32| {
        2f32.powi(random.below(2 * max_exponent as usize + 1) as i32 - max_exponent)
    };
    match kind {
        Kind::Normal | Kind::Classes => {}
        Kind::Sizes(max_exponent) => x.chunks_mut(d).for_each(|row| {
            let size = random_size(random, max_exponent);
            row.iter_mut().for_each(|v| *v *= size);
        }),
        // The factors have an upper limit, so that all projections are usable.
        Kind::Wild(max_exponent) => {
            x.iter_mut().for_each(|v| *v *= random_size(random, max_exponent).min(1e9))
        }
        Kind::Dominated => x.chunks_mut(d).for_each(|row| row[0] *= 1e6),
        Kind::Line => {
            let direction = x[..d].to_vec();
            for row in x.chunks_mut(d) {
                let along = random.normal() as f32;
                row.iter_mut().zip(&direction).for_each(|(v, a)| *v = along * a);
            }
        }
        Kind::Zero => x.fill(0.0),
        Kind::Subnormal => x.iter_mut().for_each(|v| *v *= 1e-39),
    }
    if let Kind::Classes = kind {
        let classes = (0..m).map(|_| random.below(c) as u8).collect();
        return Sliced::classification(x, classes, d, c);
    }
    Sliced::regression(x, random.normals(m * c), d, c)
}

/// Draws the numbers of features, columns, outputs and samples.
fn random_shape(random: &mut Random) -> (usize, usize, usize, usize) {
    let k = 1 + random.below(8);
    let d = k + random.below(40);
    (d, k, 1 + random.below(5), 1 + random.below(60))
}

/// Runs a round. Returns `S`, the head and the usage of samples.
fn run_round(
    memory: &mut HeapFixed,
    head: HeadSolve,
    b: &[f32],
    samples: &Sliced,
) -> Result<(Vec<f32>, Vec<f32>, Usage), DeclineReason> {
    let mut model = Linear::new(&mut *memory);
    let (usage, _) =
        fed_rep_round(&mut model, fed_rep(head, Upload::Gradient, 0.0), b, &mut samples.clone())?;
    let w = model.head().to_vec();
    Ok((memory.parts_ref().residual.to_vec(), w, usage))
}

/// Returns whether each sample is usable: all values finite, targets and projections at most 2^40, features
/// at most 2^55. `None` if a value is too close to a limit to decide.
fn usable_samples(samples: &Sliced, b: &M) -> Vec<Option<bool>> {
    let (x, y) = (samples.x64(), samples.y64());
    let head = M::zeros(b.ncols(), y.ncols());
    let row = |a: &M, i: usize| a.row(i).iter().copied().collect::<Vec<f64>>();
    let is_usable = |i: usize| {
        let (x, y) = (row(&x, i), row(&y, i));
        if !x.iter().all(|v| v.is_finite()) || !y.iter().all(|v| v.abs() <= 1.1e12) {
            return Some(false);
        }
        let largest = largest_magnitude(x.iter().copied());
        if largest > 2f64.powi(56) {
            return Some(false);
        }
        let sample_bounds = sample_bounds(&x, &y, b, &head);
        let mut projections = sample_bounds.z.iter().zip(&sample_bounds.zeta);
        if projections.clone().any(|(z, zeta)| z.abs() - zeta > 1e13) {
            return Some(false);
        }
        (largest < 2f64.powi(54) && projections.all(|(z, zeta)| z.abs() + zeta < 1e11)).then_some(true)
    };
    (0..samples.len()).map(is_usable).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    /// The error of `S` is within the bound stated in `kernel::fixed`, against exact arithmetic on the
    /// device's head.
    #[test]
    fn gradient_is_within_the_stated_bound(
        seed in any::<u64>(),
        kind in 0..KINDS.len(),
        head_index in 0..3usize,
    ) {
        let mut random = Random(seed);
        let (d, k, c, m) = random_shape(&mut random);
        let b = flat(&random.orthonormal(d, k));
        let samples = random_samples(&mut random, KINDS[kind], d, c, m);
        let head = [EXACT, RIDGE, STEPS][head_index];
        let result = run_round(&mut HeapFixed::new(d, k, c), head, &b, &samples);
        // Gradient steps of a fixed size diverge on large samples, and the device reports that.
        let (s, w, usage) = match result {
            Err(DeclineReason::UpdateNonFinite) if head_index == 2 => return Ok(()),
            result => result.unwrap(),
        };
        prop_assert_eq!(usage, Usage { samples: m as u32, skipped: 0 });
        let w = matrix(k, c, &w);
        let (exact, bound) = gradient_bounds(&samples.x64(), &samples.y64(), &matrix(d, k, &b), &w);
        let s = matrix(d, c, &s);
        for ((s, exact), bound) in s.iter().zip(exact.iter()).zip(bound.iter()) {
            let error = (s - exact).abs();
            // The tolerance is one subnormal, because no smaller float exists.
            prop_assert!(error <= bound + 1e-44, "{error:e} over {bound:e}, exact {exact:e}");
        }
    }

    /// The error of a projection, which an identity head returns as prediction, is within the stated bound.
    #[test]
    fn projection_is_within_the_stated_bound(seed in any::<u64>(), kind in 0..KINDS.len()) {
        let mut random = Random(seed);
        let (d, k, _, m) = random_shape(&mut random);
        let b = flat(&random.orthonormal(d, k));
        let samples = random_samples(&mut random, KINDS[kind], d, k, m);
        let mut model = Linear::new(HeapFixed::new(d, k, k));
        model.set_representation(&b).unwrap();
        model.head_mut().copy_from_slice(&identity(k));
        model.restore_head(representation_hash(&b));
        let zero = vec![0.0; k];
        for x in samples.x.chunks(d) {
            let mut prediction = vec![0.0; k];
            model.predict(x, &mut prediction).unwrap();
            let x: Vec<f64> = x.iter().map(|&v| v.into()).collect();
            let sample_bounds = sample_bounds(&x, &zero, &matrix(d, k, &b), &M::identity(k, k));
            let exact_with_bounds = sample_bounds.z.iter().zip(&sample_bounds.zeta);
            for (&prediction, (exact, zeta)) in prediction.iter().zip(exact_with_bounds) {
                let error = (f64::from(prediction) - exact).abs();
                prop_assert!(error <= zeta + 1e-44, "{error:e} over {zeta:e}");
            }
        }
    }

    /// Samples and targets have random bits. The counters match the usable samples, no sum wraps, and
    /// unusable samples have no other effect.
    #[test]
    fn random_bits_do_not_wrap(seed in any::<u64>(), wildness in 0usize..4, head_index in 0..3usize) {
        let mut random = Random(seed);
        let (d, k, c, m) = random_shape(&mut random);
        let b = flat(&random.orthonormal(d, k));
        let mut x = random.normals(m * d);
        let mut y = random.normals(m * c);
        for value in x.iter_mut().chain(&mut y) {
            if random.below(400) < wildness {
                *value = f32::from_bits(random.next() as u32);
            }
        }
        let samples = Sliced::regression(x, y, d, c);
        let head = [EXACT, RIDGE, STEPS][head_index];
        // Samples close to a limit may be used or skipped, and are left out.
        let is_usable = usable_samples(&samples, &matrix(d, k, &b));
        let undecided: Vec<usize> = (0..m).filter(|&i| is_usable[i].is_none()).collect();
        let samples = samples.without(&undecided);
        let is_usable: Vec<bool> = is_usable.into_iter().flatten().collect();
        let unusable: Vec<usize> = (0..is_usable.len()).filter(|&i| !is_usable[i]).collect();
        let result = run_round(&mut HeapFixed::new(d, k, c), head, &b, &samples);
        let clean = samples.without(&unusable);
        if clean.len() == 0 {
            prop_assert_eq!(result.unwrap_err(), DeclineReason::NoSamples);
            return Ok(());
        }
        match (result, run_round(&mut HeapFixed::new(d, k, c), head, &b, &clean)) {
            (Err(a), Err(b)) => prop_assert_eq!(a, b),
            (Ok((s, w, usage)), Ok((clean_s, clean_w, _))) => {
                prop_assert_eq!(usage, Usage { samples: clean.len() as u32, skipped: unusable.len() as u32 });
                prop_assert_eq!((bits(&s), bits(&w)), (bits(&clean_s), bits(&clean_w)));
                prop_assert!(w.iter().all(|w| w.is_finite()));
            }
            mismatch => prop_assert!(false, "{mismatch:?}"),
        }
    }
}

/// A feature of 2.9e28 has a weight that 16 bits of the representation cannot hold. Its projection would be
/// 0, and its gradient would dominate, so the sample is skipped.
#[test]
fn sample_lost_to_rounding_is_skipped() {
    let mut random = Random(4);
    let (d, k, c, m) = (12, 1, 2, 19);
    let b = flat(&random.orthonormal(d, k));
    let mut x = random.normals(m * d);
    let y = random.normals(m * c);
    let weakest = (0..d).min_by(|i, j| b[*i].abs().total_cmp(&b[*j].abs())).unwrap();
    let mut nearly_sparse_basis = b.clone();
    nearly_sparse_basis[weakest] = 1e-7;
    x[weakest] = 2.9e28;
    let samples = Sliced::regression(x, y, d, c);
    let (s, _, usage) =
        run_round(&mut HeapFixed::new(d, k, c), EXACT, &normalise(&nearly_sparse_basis), &samples).unwrap();
    assert_eq!(usage, Usage { samples: 18, skipped: 1 });
    assert!(s.iter().all(|v| v.abs() < 1e4), "{s:?}");
}

/// Scales a column to length 1.
fn normalise(column: &[f32]) -> Vec<f32> {
    let length = column.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    column.iter().map(|v| (f64::from(*v) / length) as f32).collect()
}

/// For well-conditioned problems of ordinary size, typical errors of head and gradient against f64 are below
/// 2e-3. These are not bounds.
#[test]
fn head_and_gradient_have_three_digits() {
    let mut random = Random(2);
    let mut worst = Worst::default();
    for case in 0..400 {
        let k = 1 + case % 8;
        let (d, c) = (k + 4 + random.below(100), 1 + random.below(5));
        let m = 4 * k + 8 + random.below(40);
        let b = flat(&random.orthonormal(d, k));
        let samples =
            random_samples(&mut random, if case % 2 == 0 { Kind::Normal } else { Kind::Classes }, d, c, m);
        let (s, w, _) = run_round(&mut HeapFixed::new(d, k, c), EXACT, &b, &samples).unwrap();
        let (x, y) = (samples.x64(), samples.y64());
        let z = &x * matrix(d, k, &b);
        let exact = Svd::new(&z).minimum_norm(&y, 0.0);
        let error = (matrix(k, c, &w) - &exact).norm() / exact.norm();
        worst.record_largest("head, relative error", error);
        assert!(error <= 2e-3, "head {error:e}");
        let exact = x.transpose() * (z * exact - &y);
        let error = (matrix(d, c, &s) - &exact).norm() / exact.norm();
        worst.record_largest("gradient, relative error", error);
        assert!(error <= 1e-3, "gradient {error:e}");
        let (exact, bound) = gradient_bounds(&x, &y, &matrix(d, k, &b), &matrix(k, c, &w));
        let error = (matrix(d, c, &s) - exact).abs().zip_map(&bound, |error, bound| error / bound);
        worst.record_largest("gradient on the same head, share of the bound", error.max());
    }
}

/// If all samples lie along one direction, errors of the projections must not become a second direction.
#[test]
fn absent_direction_is_not_found() {
    let mut random = Random(3);
    for _ in 0..200 {
        let (d, k, m) = (20, 4, 30);
        let b = flat(&random.orthonormal(d, k));
        let samples = random_samples(&mut random, Kind::Line, d, 1, m);
        let (_, w, _) = run_round(&mut HeapFixed::new(d, k, 1), EXACT, &b, &samples).unwrap();
        let z = samples.x64() * matrix(d, k, &b);
        let exact = Svd::new(&z).minimum_norm(&samples.y64(), 1e-3 * norm2(&z));
        assert!((matrix(k, 1, &w) - &exact).norm() <= 1e-2 * (exact.norm() + 1e-3));
    }
}

#[test]
fn bits_do_not_depend_on_batches_or_workspace() {
    let mut random = Random(5);
    // The numbers of samples are below and above the size of the projection cache.
    for m in [3, 60, 200] {
        for kind in [Kind::Classes, Kind::Sizes(20)] {
            let b = flat(&random.orthonormal(20, 3));
            let samples = random_samples(&mut random, kind, 20, 2, m);
            for head in [EXACT, RIDGE, STEPS] {
                let task = fed_rep(head, Upload::Representation, 0.25);
                let mut results = Vec::new();
                for at_once in [1, 2, 7, usize::MAX] {
                    let mut model = Linear::new(HeapFixed::new(20, 3, 2));
                    let mut source = samples.clone().at_once(at_once);
                    match fed_rep_round(&mut model, task, &b, &mut source) {
                        Ok((_, sent)) => results.push((bits(&sent), bits(model.head()))),
                        Err(reason) => {
                            assert_eq!((reason, head), (DeclineReason::UpdateNonFinite, STEPS));
                        }
                    }
                }
                let mut model = Linear::new(FixedWorkspace::<20, 3, 2>::new());
                if let Ok((_, sent)) = fed_rep_round(&mut model, task, &b, &mut samples.clone()) {
                    results.push((bits(&sent), bits(model.head())));
                }
                results.dedup();
                assert!(results.len() <= 1);
            }
        }
    }
}

#[test]
fn unsupported_rounds_are_declined() {
    let mut model = Linear::new(FixedWorkspace::<6, 2>::new());
    let capabilities = model.capabilities();
    assert_eq!(capabilities.numeric, Numeric::I16);
    assert_eq!(Linear::new(Heap::new(6, 2, 1)).capabilities().numeric, Numeric::F32);
    let b = flat(&Random(1).orthonormal(6, 2));
    // Models with a shared head are not implemented in fixed point.
    let shared =
        Wire::FedAvg { step_size: 0.1, head_step_size: 0.1, local_steps: 1, encoding: Encoding::F32 };
    assert_eq!(capabilities.tasks & shared.bit(), 0);
    assert_eq!(capabilities.roles & Role::SharedHead.bit(), 0);
    assert_eq!(capabilities.tensors, 1);
    let round = open(1, shared, Role::Representation, Encoding::F32, 6, 2);
    assert_eq!(model.open(&round), Err(DeclineReason::Task));
    // Streamed samples are not supported.
    let task = fed_rep(EXACT, Upload::Gradient, 0.0);
    let round = open(1, task, Role::Representation, Encoding::F32, 6, 2);
    receive(&mut model, &round, &[&b]).unwrap();
    assert_eq!(model.begin(), Err(DeclineReason::Task));
    // A sample with a NaN has no prediction; in integers it would have become a number.
    let samples = random_samples(&mut Random(2), Kind::Normal, 6, 1, 9);
    model.fit_head(EXACT, &mut samples.clone()).unwrap();
    let (mut x, mut out) = ([0.5; 6], [0.0]);
    model.predict(&x, &mut out).unwrap();
    assert!(out[0].is_finite());
    x[3] = f32::NAN;
    assert_eq!(model.predict(&x, &mut out), Err(NotReady::NonFinite { index: 3 }));
    assert_eq!(model.predict(&x[..5], &mut out), Err(NotReady::Length { expected: 6, got: 5 }));
    // Samples of any size have a finite prediction, or none.
    for value in [1e10, 1e30, f32::MAX] {
        match model.predict(&[value; 6], &mut out) {
            Ok(()) => assert!(out[0].is_finite(), "{value}: {out:?}"),
            Err(reason) => assert_eq!(reason, NotReady::Overflow { index: 0 }, "{value}"),
        }
    }
}

/// The first step of the power method is computed in f32, so its bits are those of an f32 client.
#[test]
fn starts_equal_those_of_f32() {
    let b = flat(&Random(1).orthonormal(9, 2));
    let samples = random_samples(&mut Random(2), Kind::Normal, 9, 1, 15);
    let round = open(1, Wire::PowerStart, Role::Subspace, Encoding::F32, 9, 2);
    let (mut fixed_point, mut float) =
        (Linear::new(HeapFixed::new(9, 2, 1)), Linear::new(Heap::new(9, 2, 1)));
    receive(&mut fixed_point, &round, &[&b]).unwrap();
    receive(&mut float, &round, &[&b]).unwrap();
    fixed_point.run(round.id, &mut samples.clone()).unwrap();
    float.run(round.id, &mut samples.clone()).unwrap();
    assert_eq!(bits(&collect_upload(&fixed_point, 7)), bits(&collect_upload(&float, 7)));
}

#[test]
fn failed_source_keeps_the_head() {
    let mut random = Random(6);
    let (b, other_basis) = (flat(&random.orthonormal(9, 3)), flat(&random.orthonormal(9, 3)));
    let samples = random_samples(&mut random, Kind::Normal, 9, 1, 20);
    let mut model = Linear::new(HeapFixed::new(9, 3, 1));
    let task = fed_rep(EXACT, Upload::Gradient, 0.0);
    fed_rep_round(&mut model, task, &b, &mut samples.clone()).unwrap();
    let before = bits(model.head());
    for head in [EXACT, STEPS] {
        let task = fed_rep(head, Upload::Gradient, 0.0);
        for pass in [1, 2] {
            let mut source = Sliced { failing_pass: Some(pass), ..samples.clone() };
            let result = fed_rep_round(&mut model, task, &other_basis, &mut source);
            assert_eq!(result.unwrap_err(), DeclineReason::Device);
            assert_eq!(bits(model.head()), before, "pass {pass}");
        }
    }
}

/// The workspace has the size that its documentation states.
#[test]
fn workspace_has_the_stated_size() {
    /// Checks one shape: four bytes per float, two per integer, and two for the scale.
    fn check_size<const D: usize, const K: usize, const C: usize>() {
        let floats = 4 * (2 * K * C + D * K + D * C + K * K + K + C);
        let integers = 2 * (D * K + D + K + C + K * C) + 2;
        assert_eq!(size_of::<FixedWorkspace<D, K, C>>(), (floats + integers).next_multiple_of(4));
    }
    check_size::<20, 2, 1>();
    check_size::<64, 4, 1>();
    check_size::<128, 8, 1>();
    check_size::<58, 24, 6>();
}

/// The check in integers accepts what is orthonormal to half of the tolerance and declines what is off by more than one and a
/// half, for columns of any length, also with so many features that the check falls back to f32.
#[test]
fn check_of_a_representation_is_as_strict_as_in_f32() {
    let mut random = Random(8);
    let (mut accepted, mut declined) = (0, 0);
    for number in 0..3000 {
        let (d, k) = (
            [2, 9, 40, 128, 300, 1500][number % 6],
            1 + random.below(8).min([1, 7][usize::from(number % 6 > 0)]),
        );
        // Columns with one large entry have the coarsest unit.
        let mut b = match number % 3 {
            0 => M::from_fn(d, k, |i, j| if i == j { 1.0 } else { 0.0 }),
            _ => random.orthonormal(d, k),
        };
        let (encoding, tolerance) = [(Encoding::F32, 1e-3), (Encoding::I8, 2e-2)][random.below(2)];
        let size = tolerance * random.unit() * 2.5;
        if random.below(2) == 0 {
            b.scale_mut((1.0 + size).sqrt());
        } else {
            let other = random.below(k);
            for i in 0..d {
                b[(i, 0)] += size * if other > 0 { b[(i, other)] } else { b[(i, 0)] / 2.0 };
            }
        }
        let values = flat(&b);
        let exact = matrix(d, k, &values);
        let error =
            (exact.transpose() * &exact - M::identity(k, k)).iter().fold(0.0f64, |a, v| a.max(v.abs()));
        let mut model = Linear::new(HeapFixed::new(d, k, 1));
        let round = open(1, Wire::FitHead { head: EXACT }, Role::Representation, Encoding::F32, d, k);
        let mut round = round;
        round.tensors[0].encoding = encoding;
        model.open(&round).unwrap();
        model.tensor_mut(0).unwrap().copy_from_slice(&values);
        match model.verify() {
            Ok(()) => {
                assert!(error <= 1.51 * tolerance, "({d}, {k}): {error} accepted");
                accepted += 1;
            }
            Err(DeclineReason::NotOrthonormal { error: found }) => {
                assert!(error >= 0.49 * tolerance, "({d}, {k}): {error} declined as {found}");
                declined += 1;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    assert!(accepted > 500 && declined > 500, "{accepted} {declined}");
    for value in [f32::NAN, f32::INFINITY, 1e30, f32::MAX] {
        let mut model = Linear::new(HeapFixed::new(3, 1, 1));
        model
            .open(&open(1, Wire::FitHead { head: EXACT }, Role::Representation, Encoding::F32, 3, 1))
            .unwrap();
        model.tensor_mut(0).unwrap().copy_from_slice(&[0.5, value, 0.0]);
        let reason = model.verify().unwrap_err();
        assert_eq!(matches!(reason, DeclineReason::NonFinite), !value.is_finite(), "{reason:?}");
    }
}
