//! Tests of networks with an adapter: rounds that train one factor or both are compared with training in f64,
//! and the uploaded and the kept tensors are checked.
#![cfg(feature = "adapter")]

use crate::common::dense::softmax;
use crate::common::network::{RecordingSource, descent, fit_head_task, labelled_samples, sgd};
use crate::common::*;
use fedspan_client::kernel::frozen::Frozen;
use fedspan_client::memory::{NetworkMemory, NetworkParts, NetworkShape};
use fedspan_client::task::Usage;
use fedspan_client::{Network, Task};
use fedspan_protocol::message::{DeclineReason, Descent, RoundId, RoundOpen, Task as Wire, Trained};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

/// Shapes of the networks: six features, rank 2, a frozen layer of 5 outputs, 3 classes, without and with a
/// hidden layer.
const SHAPES: [NetworkShape; 2] =
    [NetworkShape::adapted(6, 2, 5, &[], 3, 8), NetworkShape::adapted(6, 2, 5, &[4], 3, 8)];
const D: usize = 6;
const R: usize = 2;
const H: usize = 5;
const SAMPLES: usize = 10;

/// Tolerance for parameters near one, which covers rounding or the error of micromath's exponential.
const ERROR: f64 = if cfg!(feature = "micromath") { 3e-2 } else { 1e-4 };

/// Frozen layer, in each of the supported encodings.
#[derive(Clone, Debug)]
enum Layer {
    Nothing,
    F32(Vec<f32>),
    I8(Vec<i8>, Vec<f32>, Vec<f32>),
}

impl Layer {
    /// Returns a layer in each encoding.
    fn one_of_each() -> [Self; 3] {
        let mut random = Random(11);
        let values = (0..(D + 1) * H).map(|_| (random.normal() * 0.4) as f32).collect();
        let bytes = (0..D * H).map(|i| (i as i32 * 37 % 255 - 127) as i8).collect();
        let scales = (0..H).map(|o| 0.004 + 0.001 * o as f32).collect();
        let biases = (0..H).map(|o| 0.1 * o as f32 - 0.2).collect();
        [Self::Nothing, Self::F32(values), Self::I8(bytes, scales, biases)]
    }

    /// Returns the layer as the client takes it.
    fn frozen(&self) -> Frozen<'_> {
        match self {
            Self::Nothing => Frozen::Nothing,
            Self::F32(values) => Frozen::F32(values),
            Self::I8(weights, scales, biases) => Frozen::I8 { weights, scales, biases },
        }
    }

    /// Returns the weight from input `i` to output `o`. Input `D` is the bias.
    fn weight(&self, i: usize, o: usize) -> f64 {
        match self {
            Self::Nothing => 0.0,
            Self::F32(values) => values[i * H + o].into(),
            Self::I8(_, _, biases) if i == D => biases[o].into(),
            Self::I8(bytes, scales, _) => f64::from(bytes[i * H + o]) * f64::from(scales[o]),
        }
    }
}

/// Memory of a network with an adapter.
#[derive(Clone, Debug)]
struct Heap {
    shape: NetworkShape,
    parameters: Vec<f32>,
    velocity: Vec<f32>,
    scratch: Vec<f32>,
    classes: Vec<u8>,
    layer: Layer,
}

impl Heap {
    /// Creates memory with parameters of zero. The scratch and the classes hold arbitrary content.
    fn new(shape: NetworkShape, layer: Layer) -> Self {
        let parameters = vec![0.0; shape.parameters()];
        let scratch = vec![f32::NAN; shape.scratch()];
        Self {
            shape,
            velocity: parameters.clone(),
            parameters,
            scratch,
            classes: vec![9; shape.batch],
            layer,
        }
    }
}

impl NetworkMemory for Heap {
    fn parts(&mut self) -> NetworkParts<'_> {
        let Self { shape, parameters, velocity, scratch, classes, layer } = self;
        let frozen = layer.frozen();
        NetworkParts {
            shape: *shape,
            parameters,
            velocity,
            scratch,
            classes,
            pool_indices: &mut [],
            body_cache: &mut [],
            pace: fedspan_client::pace::Pace::NONE,
            frozen,
        }
    }

    fn shape(&self) -> NetworkShape {
        self.shape
    }

    fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    fn frozen(&self) -> Frozen<'_> {
        self.layer.frozen()
    }
}

fn draw_parameters(shape: NetworkShape, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    (0..shape.parameters()).map(|_| (random.normal() * 0.5) as f32).collect()
}

/// Creates a network with this frozen layer and these parameters.
fn device(shape: NetworkShape, layer: Layer, parameters: &[f32]) -> Network<Heap> {
    let mut network = Network::new(Heap::new(shape, layer), 5);
    network.set_parameters(parameters).unwrap();
    network
}

fn factor_descriptor(role: Role) -> TensorDescriptor {
    let (rows, cols) = if role == Role::AdapterDown { (D, R) } else { (R, H) };
    TensorDescriptor::inline(role, Encoding::F32, rows as u16, cols as u16)
}

fn round_open(round: u32, task: Wire, roles: &[Role]) -> RoundOpen {
    let tensors = roles.iter().map(|role| factor_descriptor(*role)).collect();
    RoundOpen { id: RoundId { round, stage: 0 }, task, tensors }
}

const BOTH_FACTORS: [Role; 2] = [Role::AdapterDown, Role::AdapterUp];

/// Returns the parameters of the factor with this role.
fn factor_values(shape: NetworkShape, role: Role, parameters: &[f32]) -> &[f32] {
    let layer = usize::from(role == Role::AdapterUp);
    &parameters[shape.range(layer..layer + 1)]
}

/// Reference training in f64 by definition: `relu(x (W0 + A B) + bias)`, dense layers, softmax.
struct Exact<'a> {
    shape: NetworkShape,
    layer: &'a Layer,
    values: Vec<f64>,
}

impl Exact<'_> {
    fn layer_range(&self, layer: usize) -> std::ops::Range<usize> {
        self.shape.range(layer..layer + 1)
    }

    /// Adds the gradient of the cross-entropy of one sample, times `scale`.
    fn add_gradient(&self, x: &[f64], class: usize, scale: f64, sums: &mut [f64]) {
        let (a, b) = (&self.values[self.layer_range(0)], &self.values[self.layer_range(1)]);
        let merged = |i: usize, o: usize| {
            let product: f64 = if i < D { (0..R).map(|r| a[i * R + r] * b[r * H + o]).sum() } else { 0.0 };
            self.layer.weight(i, o) + product
        };
        let z: Vec<f64> =
            (0..H).map(|o| merged(D, o) + (0..D).map(|i| x[i] * merged(i, o)).sum::<f64>()).collect();
        // Dense layers, each with its inputs.
        let mut inputs = vec![z.iter().map(|v| v.max(0.0)).collect::<Vec<f64>>()];
        let last = self.shape.layers() - 1;
        for layer in 2..=last {
            let (rows, cols) = self.shape.layer(layer).matrix();
            let w = &self.values[self.layer_range(layer)];
            let x = inputs.last().unwrap();
            let out = (0..cols)
                .map(|o| w[rows * cols + o] + (0..rows).map(|i| x[i] * w[i * cols + o]).sum::<f64>());
            let out: Vec<f64> = out.map(|v| if layer < last { v.max(0.0) } else { v }).collect();
            inputs.push(out);
        }
        let mut errors = softmax(inputs.last().unwrap());
        errors[class] -= 1.0;
        for layer in (2..=last).rev() {
            let (rows, cols) = self.shape.layer(layer).matrix();
            let (w, start) = (&self.values[self.layer_range(layer)], self.layer_range(layer).start);
            let x = &inputs[layer - 2];
            for o in 0..cols {
                for i in 0..rows {
                    sums[start + i * cols + o] += scale * x[i] * errors[o];
                }
                sums[start + rows * cols + o] += scale * errors[o];
            }
            let backpropagated = |i: usize| (0..cols).map(|o| w[i * cols + o] * errors[o]).sum::<f64>();
            errors = (0..rows).map(|i| if x[i] > 0.0 { backpropagated(i) } else { 0.0 }).collect();
        }
        let (down_start, up_start) = (self.layer_range(0).start, self.layer_range(1).start);
        for r in 0..R {
            let projection: f64 = (0..D).map(|i| x[i] * a[i * R + r]).sum();
            let projected_error: f64 = (0..H).map(|o| errors[o] * b[r * H + o]).sum();
            for o in 0..H {
                sums[up_start + r * H + o] += scale * projection * errors[o];
            }
            for i in 0..D {
                sums[down_start + i * R + r] += scale * x[i] * projected_error;
            }
        }
    }

    /// Takes gradient steps with momentum on some layers.
    fn train(
        &mut self,
        layers: std::ops::Range<usize>,
        batches: &[Vec<usize>],
        samples: &Sliced,
        steps: Descent,
    ) {
        let classes = samples.y64();
        let mut velocity = vec![0.0; self.values.len()];
        for batch in batches {
            let mut sums = vec![0.0; self.values.len()];
            for &number in batch {
                let x: Vec<f64> = samples.get(number).0.iter().map(|v| f64::from(*v)).collect();
                let class = (0..self.shape.outputs).find(|c| classes[(number, *c)] == 1.0).unwrap();
                self.add_gradient(&x, class, 1.0 / batch.len() as f64, &mut sums);
            }
            for index in self.shape.range(layers.clone()) {
                velocity[index] = f64::from(steps.momentum) * velocity[index] + sums[index];
                self.values[index] -= f64::from(steps.step_size) * velocity[index];
            }
        }
    }
}

#[test]
fn rounds_train_as_defined() {
    let steps = descent(0.2, 0.5, 3);
    let trained = [(Trained::Up, 1..2), (Trained::Down, 0..1), (Trained::Shared, 0..2)];
    for (shape, layer) in
        SHAPES.into_iter().flat_map(|shape| Layer::one_of_each().map(|layer| (shape, layer)))
    {
        let (initial, received) = (draw_parameters(shape, 1), draw_parameters(shape, 2));
        for (factors_trained, layers) in trained.clone() {
            for head_epochs in [0, 2] {
                let task = sgd(steps, head_epochs, 3, factors_trained);
                let mut network = device(shape, layer.clone(), &initial);
                let open = round_open(3, task, &BOTH_FACTORS);
                let tensors = BOTH_FACTORS.map(|role| factor_values(shape, role, &received));
                receive(&mut network, &open, &tensors).unwrap();
                let mut source = RecordingSource::new(labelled_samples(shape, SAMPLES, 3));
                let usage = network.run(open.id, &mut source).unwrap();
                assert_eq!(usage, Usage { samples: SAMPLES as u32, skipped: 0 });

                let mut start = initial.clone();
                start[shape.range(0..2)].copy_from_slice(&received[shape.range(0..2)]);
                let values = start.iter().map(|v| f64::from(*v)).collect();
                let mut exact = Exact { shape, layer: &layer, values };
                let batches: Vec<Vec<Vec<usize>>> = source
                    .epochs()
                    .iter()
                    .map(|order| order.chunks(3).map(<[_]>::to_vec).collect())
                    .collect();
                let (head_batches, trained_batches) = batches.split_at(head_epochs.into());
                assert_eq!(trained_batches.len(), 3);
                exact.train(2..shape.layers(), &head_batches.concat(), &source.samples, steps);
                exact.train(layers.clone(), &trained_batches.concat(), &source.samples, steps);
                for (value, expected) in network.parameters().iter().zip(&exact.values) {
                    let error = (f64::from(*value) - expected).abs();
                    assert!(error < ERROR, "{layer:?} {factors_trained:?} {head_epochs}: {value} {expected}");
                }
                // Layers that are not trained keep their exact bits, and the trained ones are uploaded in
                // their roles.
                for number in (0..2).filter(|number| !layers.contains(number)) {
                    let range = shape.range(number..number + 1);
                    assert_eq!(bits(&network.parameters()[range.clone()]), bits(&start[range]));
                }
                let roles: Vec<Role> = network.upload().iter().map(|tensor| tensor.role).collect();
                assert_eq!(roles, BOTH_FACTORS[layers.clone()]);
                assert_eq!(
                    bits(&collect_upload(&network, 4)),
                    bits(&network.parameters()[shape.range(layers.clone())])
                );
            }
        }
    }
}

/// A factor that the device already has may be left out of a round; if a needed factor is missing, the device
/// declines.
#[test]
fn round_may_omit_a_factor_the_device_has() {
    let shape = SHAPES[0];
    let (initial, received) = (draw_parameters(shape, 1), draw_parameters(shape, 2));
    let steps = descent(0.1, 0.0, 5);
    let mut source = labelled_samples(shape, SAMPLES, 3);
    let train_up = |round| round_open(round, sgd(steps, 0, 1, Trained::Up), &[Role::AdapterDown]);

    // A new device has no factor.
    let mut network = Network::new(Heap::new(shape, Layer::Nothing), 5);
    assert_eq!(network.open(&train_up(1)), Err(DeclineReason::Tensors));

    let mut network = device(shape, Layer::Nothing, &initial);
    let both_factors_sent = round_open(1, sgd(steps, 0, 1, Trained::Down), &BOTH_FACTORS);
    receive(
        &mut network,
        &both_factors_sent,
        &BOTH_FACTORS.map(|role| factor_values(shape, role, &received)),
    )
    .unwrap();
    network.run(both_factors_sent.id, &mut source).unwrap();
    let down = draw_parameters(shape, 4);
    receive(&mut network, &train_up(2), &[factor_values(shape, Role::AdapterDown, &down)]).unwrap();
    network.run(train_up(2).id, &mut source).unwrap();
    let mut reference = device(shape, Layer::Nothing, &initial);
    let same_factors_sent = round_open(2, sgd(steps, 0, 1, Trained::Up), &BOTH_FACTORS);
    let tensors =
        [factor_values(shape, Role::AdapterDown, &down), factor_values(shape, Role::AdapterUp, &received)];
    receive(&mut reference, &same_factors_sent, &tensors).unwrap();
    reference.run(same_factors_sent.id, &mut source).unwrap();
    assert_eq!(bits(&collect_upload(&network, 3)), bits(&collect_upload(&reference, 3)));
    assert_eq!(network.upload().iter().map(|t| t.role).collect::<Vec<_>>(), [Role::AdapterUp]);

    // A factor that was received only in part counts as missing.
    network.open(&train_up(3)).unwrap();
    network.tensor_mut(0).unwrap()[0] = 1.0;
    let up_only = round_open(4, sgd(steps, 0, 1, Trained::Down), &[Role::AdapterUp]);
    assert_eq!(network.open(&up_only), Err(DeclineReason::Tensors));
}

#[test]
fn rounds_without_adapter_factors_are_declined() {
    let shape = SHAPES[0];
    let steps = descent(0.1, 0.0, 5);
    let mut network = device(shape, Layer::Nothing, &draw_parameters(shape, 1));
    let mut open = |trained, tensors: &[TensorDescriptor]| {
        let tensors = tensors.iter().copied().collect();
        network.open(&RoundOpen { tensors, ..round_open(1, sgd(steps, 0, 1, trained), &[]) })
    };
    let [down, up] = BOTH_FACTORS.map(factor_descriptor);
    let altered = |tensor: TensorDescriptor, rows, role| TensorDescriptor { rows, role, ..tensor };
    for (tensors, reason) in [
        (vec![up, down], DeclineReason::Tensors),
        (vec![down, up, factor_descriptor(Role::AdapterUp)], DeclineReason::Tensors),
        (vec![altered(down, 7, Role::AdapterDown), up], DeclineReason::Tensors),
        (vec![altered(down, 6, Role::Representation), up], DeclineReason::Tensors),
        (vec![down, altered(up, 2, Role::SharedHead)], DeclineReason::Tensors),
        (vec![altered(up, 2, Role::SharedHead)], DeclineReason::Tensors),
    ] {
        assert_eq!(open(Trained::Up, &tensors), Err(reason), "{tensors:?}");
    }
    assert_eq!(open(Trained::All, &[down, up]), Err(DeclineReason::Parameter));
    // Both factors are trained, so both must be sent.
    assert_eq!(open(Trained::Shared, &[up]), Err(DeclineReason::Parameter));
    assert_eq!(open(Trained::Shared, &[down, up]), Ok(()));
    // A network without an adapter has no factors.
    let plain = NetworkShape::new(6, &[4], 3, 8);
    let mut plain = device(plain, Layer::Nothing, &draw_parameters(plain, 1));
    let body = TensorDescriptor::inline(Role::Representation, Encoding::F32, 7, 4);
    for trained in [Trained::Up, Trained::Down] {
        let tensors = [body].into_iter().collect();
        let open = RoundOpen { tensors, ..round_open(1, sgd(steps, 0, 1, trained), &[]) };
        assert_eq!(plain.open(&open), Err(DeclineReason::Parameter));
    }
    assert_eq!(
        plain.open(&round_open(1, sgd(steps, 0, 1, Trained::Up), &BOTH_FACTORS)),
        Err(DeclineReason::Tensors)
    );
}

#[test]
fn hello_names_the_frozen_layer_and_only_factors_leave() {
    let shape = SHAPES[0];
    let mut model_names = Vec::new();
    for layer in Layer::one_of_each() {
        let network = device(shape, layer.clone(), &draw_parameters(shape, 1));
        let capabilities = network.capabilities();
        assert_eq!(capabilities.roles, Role::AdapterDown.bit() | Role::AdapterUp.bit());
        assert_eq!((capabilities.tensors, capabilities.total_elements), (2, (D * R + R * H) as u32));
        model_names.push(capabilities.model.to_string());
    }
    assert_eq!(model_names[0], "a network of 6-5 with an adapter of rank 2-3, frozen 0x00000000");
    model_names.dedup();
    assert_eq!(model_names.len(), 3);
}

/// A round is declined if the frozen layer has too few values, or one that is not finite.
#[test]
fn invalid_frozen_layer_is_declined() {
    let shape = SHAPES[0];
    let steps = descent(0.1, 0.0, 5);
    let [_, f32s, i8s] = Layer::one_of_each();
    let (Layer::F32(values), Layer::I8(bytes, scales, biases)) = (f32s, i8s) else { panic!() };
    let mut too_short = values.clone();
    let mut not_a_number = values;
    let mut infinite_scale = scales.clone();
    too_short.pop();
    not_a_number[3] = f32::NAN;
    infinite_scale[1] = f32::INFINITY;
    for layer in [
        Layer::F32(too_short),
        Layer::F32(not_a_number),
        Layer::I8(bytes[1..].to_vec(), scales.clone(), biases.clone()),
        Layer::I8(bytes.clone(), scales[1..].to_vec(), biases.clone()),
        Layer::I8(bytes, infinite_scale, biases),
    ] {
        let mut network = device(shape, layer, &draw_parameters(shape, 1));
        let opened = network.open(&round_open(1, sgd(steps, 0, 1, Trained::Up), &BOTH_FACTORS));
        assert_eq!(opened, Err(DeclineReason::Device));
    }
}

#[test]
fn personal_head_is_fitted_on_the_received_adapter() {
    let shape = SHAPES[1];
    let mut network = device(shape, Layer::Nothing, &draw_parameters(shape, 1));
    let open = round_open(9, fit_head_task(descent(0.1, 0.0, 5), 2), &BOTH_FACTORS);
    let received = draw_parameters(shape, 2);
    receive(&mut network, &open, &BOTH_FACTORS.map(|role| factor_values(shape, role, &received))).unwrap();
    network.run(open.id, &mut labelled_samples(shape, SAMPLES, 3)).unwrap();
    assert!(network.upload().is_empty());
    let factor_range = shape.range(0..2);
    assert_eq!(bits(&network.parameters()[factor_range.clone()]), bits(&received[factor_range]));
    let mut out = [0.0; 3];
    assert_eq!(network.predict(&[0.5; D], &mut out), Ok(()));
}
