//! Tests of a FedRep round on one device: gradient and new representation against f64, the orthogonality of
//! the step, unusable samples, and bits that do not depend on batches or chunks.

use crate::common::*;
use fedspan_client::task::Usage;
use fedspan_client::{Linear, Task, Workspace};
use fedspan_protocol::message::{DeclineReason, HeadSolve, Upload};
use proptest::prelude::*;

/// Creates a regression or classification problem with a representation `B` (d x k).
fn draw_problem(
    random: &mut Random,
    d: usize,
    k: usize,
    c: usize,
    m: usize,
    classes: bool,
) -> (Vec<f32>, Sliced) {
    let b = flat(&random.orthonormal(d, k));
    let x = random.normals(m * d);
    let samples = if classes {
        let labels = (0..m).map(|_| random.below(c) as u8).collect();
        Sliced::classification(x, labels, d, c)
    } else {
        Sliced::regression(x, random.normals(m * c), d, c)
    };
    (b, samples)
}

/// Computes the head and the gradient `X^T (X B W - Y) W^T / m` in f64.
fn exact_head_and_gradient(b: &M, samples: &Sliced) -> (M, M) {
    let (x, y) = (samples.x64(), samples.y64());
    let z = &x * b;
    let svd = Svd::new(&z);
    let w = svd.minimum_norm(&y, 1e-5 * svd.largest());
    let g = x.transpose() * (&z * &w - &y) * w.transpose() / x.nrows() as f64;
    (w, g)
}

/// Draws the sizes d, k, C and m.
fn draw_dimensions(random: &mut Random, case: usize) -> (usize, usize, usize, usize) {
    let k = 1 + case % 8;
    let d = k + random.below(30);
    let c = 1 + random.below(5);
    // There are more than twice as many samples as columns, so that the problems are well conditioned and
    // errors are roundings.
    (d, k, c, 2 * k + 2 + random.below(40))
}

#[test]
fn gradient_and_new_representation_equal_f64() {
    let mut random = Random(1);
    let mut worst = Worst::default();
    for case in 0..800 {
        let (d, k, c, m) = draw_dimensions(&mut random, case);
        let (b, samples) = draw_problem(&mut random, d, k, c, m, case % 2 == 0);
        let b64 = matrix(d, k, &b);
        let (w, g) = exact_head_and_gradient(&b64, &samples);
        let condition = Svd::new(&(samples.x64() * &b64)).condition();
        let size = norm2(&samples.x64()) * samples.y64().norm() * w.norm() / m as f64;
        let bound = 32.0 * EPS * condition * size;
        let mut model = Linear::new(Heap::new(d, k, c));
        let task = fed_rep(EXACT, Upload::Gradient, 0.0);
        let (usage, gradient) = fed_rep_round(&mut model, task, &b, &mut samples.clone()).unwrap();
        assert_eq!(usage, Usage { samples: m as u32, skipped: 0 });
        let error = (matrix(d, k, &gradient) - &g).norm();
        assert!(error <= bound, "gradient {error:e} over {bound:e}: d={d} k={k} c={c} m={m}");
        worst.record_largest("gradient, share of the bound", error / bound);
        worst.record_largest("gradient, error over |X^T y| |w| / m", error / size);

        let eta = 0.3f32;
        let task = fed_rep(EXACT, Upload::Representation, eta);
        let (_, moved) = fed_rep_round(&mut model, task, &b, &mut samples.clone()).unwrap();
        let expected = &b64 - &g * f64::from(eta);
        let error = (matrix(d, k, &moved) - &expected).norm();
        assert!(error <= bound + 4.0 * EPS * expected.norm(), "representation {error:e}");
        assert_eq!(model.representation().unwrap(), b, "the representation is not that of the round");
        worst.record_largest("new representation, relative error", error / expected.norm());
    }
}

/// With the exact head the residual is orthogonal to `X B`. The new representation `Bbar` therefore has
/// `B^T Bbar = I`, and its factor has `R^T R = I + eta^2 G^T G`.
#[test]
fn step_is_orthogonal_to_the_span() {
    let mut random = Random(2);
    let mut worst = Worst::default();
    for case in 0..600 {
        let (d, k, c, m) = draw_dimensions(&mut random, case);
        // Some cases have fewer samples than columns; the residual of the minimum-norm head is orthogonal
        // too.
        let m = if case % 5 == 0 { 1 + random.below(k) } else { m };
        let (b, samples) = draw_problem(&mut random, d, k, c, m, case % 2 == 0);
        let b64 = matrix(d, k, &b);
        let eta = 0.5f32;
        let mut model = Linear::new(Heap::new(d, k, c));
        let task = fed_rep(EXACT, Upload::Representation, eta);
        let (_, new_basis) = fed_rep_round(&mut model, task, &b, &mut samples.clone()).unwrap();
        let task = fed_rep(EXACT, Upload::Gradient, eta);
        let (_, gradient) = fed_rep_round(&mut model, task, &b, &mut samples.clone()).unwrap();
        let (new_basis, g) = (matrix(d, k, &new_basis), matrix(d, k, &gradient));
        let w = matrix(k, c, model.head());
        let largest = norm2(&(samples.x64() * &b64));
        let rounding =
            f64::from(eta) * largest * (largest * w.norm() + samples.y64().norm()) * w.norm() / m as f64;
        let bound = 32.0 * EPS * (rounding + 1.0);
        let error = (b64.transpose() * &new_basis - M::identity(k, k)).norm();
        assert!(error <= bound, "B^T Bbar - I is {error:e} over {bound:e}, k={k} c={c} m={m}");
        worst.record_largest("|B^T Bbar - I|, share of the bound", error / bound);
        let r = new_basis.transpose() * &new_basis;
        let expected = M::identity(k, k) + g.transpose() * &g * f64::from(eta).powi(2);
        let error = (&r - &expected).norm() / expected.norm();
        assert!(error <= 2.0 * bound, "R^T R: {error:e} over {bound:e}");
        if c == 1 && m > 2 * k {
            worst.record_largest("|R^T R - I - eta^2 G^T G|, relative", error);
        }
    }
}

/// Heads by gradient steps, followed by the step on `B`, equal the f64 recursion.
#[test]
fn gd_gd_equals_f64() {
    let mut random = Random(3);
    let mut worst = Worst::default();
    for case in 0..200 {
        let (d, k, c, m) = draw_dimensions(&mut random, case);
        let (b, samples) = draw_problem(&mut random, d, k, c, m, false);
        let b64 = matrix(d, k, &b);
        let (x, y) = (samples.x64(), samples.y64());
        let z = &x * &b64;
        let step_size = (m as f64 / norm2(&z).powi(2)) as f32;
        let steps = [1u16, 10][case % 2];
        let mut w = M::zeros(k, c);
        let task = fed_rep(HeadSolve::Gradient { steps, step_size }, Upload::Gradient, 0.0);
        let mut model = Linear::new(Heap::new(d, k, c));
        for _ in 0..3 {
            for _ in 0..steps {
                w -= z.transpose() * (&z * &w - &y) * (f64::from(step_size) / m as f64);
            }
            let g = x.transpose() * (&z * &w - &y) * w.transpose() / m as f64;
            let (_, gradient) = fed_rep_round(&mut model, task, &b, &mut samples.clone()).unwrap();
            let error = (matrix(d, k, &gradient) - &g).norm() / (norm2(&x) * y.norm() * w.norm() / m as f64);
            assert!(error <= 1e-5, "{error:e}");
            worst.record_largest("GD-GD gradient, relative error", error);
        }
    }
}

/// A sample is skipped for a value that is not finite, an unknown class, or a projection or target out of
/// range. A skipped sample is counted and changes no bit of the result.
#[test]
fn skipped_samples_are_counted_and_have_no_effect() {
    let mut random = Random(4);
    for case in 0..400 {
        let (d, k, c, m) = draw_dimensions(&mut random, case);
        let classes = case % 2 == 0;
        let (b, mut samples) = draw_problem(&mut random, d, k, c, m, classes);
        let unusable: Vec<usize> = (0..m).filter(|_| random.below(4) == 0).collect();
        let unusable_values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e13, f32::MAX];
        for &i in &unusable {
            let value = unusable_values[random.below(5)];
            match &mut samples.labels {
                Labels::Classes(labels) if i % 2 == 0 => labels[i] = c as u8 + random.below(3) as u8,
                Labels::Values(y) if i % 2 == 0 => y[i * c + random.below(c)] = value,
                // Every coordinate has the value, because a zero of B can hide a huge value, but not one that
                // is not finite.
                _ if value.is_finite() => samples.x[i * d..(i + 1) * d].fill(value),
                _ => samples.x[i * d + random.below(d)] = value,
            }
        }
        let clean = samples.without(&unusable);
        let b64 = matrix(d, k, &b);
        let all_out_of_range = unusable.iter().all(|&i| {
            let x = matrix(1, d, &samples.x[i * d..(i + 1) * d]);
            let z = x * &b64;
            i % 2 == 0 || !z.iter().all(|v| v.abs() <= 1.0e12)
        });
        if !all_out_of_range || clean.len() == 0 {
            continue;
        }
        for head in [EXACT, HeadSolve::Gradient { steps: 3, step_size: 0.01 }] {
            let task = fed_rep(head, Upload::Gradient, 0.0);
            let round = |samples: &Sliced, at_once| {
                let mut model = Linear::new(Heap::new(d, k, c));
                let (usage, sent) =
                    fed_rep_round(&mut model, task, &b, &mut samples.clone().at_once(at_once)).unwrap();
                (usage, bits(&sent), bits(model.head()))
            };
            let stream = |samples: &Sliced| {
                let mut model = Linear::new(Heap::streaming(d, k, c));
                let (usage, sent) = fed_rep_stream(&mut model, task, &b, samples).unwrap();
                (usage, bits(&sent), bits(model.head()))
            };
            for (dirty, clean) in [(round(&samples, 3), round(&clean, m)), (stream(&samples), stream(&clean))]
            {
                assert_eq!(
                    dirty.0,
                    Usage { samples: (m - unusable.len()) as u32, skipped: unusable.len() as u32 }
                );
                assert_eq!(clean.0, Usage { samples: (m - unusable.len()) as u32, skipped: 0 });
                assert_eq!((dirty.1, dirty.2), (clean.1, clean.2));
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_batches_chunks_or_workspace() {
    let mut random = Random(5);
    for (m, classes) in [(3, false), (29, false), (64, true), (64, false)] {
        let (b, samples) = draw_problem(&mut random, 20, 3, 2, m, classes);
        for head in
            [EXACT, HeadSolve::LeastSquares { ridge: 0.1 }, HeadSolve::Gradient { steps: 2, step_size: 0.1 }]
        {
            for upload in [Upload::Gradient, Upload::Representation] {
                let task = fed_rep(head, upload, 0.25);
                let mut results = Vec::new();
                for at_once in [1, 2, 7, usize::MAX] {
                    let mut model = Linear::new(Heap::new(20, 3, 2));
                    let mut source = samples.clone().at_once(at_once);
                    let (_, sent) = fed_rep_round(&mut model, task, &b, &mut source).unwrap();
                    for piece in [1, 7, 32, 60] {
                        assert_eq!(bits(&collect_upload(&model, piece)), bits(&sent));
                    }
                    results.push((bits(&sent), bits(model.head())));
                }
                let mut model = Linear::new(Workspace::<20, 3, 2>::new());
                let (_, sent) = fed_rep_round(&mut model, task, &b, &mut samples.clone()).unwrap();
                results.push((bits(&sent), bits(model.head())));
                results.dedup();
                assert_eq!(results.len(), 1);
            }
        }
    }
}

/// An error at any point keeps the previous head, even in the last of several passes.
#[test]
fn failed_source_keeps_the_head() {
    let mut random = Random(6);
    let (b, samples) = draw_problem(&mut random, 9, 3, 1, 20, false);
    let (other_basis, _) = draw_problem(&mut random, 9, 3, 1, 1, false);
    // Two columns of Z are equal, so the normal equations are rejected and there are three passes.
    let mut equal_columns = b.clone();
    equal_columns.chunks_mut(3).for_each(|row| row[2] = row[1]);
    let task = fed_rep(EXACT, Upload::Gradient, 0.0);
    let mut model = Linear::new(Heap::new(9, 3, 1));
    fed_rep_round(&mut model, task, &b, &mut samples.clone()).unwrap();
    let before = bits(model.head());
    let mut prediction = [0.0];
    model.predict(&samples.x[..9], &mut prediction).unwrap();
    for head in [EXACT, HeadSolve::Gradient { steps: 3, step_size: 0.1 }] {
        let task = fed_rep(head, Upload::Gradient, 0.0);
        for failing_pass in [1, 2] {
            let mut source = Sliced { failing_pass: Some(failing_pass), ..samples.clone() };
            let result = fed_rep_round(&mut model, task, &other_basis, &mut source);
            assert_eq!(result.unwrap_err(), DeclineReason::Device);
            assert_eq!(bits(model.head()), before, "pass {failing_pass}");
        }
    }
    let no_samples = &mut Sliced::regression(Vec::new(), Vec::new(), 9, 1);
    assert_eq!(
        fed_rep_round(&mut model, task, &other_basis, no_samples).unwrap_err(),
        DeclineReason::NoSamples
    );
    assert_eq!(bits(model.head()), before, "a round without samples changed the head");
    let mut refused = [0.0];
    assert!(
        model.predict(&samples.x[..9], &mut refused).is_err(),
        "predict used a head of another representation"
    );
    // The first B is restored, for which the old head is valid.
    model.set_representation(&b).unwrap();
    let mut later_prediction = [0.0];
    model.predict(&samples.x[..9], &mut later_prediction).unwrap();
    assert_eq!(bits(&prediction), bits(&later_prediction));
    model.set_representation(&equal_columns).unwrap();
    let mut source = Sliced { failing_pass: Some(2), ..samples.clone() };
    assert_eq!(model.fit_head(EXACT, &mut source), Err(DeclineReason::Device));
    assert_eq!(
        bits(model.head()),
        before,
        "an error in the second pass of the triangular solver changed the head"
    );
}

/// The loss `|X B W - Y|^2 / 2m` does not rise in the head fit, and falls along `-G` for a small step.
#[test]
fn loss_falls_along_the_negative_gradient() {
    let mut random = Random(7);
    for case in 0..100 {
        let (d, k, c, m) = draw_dimensions(&mut random, case);
        if d < k + 2 {
            continue;
        }
        let (b, samples) = draw_problem(&mut random, d, k, c, m, false);
        let loss = |b: &M, w: &M| (samples.x64() * b * w - samples.y64()).norm_squared() / (2.0 * m as f64);
        let mut model = Linear::new(Heap::new(d, k, c));
        let task = fed_rep(EXACT, Upload::Gradient, 0.0);
        let (_, g) = fed_rep_round(&mut model, task, &b, &mut samples.clone()).unwrap();
        let (b, g, w) = (matrix(d, k, &b), matrix(d, k, &g), matrix(k, c, model.head()));
        let h = 1e-4 / g.norm();
        let slope = (loss(&(&b - &g * h), &w) - loss(&(&b + &g * h), &w)) / (2.0 * h);
        assert!(
            (slope + g.norm_squared()).abs() <= 1e-4 * g.norm_squared(),
            "the slope along -G is not -|G|^2"
        );
        assert!(loss(&b, &w) <= loss(&b, &M::zeros(k, c)) * (1.0 + 1e-6));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    /// Rotating `B` in its span rotates head and gradient with it and changes no prediction.
    #[test]
    fn rotation_of_b_changes_no_prediction(seed in any::<u64>(), k in 2usize..5) {
        let mut random = Random(seed);
        let (d, c, m) = (k + 6, 2, 4 * k + 8);
        let (b, samples) = draw_problem(&mut random, d, k, c, m, false);
        let q = random.orthonormal(k, k);
        let rotated = flat(&(matrix(d, k, &b) * &q));
        let task = fed_rep(EXACT, Upload::Gradient, 0.0);
        let mut model = Linear::new(Heap::new(d, k, c));
        let (_, g) = fed_rep_round(&mut model, task, &b, &mut samples.clone()).unwrap();
        let mut out = [0.0; 2];
        model.predict(&samples.x[..d], &mut out).unwrap();
        let (_, gq) = fed_rep_round(&mut model, task, &rotated, &mut samples.clone()).unwrap();
        let mut outq = [0.0; 2];
        model.predict(&samples.x[..d], &mut outq).unwrap();
        let g = matrix(d, k, &g);
        prop_assert!((&g * q - matrix(d, k, &gq)).norm() <= 1e-4 * (1.0 + g.norm()));
        prop_assert!((out[0] - outq[0]).abs() <= 1e-4 * (1.0 + out[0].abs()));
    }
}
