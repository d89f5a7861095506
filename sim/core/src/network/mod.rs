//! Networks of simulated devices: the client's network task on heap memory, and baseline methods that only
//! simulated devices support.

mod base;
mod baselines;
mod fine_tune;
mod memory;
mod score;

use std::ops::Range;
use std::sync::Arc;

use fedspan_client::kernel::frozen::Frozen;
use fedspan_client::kernel::recurrent::Lstm;
use fedspan_client::memory::NetworkShape;
use fedspan_client::source::{Recording, SampleSource, Targets};
use fedspan_client::task::Usage;
use fedspan_client::{Network, Task};
use fedspan_engine::Tensor;
use fedspan_engine::algorithm::network::{Front, NetworkMethod, NetworkParameters, sequence};
use fedspan_engine::random::{Purpose, stream};
use fedspan_protocol::message::{
    self, Capabilities, DeclineReason, Descriptors, RoundId, RoundOpen, TaskKind,
};
use fedspan_protocol::tensor::Role;

use crate::data::{Labels, Set};
use baselines::{PersonalState, Rounds};
use serde::{Deserialize, Serialize};

pub use base::BaseNetwork;
pub use memory::HeapNetwork;
pub use score::{Errors, errors};

/// Settings of the networks of a scenario's devices.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkConfig {
    /// Sizes and layers of the networks.
    pub shape: NetworkShape,
    /// Algorithm, with the settings that are specific to it.
    pub method: NetworkMethod,
    /// Parameters of the algorithm, as in the server's configuration.
    pub parameters: NetworkParameters,
    /// Base network of the adapter; `None` if the network has no adapter.
    pub base: Option<Arc<BaseNetwork>>,
}

impl NetworkConfig {
    /// Derives the shape of the network from the parameters of a method.
    ///
    /// # Errors
    /// A one-line message with the sizes if no such network exists.
    pub fn new(method: NetworkMethod, parameters: NetworkParameters) -> Result<Self, String> {
        let sizes = parameters.shape;
        sizes.check()?;
        method.check_shape(sizes)?;
        let hidden = sizes.hidden.map(usize::from);
        let hidden = hidden.split(|width| *width == 0).next().unwrap_or_default();
        let (outputs, batch) = (sizes.outputs.into(), parameters.descent.batch.into());
        let shape = match sizes.front {
            Front::Nothing => NetworkShape::new(sizes.features.into(), hidden, outputs, batch),
            Front::Cells(image, cells) => {
                let [steps, channels] = sequence(image);
                NetworkShape::recurrent(Lstm { steps, channels, cells: cells.into() }, hidden, outputs, batch)
            }
            Front::Adapter { rank, width, .. } => NetworkShape::adapted(
                sizes.features.into(),
                rank.into(),
                width.into(),
                hidden,
                outputs,
                batch,
            ),
            Front::Filters(image, filters) => {
                let filters = filters.split(|filters| filters.count == 0).next().unwrap_or_default();
                NetworkShape::convolutional(image, filters, hidden, outputs, batch)
            }
        };
        Ok(Self { shape, method, parameters, base: None })
    }

    /// Attaches the adapter to a base network.
    ///
    /// # Errors
    /// A one-line message with both checksums if `model.frozen` names another base network.
    pub fn with_base(mut self, base: Option<BaseNetwork>) -> Result<Self, String> {
        let Front::Adapter { frozen, .. } = &mut self.parameters.shape.front else { return Ok(self) };
        let checksum = base.as_ref().map_or(0, BaseNetwork::checksum);
        if *frozen != 0 && *frozen != checksum {
            return Err(format!(
                "model.frozen is {frozen:#010x}, but the simulated devices' base network (model.base) has checksum {checksum:#010x}; allowed: that, or 0"
            ));
        }
        *frozen = checksum;
        self.base = base.map(Arc::new);
        Ok(self)
    }

    /// True if devices need memory for momentum.
    #[must_use]
    pub fn has_momentum(&self) -> bool {
        self.parameters.descent.momentum > 0.0
    }

    /// Seed of the sample order of a device.
    #[must_use]
    pub fn order_seed(&self, device: u64) -> u64 {
        stream(self.parameters.seed, Purpose::Network, device.saturating_add(1)).bits()
    }

    /// Creates the network of the client's task on a device with `samples` training samples. All devices start from the same network.
    #[must_use]
    pub fn client(&self, device: u64, samples: usize) -> Network<HeapNetwork> {
        let memory = HeapNetwork::new(self.shape, self.has_momentum(), samples, self.base.clone());
        let mut network = Network::new(memory, self.order_seed(device));
        // Cannot fail: the start has as many values as the network.
        let _ = network.set_parameters(&self.start());
        network
    }

    /// Initial parameters of all layers, the same on all devices. If the server sends the body, the head is
    /// zero, as on a board.
    #[must_use]
    pub fn start(&self) -> Vec<f32> {
        let NetworkParameters { shape, seed, .. } = self.parameters;
        let start = shape.start(seed, !self.method.has_own_head());
        #[allow(clippy::cast_possible_truncation, reason = "drawn as f32")]
        let mut start: Vec<f32> = start.iter().map(|value| *value as f32).collect();
        if let Some(base) = &self.base {
            // The later layers of the base network follow the two factors of the adapter.
            start.truncate(self.shape.start(2));
            start.extend(&base.later_layers);
        }
        start
    }
}

/// Time at which a device joins the campaign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinTime {
    /// Before the first round.
    BeforeTraining,
    /// After the last round of training.
    AfterTraining {
        /// Number of epochs for which the device trains all layers locally before its head, if the server
        /// sends no body to newcomers: as many as the other devices have trained.
        epochs: u16,
    },
}

/// State that the network of a device keeps between rounds of training.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SavedNetwork {
    /// Parameters of all layers.
    parameters: Vec<f32>,
    /// State of the baseline; `None` if the method is not a baseline.
    personal: Option<PersonalState>,
}

impl SavedNetwork {
    /// State of a network without a baseline.
    #[must_use]
    pub fn of_parameters(parameters: &[f32]) -> Self {
        Self { parameters: parameters.to_vec(), personal: None }
    }

    /// Parameters of all layers.
    #[must_use]
    pub fn parameters(&self) -> &[f32] {
        &self.parameters
    }
}

/// Network of a simulated device.
#[derive(Clone, Debug)]
pub struct SimNetwork {
    /// Network of the client's task. If the method is a baseline, the common initial network until the head
    /// is fitted.
    network: Network<HeapNetwork>,
    /// Task of the baseline; `None` if the method is not a baseline.
    baseline: Option<Rounds>,
    join_time: JoinTime,
    /// Local training, before the head is fitted, of a device that joins after training; `None` if the server
    /// sends a body to newcomers.
    local_training: Option<message::Task>,
    /// Open round if its task is a head fit.
    fit: Option<RoundOpen>,
    /// Common initial network, saved when a head fit opens on a device that joined before training.
    start: Option<Vec<f32>>,
}

impl SimNetwork {
    /// Creates the network of a device with `samples` training samples. All devices start from the same
    /// network.
    #[must_use]
    pub fn new(build: &NetworkConfig, device: u64, samples: usize, join_time: JoinTime) -> Self {
        let method = build.method;
        let network = build.client(device, samples);
        let baseline = Rounds::new(build, build.order_seed(device));
        let local_training = match (join_time, method.plan(&build.parameters).task) {
            (
                JoinTime::AfterTraining { epochs: epochs @ 1.. },
                message::Task::Sgd { descent, trained, encoding, .. },
            ) if !method.has_body_for_newcomers() => {
                Some(message::Task::Sgd { descent, head_epochs: 0, epochs, trained, encoding })
            }
            _ => None,
        };
        Self { network, baseline, join_time, local_training, fit: None, start: None }
    }

    /// Copies the state that the device keeps between rounds of training.
    #[must_use]
    pub fn saved(&self) -> SavedNetwork {
        SavedNetwork {
            parameters: self.network.parameters().to_vec(),
            personal: self.baseline.as_ref().map(Rounds::personal).cloned(),
        }
    }

    /// Restores a saved state. Returns false if it belongs to another network.
    pub fn restore(&mut self, saved: &SavedNetwork) -> bool {
        let SavedNetwork { parameters, personal } = saved;
        if self.network.set_parameters(parameters).is_err() || personal.is_some() != self.baseline.is_some() {
            return false;
        }
        if let (Some(baseline), Some(personal)) = (&mut self.baseline, personal) {
            baseline.restore(personal.clone());
        }
        true
    }

    /// Parameters with which the device is scored, for given shared layers and the training samples of its
    /// client.
    #[must_use]
    pub fn scored(&self, shared: &[Tensor], train: &Set) -> Vec<f32> {
        let shared_network = self.with_layers(shared);
        match (&self.baseline, &train.y) {
            (Some(baseline), Labels::Classes(classes)) => {
                let mut samples = Recording::classification(&train.x, classes, self.shape().features);
                baseline.scored(&shared_network, self.own(), &mut samples)
            }
            _ => shared_network,
        }
    }

    /// Parameters of the device, with the shared layers replaced by `shared`.
    fn with_layers(&self, shared: &[Tensor]) -> Vec<f32> {
        let shape = self.network.shape();
        let mut parameters = self.network.parameters().to_vec();
        let layers = layers_of(shape, shared);
        let mut remaining = parameters.get_mut(shape.range(layers)).unwrap_or_default();
        for tensor in shared {
            let (destination, following) = remaining.split_at_mut(tensor.values.len().min(remaining.len()));
            destination.copy_from_slice(tensor.values.get(..destination.len()).unwrap_or_default());
            remaining = following;
        }
        parameters
    }

    /// Frozen layer to which the adapter is added.
    #[must_use]
    pub fn frozen(&self) -> Frozen<'_> {
        self.network.frozen()
    }

    /// Current parameters of the device.
    #[must_use]
    pub fn own(&self) -> &[f32] {
        self.network.parameters()
    }

    /// Prepares the network for fitting the head: sets the parameters with which the baseline is scored, and
    /// runs the local training of a newcomer.
    fn prepare_fit(
        &mut self,
        id: RoundId,
        fit: &RoundOpen,
        source: &mut dyn SampleSource,
    ) -> Result<(), DeclineReason> {
        if let Some(baseline) = &self.baseline {
            let received = self.network.parameters();
            // A device that joins after training has no personal network yet, so the shared network is used.
            let scored = baseline.scored(received, self.start.as_deref().unwrap_or(received), source);
            // Cannot fail: `scored` has as many values as the network.
            let _ = self.network.set_parameters(&scored);
        }
        if let Some(task) = self.local_training {
            let initial_parameters = self.network.parameters().to_vec();
            let result = self
                .network
                .open(&RoundOpen { task, ..fit.clone() })
                .and_then(|()| self.network.run(id, source))
                .and_then(|_| self.network.open(fit));
            if let Err(reason) = result {
                // Cannot fail: `initial_parameters` has as many values as the network.
                let _ = self.network.set_parameters(&initial_parameters);
                return Err(reason);
            }
            // If the head fit is repeated, for example after a reset, the body is already trained.
            self.local_training = None;
        }
        Ok(())
    }

    /// SCAFFOLD's control variate, all layers concatenated; `None` before the first round.
    #[must_use]
    pub fn control(&self) -> Option<&[f32]> {
        self.baseline.as_ref().and_then(Rounds::control)
    }

    /// Sizes of the network.
    #[must_use]
    pub fn shape(&self) -> NetworkShape {
        self.network.shape()
    }
}

/// Range of the layers that the tensors contain: the first layers if the first tensor belongs to a body,
/// otherwise the last layers.
fn layers_of(shape: NetworkShape, tensors: &[Tensor]) -> Range<usize> {
    match tensors.first() {
        Some(tensor) if !matches!(tensor.role, Role::Representation | Role::AdapterDown) => {
            shape.layers().saturating_sub(tensors.len())..shape.layers()
        }
        _ => 0..tensors.len().min(shape.layers()),
    }
}

impl Task for SimNetwork {
    fn capabilities(&self) -> Capabilities {
        let network_capabilities = self.network.capabilities();
        let Some(baseline) = &self.baseline else { return network_capabilities };
        let copies = u32::try_from(baseline.copies()).unwrap_or(u32::MAX);
        Capabilities {
            tasks: network_capabilities.tasks | TaskKind::Baseline.bit(),
            tensor_elements: network_capabilities.tensor_elements.saturating_mul(copies),
            total_elements: network_capabilities.total_elements.saturating_mul(copies),
            ..network_capabilities
        }
    }

    fn streamed_tasks(&self) -> u32 {
        self.network.streamed_tasks()
    }

    fn open(&mut self, round: &RoundOpen) -> Result<(), DeclineReason> {
        if let (message::Task::Baseline { .. }, Some(baseline)) = (&round.task, &mut self.baseline) {
            return baseline.open(round);
        }
        self.network.open(round)?;
        let fits_head = matches!(round.task, message::Task::FitHead { .. });
        if let Some(baseline) = &mut self.baseline {
            baseline.close();
            if fits_head && self.join_time == JoinTime::BeforeTraining {
                self.start.get_or_insert_with(|| self.network.parameters().to_vec());
            }
        }
        self.fit = fits_head.then(|| round.clone());
        Ok(())
    }

    fn tensor_mut(&mut self, index: usize) -> Option<&mut [f32]> {
        match &mut self.baseline {
            Some(baseline) if baseline.is_open() => baseline.tensor_mut(index),
            _ => self.network.tensor_mut(index),
        }
    }

    fn verify(&mut self) -> Result<(), DeclineReason> {
        match &self.baseline {
            Some(baseline) if baseline.is_open() => baseline.verify(),
            _ => self.network.verify(),
        }
    }

    fn run(&mut self, id: RoundId, source: &mut dyn SampleSource) -> Result<Usage, DeclineReason> {
        if let Some(baseline) = self.baseline.as_mut().filter(|baseline| baseline.is_open()) {
            return baseline.run(id, self.network.parameters(), source);
        }
        if let Some(fit) = self.fit.clone() {
            self.prepare_fit(id, &fit, source)?;
        }
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
        match &self.baseline {
            Some(baseline) if baseline.is_open() => baseline.upload(),
            _ => self.network.upload(),
        }
    }

    fn emit(&self, index: usize, first: usize, out: &mut [f32]) {
        match &self.baseline {
            Some(baseline) if baseline.is_open() => {
                for (entry, value) in out.iter_mut().zip(baseline.tensor(index).iter().skip(first)) {
                    *entry = *value;
                }
            }
            _ => self.network.emit(index, first, out),
        }
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
