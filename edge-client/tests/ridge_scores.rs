//! Tests of ridge scores: the counts equal those of an f64 model of the same draws, and a device that has
//! nothing to count declines.
#![cfg(feature = "ridge-choice")]
#![allow(clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]

use fedspan_client::source::{SampleSource, Samples, Targets};
use fedspan_client::{Linear, Recording, SourceError, Task, Workspace};
use fedspan_protocol::limits::{RIDGE_DRAWS, RIDGES_MAX};
use fedspan_protocol::message::{DeclineReason, Descriptors, HeadSolve, RoundId, RoundOpen, Task as Wire};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};
use nalgebra::DMatrix;
use proptest::prelude::*;

const D: usize = 7;
const K: usize = 3;
const C: usize = 4;
const RIDGE_GRID: (f32, f32, u8) = (1e-3, 10.0, 5);

type Model = Linear<Workspace<D, K, C>>;

/// Returns a number that looks random, from any number.
fn mix_bits(number: u32) -> u32 {
    let number = (number ^ number >> 16).wrapping_mul(0x7feb_352d);
    let number = (number ^ number >> 15).wrapping_mul(0x846c_a68b);
    number ^ number >> 16
}

/// Returns deterministic numbers from -1 to 1.
fn uniform_noise(seed: u32, index: usize) -> f32 {
    mix_bits(seed.wrapping_mul(0x9e37_79b9) ^ index as u32) as f32 / (1u64 << 31) as f32 - 1.0
}

/// Returns an orthonormal basis, d x k, from the QR decomposition of the identity plus noise.
fn orthonormal_basis() -> Vec<f32> {
    let raw =
        DMatrix::from_fn(D, K, |i, j| f64::from(uniform_noise(1, i * K + j)) + f64::from(u8::from(i == j)));
    let q = raw.qr().q();
    (0..D).flat_map(|i| (0..K).map(move |j| (i, j))).map(|position| q[position] as f32).collect()
}

/// Returns samples around a centre for each class, `counts[class]` of each class, with the classes in turn.
fn class_samples(seed: u32, counts: [usize; C], spread: f32) -> (Vec<f32>, Vec<u8>) {
    let (mut x, mut y) = (Vec::new(), Vec::new());
    for turn in 0..counts.iter().max().copied().unwrap_or(0) {
        for class in (0..C).filter(|class| turn < counts[*class]) {
            let centre = |i: usize| uniform_noise(77, class * D + i);
            x.extend((0..D).map(|i| centre(i) + spread * uniform_noise(seed, (turn * C + class) * D + i)));
            y.push(class as u8);
        }
    }
    (x, y)
}

/// Returns a round that requests scores for `labels` labels per class and this grid of ridges.
fn round_open(labels: u16, (first, factor, count): (f32, f32, u8)) -> RoundOpen {
    RoundOpen {
        id: RoundId { round: 9, stage: 0 },
        task: Wire::RidgeScores { labels_per_class: labels, first, factor, count },
        tensors: Descriptors::from_iter([TensorDescriptor::inline(
            Role::Representation,
            Encoding::F32,
            D as u16,
            K as u16,
        )]),
    }
}

/// Runs the round. Returns the numbers of predictions and of skipped samples, and the scores.
fn run_round(
    model: &mut Model,
    round: &RoundOpen,
    source: &mut dyn SampleSource,
) -> Result<(u32, u32, Vec<f32>), DeclineReason> {
    model.open(round)?;
    model.tensor_mut(0).unwrap().copy_from_slice(&orthonormal_basis());
    model.verify()?;
    let usage = model.run(round.id, source)?;
    let descriptors = model.upload();
    assert_eq!((descriptors.len(), descriptors[0].role, descriptors[0].rows), (1, Role::RidgeScores, 1));
    let mut scores = vec![f32::NAN; descriptors[0].cols.into()];
    model.emit(0, 0, &mut scores);
    Ok((usage.samples, usage.skipped, scores))
}

/// Runs a round on a new device, with the results of [`run_round`].
fn score_ridges(labels: u16, x: &[f32], y: &[u8]) -> Result<(u32, u32, Vec<f32>), DeclineReason> {
    run_round(
        &mut Model::new(Workspace::new()),
        &round_open(labels, RIDGE_GRID),
        &mut Recording::classification(x, y, D),
    )
}

/// Computes the number of predictions and the scores in f64, from the specification.
fn expected_scores(labels: usize, x: &[f32], y: &[u8]) -> (u32, Vec<u32>) {
    let b = orthonormal_basis();
    let project = |i: usize| -> Vec<f64> {
        let x = &x[i * D..(i + 1) * D];
        (0..K).map(|j| (0..D).map(|r| f64::from(x[r]) * f64::from(b[r * K + j])).sum()).collect()
    };
    let mut correct = vec![0; RIDGE_GRID.2.into()];
    let mut predictions = 0;
    for draw in 0..RIDGE_DRAWS {
        let mut remaining = [0u64; C];
        y.iter().for_each(|class| remaining[usize::from(*class)] += 1);
        let mut needed = remaining.map(|count| count.min(labels as u64));
        let (mut labelled, mut unlabelled) = (Vec::new(), Vec::new());
        for (i, class) in y.iter().enumerate() {
            let class = usize::from(*class);
            let bits = u64::from(mix_bits(i as u32 ^ mix_bits(draw + 1)));
            if (bits * remaining[class]) >> 32 < needed[class] {
                needed[class] -= 1;
                labelled.push(i);
            } else {
                unlabelled.push(i);
            }
            remaining[class] -= 1;
        }
        assert_eq!(needed, [0; C]);
        let m = labelled.len();
        let zs = DMatrix::from_fn(m, K, |i, j| project(labelled[i])[j]);
        let ys = DMatrix::from_fn(m, C, |i, c| f64::from(u8::from(usize::from(y[labelled[i]]) == c)));
        let mut ridge = RIDGE_GRID.0;
        for correct in &mut correct {
            let gram = zs.transpose() * &zs + DMatrix::identity(K, K) * (f64::from(ridge) * m as f64);
            let w = gram.cholesky().unwrap().solve(&(zs.transpose() * &ys));
            for &i in &unlabelled {
                let out: Vec<f64> = (0..C).map(|c| (0..K).map(|j| project(i)[j] * w[(j, c)]).sum()).collect();
                let best = (0..C).rev().max_by(|a, b| out[*a].total_cmp(&out[*b])).unwrap();
                *correct += u32::from(best == usize::from(y[i]));
            }
            ridge *= RIDGE_GRID.1;
        }
        predictions += unlabelled.len() as u32;
    }
    (predictions, correct)
}

#[test]
fn scores_equal_an_exact_model() {
    for (seed, labels, counts) in
        [(1, 1, [9, 9, 9, 9]), (2, 2, [5, 12, 3, 8]), (3, 1, [20, 1, 0, 4]), (4, 3, [3, 7, 2, 9])]
    {
        let (x, y) = class_samples(seed, counts, 1.5);
        let (predictions, _, scores) = score_ridges(labels, &x, &y).unwrap();
        let (expected_predictions, correct) = expected_scores(labels.into(), &x, &y);
        assert_eq!(predictions, expected_predictions);
        assert_eq!(scores, correct.iter().map(|correct| *correct as f32).collect::<Vec<_>>(), "seed {seed}");
        assert!(
            correct.iter().any(|correct| *correct < predictions)
                && correct.iter().all(|correct| *correct > 0),
            "{correct:?}"
        );
    }
}

/// Source that returns a given number of samples at a time.
struct Portions<'a>(&'a [f32], &'a [u8], usize, usize);

impl SampleSource for Portions<'_> {
    fn rewind(&mut self, _: RoundId) -> Result<(), SourceError> {
        self.3 = 0;
        Ok(())
    }

    fn next(&mut self) -> Option<Samples<'_>> {
        let from = self.3;
        let to = (from + self.2).min(self.1.len());
        self.3 = to;
        (from < to)
            .then(|| Samples { x: &self.0[from * D..to * D], targets: Targets::Classes(&self.1[from..to]) })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Unusable samples, batches and the round number do not change the scores.
    #[test]
    fn unusable_samples_and_batches_change_nothing(seed in 0u32..1000, insert_index in 0usize..20, portion in 1usize..9, round in 1u32..99) {
        let (x, y) = class_samples(seed, [6, 4, 5, 5], 1.0);
        let plain = score_ridges(1, &x, &y).unwrap();
        let (mut more_x, mut more_y) = (x.clone(), y.clone());
        for (value, class) in [(f32::NAN, 0), (1.0, 200), (f32::INFINITY, 1), (1e30, 2)] {
            let row: Vec<f32> = (0..D).map(|i| if i == 2 { value } else { 0.5 }).collect();
            more_x.splice(insert_index * D..insert_index * D, row);
            more_y.insert(insert_index, class);
        }
        let round_open = RoundOpen { id: RoundId { round, stage: 1 }, ..round_open(1, RIDGE_GRID) };
        let source = &mut Portions(&more_x, &more_y, portion, 0);
        let mut model = Model::new(Workspace::new());
        let (predictions, skipped, scores) = run_round(&mut model, &round_open, source).unwrap();
        prop_assert_eq!((predictions, skipped, &scores), (plain.0, 4, &plain.2));
    }

    /// The number of predictions is that of the unlabelled samples in all draws, and no score exceeds it.
    #[test]
    fn predictions_count_the_unlabelled_samples(counts in [0usize..7, 0usize..7, 0usize..7, 0usize..7], labels in 1u16..5) {
        let (x, y) = class_samples(5, counts, 1.0);
        let unlabelled: usize = counts.iter().map(|count| count.saturating_sub(labels.into())).sum();
        let present = counts.iter().filter(|count| **count > 0).count();
        match score_ridges(labels, &x, &y) {
            Ok((predictions, _, scores)) => {
                prop_assert!(present > 1);
                prop_assert_eq!(predictions, RIDGE_DRAWS * unlabelled as u32);
                prop_assert!(scores.iter().all(|score| score.fract() == 0.0 && (0.0..=predictions as f32).contains(score)));
            }
            Err(reason) => {
                prop_assert_eq!(reason, DeclineReason::NoSamples);
                prop_assert!(present < 2 || unlabelled == 0);
            }
        }
    }
}

#[test]
fn regression_is_declined() {
    let (x, y) = class_samples(1, [3; C], 1.0);
    let values: Vec<f32> = y
        .iter()
        .flat_map(|class| (0..C).map(move |c| f32::from(u8::from(c == usize::from(*class)))))
        .collect();
    let mut source = Recording::regression(&x, &values, D, C);
    let result = run_round(&mut Model::new(Workspace::new()), &round_open(1, RIDGE_GRID), &mut source);
    assert_eq!(result, Err(DeclineReason::Task));
}

#[test]
fn grids_out_of_range_are_declined() {
    let max_ridges = RIDGES_MAX as u8;
    for (labels, grid) in [
        (0, RIDGE_GRID),
        (1, (0.0, 2.0, 3)),
        (1, (-1.0, 2.0, 3)),
        (1, (f32::NAN, 2.0, 3)),
        (1, (1.0, f32::NAN, 3)),
        (1, (1.0, 0.0, 3)),
        (1, (1e30, 1e5, 3)),
        (1, (1.0, 2.0, 0)),
        (1, (1.0, 1.5, max_ridges + 1)),
        // The buffer of the upload has only 28 numbers.
        (1, (1.0, 1.5, 29)),
    ] {
        let mut model = Model::new(Workspace::new());
        assert_eq!(model.open(&round_open(labels, grid)), Err(DeclineReason::Parameter), "{labels} {grid:?}");
    }
    let mut model = Model::new(Workspace::new());
    assert_eq!(model.open(&round_open(u16::MAX, (1e-4, 1.5, 28))), Ok(()));
}

/// Features of any size give finite heads, and the scores stay well above chance.
#[test]
fn features_of_any_size_are_scored() {
    let (x, y) = class_samples(6, [8; C], 0.5);
    for scale in [1e-9f32, 1e-3, 1e3, 1e9] {
        let scaled: Vec<f32> = x.iter().map(|x| x * scale).collect();
        let (predictions, skipped, scores) = score_ridges(2, &scaled, &y).unwrap();
        assert_eq!((predictions, skipped), (RIDGE_DRAWS * 24, 0));
        assert!(
            scores.iter().all(|score| *score > predictions as f32 / 4.0),
            "{scale}: {scores:?} of {predictions}"
        );
    }
}

/// Scoring discards the previous head, and the next head is fitted as it is without scoring.
#[test]
fn head_is_fitted_again_afterwards() {
    let (x, y) = class_samples(8, [5; C], 0.7);
    let head = HeadSolve::LeastSquares { ridge: 0.1 };
    let mut fresh = Model::new(Workspace::new());
    fresh.set_representation(&orthonormal_basis()).unwrap();
    fresh.fit_head(head, &mut Recording::classification(&x, &y, D)).unwrap();
    let mut model = fresh.clone();
    run_round(&mut model, &round_open(1, RIDGE_GRID), &mut Recording::classification(&x, &y, D)).unwrap();
    assert_eq!(model.head_fitted_on(), None);
    assert!(model.predict(&x[..D], &mut [0.0; C]).is_err());
    model.fit_head(head, &mut Recording::classification(&x, &y, D)).unwrap();
    assert_eq!(model.head(), fresh.head());
}

#[test]
fn single_output_has_no_ridge_scores() {
    let single_output = Linear::new(Workspace::<D, K, 1>::new()).capabilities();
    let four_outputs = Model::new(Workspace::new()).capabilities();
    let bit = round_open(1, RIDGE_GRID).task.bit();
    assert_eq!((single_output.tasks & bit, single_output.roles & Role::RidgeScores.bit()), (0, 0));
    assert_eq!(
        (four_outputs.tasks & bit, four_outputs.roles & Role::RidgeScores.bit()),
        (bit, Role::RidgeScores.bit())
    );
}
