//! Test helpers for networks: memory of any shape, sources that record the order in which they are read,
//! and training in f64 that is independent of the client.

use std::ops::Range;

use fedspan_client::memory::{NetworkMemory, NetworkParts, NetworkShape};
use fedspan_client::source::{SampleSource, Samples};
use fedspan_client::task::Usage;
use fedspan_client::{Network, SourceError, Task};
use fedspan_protocol::message::{
    DeclineReason, Descent, HeadSolve, RoundId, RoundOpen, Task as Wire, Trained,
};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

use super::dense::{softmax, to_f64};
use super::exact::Pass;
use super::{Random, Sliced, collect_upload, receive};

/// Memory for a network of any shape, initially filled with arbitrary values.
#[derive(Clone, Debug)]
pub struct NetworkHeap {
    shape: NetworkShape,
    parameters: Vec<f32>,
    velocity: Vec<f32>,
    scratch: Vec<f32>,
    classes: Vec<u8>,
    pool_indices: Vec<u8>,
    body_cache: Vec<f32>,
}

impl NetworkHeap {
    /// Creates memory with momentum and without a body cache.
    pub fn new(shape: NetworkShape) -> Self {
        Self {
            shape,
            parameters: vec![0.0; shape.parameters()],
            velocity: vec![0.0; shape.parameters()],
            // NaN and 0xEE stand for arbitrary content from an earlier use.
            scratch: vec![f32::NAN; shape.scratch()],
            classes: vec![0xEE; shape.batch],
            pool_indices: vec![0xEE; shape.bytes() - shape.batch],
            body_cache: Vec::new(),
        }
    }

    /// Creates memory without velocities, for training without momentum.
    pub fn without_momentum(shape: NetworkShape) -> Self {
        Self { velocity: Vec::new(), ..Self::new(shape) }
    }

    /// Creates memory with momentum and a body cache for the given number of samples.
    pub fn with_body_cache(shape: NetworkShape, samples: usize) -> Self {
        Self { body_cache: vec![f32::NAN; shape.body_cache_len(samples)], ..Self::new(shape) }
    }
}

impl NetworkMemory for NetworkHeap {
    fn parts(&mut self) -> NetworkParts<'_> {
        let Self { shape, parameters, velocity, scratch, classes, pool_indices, body_cache } = self;
        NetworkParts {
            shape: *shape,
            parameters,
            velocity,
            scratch,
            classes,
            pool_indices,
            body_cache,
            pace: fedspan_client::pace::Pace::NONE,
            #[cfg(feature = "adapter")]
            frozen: fedspan_client::kernel::frozen::Frozen::Nothing,
        }
    }

    fn shape(&self) -> NetworkShape {
        self.shape
    }

    fn parameters(&self) -> &[f32] {
        &self.parameters
    }
}

/// Returns shapes with convolutions: over an image, with two layers, pixels that pooling drops, and a hidden
/// layer; over a signal; and with filters as large as the image. Empty without the feature `convolution`.
pub fn with_filters(batch: usize) -> Vec<NetworkShape> {
    #[cfg(not(feature = "convolution"))]
    let shapes = [batch; 0].map(|_| NetworkShape::new(1, &[], 1, 1));
    #[cfg(feature = "convolution")]
    let shapes = {
        use fedspan_protocol::message::{Filters, Image};
        let image = |height, width, channels| Image { height, width, channels };
        let filters = |count, side, pool| Filters { count, side, pool };
        let two_layers = [filters(3, 3, 2), filters(4, 2, 1)];
        [
            NetworkShape::convolutional(image(8, 9, 2), &two_layers, &[5], 3, batch),
            NetworkShape::convolutional(image(1, 12, 3), &[filters(4, 3, 2)], &[], 3, batch),
            NetworkShape::convolutional(image(4, 4, 1), &[filters(3, 4, 1)], &[4, 3], 2, batch),
        ]
    };
    shapes.to_vec()
}

/// Returns shapes with LSTM cells, without and with hidden layers. Empty without the feature `recurrent`.
pub fn with_cells(batch: usize) -> Vec<NetworkShape> {
    #[cfg(not(feature = "recurrent"))]
    let shapes = [batch; 0].map(|_| NetworkShape::new(1, &[], 1, 1));
    #[cfg(feature = "recurrent")]
    let shapes = {
        let cells =
            |steps, channels, cells| fedspan_client::kernel::recurrent::Lstm { steps, channels, cells };
        [
            NetworkShape::recurrent(cells(5, 3, 4), &[], 3, batch),
            NetworkShape::recurrent(cells(4, 2, 3), &[5, 4], 2, batch),
        ]
    };
    shapes.to_vec()
}

/// Draws initial parameters of all layers, including the head.
pub fn draw_parameters(shape: NetworkShape, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    (0..shape.parameters()).map(|_| (random.normal() * 0.4) as f32).collect()
}

/// Creates a network with these parameters.
pub fn network(memory: NetworkHeap, parameters: &[f32]) -> Network<NetworkHeap> {
    let mut network = Network::new(memory, 5);
    network.set_parameters(parameters).unwrap();
    network
}

/// Creates `count` labelled samples, in which all classes occur if there are enough samples.
pub fn labelled_samples(shape: NetworkShape, count: usize, seed: u64) -> Sliced {
    let mut random = Random(seed);
    let x = random.normals(count * shape.features);
    let classes = (0..count).map(|i| (i % shape.outputs) as u8).collect();
    Sliced::classification(x, classes, shape.features, shape.outputs)
}

/// Sample source that records the indices of the requested samples.
#[derive(Clone, Debug)]
pub struct RecordingSource {
    pub samples: Sliced,
    /// Indices of the requested samples, in order.
    pub requested: Vec<usize>,
    /// Number of requests after which the source returns no sample.
    pub max_requests: usize,
}

impl RecordingSource {
    /// Creates a source that returns every requested sample.
    pub fn new(samples: Sliced) -> Self {
        Self { samples, requested: Vec::new(), max_requests: usize::MAX }
    }

    /// Returns the order of the samples in each epoch over all samples. The first request is left out: it
    /// only checks whether the source has any sample.
    pub fn epochs(&self) -> Vec<Vec<usize>> {
        self.requested[1..].chunks(self.samples.len()).map(<[usize]>::to_vec).collect()
    }
}

impl SampleSource for RecordingSource {
    fn rewind(&mut self, id: RoundId) -> Result<(), SourceError> {
        self.samples.rewind(id)
    }

    fn next(&mut self) -> Option<Samples<'_>> {
        self.samples.next()
    }

    fn at(&mut self, index: usize) -> Option<Samples<'_>> {
        self.requested.push(index);
        if self.requested.len() > self.max_requests { None } else { self.samples.at(index) }
    }
}

/// Epochs of training that change the same layers, as the batches of sample indices in their order.
#[derive(Clone, Debug)]
pub struct Epochs {
    pub layers: Range<usize>,
    pub batches: Vec<Vec<usize>>,
}

/// Trains a network in f64 and returns its parameters.
pub fn train_exactly(
    shape: NetworkShape,
    parameters: &[f32],
    samples: &Sliced,
    phases: &[Epochs],
    descent: Descent,
) -> Vec<f64> {
    let mut layers: Vec<Vec<f64>> =
        (0..shape.layers()).map(|layer| to_f64(&parameters[shape.range(layer..layer + 1)])).collect();
    for Epochs { layers: trained_layers, batches } in phases {
        let mut velocity: Vec<Vec<f64>> = layers.iter().map(|layer| vec![0.0; layer.len()]).collect();
        for batch in batches {
            let gradient = gradient(shape, &layers, samples, batch);
            for layer in trained_layers.clone() {
                for ((w, v), g) in layers[layer].iter_mut().zip(&mut velocity[layer]).zip(&gradient[layer]) {
                    *v = f64::from(descent.momentum) * *v + g;
                    *w -= f64::from(descent.step_size) * *v;
                }
            }
        }
    }
    layers.concat()
}

/// Computes the gradient of the mean cross-entropy over the samples of a batch.
fn gradient(shape: NetworkShape, layers: &[Vec<f64>], samples: &Sliced, batch: &[usize]) -> Vec<Vec<f64>> {
    let mut sums: Vec<Vec<f64>> = layers.iter().map(|layer| vec![0.0; layer.len()]).collect();
    let classes = samples.y64();
    for &number in batch {
        let mut x = to_f64(samples.get(number).0);
        let mut passes = Vec::new();
        for (depth, weights) in layers.iter().enumerate() {
            let pass = Pass::new(shape.layer(depth), x, weights);
            x = pass.out.clone();
            if depth + 1 < layers.len() && pass.is_rectified() {
                x.iter_mut().for_each(|value| *value = value.max(0.0));
            }
            passes.push(pass);
        }
        let mut errors = softmax(&x);
        for (class, error) in errors.iter_mut().enumerate() {
            *error -= classes[(number, class)];
        }
        for (depth, pass) in passes.iter().enumerate().rev() {
            if depth + 1 < layers.len() && pass.is_rectified() {
                let outputs = errors.iter_mut().zip(&pass.out);
                outputs.filter(|(_, out)| **out <= 0.0).for_each(|(error, _)| *error = 0.0);
            }
            let scaled: Vec<f64> = errors.iter().map(|error| error / batch.len() as f64).collect();
            pass.add_gradient(&scaled, &layers[depth], &mut sums[depth]);
            errors = pass.input_errors(&errors, &layers[depth]);
        }
    }
    sums
}

/// Returns the opening of a round whose tensors are these layers, in the roles that the specification gives
/// them.
pub fn round_open(shape: NetworkShape, task: Wire, layers: Range<usize>, encoding: Encoding) -> RoundOpen {
    let from_above = layers.start > 0;
    let descriptor = |layer| {
        let (inputs, outputs) = shape.layer(layer).matrix();
        let head = layer + 1 == shape.layers();
        let role = if from_above || head { Role::SharedHead } else { Role::Representation };
        TensorDescriptor::inline(role, encoding, inputs as u16 + 1, outputs as u16)
    };
    RoundOpen { id: RoundId { round: 3, stage: 1 }, task, tensors: layers.map(descriptor).collect() }
}

/// Returns the values of these layers, one slice per layer.
pub fn layer_tensors(shape: NetworkShape, layers: Range<usize>, parameters: &[f32]) -> Vec<&[f32]> {
    layers.map(|layer| &parameters[shape.range(layer..layer + 1)]).collect()
}

/// Runs a round that receives these layers of `parameters` and sends the trained ones. Returns the usage of
/// samples and the upload.
pub fn run_round(
    network: &mut Network<NetworkHeap>,
    task: Wire,
    layers: Range<usize>,
    parameters: &[f32],
    source: &mut dyn SampleSource,
) -> Result<(Usage, Vec<f32>), DeclineReason> {
    let shape = network.shape();
    let open = round_open(shape, task, layers.clone(), Encoding::F32);
    receive(network, &open, &layer_tensors(shape, layers, parameters))?;
    let usage = network.run(open.id, source)?;
    Ok((usage, collect_upload(network, 7)))
}

/// Returns the settings of a gradient descent.
pub const fn descent(step_size: f32, momentum: f32, batch: u16) -> Descent {
    Descent { step_size, momentum, batch }
}

/// Returns a training task with f32 uploads.
pub const fn sgd(descent: Descent, head_epochs: u16, epochs: u16, trained: Trained) -> Wire {
    Wire::Sgd { descent, head_epochs, epochs, trained, encoding: Encoding::F32 }
}

/// Returns a task that trains only the head.
pub const fn fit_head_task(descent: Descent, epochs: u16) -> Wire {
    Wire::FitHead { head: HeadSolve::Sgd { epochs, descent } }
}
