//! Tests of networks whose last layer has a learned prior: every round has the bits of the linear model on the outputs of the body, which
//! another network computes, and a round that is declined changes nothing.
#![cfg(all(feature = "network", feature = "learned-prior"))]
#![allow(clippy::indexing_slicing, clippy::cast_possible_truncation)]

use crate::common::network::*;
use crate::common::*;
use fedspan_client::memory::NetworkShape;
use fedspan_client::task::{LearnedPrior, PriorNetwork, learned_prior_values, prior_network_values};
use fedspan_client::{Network, NotReady, Shape, ShapeMismatch, Task};
use fedspan_protocol::message::{
    DeclineReason, Descent, GeometricGrid, HeadSolve, RoundId, RoundOpen, Task as Wire, Trained,
};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

/// Largest number of samples in a batch, fewer than there are samples.
const BATCH: usize = 4;
const SAMPLES: usize = 23;

type Model = PriorNetwork<NetworkHeap, Vec<f32>>;

/// Networks with at least one layer before the head.
fn shapes() -> Vec<NetworkShape> {
    let mut shapes = vec![
        NetworkShape::new(6, &[4], 3, BATCH),
        NetworkShape::new(7, &[5, 6], 2, BATCH),
        NetworkShape::new(5, &[6, 5, 1], 2, BATCH),
        NetworkShape::new(3, &[9], 1, 1),
    ];
    shapes.extend(with_filters(BATCH));
    shapes.extend(with_cells(BATCH));
    shapes
}

/// Sizes of the linear model on the outputs of the body.
fn head_shape(shape: NetworkShape) -> Shape {
    let inputs = shape.layer(shape.layers() - 1).inputs();
    Shape { features: inputs + 1, width: shape.outputs.min(inputs), outputs: shape.outputs }
}

/// All kinds of rounds with a prior, and that without one.
fn tasks() -> [Wire; 5] {
    let grid = |first, count| GeometricGrid { first, factor: 2.0, count };
    [
        Wire::PooledMoments,
        Wire::HeadMoments { noise: 0.25 },
        Wire::PriorEvidence { spans: grid(0.5, 2), floors: grid(0.25, 3), draws: 2 },
        Wire::NewcomerGradient { labels: 1, draws: 3, first: 5 },
        Wire::FitHead { head: HeadSolve::Prior { noise: 0.25 } },
    ]
}

/// Values of a prior: representation, mean, variances and metric.
struct Prior {
    basis: Vec<f32>,
    mean: Vec<f32>,
    variances: Vec<f32>,
    metric: Option<Vec<f32>>,
}

impl Prior {
    fn random(seed: u64, shape: Shape, has_metric: bool) -> Self {
        let Shape { features: d, width: k, outputs: c } = shape;
        let mut random = Random(seed);
        let basis = flat(&random.orthonormal(d, k));
        let mean = random.normals(d * c);
        let variances = (0..=k).map(|_| (0.1 + random.unit()) as f32).collect();
        let rows = random.gaussian(2 * d, d);
        let metric = rows.transpose() * &rows / (2 * d) as f64 + M::identity(d, d);
        let lower = (0..d).flat_map(|i| (0..=i).map(move |j| (i, j)));
        let metric = has_metric.then(|| lower.map(|at| metric[at] as f32).collect());
        Self { basis, mean, variances, metric }
    }

    /// Values in the one tensor of a network's round.
    fn in_one(&self) -> Vec<f32> {
        let metric = self.metric.clone().unwrap_or_default();
        [&self.basis[..], &self.mean, &self.variances, &metric].concat()
    }
}

fn descriptor(role: Role, rows: usize, cols: usize) -> TensorDescriptor {
    TensorDescriptor::inline(role, Encoding::F32, rows as u16, cols as u16)
}

fn round_of(number: u32, task: Wire, tensors: &[TensorDescriptor]) -> RoundOpen {
    let id = RoundId { round: number, stage: 0 };
    RoundOpen { id, task, tensors: tensors.iter().copied().collect() }
}

/// Descriptors and values of the layers before the head.
fn body(shape: NetworkShape, parameters: &[f32]) -> Vec<(TensorDescriptor, Vec<f32>)> {
    (0..shape.layers() - 1)
        .map(|layer| {
            let matrix = shape.layer(layer);
            let tensor = descriptor(Role::Representation, matrix.rows(), matrix.matrix().1);
            (tensor, parameters[shape.range(layer..layer + 1)].to_vec())
        })
        .collect()
}

/// Opening and values of a round of the network.
fn network_round(
    shape: NetworkShape,
    parameters: &[f32],
    prior: &Prior,
    task: Wire,
) -> (RoundOpen, Vec<Vec<f32>>) {
    let mut tensors = body(shape, parameters);
    if task != Wire::PooledMoments {
        let values = prior.in_one();
        tensors.push((descriptor(Role::HeadPrior, 1, values.len()), values));
    }
    let (descriptors, values): (Vec<_>, Vec<_>) = tensors.into_iter().unzip();
    (round_of(1, task, &descriptors), values)
}

/// Opening and values of the round of the linear model.
fn linear_round(shape: Shape, prior: &Prior, task: Wire) -> (RoundOpen, Vec<Vec<f32>>) {
    let Shape { features: d, width: k, outputs: c } = shape;
    let mut tensors = Vec::new();
    if task != Wire::PooledMoments {
        tensors.push((descriptor(Role::Representation, d, k), prior.basis.clone()));
        tensors.push((descriptor(Role::PriorMean, d, c), prior.mean.clone()));
        let metric = prior.metric.clone();
        tensors.extend(metric.map(|m| (descriptor(Role::SecondMoments, 1, d * (d + 1) / 2), m)));
        tensors.push((descriptor(Role::PriorVariances, 1, k + 1), prior.variances.clone()));
    }
    let (descriptors, values): (Vec<_>, Vec<_>) = tensors.into_iter().unzip();
    (round_of(1, task, &descriptors), values)
}

/// Samples of the linear model: the outputs of the body, which a network with the identity as its head computes, and a 1.
fn body_samples(shape: NetworkShape, parameters: &[f32], samples: &Sliced) -> Sliced {
    let inputs = shape.layer(shape.layers() - 1).inputs();
    let mut wide = shape;
    wide.outputs = inputs;
    let head = (0..(inputs + 1) * inputs).map(|i| if i / inputs == i % inputs { 1.0 } else { 0.0 });
    let head_start = shape.start(shape.layers() - 1);
    let wide_parameters: Vec<f32> = parameters[..head_start].iter().copied().chain(head).collect();
    let mut network = network(NetworkHeap::new(wide), &wide_parameters);
    let mut x = Vec::new();
    for i in 0..samples.len() {
        let mut outputs = vec![f32::NAN; inputs];
        network.predict(samples.get(i).0, &mut outputs).unwrap();
        x.extend(outputs);
        x.push(1.0);
    }
    let Labels::Classes(classes) = &samples.labels else { panic!("classes") };
    Sliced::classification(x, classes.clone(), inputs + 1, shape.outputs)
}

fn model(shape: NetworkShape, has_metric: bool, cached: usize) -> Model {
    let values = vec![f32::NAN; prior_network_values(shape, has_metric)];
    PriorNetwork::new(Network::new(NetworkHeap::with_body_cache(shape, cached), 5), values).unwrap()
}

fn slices(values: &[Vec<f32>]) -> Vec<&[f32]> {
    values.iter().map(Vec::as_slice).collect()
}

/// With and without a body cache, in every shape, with and without a metric.
#[test]
fn rounds_are_those_of_the_linear_model_on_the_outputs_of_the_body() {
    for (number, shape) in (0..).zip(shapes()) {
        for has_metric in [false, true] {
            let parameters = draw_parameters(shape, number);
            let prior = Prior::random(number, head_shape(shape), has_metric);
            let samples = labelled_samples(shape, SAMPLES, number + 100);
            let of_body = body_samples(shape, &parameters, &samples);
            let linear_values = vec![0.0; learned_prior_values(head_shape(shape), has_metric)];
            let mut linear = LearnedPrior::new(head_shape(shape), linear_values).unwrap();
            let mut models = [0, SAMPLES].map(|cached| model(shape, has_metric, cached));
            for task in tasks() {
                let (round, values) = linear_round(head_shape(shape), &prior, task);
                receive(&mut linear, &round, &slices(&values)).unwrap();
                let expected = linear.run(round.id, &mut of_body.clone());
                for model in &mut models {
                    let (round, values) = network_round(shape, &parameters, &prior, task);
                    receive(model, &round, &slices(&values)).unwrap();
                    let ran = model.run(round.id, &mut samples.clone().at_once(3));
                    assert_eq!(ran, expected, "{shape:?} {task:?}");
                    if ran.is_err() {
                        // With one output there are no classes, and no newcomers.
                        assert!(shape.outputs == 1 && matches!(task, Wire::NewcomerGradient { .. }));
                        continue;
                    }
                    assert_eq!(model.upload(), linear.upload(), "{shape:?} {task:?}");
                    let uploads = [collect_upload(model, 7), collect_upload(&linear, usize::MAX)];
                    assert_eq!(bits(&uploads[0]), bits(&uploads[1]), "{shape:?} {task:?}");
                    if linear.head_fitted_on().is_some() {
                        assert_eq!(bits(model.head()), bits(linear.head()), "{shape:?} {task:?}");
                        assert!(model.head_fitted_on().is_some());
                    }
                }
            }
            // The tasks end with a fit.
            for model in &mut models {
                for i in 0..SAMPLES {
                    let (mut out, mut expected) = (vec![0.0; shape.outputs], vec![0.0; shape.outputs]);
                    model.predict(samples.get(i).0, &mut out).unwrap();
                    linear.predict(of_body.get(i).0, &mut expected).unwrap();
                    for (out, expected) in out.iter().zip(&expected) {
                        assert!((out - expected).abs() <= 1e-5 * (1.0 + expected.abs()), "{out} {expected}");
                    }
                }
            }
        }
    }
}

/// Samples that are not finite or of an unknown class are skipped at any place: first, last, and in the middle.
#[test]
fn unusable_samples_are_skipped() {
    let shape = NetworkShape::new(6, &[4], 3, BATCH);
    let parameters = draw_parameters(shape, 1);
    let prior = Prior::random(1, head_shape(shape), true);
    let usable = labelled_samples(shape, SAMPLES, 3);
    let mut samples = usable.clone();
    let Labels::Classes(classes) = &mut samples.labels else { panic!("classes") };
    for (place, class) in [(0, 3), (7, u8::MAX)] {
        classes[place] = class;
    }
    samples.x[6 * 12 + 2] = f32::NAN;
    samples.x[6 * (SAMPLES - 1)] = f32::INFINITY;
    for task in tasks() {
        let (round, values) = network_round(shape, &parameters, &prior, task);
        let run = |cached, samples: &Sliced| {
            let mut model = model(shape, true, cached);
            receive(&mut model, &round, &slices(&values)).unwrap();
            let usage = model.run(round.id, &mut samples.clone()).unwrap();
            (usage, bits(&collect_upload(&model, 7)), bits(model.head()))
        };
        let expected = run(0, &usable.without(&[0, 7, 12, SAMPLES - 1]));
        for cached in [0, SAMPLES - 1, SAMPLES] {
            let (usage, upload, head) = run(cached, &samples);
            assert_eq!((usage.samples as usize, usage.skipped), (SAMPLES - 4, 4), "{task:?}");
            assert_eq!((&upload, &head), (&expected.1, &expected.2), "{task:?}");
        }
    }
}

/// Source that returns passes only.
struct PassesOnly(Sliced);

impl fedspan_client::source::SampleSource for PassesOnly {
    fn rewind(&mut self, id: RoundId) -> Result<(), fedspan_client::SourceError> {
        self.0.rewind(id)
    }

    fn next(&mut self) -> Option<fedspan_client::source::Samples<'_>> {
        self.0.next()
    }
}

/// Source whose sample cannot be read from the second pass on.
struct Failing {
    samples: Sliced,
    sample: usize,
    reads: usize,
    /// Number of reads of the sample that succeed.
    good: usize,
}

impl fedspan_client::source::SampleSource for Failing {
    fn rewind(&mut self, id: RoundId) -> Result<(), fedspan_client::SourceError> {
        self.samples.rewind(id)
    }

    fn next(&mut self) -> Option<fedspan_client::source::Samples<'_>> {
        self.samples.next()
    }

    fn at(&mut self, index: usize) -> Option<fedspan_client::source::Samples<'_>> {
        self.reads += usize::from(index == self.sample);
        let fails = index == self.sample && self.reads > self.good;
        self.samples.at(index).filter(|_| !fails)
    }
}

/// A source that fails in any pass makes the device decline, with and without a cache; the head stays as it was.
#[test]
fn samples_that_cannot_be_read_again_are_not_left_out() {
    let shape = NetworkShape::new(6, &[4], 3, BATCH);
    let parameters = draw_parameters(shape, 1);
    let prior = Prior::random(1, head_shape(shape), true);
    let samples = labelled_samples(shape, SAMPLES, 3);
    for task in tasks() {
        for (cached, most_reads) in [(0, 3), (SAMPLES, 1)] {
            let mut has_declined = false;
            for good in 0..most_reads {
                let mut model = model(shape, true, cached);
                let (fit, values) = network_round(shape, &parameters, &prior, tasks()[4]);
                receive(&mut model, &fit, &slices(&values)).unwrap();
                model.run(fit.id, &mut samples.clone()).unwrap();
                let head = bits(model.head());
                let (round, values) = network_round(shape, &parameters, &prior, task);
                receive(&mut model, &round, &slices(&values)).unwrap();
                let mut source = Failing { samples: samples.clone(), sample: 7, reads: 0, good };
                let ran = model.run(round.id, &mut source);
                if source.reads > good {
                    assert_eq!(ran, Err(DeclineReason::Device), "{task:?}, {good} good reads");
                    assert_eq!(bits(model.head()), head, "{task:?}");
                    has_declined = true;
                } else {
                    // The task has read all samples often enough.
                    ran.unwrap();
                }
            }
            assert!(has_declined);
        }
    }
}

#[test]
fn impossible_rounds_are_declined_and_keep_the_head() {
    let shape = NetworkShape::new(6, &[4, 5], 3, BATCH);
    let parameters = draw_parameters(shape, 1);
    let prior = Prior::random(1, head_shape(shape), false);
    let samples = labelled_samples(shape, SAMPLES, 3);
    let fit = tasks()[4];
    let mut model = model(shape, false, 0);
    let (good, values) = network_round(shape, &parameters, &prior, fit);
    receive(&mut model, &good, &slices(&values)).unwrap();
    model.run(good.id, &mut samples.clone()).unwrap();
    let mut before = vec![0.0; 3];
    model.predict(samples.get(0).0, &mut before).unwrap();
    let len = prior.in_one().len();
    let [first, second, sent] = [good.tensors[0], good.tensors[1], good.tensors[2]];
    let with_metric = descriptor(Role::HeadPrior, 1, len + 21);
    for (task, tensors) in [
        (fit, vec![]),
        (fit, vec![first, second]),
        (fit, vec![first, sent]),
        (fit, vec![second, first, sent]),
        (fit, vec![first, second, descriptor(Role::HeadPrior, 1, len - 1)]),
        (fit, vec![first, second, descriptor(Role::HeadPrior, len, 1)]),
        (fit, vec![first, second, descriptor(Role::Representation, 1, len)]),
        (fit, vec![first, second, sent, sent]),
        // The memory has no room for a metric.
        (fit, vec![first, second, with_metric]),
        (Wire::PooledMoments, vec![first, second, sent]),
        (Wire::PooledMoments, vec![first]),
    ] {
        assert_eq!(model.open(&round_of(2, task, &tensors)), Err(DeclineReason::Tensors), "{tensors:?}");
        let mut after = vec![0.0; 3];
        model.predict(samples.get(0).0, &mut after).unwrap();
        assert_eq!(bits(&before), bits(&after));
    }
    let negative = Wire::FitHead { head: HeadSolve::Prior { noise: -1.0 } };
    assert_eq!(model.open(&round_of(2, negative, &good.tensors)), Err(DeclineReason::Parameter));
    // Sources that allow passes only, or have no usable sample.
    receive(&mut model, &good, &slices(&values)).unwrap();
    assert_eq!(model.run(good.id, &mut PassesOnly(samples.clone())), Err(DeclineReason::Device));
    let all: Vec<usize> = (0..SAMPLES).collect();
    assert_eq!(model.run(good.id, &mut samples.without(&all)), Err(DeclineReason::NoSamples));
    let mut failing = Sliced { failing_pass: Some(2), ..samples.clone() };
    assert_eq!(model.run(good.id, &mut failing), Err(DeclineReason::Device));
    // Layers and priors that are not finite.
    for tensor in [1, 2] {
        model.open(&good).unwrap();
        for (index, values) in values.iter().enumerate() {
            model.tensor_mut(index).unwrap().copy_from_slice(values);
        }
        model.tensor_mut(tensor).unwrap()[0] = f32::NAN;
        assert_eq!(model.verify(), Err(DeclineReason::NonFinite));
        if tensor == 1 {
            let predicted = model.predict(samples.get(0).0, &mut before);
            assert_eq!(predicted, Err(NotReady::NoRepresentation));
        }
        receive(&mut model, &good, &slices(&values)).unwrap();
        model.run(good.id, &mut samples.clone()).unwrap();
    }
}

/// Rounds that train the network are those of the network alone; a prior between them changes nothing.
#[cfg(feature = "shared-head")]
#[test]
fn training_is_that_of_the_network() {
    let shape = NetworkShape::new(6, &[4], 3, BATCH);
    let descent = Descent { step_size: 0.1, momentum: 0.5, batch: 3 };
    let task =
        Wire::Sgd { descent, head_epochs: 0, epochs: 2, trained: Trained::All, encoding: Encoding::F32 };
    let parameters = draw_parameters(shape, 1);
    let samples = labelled_samples(shape, SAMPLES, 3);
    let prior = Prior::random(1, head_shape(shape), true);
    let mut alone = Network::new(NetworkHeap::with_body_cache(shape, SAMPLES), 5);
    let mut model = model(shape, true, SAMPLES);
    let head = descriptor(Role::SharedHead, 5, 3);
    let mut tensors: Vec<TensorDescriptor> = body(shape, &parameters).iter().map(|layer| layer.0).collect();
    tensors.push(head);
    let values = [parameters[shape.range(0..1)].to_vec(), parameters[shape.range(1..2)].to_vec()];
    for number in 1..4 {
        let round = round_of(number, task, &tensors);
        let mut ran = Vec::new();
        receive(&mut alone, &round, &slices(&values)).unwrap();
        ran.push((alone.run(round.id, &mut samples.clone()), bits(&collect_upload(&alone, 9))));
        receive(&mut model, &round, &slices(&values)).unwrap();
        ran.push((model.run(round.id, &mut samples.clone()), bits(&collect_upload(&model, 9))));
        assert_eq!(ran[0], ran[1]);
        let (round, values) =
            network_round(shape, &parameters, &prior, tasks()[usize::try_from(number).unwrap()]);
        receive(&mut model, &round, &slices(&values)).unwrap();
        model.run(round.id, &mut samples.clone()).unwrap();
    }
    let [own, network] = [model.capabilities(), alone.capabilities()];
    assert_eq!((own.tasks & network.tasks, own.roles & network.roles), (network.tasks, network.roles));
    assert_eq!(own.model, network.model);
    assert!(own.total_elements >= network.total_elements);
}

#[test]
fn too_little_memory_is_refused_with_its_size() {
    let shape = NetworkShape::new(6, &[4], 3, BATCH);
    let expected = prior_network_values(shape, false);
    let network = Network::new(NetworkHeap::new(shape), 5);
    assert_eq!(
        PriorNetwork::new(network, vec![0.0; expected - 1]).unwrap_err(),
        ShapeMismatch { expected, got: expected - 1 }
    );
    // A network without hidden layers has no body, and declines rounds of a prior.
    let shape = NetworkShape::new(6, &[], 3, BATCH);
    let mut linear = model(shape, false, 0);
    let sent = descriptor(Role::HeadPrior, 1, 7 * 6 + 4);
    assert_eq!(linear.open(&round_of(1, tasks()[4], &[sent])), Err(DeclineReason::Tensors));
}
