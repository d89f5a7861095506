//! Tests that streamed samples give the same head and gradient as samples that are read twice.

use crate::common::head::rounding;
use crate::common::*;
use fedspan_client::memory::{Memory, StreamingWorkspace};
use fedspan_client::{Linear, Task};
use fedspan_protocol::message::{DeclineReason, HeadSolve, Task as Wire, Upload};

/// Results of a round: `S = X^T (X B W - Y)` (d x C), `W` (k x C), and the uploaded gradient `S W^T / m` (d x
/// k).
struct Round {
    s: M,
    w: M,
    gradient: M,
}

/// Runs the same round with samples that are read twice and with streamed samples.
fn run_two_pass_and_streaming(head: HeadSolve, b: &[f32], k: usize, samples: &Sliced) -> [Round; 2] {
    let (d, c) = (samples.features, samples.outputs);
    let task = fed_rep(head, Upload::Gradient, 0.0);
    let (mut two_pass_memory, mut streaming_memory) = (Heap::new(d, k, c), Heap::streaming(d, k, c));
    let (usage, two_pass_gradient) =
        fed_rep_round(&mut Linear::new(&mut two_pass_memory), task, b, &mut samples.clone()).unwrap();
    let (streaming_usage, streaming_gradient) =
        fed_rep_stream(&mut Linear::new(&mut streaming_memory), task, b, samples).unwrap();
    assert_eq!(usage, streaming_usage);
    [(two_pass_memory, two_pass_gradient), (streaming_memory, streaming_gradient)].map(
        |(memory, gradient)| {
            let parts = memory.parts_ref();
            let (s, w) = (matrix(d, c, parts.residual), matrix(k, c, parts.head));
            Round { s, w, gradient: matrix(d, k, &gradient) }
        },
    )
}

/// Returns an `X` with the projections `Z`: `Z B^T` plus the part of `outside` that is orthogonal to the span
/// of `B` (d x k).
fn features_with_projection(z: &M, b: &M, outside: &M) -> M {
    z * b.transpose() + (outside - outside * b * b.transpose())
}

/// Returns the largest singular value to eight digits (faster than [`norm2`] for a large `X`).
fn spectral_norm(a: &M) -> f64 {
    (a.transpose() * a).symmetric_eigenvalues().max().sqrt()
}

const HEADS: [HeadSolve; 2] = [EXACT, HeadSolve::LeastSquares { ridge: 0.01 }];

/// The requirement is "the two agree to 1e-5 relative to `|X^T y| / m` for condition up to 100", where the
/// condition is that of `Z = X B`. Read literally, it bounds `S / m`, which is linear in `y`, like `X^T y`.
/// The gradient is quadratic in `y` and has another factor `|W|` (for heads of norm 1 the two readings are
/// equal). The literal reading holds for all of these 3000 rounds; the gradient's error is at most 2e-5. The
/// requirement does not hold for every possible round. The next test shows where it fails, and why.
#[test]
fn one_pass_equals_two_up_to_condition_100() {
    let mut random = Random(1);
    let mut worst = Worst::default();
    for case in 0..1500 {
        let k = 1 + case % 8;
        let d = k + random.below(40);
        let m = k + random.below(150);
        let c = 1 + random.below(4);
        let b = random.orthonormal(d, k);
        let condition = 10f64.powf(2.0 * random.unit());
        let scale = (m as f64).sqrt();
        let values: Vec<f64> = geometric(k, condition).iter().map(|s| s * scale).collect();
        let z = random.with_singular_values(m, &values);
        let x = features_with_projection(&z, &b, &random.gaussian(m, d));
        // The targets range from noiseless to almost only noise.
        let noise = [0.0, 0.03, 1.0, 10.0][case % 4];
        let y = &z * random.gaussian(k, c) + random.gaussian(m, c) * noise;
        let samples = Sliced::regression(flat(&x), flat(&y), d, c);
        for head in HEADS {
            let [two_pass, streaming] = run_two_pass_and_streaming(head, &flat(&b), k, &samples);
            let xy = (samples.x64().transpose() * samples.y64()).norm();
            let case_name = format!("condition {condition:.1}, d={d} k={k} m={m} c={c} noise={noise}");
            let relative = (&streaming.s - &two_pass.s).norm() / xy;
            assert!(relative <= 1e-5, "{relative:e} at {case_name}");
            worst.record_largest(["noise 0", "noise 0.03", "noise 1", "noise 10"][case % 4], relative);
            let w = two_pass.w.norm();
            let gradient = (&streaming.gradient - &two_pass.gradient).norm() * m as f64 / (xy * w);
            // The pivots are judged without regard to units, and these columns differ in length, so the
            // normal equations miss 1e-5 in two rounds.
            assert!(gradient <= 2e-5, "gradient: {gradient:e} at {case_name}");
            worst.record_largest("gradient, over |X^T y| |w| / m", gradient);
            let heads = (&streaming.w - &two_pass.w).norm() / w;
            // The normal equations have this error if a pivot is only a tenth of its diagonal element.
            assert!(heads <= 5e-5, "head: {heads:e} at {case_name}");
            worst.record_largest("head, relative difference", heads);
        }
    }
}

/// Streamed samples give the same result up to rounding for any shape and any target, also for targets along
/// the smallest direction of `Z` and for features almost in the span of `B`.
///
/// Each of the two results has an error of at most `2 e |X| (|Z| |W| + |Y|)` with `e = (sqrt(m + k) + 1) u`
/// (the argument of `common/head.rs` with `X^T` in place of `Z^T`), so they differ by at most twice that. If
/// `X^T Y` is not much smaller than its terms, this bound is below `1e-5 |X^T Y|`, which the test then
/// asserts.
///
/// Otherwise no bound relative to `|X^T Y|` can hold, neither for two passes nor for one: rounding the exact
/// `W` to f32 changes `S` by up to `u |X^T Z| |W|`, and for targets along the smallest direction this is 1e4
/// u of `|X^T Y|` at condition 100. For other targets 1e-5 is missed by chance, in about one round of a
/// thousand; the test allows one of a hundred.
#[test]
fn one_pass_equals_two_up_to_rounding() {
    let mut random = Random(5);
    let mut worst = Worst::default();
    let [mut rounds, mut bound_implies_it, mut missed_by_chance] = [0, 0, 0];
    for case in 0..600 {
        let k = 1 + random.below(16);
        let d = if case % 4 == 0 { k } else { k + 10f64.powf(2.3 * random.unit()) as usize };
        let m = k + 1500f64.powf(random.unit()) as usize;
        let c = 1 + random.below(12);
        let b = random.orthonormal(d, k);
        let condition = [100.0, 10f64.powf(2.0 * random.unit())][case % 2];
        let scale = (m as f64).sqrt();
        let values: Vec<f64> = geometric(k, condition).iter().map(|s| s * scale).collect();
        let directions = random.orthonormal(k, k);
        let z = random.orthonormal(m, k) * M::from_diagonal(&values.into()) * directions.transpose();
        let outside = match case % 3 {
            0 => random.gaussian(m, d),
            1 => random.gaussian(m, d) + &z * random.gaussian(k, d),
            _ => random.gaussian(m, d) * 1e-3,
        };
        let x = features_with_projection(&z, &b, &outside);
        let smallest = case % 5 == 4;
        let w0 = if smallest {
            directions.columns(k - 1, 1) * random.gaussian(1, c)
        } else {
            random.gaussian(k, c)
        };
        let noise = [0.0, 0.03, 1.0, 10.0][case / 2 % 4];
        let y = &z * w0 + random.gaussian(m, c) * noise;
        let samples = Sliced::regression(flat(&x), flat(&y), d, c);
        let (x, y) = (samples.x64(), samples.y64());
        let (xy, sizes) = ((x.transpose() * &y).norm(), [spectral_norm(&x), spectral_norm(&(&x * &b))]);
        for head in HEADS {
            let [two_pass, streaming] = run_two_pass_and_streaming(head, &flat(&b), k, &samples);
            let difference = (&streaming.s - &two_pass.s).norm();
            let bound = 4.0 * rounding(m, k) * sizes[0] * (sizes[1] * two_pass.w.norm() + y.norm());
            let case_name = format!("condition {condition:.1}, d={d} k={k} m={m} c={c} noise={noise}");
            assert!(difference <= bound, "{difference:e} over {bound:e} at {case_name}");
            worst.record_largest("any problem, share of the bound", difference / bound);
            rounds += 1;
            if bound <= 1e-5 * xy {
                bound_implies_it += 1;
                assert!(difference <= 1e-5 * xy);
                worst.record_largest("where rounding allows 1e-5, over |X^T y|", difference / xy);
            } else {
                let target = ["elsewhere, over |X^T y|", "elsewhere, smallest direction, over |X^T y|"];
                worst.record_largest(target[usize::from(smallest)], difference / xy);
            }
            missed_by_chance += usize::from(difference > 1e-5 * xy && !smallest);
        }
    }
    println!(
        "{rounds} rounds: 1e-5 |X^T y| follows from the bound in {bound_implies_it}, \
         is missed by chance in {missed_by_chance}"
    );
    assert!(100 * missed_by_chance <= rounds);
}

#[test]
fn static_workspace_gives_the_same_result() {
    let mut random = Random(2);
    let b = flat(&random.orthonormal(12, 3));
    let samples = Sliced::regression(random.normals(12 * 30), random.normals(30), 12, 1);
    let task = fed_rep(EXACT, Upload::Representation, 0.1);
    let mut heap = Linear::new(Heap::streaming(12, 3, 1));
    let mut fixed = Linear::new(StreamingWorkspace::<12, 3>::new());
    let (_, a) = fed_rep_stream(&mut heap, task, &b, &samples).unwrap();
    // The memory is used twice, which shows that no data of the first round remains.
    fed_rep_stream(&mut fixed, task, &b, &samples.without(&[0, 1])).unwrap();
    let (_, b) = fed_rep_stream(&mut fixed, task, &b, &samples).unwrap();
    assert_eq!(bits(&a), bits(&b));
}

/// Streams of fewer samples than columns, including a single sample, are fitted; an empty stream is declined.
#[test]
fn short_streams_are_fitted() {
    let mut random = Random(3);
    let (d, k) = (10, 4);
    let b = flat(&random.orthonormal(d, k));
    for m in 0..6 {
        let samples = Sliced::regression(random.normals(d * m), random.normals(m), d, 1);
        let task = fed_rep(EXACT, Upload::Gradient, 0.0);
        let (mut streaming_model, mut two_pass_model) =
            (Linear::new(Heap::streaming(d, k, 1)), Linear::new(Heap::new(d, k, 1)));
        let streaming = fed_rep_stream(&mut streaming_model, task, &b, &samples);
        let two_pass = fed_rep_round(&mut two_pass_model, task, &b, &mut samples.clone());
        if m == 0 {
            assert_eq!(streaming.unwrap_err(), DeclineReason::NoSamples);
            assert_eq!(two_pass.unwrap_err(), DeclineReason::NoSamples);
            continue;
        }
        let (streaming, two_pass) = (streaming.unwrap(), two_pass.unwrap());
        assert_eq!(streaming.0, two_pass.0);
        let largest = two_pass.1.iter().fold(1.0f32, |a, v| a.max(v.abs()));
        for (a, b) in streaming.1.iter().zip(&two_pass.1) {
            assert!((a - b).abs() <= 1e-4 * largest, "m={m}: {a} {b}");
        }
    }
}

/// Streams are declined before anything changes, if the memory has no buffer for them or the task needs a
/// second pass.
#[test]
fn unsupported_streams_are_declined() {
    let b = identity(3);
    let samples = Sliced::regression(vec![1.0; 9], vec![1.0; 3], 3, 1);
    let mut without_buffer = Linear::new(Heap::new(3, 3, 1));
    let task = fed_rep(EXACT, Upload::Gradient, 0.0);
    assert_eq!(fed_rep_stream(&mut without_buffer, task, &b, &samples).unwrap_err(), DeclineReason::Task);
    let mut streaming = Linear::new(Heap::streaming(3, 3, 1));
    use fedspan_protocol::tensor::{Encoding, Role};
    let round = open(1, Wire::PowerStart, Role::Subspace, Encoding::F32, 3, 3);
    receive(&mut streaming, &round, &[&b]).unwrap();
    assert_eq!(streaming.begin(), Err(DeclineReason::Task));
}

/// Diverged gradient steps cannot be undone in one pass, so the head restarts from zero.
#[test]
fn diverged_streamed_head_restarts_from_zero() {
    let mut random = Random(4);
    let b = flat(&random.orthonormal(6, 2));
    let samples = Sliced::regression(random.normals(60), random.normals(10), 6, 1);
    let mut model = Linear::new(Heap::streaming(6, 2, 1));
    let diverging = fed_rep(HeadSolve::Gradient { steps: 3000, step_size: 50.0 }, Upload::Gradient, 0.0);
    assert_eq!(
        fed_rep_stream(&mut model, diverging, &b, &samples).unwrap_err(),
        DeclineReason::UpdateNonFinite
    );
    assert_eq!(model.head(), [0.0, 0.0]);
    assert!(model.predict(&samples.x[..6], &mut [0.0]).is_err());
    let ordinary = fed_rep(HeadSolve::Gradient { steps: 3, step_size: 0.1 }, Upload::Gradient, 0.0);
    fed_rep_stream(&mut model, ordinary, &b, &samples).unwrap();
    assert!(model.head().iter().all(|w| w.is_finite() && *w != 0.0));
}
