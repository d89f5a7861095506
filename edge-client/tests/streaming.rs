//! Samples that are seen once against samples that are read twice: the same head and gradient.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use common::*;
use fedspan_client::memory::StreamingWorkspace;
use fedspan_client::{Linear, Task};
use fedspan_protocol::message::{DeclineReason, HeadSolve, Task as Wire, Upload};

/// `X^T (X B W - Y)` is formed as `(X^T Z) W - X^T Y`: the same sum, other roundings. The measure is
/// `|X^T Y| |W| / m`, what the gradient is a difference of; per unit of `|W|` that is `|X^T y| / m`.
#[test]
fn one_pass_agrees_with_two_up_to_condition_100() {
    let mut random = Random(1);
    let mut worst = Worst::default();
    for case in 0..1500 {
        let k = 1 + case % 8;
        let d = k + random.below(40);
        let m = k + random.below(150);
        let c = 1 + random.below(4);
        let b = random.orthonormal(d, k);
        // X = Z B^T + a part outside of the span, so that Z = X B has the condition asked for.
        let condition = 10f64.powf(2.0 * random.unit());
        let scale = (m as f64).sqrt();
        let values: Vec<f64> = geometric(k, condition).iter().map(|s| s * scale).collect();
        let z = random.with_singular_values(m, &values);
        let outside = random.gaussian(m, d);
        let x = &z * b.transpose() + (&outside - &outside * &b * b.transpose());
        // From noiseless to nothing but noise.
        let noise = [0.0, 0.03, 1.0, 10.0][case % 4];
        let y = &z * random.gaussian(k, c) + random.gaussian(m, c) * noise;
        let samples = Sliced::regression(flat(&x), flat(&y), d, c);
        let b = flat(&b);
        for head in [EXACT, HeadSolve::LeastSquares { ridge: 0.01 }] {
            let task = fed_rep(head, Upload::Gradient, 0.0);
            let mut twice = Linear::new(Heap::new(d, k, c));
            let mut once = Linear::new(Heap::streaming(d, k, c));
            let (usage, two) = fed_rep_round(&mut twice, task, &b, &mut samples.clone()).unwrap();
            let (same, one) = fed_rep_stream(&mut once, task, &b, &samples).unwrap();
            assert_eq!(usage, same);
            let difference = (matrix(d, k, &one) - matrix(d, k, &two)).norm();
            let w = matrix(k, c, twice.head()).norm();
            let xy = (samples.x64().transpose() * samples.y64()).norm() / m as f64;
            let relative = difference / (xy * w);
            assert!(
                relative <= 1e-5,
                "{relative:e} at condition {condition:.1}, d={d} k={k} m={m} noise={noise}"
            );
            worst.saw(["noise 0", "noise 0.03", "noise 1", "noise 10"][case % 4], relative);
            let heads = (matrix(k, c, once.head()) - matrix(k, c, twice.head())).norm() / w;
            assert!(
                heads <= 2e-5,
                "head: {heads:e} at condition {condition:.1}, d={d} k={k} m={m} noise={noise}"
            );
            worst.saw("head, relative difference", heads);
        }
    }
}

#[test]
fn a_static_workspace_does_the_same() {
    let mut random = Random(2);
    let b = flat(&random.orthonormal(12, 3));
    let samples = Sliced::regression(random.normals(12 * 30), random.normals(30), 12, 1);
    let task = fed_rep(EXACT, Upload::Representation, 0.1);
    let mut heap = Linear::new(Heap::streaming(12, 3, 1));
    let mut fixed = Linear::new(StreamingWorkspace::<12, 3>::new());
    let (_, a) = fed_rep_stream(&mut heap, task, &b, &samples).unwrap();
    // Twice: nothing of a round is left in the next.
    fed_rep_stream(&mut fixed, task, &b, &samples.without(&[0, 1])).unwrap();
    let (_, b) = fed_rep_stream(&mut fixed, task, &b, &samples).unwrap();
    assert_eq!(bits(&a), bits(&b));
}

/// Fewer samples than columns, one sample, none.
#[test]
fn short_streams() {
    let mut random = Random(3);
    let (d, k) = (10, 4);
    let b = flat(&random.orthonormal(d, k));
    for m in 0..6 {
        let samples = Sliced::regression(random.normals(d * m), random.normals(m), d, 1);
        let task = fed_rep(EXACT, Upload::Gradient, 0.0);
        let (mut once, mut twice) = (Linear::new(Heap::streaming(d, k, 1)), Linear::new(Heap::new(d, k, 1)));
        let one = fed_rep_stream(&mut once, task, &b, &samples);
        let two = fed_rep_round(&mut twice, task, &b, &mut samples.clone());
        if m == 0 {
            assert_eq!(one.unwrap_err(), DeclineReason::NoSamples);
            assert_eq!(two.unwrap_err(), DeclineReason::NoSamples);
            continue;
        }
        let (one, two) = (one.unwrap(), two.unwrap());
        assert_eq!(one.0, two.0);
        let largest = two.1.iter().fold(1.0f32, |a, v| a.max(v.abs()));
        for (a, b) in one.1.iter().zip(&two.1) {
            assert!((a - b).abs() <= 1e-4 * largest, "m={m}: {a} {b}");
        }
    }
}

/// Memory without the buffer, and tasks that need a second pass, are declined before anything is lost.
#[test]
fn what_cannot_stream_says_so() {
    let b = identity(3);
    let samples = Sliced::regression(vec![1.0; 9], vec![1.0; 3], 3, 1);
    let mut plain = Linear::new(Heap::new(3, 3, 1));
    let task = fed_rep(EXACT, Upload::Gradient, 0.0);
    assert_eq!(fed_rep_stream(&mut plain, task, &b, &samples).unwrap_err(), DeclineReason::Task);
    let mut streaming = Linear::new(Heap::streaming(3, 3, 1));
    use fedspan_protocol::tensor::{Encoding, Role};
    let round = open(1, Wire::PowerStart, Role::Subspace, Encoding::F32, 3, 3);
    receive(&mut streaming, &round, &[&b]).unwrap();
    assert_eq!(streaming.begin(), Err(DeclineReason::Task));
}

/// Gradient steps that diverge cannot be undone in one pass; the head starts again from zero.
#[test]
fn a_diverged_gradient_head_starts_again() {
    let mut random = Random(4);
    let b = flat(&random.orthonormal(6, 2));
    let samples = Sliced::regression(random.normals(60), random.normals(10), 6, 1);
    let mut model = Linear::new(Heap::streaming(6, 2, 1));
    let wild = fed_rep(HeadSolve::Gradient { steps: 3000, step_size: 50.0 }, Upload::Gradient, 0.0);
    assert_eq!(fed_rep_stream(&mut model, wild, &b, &samples).unwrap_err(), DeclineReason::UpdateNonFinite);
    assert_eq!(model.head(), [0.0, 0.0]);
    assert!(model.predict(&samples.x[..6], &mut [0.0]).is_err());
    let calm = fed_rep(HeadSolve::Gradient { steps: 3, step_size: 0.1 }, Upload::Gradient, 0.0);
    fed_rep_stream(&mut model, calm, &b, &samples).unwrap();
    assert!(model.head().iter().all(|w| w.is_finite() && *w != 0.0));
}
