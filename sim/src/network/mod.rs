//! Networks in the simulator: the client's own network on heap memory, and what only simulated devices do with one.

mod memory;
mod score;

use std::ops::Range;

use fedspan_aggregator::algorithm::Tensor;
use fedspan_aggregator::algorithm::network::NetworkParameters;
use fedspan_aggregator::random::{Purpose, stream};
use fedspan_client::memory::NetworkShape;
use fedspan_client::source::{SampleSource, Targets};
use fedspan_client::task::Usage;
use fedspan_client::{Network, Task};
use fedspan_protocol::message::{Capabilities, DeclineReason, Descriptors, RoundId, RoundOpen};
use fedspan_protocol::tensor::Role;

pub use memory::HeapNetwork;
pub use score::{Errors, errors};

/// What the networks of a scenario's devices are built for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkBuild {
    /// Sizes.
    pub shape: NetworkShape,
    /// As the server was told.
    pub parameters: NetworkParameters,
}

impl NetworkBuild {
    /// That of a method.
    #[must_use]
    pub fn of(parameters: NetworkParameters) -> Self {
        let hidden = parameters.shape.hidden.map(usize::from);
        let shape = NetworkShape {
            features: parameters.shape.features.into(),
            hidden,
            outputs: parameters.shape.outputs.into(),
            batch: parameters.descent.batch.into(),
        };
        Self { shape, parameters }
    }
}

/// A simulated device's network.
#[derive(Clone, Debug)]
pub struct SimNetwork {
    network: Network<HeapNetwork>,
}

impl SimNetwork {
    /// The network of device `device`, which has so many samples. All devices begin with the same one; where the body
    /// comes from the server, the head begins with zeros, as on a board.
    #[must_use]
    pub fn new(build: &NetworkBuild, device: u64, samples: usize) -> Self {
        let NetworkParameters { shape, method, descent, seed, .. } = build.parameters;
        let memory = HeapNetwork::new(build.shape, descent.momentum > 0.0, samples);
        let order = stream(seed, Purpose::Network, device.saturating_add(1)).bits();
        let mut network = Network::new(memory, order);
        #[allow(clippy::cast_possible_truncation, reason = "drawn as f32")]
        let start: Vec<f32> = shape.start(seed, !method.has_own_head()).iter().map(|v| *v as f32).collect();
        // As long as the memory.
        let _ = network.set_parameters(&start);
        Self { network }
    }

    /// The network that this device is scored with, when these layers are everyone's.
    #[must_use]
    pub fn scored(&self, shared: &[Tensor]) -> Vec<f32> {
        let shape = self.network.shape();
        let mut parameters = self.network.parameters().to_vec();
        let layers = layers_of(shape, shared);
        let mut rest = parameters.get_mut(shape.range(layers)).unwrap_or_default();
        for tensor in shared {
            let (own, after) = rest.split_at_mut(tensor.values.len().min(rest.len()));
            own.copy_from_slice(tensor.values.get(..own.len()).unwrap_or_default());
            rest = after;
        }
        parameters
    }

    /// The network as it is on the device.
    #[must_use]
    pub fn own(&self) -> &[f32] {
        self.network.parameters()
    }

    /// Sizes.
    #[must_use]
    pub fn shape(&self) -> NetworkShape {
        self.network.shape()
    }
}

/// The layers that tensors are: from the first on if that is of a body, up to the last otherwise.
fn layers_of(shape: NetworkShape, tensors: &[Tensor]) -> Range<usize> {
    match tensors.first() {
        Some(tensor) if tensor.role != Role::Representation => {
            shape.layers().saturating_sub(tensors.len())..shape.layers()
        }
        _ => 0..tensors.len().min(shape.layers()),
    }
}

impl Task for SimNetwork {
    fn capabilities(&self) -> Capabilities {
        self.network.capabilities()
    }

    fn streamed_tasks(&self) -> u16 {
        self.network.streamed_tasks()
    }

    fn open(&mut self, round: &RoundOpen) -> Result<(), DeclineReason> {
        self.network.open(round)
    }

    fn tensor_mut(&mut self, index: usize) -> Option<&mut [f32]> {
        self.network.tensor_mut(index)
    }

    fn verify(&mut self) -> Result<(), DeclineReason> {
        self.network.verify()
    }

    fn run(&mut self, id: RoundId, source: &mut dyn SampleSource) -> Result<Usage, DeclineReason> {
        self.network.run(id, source)
    }

    fn begin(&mut self) -> Result<(), DeclineReason> {
        self.network.begin()
    }

    fn sample(&mut self, x: &[f32], target: Targets<'_>) -> u32 {
        self.network.sample(x, target)
    }

    fn finish(&mut self) -> Result<Usage, DeclineReason> {
        self.network.finish()
    }

    fn upload(&self) -> Descriptors {
        self.network.upload()
    }

    fn emit(&self, index: usize, first: usize, out: &mut [f32]) {
        self.network.emit(index, first, out);
    }

    fn head(&self) -> &[f32] {
        self.network.head()
    }

    fn head_mut(&mut self) -> &mut [f32] {
        self.network.head_mut()
    }

    fn head_fitted_on(&self) -> Option<u32> {
        self.network.head_fitted_on()
    }

    fn restore_head(&mut self, representation: u32) {
        self.network.restore_head(representation);
    }
}
