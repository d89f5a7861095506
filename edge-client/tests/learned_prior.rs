//! Tests of the device side of a learned prior of heads: all results equal those of an f64 model that is written from the
//! specification (`SPEC.md`, "A prior of heads"), and a round that is declined leaves the head as it was.
//!
//! Tolerances are forward error bounds of the normal equations. With `S = A + P` computed in f32, its error is at most
//! `GROWTH (m + d) u` times the sum of the magnitudes of its terms (u is the unit roundoff), and the error of the head at most
//! `|S^-1|` times the errors of `S` and of the right-hand side. Cases where `|S^-1|` times the error of `S` exceeds a hundredth
//! are left out.
#![cfg(feature = "learned-prior")]
#![allow(clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]

use crate::common::*;
use fedspan_client::task::{LearnedPrior, Usage, learned_prior_values};
use fedspan_client::{NotReady, Shape, Task};
use fedspan_protocol::limits::PRIORS_MAX;
use fedspan_protocol::message::{
    DeclineReason, GeometricGrid, HeadSolve, RoundId, RoundOpen, Task as Wire, TaskKind,
};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// Factor of `(m + d) u` in the bounds. The largest error that was seen is below half of its bound.
const GROWTH: f64 = 2.0;

/// Numbers of labels of each class on which heads are scored; `None` is half of a class.
const LABELS: [Option<u64>; 5] = [Some(1), Some(2), Some(5), Some(10), None];

type Model = LearnedPrior<Vec<f32>>;

/// Tensors of a prior, as they are sent.
#[derive(Clone, Debug)]
struct Prior {
    shape: Shape,
    /// Q, d x k.
    columns: Vec<f32>,
    /// M, d x C.
    mean: Option<Vec<f32>>,
    /// Lower triangle of T.
    metric: Option<Vec<f32>>,
    /// `a_1` to `a_k` and f.
    variances: Vec<f32>,
}

impl Prior {
    /// Creates a random prior whose inverse covariance is positive definite. With `skewed`, the columns of Q are not orthogonal.
    fn random(random: &mut Random, shape: Shape, has_mean: bool, has_metric: bool, skewed: bool) -> Self {
        let Shape { features: d, width: k, outputs: c } = shape;
        let mut q = random.orthonormal(d, k);
        if skewed {
            let sheared = &q * (M::identity(k, k) + random.gaussian(k, k) * 0.3);
            q = &sheared / (norm2(&sheared) * 1.1);
        }
        let metric = has_metric.then(|| {
            let rows = random.gaussian(2 * d, d);
            rows.transpose() * &rows / (2 * d) as f64 + M::identity(d, d) * 0.2
        });
        if let Some(metric) = &metric {
            q = metric.clone().cholesky().unwrap().l() * q;
        }
        let mut variances: Vec<f32> = (0..k).map(|_| (random.unit() * 6.0 - 3.0).exp() as f32).collect();
        if random.below(4) == 0 {
            variances[random.below(k)] = 0.0;
        }
        variances.push((random.unit() * 3.0 - 3.0).exp() as f32);
        Self {
            shape,
            columns: flat(&q),
            mean: has_mean.then(|| random.normals(d * c)),
            metric: metric.map(|metric| {
                (0..d).flat_map(|i| (0..=i).map(move |j| (i, j))).map(|at| metric[at] as f32).collect()
            }),
            variances,
        }
    }

    /// Returns the tensors in the order of the specification, with their roles, rows and columns.
    fn tensors(&self) -> Vec<(Role, usize, usize, &[f32])> {
        let Shape { features: d, width: k, outputs: c } = self.shape;
        let mut tensors = vec![(Role::Representation, d, k, &self.columns[..])];
        tensors.extend(self.mean.as_deref().map(|mean| (Role::PriorMean, d, c, mean)));
        tensors
            .extend(self.metric.as_deref().map(|metric| (Role::SecondMoments, 1, d * (d + 1) / 2, metric)));
        tensors.push((Role::PriorVariances, 1, k + 1, &self.variances[..]));
        tensors
    }

    /// Returns the opening of a round with this prior.
    fn round(&self, number: u32, task: Wire) -> RoundOpen {
        round_of(number, task, &self.tensors())
    }

    /// Returns M, which is zero if it is not sent.
    fn mean64(&self) -> M {
        let Shape { features: d, outputs: c, .. } = self.shape;
        self.mean.as_ref().map_or_else(|| M::zeros(d, c), |mean| matrix(d, c, mean))
    }

    /// Returns P, and the sum of the magnitudes of its terms.
    fn precision(&self, span: f32, floor: f32) -> (M, f64) {
        let Shape { features: d, width: k, .. } = self.shape;
        let t = self.metric.as_ref().map_or_else(
            || M::identity(d, d),
            |metric| {
                M::from_fn(d, d, |i, j| {
                    let (i, j) = (i.max(j), i.min(j));
                    f64::from(metric[i * (i + 1) / 2 + j])
                })
            },
        );
        let f = f64::from(self.variances[k] * floor);
        let q = matrix(d, k, &self.columns);
        let (mut p, mut magnitude) = (&t / f, t.norm() / f);
        for j in 0..k {
            let a = f64::from(self.variances[j] * span);
            let factor = a / (f * (a + f));
            p -= q.column(j) * q.column(j).transpose() * factor;
            magnitude += factor * q.column(j).norm_squared();
        }
        (p, magnitude)
    }
}

/// Posterior of a head, and bounds of the errors of the same in f32.
struct Posterior {
    a: M,
    p: M,
    inverse: M,
    /// E, the deviation of the head from the mean of the prior.
    deviation: M,
    /// V.
    head: M,
    /// `Y - X M`
    unexplained: M,
    right: M,
    log_determinant: f64,
    /// Unit of the bounds: `GROWTH (m + d) u`.
    unit: f64,
    inverse_norm: f64,
    /// Bound of the error of S.
    matrix_error: f64,
    /// Bound of the error of R.
    right_error: f64,
    /// Bound of the error of the deviation.
    deviation_error: f64,
}

impl Posterior {
    /// Computes the posterior for the samples `x` and `y` under a prior of the grid.
    fn new(prior: &Prior, (span, floor): (f32, f32), x: &M, y: &M) -> Self {
        let (p, p_magnitude) = prior.precision(span, floor);
        let mean = prior.mean64();
        let a = x.transpose() * x;
        let unexplained = y - x * &mean;
        let right = x.transpose() * &unexplained;
        let factor = (&a + &p).cholesky().expect("positive definite");
        let (inverse, deviation) = (factor.inverse(), factor.solve(&right));
        let log_determinant = factor.l().diagonal().iter().map(|v| 2.0 * v.ln()).sum();
        let unit = GROWTH * (x.nrows() + x.ncols()) as f64 * EPS;
        let (inverse_norm, abs) = (norm2(&inverse), x.abs());
        let matrix_error = unit * ((abs.transpose() * &abs).norm() + p_magnitude);
        let right_error = unit * (abs.transpose() * (y.abs() + &abs * mean.abs())).norm();
        let deviation_error = inverse_norm * (matrix_error * deviation.norm() + right_error);
        Self {
            head: mean + &deviation,
            a,
            p,
            inverse,
            deviation,
            unexplained,
            right,
            log_determinant,
            unit,
            inverse_norm,
            matrix_error,
            right_error,
            deviation_error,
        }
    }

    /// Returns whether f32 resolves the posterior well enough for the bounds, which are of first order.
    fn is_resolved(&self) -> bool {
        self.inverse_norm * self.matrix_error < 0.01
    }

    /// Returns the bound of the head's error.
    fn head_error(&self) -> f64 {
        self.deviation_error + self.unit * self.head.norm()
    }

    /// Returns the bound of the error of `tr(B S^-1)`, for B one of the terms of S.
    fn trace_error(&self, b: &M) -> f64 {
        let change = (&self.inverse * b * &self.inverse).norm();
        (self.inverse.norm() + change) * self.matrix_error + self.unit * b.nrows() as f64
    }
}

/// Case of a law: a prior and the samples of a device.
#[derive(Clone, Debug)]
struct Case {
    prior: Prior,
    noise: f32,
    samples: Sliced,
}

impl Case {
    /// Returns a new device with room for a metric if this prior has one.
    fn model(&self) -> Model {
        model_for(self.prior.shape, self.prior.metric.is_some())
    }

    fn fit_task(&self) -> Wire {
        Wire::FitHead { head: HeadSolve::Prior { noise: self.noise } }
    }

    /// Computes the posterior of the head under the prior that was sent.
    fn posterior(&self) -> Posterior {
        Posterior::new(&self.prior, (1.0, 1.0), &self.samples.x64(), &self.samples.y64())
    }

    /// Runs a round. Returns the usage of samples, and the uploaded values.
    fn run(&self, model: &mut Model, task: Wire) -> Result<(Usage, Vec<f32>), DeclineReason> {
        run_round(model, &self.prior, task, &self.samples)
    }
}

fn model_for(shape: Shape, has_metric: bool) -> Model {
    LearnedPrior::new(shape, vec![0.0; learned_prior_values(shape, has_metric)]).unwrap()
}

/// Returns the opening of a round with these tensors.
fn round_of(number: u32, task: Wire, tensors: &[(Role, usize, usize, &[f32])]) -> RoundOpen {
    let descriptor = |&(role, rows, cols, _): &(Role, usize, usize, &[f32])| {
        TensorDescriptor::inline(role, Encoding::F32, rows as u16, cols as u16)
    };
    RoundOpen {
        id: RoundId { round: number, stage: 0 },
        task,
        tensors: tensors.iter().map(descriptor).collect(),
    }
}

/// Runs a round with this prior, and checks the descriptors of the upload.
fn run_round(
    model: &mut Model,
    prior: &Prior,
    task: Wire,
    samples: &Sliced,
) -> Result<(Usage, Vec<f32>), DeclineReason> {
    let Shape { features: d, width: k, outputs: c } = prior.shape;
    let tensors = prior.tensors();
    let is_pooled = task == Wire::PooledMoments;
    let tensors = if is_pooled { &[] } else { &tensors[..] };
    let round = round_of(1, task, tensors);
    receive(model, &round, &tensors.iter().map(|tensor| tensor.3).collect::<Vec<_>>())?;
    let usage = model.run(round.id, &mut samples.clone())?;
    assert_eq!(usage, model.usage());
    let expected = match task {
        Wire::PooledMoments => {
            vec![(Role::SecondMoments, 1, d * (d + 1) / 2), (Role::CrossMoments, d, c)]
        }
        Wire::HeadMoments { .. } => vec![(Role::HeadMoments, d, k), (Role::HeadSums, 1, 3)],
        Wire::PriorEvidence { spans, floors, .. } => {
            let priors = usize::from(spans.count) * usize::from(floors.count);
            vec![(Role::PriorEvidence, 1, 3 * priors + 2)]
        }
        Wire::NewcomerGradient { .. } => vec![(Role::NewcomerGradient, d, k), (Role::NewcomerError, 1, 2)],
        _ => vec![],
    };
    let upload: Vec<_> = model
        .upload()
        .iter()
        .map(|tensor| (tensor.role, usize::from(tensor.rows), usize::from(tensor.cols)))
        .collect();
    assert_eq!(upload, expected);
    assert!(model.upload().iter().all(|tensor| tensor.encoding == Encoding::F32));
    let values = collect_upload(model, 5);
    assert_eq!(bits(&values), bits(&collect_upload(model, usize::MAX)), "pieces have the same values");
    assert!(values.iter().all(|value| value.is_finite()), "{values:?}");
    Ok((usage, values))
}

/// Returns samples of classes around centres, or with targets that a linear model explains in part.
fn random_samples(random: &mut Random, shape: Shape, count: usize, has_classes: bool) -> Sliced {
    let Shape { features: d, outputs: c, .. } = shape;
    if has_classes {
        let centres = random.gaussian(c, d);
        let classes: Vec<u8> = (0..count).map(|_| random.below(c) as u8).collect();
        let x = classes
            .iter()
            .flat_map(|class| {
                (0..d)
                    .map(|i| (centres[(usize::from(*class), i)] + 0.7 * random.normal()) as f32)
                    .collect::<Vec<_>>()
            })
            .collect();
        return Sliced::classification(x, classes, d, c);
    }
    let x = random.gaussian(count, d);
    let y = &x * random.gaussian(d, c) + random.gaussian(count, c) * 0.5;
    Sliced::regression(flat(&x), flat(&y), d, c)
}

/// Returns cases of all shapes.
fn cases() -> impl Strategy<Value = Case> {
    (any::<u64>(), 1usize..=14, 0.0..1.0f64, 1usize..=4, 1usize..=40, any::<[bool; 4]>()).prop_map(
        |(seed, d, width, outputs, count, [has_mean, has_metric, skewed, has_classes])| {
            let mut random = Random(seed);
            let shape = Shape { features: d, width: 1 + (width * d as f64) as usize, outputs };
            let prior = Prior::random(&mut random, shape, has_mean, has_metric, skewed);
            let noise = (random.unit() * 4.0 - 3.0).exp() as f32;
            Case { samples: random_samples(&mut random, shape, count, has_classes), prior, noise }
        },
    )
}

/// Returns the configuration of a law, with the same cases in every run.
fn law_config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::with_cases(cases)
    }
}

/// Checks that two matrices differ by at most `bound` in the Frobenius norm. Returns the ratio of the error and the bound.
fn check_matrix(what: &str, got: &M, expected: &M, bound: f64) -> f64 {
    let error = (got - expected).norm();
    assert!(error <= bound, "{what}: error {error:e}, bound {bound:e}, {got} instead of {expected}");
    if bound > 0.0 { error / bound } else { 0.0 }
}

/// Checks one number, as [`check_matrix`].
fn check_number(what: &str, got: f32, expected: f64, bound: f64) -> f64 {
    let matrix_of = |value| M::from_element(1, 1, value);
    check_matrix(what, &matrix_of(f64::from(got)), &matrix_of(expected), bound)
}

/// Runs a law for random cases, of which f32 resolves the posterior, and prints the largest ratios of errors and bounds.
fn for_cases(check: impl Fn(&Case, &Posterior, &mut Worst)) {
    let worst = std::cell::RefCell::new(Worst::default());
    let config = law_config(96);
    let mut runner = proptest::test_runner::TestRunner::new(config);
    runner
        .run(&cases(), |case| {
            let posterior = case.posterior();
            prop_assume!(posterior.is_resolved());
            check(&case, &posterior, &mut worst.borrow_mut());
            Ok(())
        })
        .unwrap();
}

/// The head is the posterior mean; predictions are those of the head, with the variance of noise and posterior.
#[test]
fn head_is_the_posterior_mean() {
    for_cases(|case, posterior, worst| {
        let Shape { features: d, outputs: c, .. } = case.prior.shape;
        let mut model = case.model();
        let (usage, upload) = case.run(&mut model, case.fit_task()).unwrap();
        assert_eq!((usage.samples as usize, usage.skipped, upload.len()), (case.samples.len(), 0, 0));
        let head = matrix(d, c, model.head());
        worst.record_largest("head", check_matrix("head", &head, &posterior.head, posterior.head_error()));
        worst.record_largest("relative tolerance of heads", posterior.head_error() / posterior.head.norm());
        let relative_error = (&head - &posterior.head).norm() / posterior.head.norm();
        worst.record_largest("relative error of heads", relative_error);
        assert_eq!(model.noise(), Some(case.noise));
        let mut random = Random(7);
        for _ in 0..3 {
            let x = random.normals(d);
            let (mut out, mut again) = (vec![f32::NAN; c], vec![f32::NAN; c]);
            model.predict(&x, &mut out).unwrap();
            let variance = model.predict_with_variance(&x, &mut again).unwrap();
            assert_eq!(bits(&out), bits(&again));
            let x = matrix(1, d, &x);
            let bound = GROWTH * d as f64 * EPS * (x.abs() * head.abs()).norm();
            worst.record_largest(
                "prediction",
                check_matrix("prediction", &matrix(1, c, &out), &(&x * &head), bound),
            );
            let spread = (&x * &posterior.inverse * x.transpose())[(0, 0)];
            let noise = f64::from(case.noise);
            let direction = (&posterior.inverse * x.transpose()).norm_squared();
            let bound = noise * (direction * posterior.matrix_error + posterior.unit * (1.0 + spread));
            worst.record_largest(
                "variance",
                check_number("variance", variance, noise * (1.0 + spread), bound),
            );
        }
        let before = bits(model.head());
        assert_eq!(model.fit(&mut case.samples.clone()), Ok(usage));
        assert_eq!(bits(model.head()), before);
    });
}

#[test]
fn head_moments_equal_the_oracle() {
    for_cases(|case, posterior, worst| {
        let Shape { features: d, width: k, outputs: c } = case.prior.shape;
        let q = matrix(d, k, &case.prior.columns);
        let (x, y) = (case.samples.x64(), case.samples.y64());
        let Posterior { a, p, inverse, deviation, unit, deviation_error, .. } = posterior;
        let (size, outputs) = (deviation.norm(), c as f64);
        for (noise, names) in [
            (case.noise, ["moments", "deviations", "residuals"]),
            (0.0, ["moments, no noise", "deviations, no noise", "residuals, no noise"]),
        ] {
            let (usage, upload) = case.run(&mut case.model(), Wire::HeadMoments { noise }).unwrap();
            assert_eq!((usage.samples as usize, usage.skipped), (case.samples.len(), 0));
            let noise = f64::from(noise);
            let (moments, sums) = upload.split_at(d * k);

            let expected = (deviation * deviation.transpose() / outputs + inverse * noise) * &q;
            let magnitude = deviation.abs() * deviation.abs().transpose() / outputs + inverse.abs() * noise;
            let error = (2.0 * size + deviation_error) * deviation_error / outputs
                + noise * posterior.inverse_norm.powi(2) * posterior.matrix_error;
            let bound = error * q.norm() + unit * (magnitude * q.abs()).norm();
            worst.record_largest(names[0], check_matrix(names[0], &matrix(d, k, moments), &expected, bound));

            let expected =
                (deviation.transpose() * p * deviation).trace() / outputs + noise * (p * inverse).trace();
            let error = size * size * posterior.matrix_error
                + size * posterior.right_error
                + 2.0 * (p * deviation).norm() * deviation_error;
            let bound = error / outputs + noise * posterior.trace_error(p) + unit * expected.abs();
            worst.record_largest(names[1], check_number(names[1], sums[0], expected, bound));

            let residual = &y - &x * &posterior.head;
            let expected = residual.norm_squared() + outputs * noise * (a * inverse).trace();
            let residual_error =
                norm2(&x) * posterior.head_error() + unit * (y.abs() + x.abs() * posterior.head.abs()).norm();
            let bound = (2.0 * residual.norm() + residual_error) * residual_error
                + outputs * noise * posterior.trace_error(a)
                + unit * expected;
            worst.record_largest(names[2], check_number(names[2], sums[1], expected, bound));
            assert_eq!(sums[2], case.samples.len() as f32);
        }
    });
}

#[test]
fn pooled_moments_equal_the_oracle() {
    for_cases(|case, _, worst| {
        let Shape { features: d, outputs: c, .. } = case.prior.shape;
        let (usage, upload) = case.run(&mut case.model(), Wire::PooledMoments).unwrap();
        let (x, y, m) = (case.samples.x64(), case.samples.y64(), case.samples.len() as f64);
        assert_eq!((usage.samples as usize, usage.skipped), (case.samples.len(), 0));
        let (second, cross) = upload.split_at(d * (d + 1) / 2);
        let expected = x.transpose() * &x / m;
        let magnitude = x.abs().transpose() * x.abs() / m;
        let unit = GROWTH * (m + 2.0) * EPS;
        let lower = (0..d).flat_map(|i| (0..=i).map(move |j| (i, j)));
        for (at, got) in lower.zip(second) {
            let ratio = check_number("second moment", *got, expected[at], unit * magnitude[at]);
            worst.record_largest("second moments", ratio);
        }
        let (expected, magnitude) = (x.transpose() * &y / m, x.abs().transpose() * y.abs() / m);
        let cross = matrix(d, c, cross);
        for i in 0..d {
            for j in 0..c {
                let at = (i, j);
                let ratio =
                    check_number("cross moment", cross[at] as f32, expected[at], unit * magnitude[at]);
                worst.record_largest("cross moments", ratio);
            }
        }
    });
}

fn mix_bits(a: u32) -> u32 {
    let a = (a ^ a >> 16).wrapping_mul(0x7feb_352d);
    let a = (a ^ a >> 15).wrapping_mul(0x846c_a68b);
    a ^ a >> 16
}

/// Returns which samples are labelled in a draw, in the notation of RidgeScores.
fn labelled_samples(classes: &[u8], outputs: usize, draw: u32, labels: Option<u64>) -> Vec<bool> {
    let mut left = vec![0u64; outputs];
    classes.iter().for_each(|class| left[usize::from(*class)] += 1);
    let mut needed: Vec<u64> = left.iter().map(|n| labels.map_or(n / 2, |labels| labels.min(*n))).collect();
    let drawn = classes
        .iter()
        .enumerate()
        .map(|(number, class)| {
            let class = usize::from(*class);
            let bits = u64::from(mix_bits(number as u32 ^ mix_bits(draw + 1)));
            let is_labelled = (bits * left[class]) >> 32 < needed[class];
            needed[class] -= u64::from(is_labelled);
            left[class] -= 1;
            is_labelled
        })
        .collect();
    assert!(needed.iter().all(|needed| *needed == 0));
    drawn
}

/// The example of the specification: one label of 8 samples of one class.
#[test]
fn oracle_draws_as_the_specification_does() {
    let drawn: Vec<_> = (0..4)
        .map(|draw| labelled_samples(&[0; 8], 1, draw, Some(1)).iter().position(|labelled| *labelled))
        .collect();
    assert_eq!(drawn, [Some(7), Some(1), Some(4), Some(6)]);
}

/// Correct predictions of heads on few samples.
#[derive(Debug, Default)]
struct Scores {
    correct: usize,
    /// Number of predictions where the two largest outputs differ by less than the error of f32.
    ties: usize,
    predictions: usize,
}

/// Counts the correct predictions of heads on few samples under one prior.
fn score_heads(case: &Case, grid_point: (f32, f32), draws: u8) -> Scores {
    let Labels::Classes(classes) = &case.samples.labels else { return Scores::default() };
    let c = case.prior.shape.outputs;
    let mut scores = Scores::default();
    for draw in 0..u32::from(draws) {
        for (i, labels) in (0..).zip(LABELS) {
            let is_labelled = labelled_samples(classes, c, 5 * draw + i, labels);
            let indices = |wanted: bool| -> Vec<usize> {
                (0..classes.len()).filter(|index| is_labelled[*index] == wanted).collect()
            };
            let (x, y) = (case.samples.x64(), case.samples.y64());
            let labelled = indices(true);
            let posterior =
                Posterior::new(&case.prior, grid_point, &x.select_rows(&labelled), &y.select_rows(&labelled));
            for index in indices(false) {
                let x = x.row(index);
                let out = x * &posterior.head;
                let best = (0..c).rev().max_by(|a, b| out[*a].total_cmp(&out[*b])).unwrap();
                let margin = (0..c).filter(|other| *other != best).map(|other| out[best] - out[other]);
                // Without labels and without a mean all outputs are 0, exactly, and the first class is predicted.
                let resolution = 2.0 * posterior.head_error() * x.norm();
                scores.ties += usize::from(margin.fold(f64::INFINITY, f64::min) < resolution);
                scores.correct += usize::from(best == usize::from(classes[index]));
                scores.predictions += 1;
            }
        }
    }
    scores
}

/// Grids of spans and of floors, and numbers of draws.
fn evidence_tasks() -> Vec<Wire> {
    let grid = |first, factor, count| GeometricGrid { first, factor, count };
    [
        (grid(1.0, 1.0, 1), grid(1.0, 2.0, 1), 0),
        (grid(0.0, 2.0, 2), grid(0.5, 2.0, 3), 1),
        (grid(0.25, 3.0, 3), grid(0.3, 1.7, 2), 2),
        (grid(4.0, 0.0, 3), grid(2.0, 1.0, 1), 1),
    ]
    .map(|(spans, floors, draws)| Wire::PriorEvidence { spans, floors, draws })
    .to_vec()
}

/// Returns whether the targets are no classes, or of at least two classes.
fn has_several_classes(samples: &Sliced) -> bool {
    match &samples.labels {
        Labels::Values(_) => true,
        Labels::Classes(classes) => classes.iter().any(|class| *class != classes[0]),
    }
}

/// Checks the evidence for all priors of a grid; the scores, unless all samples are of one class. Returns the numbers of
/// predictions and of near ties.
fn check_evidence(case: &Case, task: Wire, worst: &mut Worst) -> (usize, usize) {
    let Wire::PriorEvidence { spans, floors, draws } = task else { panic!("{task:?}") };
    let (usage, upload) = case.run(&mut case.model(), task).unwrap();
    assert_eq!((usage.samples as usize, usage.skipped), (case.samples.len(), 0));
    let (x, y) = (case.samples.x64(), case.samples.y64());
    let points = spans.values().flat_map(|span| floors.values().map(move |floor| (span, floor)));
    let (priors, totals) = upload.split_at(upload.len() - 2);
    let (mut predictions, mut ties) = (0, 0);
    for (point, values) in points.zip(priors.chunks(3)) {
        let posterior = Posterior::new(&case.prior, point, &x, &y);
        let Posterior { inverse, right, unexplained, deviation, unit, .. } = &posterior;
        let scores = score_heads(case, point, draws);
        if posterior.is_resolved() {
            let expected = unexplained.norm_squared() - (right.transpose() * inverse * right).trace();
            let magnitude = (y.abs() + x.abs() * case.prior.mean64().abs()).norm_squared();
            let size = deviation.norm();
            let bound =
                unit * magnitude + 2.0 * size * posterior.right_error + size * size * posterior.matrix_error;
            let name = "evidence, sum of squares";
            worst.record_largest(name, check_number(name, values[0], expected, bound));
            let (name, determinant) = ("evidence, determinant", posterior.log_determinant);
            let bound = inverse.norm() * posterior.matrix_error + unit * (1.0 + determinant.abs());
            worst.record_largest(name, check_number(name, values[1], determinant, bound));
        }
        if !has_several_classes(&case.samples) {
            continue;
        }
        let correct = f64::from(values[2]) * scores.predictions as f64;
        assert!(
            (correct - scores.correct as f64).abs() <= scores.ties as f64 + 1e-3,
            "{correct} correct at {point:?}, expected {scores:?}"
        );
        assert_eq!(totals[1], scores.predictions as f32);
        predictions += scores.predictions;
        ties += scores.ties;
    }
    assert_eq!(totals[0], case.samples.len() as f32);
    (predictions, ties)
}

#[test]
fn evidence_equals_the_oracle() {
    let counts = std::cell::Cell::new((0, 0));
    for_cases(|case, _, worst| {
        for task in evidence_tasks() {
            let (predictions, ties) = check_evidence(case, task, worst);
            counts.set((counts.get().0 + predictions, counts.get().1 + ties));
        }
    });
    let (predictions, ties) = counts.get();
    assert!(predictions > 10_000 && ties * 50 < predictions, "{ties} near ties of {predictions}");
}

/// Newcomer of one draw in f64: the head on the labelled samples, and the other samples.
struct Newcomer {
    posterior: Posterior,
    x: M,
    y: M,
}

impl Newcomer {
    fn new(case: &Case, labels: u16, draw: u32) -> Option<Self> {
        let Labels::Classes(classes) = &case.samples.labels else { return None };
        let labels = (labels > 0).then_some(u64::from(labels));
        let is_labelled = labelled_samples(classes, case.prior.shape.outputs, draw, labels);
        let indices = |wanted: bool| -> Vec<usize> {
            (0..classes.len()).filter(|index| is_labelled[*index] == wanted).collect()
        };
        let (labelled, others) = (indices(true), indices(false));
        if others.is_empty() || !has_several_classes(&case.samples) || case.prior.shape.outputs < 2 {
            return None;
        }
        let (x, y) = (case.samples.x64(), case.samples.y64());
        let posterior =
            Posterior::new(&case.prior, (1.0, 1.0), &x.select_rows(&labelled), &y.select_rows(&labelled));
        Some(Self { posterior, x: x.select_rows(&others), y: y.select_rows(&others) })
    }

    /// Newcomers of all draws of a task; `None` if the device cannot be one.
    fn draws(case: &Case, task: Wire) -> Option<Vec<Self>> {
        let Wire::NewcomerGradient { labels, draws, first } = task else { panic!("{task:?}") };
        (0..draws).map(|draw| Self::new(case, labels, first.wrapping_add(draw.into()))).collect()
    }

    /// Mean squared residual of a target.
    fn error(&self, head: &M) -> f64 {
        (&self.y - &self.x * head).norm_squared() / self.y.len() as f64
    }

    /// The same of the head that the labelled samples have with another precision of the prior.
    fn error_with(&self, p: &M) -> f64 {
        let Posterior { a, right, head, deviation, .. } = &self.posterior;
        self.error(&(head - deviation + (a + p).cholesky().unwrap().solve(right)))
    }
}

/// Tasks about newcomers, with one draw and with several.
const NEWCOMERS: [Wire; 5] = [
    Wire::NewcomerGradient { labels: 1, draws: 1, first: 0 },
    Wire::NewcomerGradient { labels: 1, draws: 1, first: 70_000 },
    Wire::NewcomerGradient { labels: 3, draws: 1, first: u32::MAX - 1 },
    Wire::NewcomerGradient { labels: 1, draws: 4, first: 9 },
    Wire::NewcomerGradient { labels: 0, draws: 2, first: 2 },
];

#[test]
fn newcomer_gradients_equal_the_oracle() {
    let count = std::cell::Cell::new((0, 0));
    for_cases(|case, _, worst| {
        let Shape { features: d, width: k, outputs: c } = case.prior.shape;
        let q = matrix(d, k, &case.prior.columns);
        for task in NEWCOMERS {
            let result = case.run(&mut case.model(), task);
            let Some(newcomers) = Newcomer::draws(case, task) else {
                assert_eq!(result.unwrap_err(), DeclineReason::NoSamples);
                count.set((count.get().0, count.get().1 + 1));
                continue;
            };
            let (usage, upload) = result.unwrap();
            assert_eq!((usage.samples as usize, usage.skipped), (case.samples.len(), 0));
            if !newcomers.iter().all(|newcomer| newcomer.posterior.is_resolved()) {
                continue;
            }
            count.set((count.get().0 + 1, count.get().1));
            let (products, sums) = upload.split_at(d * k);
            assert_eq!(sums[1], newcomers[0].x.nrows() as f32);
            let (mut error, mut error_bound) = (0.0, 0.0);
            let (mut gradient, mut gradient_bound) = (M::zeros(d, k), 0.0);
            for newcomer in &newcomers {
                let Newcomer { posterior, x, y } = newcomer;
                let Posterior { inverse, deviation, unit, head, .. } = posterior;
                let (l, outputs, draws) = (x.nrows() as f64, c as f64, newcomers.len() as f64);
                let unit = unit + GROWTH * (l + draws) * EPS;
                let residual = y - x * head;
                let residual_error =
                    norm2(x) * posterior.head_error() + unit * (y.abs() + x.abs() * head.abs()).norm();
                error += newcomer.error(head) / draws;
                error_bound += (2.0 * residual.norm() + residual_error) * residual_error
                    / (l * outputs * draws)
                    + unit * newcomer.error(head) / draws;

                let h = inverse * x.transpose() * &residual * (-1.0 / l);
                gradient += (deviation * h.transpose() + &h * deviation.transpose()) * &q / (outputs * draws);
                let right_error =
                    (x.norm() * residual_error + unit * (x.abs().transpose() * residual.abs()).norm()) / l;
                let h_error = posterior.inverse_norm * (posterior.matrix_error * h.norm() + right_error);
                let products_error =
                    deviation.norm() * h_error + (h.norm() + h_error) * posterior.deviation_error;
                let magnitude = 2.0 * (deviation.abs() * h.abs().transpose() * q.abs()).norm()
                    + 2.0 * (h.abs() * deviation.abs().transpose() * q.abs()).norm();
                gradient_bound += (2.0 * products_error * q.norm() + unit * magnitude) / (outputs * draws);
            }
            let name = "newcomers, error";
            worst.record_largest(name, check_number(name, sums[0], error, error_bound));
            let name = "newcomers, gradient";
            let got = matrix(d, k, products);
            worst.record_largest(name, check_matrix(name, &got, &gradient, gradient_bound));
        }
    });
    let (compared, declined) = count.get();
    assert!(compared > 100 && declined > 20, "{compared} compared, {declined} declined");
}

/// The error of a newcomer changes with the covariance S of the prior, in the direction `S (Q N^T + N Q^T) S / 2`, as much as the sum of
/// the products of N and the gradient that the device sends says: by the difference quotient.
#[test]
fn newcomer_gradients_are_derivatives_by_the_covariance() {
    let compared = std::cell::Cell::new(0);
    for_cases(|case, _, _| {
        let Shape { features: d, width: k, .. } = case.prior.shape;
        for task in NEWCOMERS {
            let Some(newcomers) = Newcomer::draws(case, task) else { continue };
            let p = &newcomers[0].posterior.p;
            let covariance = p.clone().try_inverse().unwrap();
            let are_resolved = newcomers.iter().all(|newcomer| newcomer.posterior.is_resolved());
            if !are_resolved || norm2(p) * norm2(&covariance) > 1e4 {
                continue;
            }
            let (_, upload) = case.run(&mut case.model(), task).unwrap();
            let q = matrix(d, k, &case.prior.columns);
            let n = Random(7 + k as u64).gaussian(d, k);
            let inner = (&q * n.transpose() + &n * q.transpose()) * 0.5;
            let direction = &covariance * &inner * &covariance;
            let step = 1e-5 / norm2(&(p * &direction));
            let error_at = |step: f64| {
                let p = (&covariance + &direction * step).try_inverse().unwrap();
                newcomers.iter().map(|newcomer| newcomer.error_with(&p)).sum::<f64>() / newcomers.len() as f64
            };
            let quotient = (error_at(step) - error_at(-step)) / (2.0 * step);
            let gradient = matrix(d, k, &upload[..d * k]);
            let size = gradient.norm() * n.norm() + 1e-3 * error_at(0.0);
            assert!((gradient.dot(&n) - quotient).abs() < 2e-3 * size, "{} {quotient}", gradient.dot(&n));
            compared.set(compared.get() + 1);
        }
    });
    assert!(compared.get() > 50, "{}", compared.get());
}

/// Devices that cannot be newcomers decline, and keep their heads.
#[test]
fn devices_without_newcomers_decline() {
    let classes = |classes: &[u8]| plain_case(5, 2, 3, Labels::Classes(classes.to_vec()));
    for (case, labels) in [
        (regression_case(), 1),
        (classes(&[1; 9]), 1),
        (classes(&[0, 2, 0, 2, 2, 2]), 4),
        (plain_case(5, 2, 1, Labels::Classes(vec![0; 9])), 1),
    ] {
        let mut model = case.model();
        case.run(&mut model, case.fit_task()).unwrap();
        let before = head_state(&mut model);
        let declined = case.run(&mut model, Wire::NewcomerGradient { labels, draws: 2, first: 3 });
        assert_eq!(declined.unwrap_err(), DeclineReason::NoSamples);
        assert_eq!(head_state(&mut model), before);
    }
}

/// Heads on half of the samples have none where each class has one. Their outputs are 0, of which the first is right for class 0.
#[test]
fn heads_without_samples_predict_the_first_class() {
    let spans = GeometricGrid { first: 1.0, factor: 1.0, count: 1 };
    let task = Wire::PriorEvidence { spans, floors: spans, draws: 3 };
    for (classes, fraction) in [(vec![1, 0], 0.5), (vec![2, 1], 0.0)] {
        let mut case = plain_case(4, 2, 3, Labels::Classes(classes));
        case.prior.mean = None;
        let (_, upload) = case.run(&mut case.model(), task).unwrap();
        assert_eq!(upload[2..], [fraction, 2.0, 6.0]);
    }
}

/// Devices with samples of one class score no heads.
#[test]
fn devices_with_one_class_score_no_heads() {
    for (outputs, class) in [(1, 0), (2, 1)] {
        let case = plain_case(2, 1, outputs, Labels::Classes(vec![class; 8]));
        let spans = GeometricGrid { first: 1.0, factor: 1.0, count: 1 };
        let task = Wire::PriorEvidence { spans, floors: spans, draws: 1 };
        let (_, upload) = case.run(&mut case.model(), task).unwrap();
        assert_eq!(upload[2..], [0.0, 8.0, 0.0]);
    }
}

/// Returns a case with a mean and a metric, and samples with these targets.
fn plain_case(d: usize, k: usize, outputs: usize, labels: Labels) -> Case {
    let mut random = Random(5);
    let shape = Shape { features: d, width: k, outputs };
    let prior = Prior::random(&mut random, shape, true, true, false);
    let count = match &labels {
        Labels::Values(values) => values.len() / outputs,
        Labels::Classes(classes) => classes.len(),
    };
    let samples = Sliced { labels, ..Sliced::regression(random.normals(d * count), Vec::new(), d, outputs) };
    Case { prior, noise: 0.5, samples }
}

/// Returns a case of regression, 5 x 2, with two outputs and 9 samples.
fn regression_case() -> Case {
    plain_case(5, 2, 2, Labels::Values(Random(6).normals(18)))
}

/// Returns every task of a learned prior, with its parameters in range.
fn all_tasks() -> Vec<Wire> {
    let grid = GeometricGrid { first: 0.5, factor: 2.0, count: 2 };
    vec![
        Wire::FitHead { head: HeadSolve::Prior { noise: 0.5 } },
        Wire::PooledMoments,
        Wire::HeadMoments { noise: 0.5 },
        Wire::PriorEvidence { spans: grid, floors: grid, draws: 1 },
    ]
}

/// Head of a device as an application sees it: values, hash, and the prediction for one sample.
type HeadState = (Vec<u32>, Option<u32>, Result<Vec<u32>, NotReady>);

fn head_state(model: &mut Model) -> HeadState {
    let shape = model.shape();
    let mut out = vec![0.0; shape.outputs];
    let prediction = model.predict(&vec![0.5; shape.features], &mut out).map(|()| bits(&out));
    (bits(model.head()), model.head_fitted_on(), prediction)
}

/// Returns a device whose head was fitted in a round.
fn fitted_model(case: &Case) -> Model {
    let mut model = case.model();
    case.run(&mut model, case.fit_task()).unwrap();
    assert!(model.head_fitted_on().is_some() && head_state(&mut model).2.is_ok());
    model
}

/// Checks that the device declines at opening, and that its head and the variances of predictions stay.
fn check_open_declines(case: &Case, round: &RoundOpen, reason: DeclineReason) {
    let mut model = fitted_model(case);
    let before = head_state(&mut model);
    let x = vec![0.5; case.prior.shape.features];
    let mut out = vec![0.0; case.prior.shape.outputs];
    let variance = model.predict_with_variance(&x, &mut out).unwrap();
    assert_eq!(model.open(round), Err(reason), "{round:?}");
    assert_eq!(head_state(&mut model), before, "{round:?}");
    let after = model.predict_with_variance(&x, &mut out).map(f32::to_bits);
    assert_eq!(after, Ok(variance.to_bits()), "{round:?}");
    assert_eq!(model.fit(&mut case.samples.clone()).map(|usage| usage.samples), Ok(9));
}

#[test]
fn parameters_out_of_range_are_declined() {
    let case = regression_case();
    let mut tasks = Vec::new();
    for noise in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1.0, -1e-30] {
        tasks.push(Wire::FitHead { head: HeadSolve::Prior { noise } });
        tasks.push(Wire::HeadMoments { noise });
    }
    tasks.push(Wire::NewcomerGradient { labels: 1, draws: 0, first: 0 });
    let grid = |first, factor, count| GeometricGrid { first, factor, count };
    let good = grid(1.0, 2.0, 2);
    let most = PRIORS_MAX as u8;
    for (spans, floors) in [
        (grid(1.0, 2.0, 0), good),
        (good, grid(1.0, 2.0, 0)),
        (grid(1.0, 1.0, most + 1), grid(1.0, 1.0, 1)),
        (grid(1.0, 1.0, 1), grid(1.0, 1.0, most + 1)),
        (grid(1.0, 1.0, 3), grid(1.0, 1.0, 11)),
        (grid(1.0, 1.0, 16), grid(1.0, 1.0, 16)),
        (grid(1.0, 1.0, 255), grid(1.0, 1.0, 255)),
        (grid(-1.0, 2.0, 2), good),
        (grid(1.0, -2.0, 2), good),
        (good, grid(-1.0, 2.0, 2)),
        (good, grid(0.0, 2.0, 2)),
        (grid(1e30, 1e30, 2), good),
        (good, grid(1e30, 1e30, 2)),
        (grid(f32::NAN, 1.0, 1), good),
        (good, grid(f32::NAN, 1.0, 1)),
        (grid(f32::INFINITY, 1.0, 1), good),
        (good, grid(f32::INFINITY, 1.0, 1)),
        (grid(1.0, f32::NAN, 2), good),
        (good, grid(1.0, f32::INFINITY, 2)),
    ] {
        tasks.push(Wire::PriorEvidence { spans, floors, draws: 1 });
    }
    for task in tasks {
        check_open_declines(&case, &case.prior.round(2, task), DeclineReason::Parameter);
    }
    let most_priors = Wire::PriorEvidence { spans: grid(0.0, 1.0, 4), floors: grid(1.0, 1.0, 8), draws: 0 };
    assert!(case.run(&mut case.model(), most_priors).is_ok());
}

/// Every floor of a grid is above 0, not only the first.
#[test]
fn floors_of_zero_are_declined() {
    let case = regression_case();
    let grid = |first, factor, count| GeometricGrid { first, factor, count };
    for floors in [grid(1.0, 0.0, 2), grid(1e-30, 1e-30, 2)] {
        let task = Wire::PriorEvidence { spans: grid(1.0, 2.0, 2), floors, draws: 1 };
        check_open_declines(&case, &case.prior.round(2, task), DeclineReason::Parameter);
    }
}

#[test]
fn wrong_tensors_are_declined() {
    let case = regression_case();
    let Shape { features: d, width: k, outputs: c } = case.prior.shape;
    let triangle = d * (d + 1) / 2;
    let q = (Role::Representation, d, k);
    let mean = (Role::PriorMean, d, c);
    let metric = (Role::SecondMoments, 1, triangle);
    let variances = (Role::PriorVariances, 1, k + 1);
    let wrong: Vec<Vec<(Role, usize, usize)>> = vec![
        vec![],
        vec![q],
        vec![variances],
        vec![variances, q],
        vec![q, mean, metric],
        vec![mean, metric, variances],
        vec![q, metric, mean, variances],
        vec![mean, q, metric, variances],
        vec![q, mean, variances, metric],
        vec![q, q, variances],
        vec![q, mean, mean, variances],
        vec![q, metric, metric, variances],
        vec![q, variances, variances],
        vec![q, mean, metric, variances, variances],
        vec![(Role::Subspace, d, k), variances],
        vec![q, (Role::Representation, d, c), variances],
        vec![q, (Role::CrossMoments, d, c), variances],
        vec![q, (Role::HeadSums, 1, k + 1)],
        vec![(Role::Representation, k, d), variances],
        vec![(Role::Representation, d + 1, k), variances],
        vec![(Role::Representation, d, k + 1), variances],
        vec![q, (Role::PriorMean, c, d), variances],
        vec![q, (Role::PriorMean, d, c + 1), variances],
        vec![q, (Role::PriorMean, d - 1, c), variances],
        vec![q, (Role::SecondMoments, 1, triangle - 1), variances],
        vec![q, (Role::SecondMoments, 1, triangle + 1), variances],
        vec![q, (Role::SecondMoments, triangle, 1), variances],
        vec![q, (Role::SecondMoments, d, d), variances],
        vec![q, (Role::PriorVariances, 1, k)],
        vec![q, (Role::PriorVariances, 1, k + 2)],
        vec![q, (Role::PriorVariances, k + 1, 1)],
    ];
    let round = |task, tensors: &[(Role, usize, usize)]| {
        let tensors: Vec<(Role, usize, usize, &[f32])> =
            tensors.iter().map(|(role, rows, cols)| (*role, *rows, *cols, &[][..])).collect();
        round_of(2, task, &tensors)
    };
    for task in all_tasks().into_iter().filter(|task| *task != Wire::PooledMoments) {
        for tensors in &wrong {
            check_open_declines(&case, &round(task, tensors), DeclineReason::Tensors);
        }
        for tensors in [&[q, variances][..], &[q, mean, variances], &[q, metric, variances]] {
            assert_eq!(case.model().open(&round(task, tensors)), Ok(()));
        }
    }
    for tensors in [vec![q], vec![q, variances], vec![metric], vec![q, mean, metric, variances]] {
        check_open_declines(&case, &round(Wire::PooledMoments, &tensors), DeclineReason::Tensors);
    }

    let mut no_room = case.clone();
    no_room.prior.metric = None;
    for task in all_tasks().into_iter().filter(|task| *task != Wire::PooledMoments) {
        check_open_declines(&no_room, &case.prior.round(2, task), DeclineReason::Tensors);
    }
    assert!(no_room.run(&mut no_room.model(), Wire::PooledMoments).is_ok());
}

#[test]
fn other_tasks_are_declined() {
    let case = regression_case();
    let Shape { features: d, width: k, .. } = case.prior.shape;
    for task in [
        fed_rep(EXACT, fedspan_protocol::message::Upload::Gradient, 0.1),
        Wire::PowerStart,
        Wire::MomentRows { first: 0, count: 1 },
        Wire::FeatureSums { first: 0, count: 1 },
        Wire::RidgeScores { labels_per_class: 1, first: 1.0, factor: 1.0, count: 1 },
    ] {
        let round = open(2, task, Role::Representation, Encoding::F32, d, k);
        check_open_declines(&case, &round, DeclineReason::Task);
    }
    let capabilities = case.model().capabilities();
    let tasks = all_tasks().iter().fold(TaskKind::NewcomerGradient.bit(), |set, task| set | task.bit());
    assert_eq!(capabilities.tasks, tasks);
    assert_eq!(case.model().streamed_tasks() & tasks, 0);
    assert_eq!(case.model().begin(), Err(DeclineReason::Task));
}

/// Other solvers of the head are declined by Task or by Parameter; the specification does not say which.
#[test]
fn other_heads_are_declined() {
    let case = regression_case();
    let Shape { features: d, width: k, .. } = case.prior.shape;
    for head in [EXACT, HeadSolve::LeaveOneOut { fallback_ridge: 0.5 }] {
        let mut model = fitted_model(&case);
        let before = head_state(&mut model);
        let task = Wire::FitHead { head };
        for round in [open(2, task, Role::Representation, Encoding::F32, d, k), case.prior.round(2, task)] {
            let reason = model.open(&round).unwrap_err();
            assert!(matches!(reason, DeclineReason::Task | DeclineReason::Parameter), "{reason:?}");
            assert_eq!(head_state(&mut model), before);
        }
    }
}

/// A tensor that is not finite is declined, and the head stays as it was (SPEC.md, Decline).
#[test]
fn tensors_that_are_not_finite_are_declined() {
    let case = regression_case();
    for task in all_tasks().into_iter().filter(|task| *task != Wire::PooledMoments) {
        for (index, (role, ..)) in case.prior.tensors().into_iter().enumerate() {
            for (value, last) in [(f32::NAN, false), (f32::INFINITY, true), (f32::NEG_INFINITY, true)] {
                let tensors = case.prior.tensors();
                let mut changed = tensors[index].3.to_vec();
                let position = if last { changed.len() - 1 } else { 0 };
                changed[position] = value;
                let mut values: Vec<&[f32]> = tensors.iter().map(|tensor| tensor.3).collect();
                values[index] = &changed;
                let mut model = fitted_model(&case);
                let before = head_state(&mut model);
                let reason = load(&mut model, &case.prior.round(2, task), &values).unwrap_err();
                // The specification has both reasons for variances.
                let is_parameter = role == Role::PriorVariances && reason == DeclineReason::Parameter;
                assert!(
                    reason == DeclineReason::NonFinite || is_parameter,
                    "{reason:?} for {role:?} with {value}"
                );
                assert_eq!(head_state(&mut model), before, "{task:?} {role:?}");
                let result = model.fit(&mut case.samples.clone());
                assert_eq!(result, Err(DeclineReason::Tensors), "no prior in memory");
            }
        }
    }
}

/// Opens a round and writes its tensors without an encoding, which would refuse values that are not finite.
fn load(model: &mut Model, round: &RoundOpen, tensors: &[&[f32]]) -> Result<(), DeclineReason> {
    model.open(round)?;
    for (index, tensor) in tensors.iter().enumerate() {
        model.tensor_mut(index).unwrap().copy_from_slice(tensor);
    }
    assert!(model.tensor_mut(tensors.len()).is_none());
    model.verify()
}

#[test]
fn variances_out_of_range_are_declined() {
    let case = regression_case();
    let k = case.prior.shape.width;
    for task in all_tasks().into_iter().filter(|task| *task != Wire::PooledMoments) {
        for (index, value) in [(0, -1.0), (k - 1, -1e-30), (k, 0.0), (k, -0.0), (k, -1.0)] {
            let mut prior = case.prior.clone();
            prior.variances[index] = value;
            let mut model = fitted_model(&case);
            let before = head_state(&mut model);
            let result = run_round(&mut model, &prior, task, &case.samples);
            assert_eq!(result, Err(DeclineReason::Parameter), "{task:?} {index} {value}");
            assert_eq!(head_state(&mut model), before);
        }
        for index in 0..k {
            let mut prior = case.prior.clone();
            prior.variances[index] = 0.0;
            run_round(&mut case.model(), &prior, task, &case.samples).unwrap();
        }
    }
}

/// Returns the results of rounds without a usable sample, and of rounds where the source fails in a pass, with the heads before
/// and after them.
fn rounds_that_fail(case: &Case) -> Vec<(String, DeclineReason, [HeadState; 2])> {
    let shape = case.prior.shape;
    let empty = case.samples.without(&(0..case.samples.len()).collect::<Vec<_>>());
    let unusable = Sliced::regression(vec![f32::NAN; 10], vec![1.0; 4], shape.features, shape.outputs);
    let failing = |pass| Sliced { failing_pass: Some(pass), ..case.samples.clone() };
    let sources = [("empty", empty), ("unusable", unusable)].map(|(name, source)| (name.to_owned(), source));
    let sources: Vec<_> =
        sources.into_iter().chain((1..10).map(|pass| (format!("pass {pass}"), failing(pass)))).collect();
    let mut results = Vec::new();
    for task in all_tasks() {
        for (name, source) in &sources {
            let mut model = fitted_model(case);
            let before = head_state(&mut model);
            if let Err(reason) = run_round(&mut model, &case.prior, task, source) {
                results.push((
                    format!("{:?}, {name}", task.kind()),
                    reason,
                    [before, head_state(&mut model)],
                ));
            }
        }
    }
    results
}

#[test]
fn rounds_without_samples_are_declined() {
    let results = rounds_that_fail(&regression_case());
    let count = |reason| results.iter().filter(|(_, got, _)| *got == reason).count();
    assert_eq!(count(DeclineReason::NoSamples), 2 * all_tasks().len());
    // One pass at least of each task.
    assert!(count(DeclineReason::Device) >= all_tasks().len());
    assert_eq!(count(DeclineReason::NoSamples) + count(DeclineReason::Device), results.len());
    let mut model = fitted_model(&regression_case());
    let mut unusable = Sliced::regression(vec![f32::NAN; 10], vec![1.0; 4], 5, 2);
    assert_eq!(model.fit(&mut unusable), Err(DeclineReason::NoSamples));
}

/// A declined round leaves the head as it was (SPEC.md, Decline; trait `Task`).
#[test]
fn declined_rounds_keep_the_head() {
    for (name, reason, [before, after]) in rounds_that_fail(&regression_case()) {
        // The head may be new where the device failed after an update was computed, but not without samples.
        let may_be_new = reason == DeclineReason::Device && !name.ends_with("pass 1");
        assert!(before == after || may_be_new, "{name}: {before:?} became {after:?}");
    }
    let mut model = fitted_model(&regression_case());
    let before = head_state(&mut model);
    model.fit(&mut Sliced::regression(vec![], vec![], 5, 2)).unwrap_err();
    assert_eq!(head_state(&mut model), before, "fit");
}

/// The rounds of training lose the head, but HeadMoments, which fits it under its prior (SPEC.md, "A prior").
#[test]
fn rounds_of_training_lose_or_replace_the_head() {
    let case = regression_case();
    let mut other = case.clone();
    other.prior.variances[2] *= 2.0;
    for task in all_tasks().into_iter().skip(1) {
        let mut model = fitted_model(&case);
        let before = head_state(&mut model);
        other.run(&mut model, task).unwrap();
        let is_fitted = model.head_fitted_on().is_some();
        assert_eq!(is_fitted, matches!(task, Wire::HeadMoments { .. }), "{task:?}");
        assert_ne!(head_state(&mut model), before, "{task:?}");
    }
}

/// A device without the posterior of its head in memory has no variance of predictions.
#[test]
fn variances_end_when_another_round_opens() {
    let case = regression_case();
    let (x, mut out) = ([0.5; 5], [0.0; 2]);
    for task in all_tasks() {
        let mut model = fitted_model(&case);
        let before = head_state(&mut model);
        let round =
            if task == Wire::PooledMoments { round_of(2, task, &[]) } else { case.prior.round(2, task) };
        model.open(&round).unwrap();
        assert_eq!(head_state(&mut model), before, "{task:?}");
        assert_eq!(model.predict_with_variance(&x, &mut out), Err(NotReady::NoHead), "{task:?}");
        let mut model = fitted_model(&case);
        case.run(&mut model, task).unwrap();
        let is_fit = task == case.fit_task();
        assert_eq!(model.predict_with_variance(&x, &mut out).is_ok(), is_fit, "{task:?}");
    }
}

/// The hash of the head changes with each tensor of its prior.
#[test]
fn heads_of_different_priors_have_different_hashes() {
    let case = regression_case();
    let mut others = vec![case.clone(); 4];
    others[0].prior.columns[0] += 0.1;
    others[1].prior.mean.as_mut().unwrap()[0] += 0.1;
    others[2].prior.metric.as_mut().unwrap()[0] += 0.1;
    others[3].prior.variances[2] += 0.1;
    let hash = fitted_model(&case).head_fitted_on();
    assert_eq!(fitted_model(&case).head_fitted_on(), hash);
    assert!(others.iter().all(|other| fitted_model(other).head_fitted_on() != hash));
}

/// A head that is stored and loaded gives the same predictions, without a variance.
#[test]
fn loaded_heads_predict() {
    let case = regression_case();
    let mut model = fitted_model(&case);
    let mut restarted = case.model();
    assert_eq!(restarted.head_fitted_on(), None);
    assert!(matches!(head_state(&mut restarted).2, Err(NotReady::NoHead)));
    assert_eq!(restarted.fit(&mut case.samples.clone()), Err(DeclineReason::Tensors));
    restarted.head_mut().copy_from_slice(model.head());
    restarted.restore_head(model.head_fitted_on().unwrap());
    assert_eq!(head_state(&mut restarted), head_state(&mut model));
    let (x, mut out) = ([0.5; 5], [0.0; 2]);
    assert_eq!(restarted.predict_with_variance(&x, &mut out), Err(NotReady::NoHead));
    for (x, out) in [(&[0.5; 4][..], 2), (&[0.5; 6], 2), (&[0.5; 5], 1), (&[0.5; 5], 3)] {
        let result = model.predict(x, &mut vec![0.0; out]);
        assert!(matches!(result, Err(NotReady::Length { .. })), "{result:?}");
    }
    for value in [f32::NAN, f32::INFINITY] {
        let result = model.predict(&[0.5, 0.5, value, 0.5, 0.5], &mut [0.0; 2]);
        assert!(matches!(result, Err(NotReady::NonFinite { .. })), "{result:?}");
    }
    restarted.head_mut().fill(2.0);
    assert!(restarted.predict(&[f32::MAX; 5], &mut [0.0; 2]).is_err(), "the prediction is not finite");
}

proptest! {
    #![proptest_config(law_config(32))]

    /// The bits are the same for any number of samples per call, and samples that are not usable change only their count.
    #[test]
    fn batches_and_unusable_samples_change_nothing(case in cases(), at_once in 1usize..9, at in 0usize..40) {
        let Shape { features: d, outputs: c, .. } = case.prior.shape;
        let mut with_unusable = case.clone();
        let at = at.min(case.samples.len());
        let mut added = 0;
        for (value, target_value) in [(f32::NAN, 1.0), (f32::INFINITY, 1.0), (f32::NEG_INFINITY, 1.0), (0.5, f32::NAN)] {
            let row = (0..d).map(|i| if i + 1 == d { value } else { 0.5 });
            let samples = &mut with_unusable.samples;
            let _ = samples.x.splice(at * d..at * d, row).count();
            match &mut samples.labels {
                Labels::Values(y) => {
                    let _ = y.splice(at * c..at * c, (0..c).map(|_| target_value)).count();
                }
                // The first class that does not exist.
                Labels::Classes(y) => y.insert(at, if value.is_finite() { c as u8 } else { 0 }),
            }
            added += 1;
        }
        let sliced = Case { samples: case.samples.clone().at_once(at_once), ..case.clone() };
        let both = Case { samples: with_unusable.samples.clone().at_once(at_once), ..case.clone() };
        for task in all_tasks() {
            let run = |case: &Case| {
                let mut model = case.model();
                let result = case.run(&mut model, task);
                (result.map(|(usage, upload)| (usage, bits(&upload))), bits(model.head()), model.head_fitted_on())
            };
            let plain = run(&case);
            prop_assert_eq!(run(&sliced), plain.clone());
            for changed in [&with_unusable, &both] {
                let mut expected = plain.clone();
                if let Ok((usage, _)) = &mut expected.0 {
                    usage.skipped = added;
                }
                prop_assert_eq!(run(changed), expected);
            }
        }
    }

    /// Features of any size, constant features and single samples give finite results (`run_round` checks the upload). Where
    /// features are so large that f32 does not resolve the prior next to them, the device may decline.
    #[test]
    fn results_are_finite(case in cases(), scale in prop_oneof![Just(1e6f32), Just(1e-6), Just(1.0)], is_constant: bool, is_single: bool) {
        let mut case = case;
        let d = case.prior.shape.features;
        if is_single {
            case.samples = case.samples.without(&(1..case.samples.len()).collect::<Vec<_>>());
        }
        for (i, x) in case.samples.x.iter_mut().enumerate() {
            *x = if is_constant && i % 2 == 0 { scale } else { *x * scale };
        }
        for task in all_tasks().into_iter().chain([Wire::NewcomerGradient { labels: 1, draws: 1, first: 0 }]) {
            let mut model = case.model();
            let result = case.run(&mut model, task);
            let is_declined = matches!(result, Err(DeclineReason::UpdateNonFinite)) && scale > 1.0
                || matches!((task, &result), (Wire::NewcomerGradient { .. }, Err(DeclineReason::NoSamples)));
            prop_assert!(result.is_ok() || is_declined, "{:?}: {:?}", task, result);
            if task == all_tasks()[0] && result.is_ok() {
                prop_assert!(model.head().iter().all(|value| value.is_finite()));
                let x = vec![scale; d];
                let variance = model.predict_with_variance(&x, &mut vec![0.0; case.prior.shape.outputs]).unwrap();
                prop_assert!(variance.is_finite() && variance >= 0.0, "variance {}", variance);
            }
        }
    }

    /// Any finite values of tensors, parameters and samples give finite results or are declined.
    #[test]
    fn extreme_values_give_finite_results_or_declines(case in cases(), exponents in prop::collection::vec(-40i32..39, 8), which in 0usize..6, noise in prop_oneof![Just(0.0f32), Just(1e-40), Just(3e38)]) {
        let mut case = case;
        let scale = |values: &mut [f32]| {
            for (value, exponent) in values.iter_mut().zip(exponents.iter().cycle()) {
                let scaled = f64::from(*value) * 10f64.powi(*exponent);
                *value = scaled.clamp(-3e38, 3e38) as f32;
            }
        };
        let k = case.prior.shape.width;
        match which {
            0 => scale(&mut case.prior.columns),
            1 => scale(case.prior.mean.as_deref_mut().unwrap_or_default()),
            2 => scale(case.prior.metric.as_deref_mut().unwrap_or_default()),
            3 => scale(&mut case.prior.variances),
            4 => scale(&mut case.samples.x),
            _ => if let Labels::Values(y) = &mut case.samples.labels { scale(y) },
        }
        case.prior.variances[k] = case.prior.variances[k].max(f32::from_bits(1));
        let grid = GeometricGrid { first: 1e-30, factor: 1e30, count: 3 };
        for task in all_tasks().into_iter().chain([
            Wire::HeadMoments { noise },
            Wire::FitHead { head: HeadSolve::Prior { noise } },
            Wire::PriorEvidence { spans: grid, floors: grid, draws: 1 },
            Wire::NewcomerGradient { labels: 1, draws: 1, first: 0 },
        ]) {
            let mut model = case.model();
            let result = case.run(&mut model, task).map(|_| ());
            let declines = [DeclineReason::UpdateNonFinite, DeclineReason::NoSamples, DeclineReason::Parameter];
            prop_assert!(result.is_ok() || declines.contains(&result.unwrap_err()), "{:?}", result);
            // A round that is declined after its update was computed may have changed the head.
            if model.head_fitted_on().is_some() {
                prop_assert!(model.head().iter().all(|value| value.is_finite()));
                let mut out = vec![0.0; case.prior.shape.outputs];
                if let Ok(variance) = model.predict_with_variance(case.samples.get(0).0, &mut out) {
                    // The variance itself may be too large for f32; `variances_are_numbers` is about noise 0.
                    prop_assert!(variance >= 0.0 || model.noise() == Some(0.0), "variance {}", variance);
                }
            }
        }
    }
}

/// A head is no larger than its prior allows: `E^T P E` is at most the sum of squares of `Y - X M`.
#[test]
fn heads_are_bounded_by_their_prior() {
    let shape = Shape { features: 5, width: 1, outputs: 1 };
    let columns = vec![1.0, 0.0, 0.0, 0.0, 0.0];
    let prior = Prior { shape, columns, mean: None, metric: None, variances: vec![1.0, 1.0] };
    let x = [3.0, 2.0, 1.0, 4.0, 4.0, 4.0, 2.0, -3.0, 0.0, 1.0, 4.0, 3.0, 3.0, -2.0, -2.0];
    for scale in [1e3, 1e4] {
        let x = x.iter().map(|x| x * scale).collect();
        let samples = Sliced::regression(x, vec![-1.0, 2.0, 2.0], 5, 1);
        let case = Case { prior: prior.clone(), noise: 0.5, samples };
        let mut model = case.model();
        let result = case.run(&mut model, case.fit_task()).map(|_| ());
        // The largest variance of the prior is 2, and the sum of squares of the targets 9.
        let size = matrix(5, 1, model.head()).norm_squared();
        assert!(result == Err(DeclineReason::UpdateNonFinite) || size < 18.0, "{:?}", model.head());
    }
}

/// A variance is a number, even if noise is 0 and the sample is huge.
#[test]
fn variances_are_numbers() {
    let shape = Shape { features: 1, width: 1, outputs: 1 };
    let prior = Prior { shape, columns: vec![1.0], mean: None, metric: None, variances: vec![1.0, 1.0] };
    let case = Case { prior, noise: 0.0, samples: Sliced::regression(vec![1.0], vec![1.0], 1, 1) };
    let mut model = fitted_model(&case);
    let variance = model.predict_with_variance(&[1e25], &mut [0.0]);
    assert!(!matches!(variance, Ok(variance) if variance.is_nan()), "{variance:?}");
}

/// Memory that is one value too small is refused, and sizes that no memory has are handled.
#[test]
fn memory_has_the_size_that_is_asked_for() {
    for (features, width, outputs) in [(1, 1, 1), (5, 2, 3), (14, 14, 4)] {
        let shape = Shape { features, width, outputs };
        let least = learned_prior_values(shape, false);
        let with_metric = learned_prior_values(shape, true);
        assert!(with_metric > least);
        assert!(LearnedPrior::new(shape, vec![0.0; least - 1]).is_err());
        assert_eq!(LearnedPrior::new(shape, vec![0.0; least]).unwrap().shape(), shape);
        let round = |values: usize| {
            let mut random = Random(1);
            let prior = Prior::random(&mut random, shape, true, true, false);
            LearnedPrior::new(shape, vec![0.0; values]).unwrap().open(&prior.round(1, all_tasks()[0]))
        };
        assert_eq!(round(with_metric - 1), Err(DeclineReason::Tensors));
        assert_eq!(round(with_metric), Ok(()));
    }
    let shape = Shape { features: usize::MAX, width: usize::MAX, outputs: usize::MAX };
    assert_eq!(learned_prior_values(shape, true), usize::MAX);
    assert!(LearnedPrior::new(shape, [0.0; 4]).is_err());
    for (features, width, outputs) in [(0, 1, 1), (1, 0, 1), (1, 1, 0)] {
        let shape = Shape { features, width, outputs };
        let mut empty = LearnedPrior::new(shape, vec![0.0; 100]);
        if let Ok(model) = &mut empty {
            assert!(model.predict(&vec![0.0; features], &mut vec![0.0; outputs]).is_err());
        }
    }
}
