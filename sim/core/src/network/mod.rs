//! Networks in the simulator: the client's own network on heap memory, and what only simulated devices do with one.

mod base;
mod baselines;
mod memory;
mod score;
mod tune;

use std::ops::Range;
use std::sync::Arc;

use fedspan_client::kernel::frozen::Frozen;
use fedspan_client::kernel::recurrent::Lstm;
use fedspan_client::memory::NetworkShape;
use fedspan_client::source::{Recording, SampleSource, Targets};
use fedspan_client::task::Usage;
use fedspan_client::{Network, Task};
use fedspan_engine::Tensor;
use fedspan_engine::algorithm::network::{Front, NetworkParameters, plan, sequence};
use fedspan_engine::random::{Purpose, stream};
use fedspan_protocol::message::{self, Capabilities, DeclineReason, Descriptors, RoundId, RoundOpen};
use fedspan_protocol::tensor::Role;

use crate::data::{Labels, Set};
use baselines::Rounds;

pub use base::Base;
pub use memory::HeapNetwork;
pub use score::{Errors, errors};

/// What the networks of a scenario's devices are built for.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkBuild {
    /// Sizes.
    pub shape: NetworkShape,
    /// As the server was told.
    pub parameters: NetworkParameters,
    /// What an adapter is put into, if anything.
    pub base: Option<Arc<Base>>,
}

impl NetworkBuild {
    /// That of a method.
    ///
    /// # Errors
    /// A sentence with the numbers, where there is no such network.
    pub fn of(parameters: NetworkParameters) -> Result<Self, String> {
        let sizes = parameters.shape;
        sizes.check()?;
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
        Ok(Self { shape, parameters, base: None })
    }

    /// The same, its adapter put into a base.
    ///
    /// # Errors
    /// A sentence with both checksums, where the file has another base in mind.
    pub fn with_base(mut self, base: Option<Base>) -> Result<Self, String> {
        let Front::Adapter { frozen, .. } = &mut self.parameters.shape.front else { return Ok(self) };
        let has = base.as_ref().map_or(0, Base::checksum);
        if *frozen != 0 && *frozen != has {
            return Err(format!(
                "model.frozen is {frozen:#010x}, simulated devices have {has:#010x} (model.base); allowed: that, or 0"
            ));
        }
        *frozen = has;
        self.base = base.map(Arc::new);
        Ok(self)
    }
}

/// When a device joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joins {
    /// Before the first round.
    First,
    /// After the last.
    AfterTraining {
        /// Epochs of all layers before those of the head, where the method has no body for it: as many as the others have
        /// had.
        epochs: u16,
    },
}

/// A simulated device's network.
#[derive(Clone, Debug)]
pub struct SimNetwork {
    /// Until the final fit of the head the network that all begin with, where the method is a baseline.
    network: Network<HeapNetwork>,
    /// Where the method is one.
    baseline: Option<Rounds>,
    joins: Joins,
    /// What a device that comes after training trains before its head, where the method has no body for it.
    alone: Option<message::Task>,
    /// The open round, if it fits the head.
    fit: Option<RoundOpen>,
    /// The network that all begin with, once a fit has opened on a device that was there from the first round on.
    start: Option<Vec<f32>>,
}

impl SimNetwork {
    /// The network of device `device`, which has so many samples. All devices begin with the same one; where the body
    /// comes from the server, the head begins with zeros, as on a board.
    #[must_use]
    pub fn new(build: &NetworkBuild, device: u64, samples: usize, joins: Joins) -> Self {
        let NetworkParameters { shape, method, descent, seed, .. } = build.parameters;
        let memory = HeapNetwork::new(build.shape, descent.momentum > 0.0, samples, build.base.clone());
        let order = stream(seed, Purpose::Network, device.saturating_add(1)).bits();
        let mut network = Network::new(memory, order);
        #[allow(clippy::cast_possible_truncation, reason = "drawn as f32")]
        let mut start: Vec<f32> =
            shape.start(seed, !method.has_own_head()).iter().map(|v| *v as f32).collect();
        if let Some(base) = &build.base {
            // Behind both factors.
            start.truncate(build.shape.start(2));
            start.extend(&base.behind);
        }
        // As long as the memory.
        let _ = network.set_parameters(&start);
        let baseline = Rounds::new(&build.parameters, build.shape, order);
        let alone = match (joins, plan(&build.parameters).task) {
            (
                Joins::AfterTraining { epochs: epochs @ 1.. },
                message::Task::Sgd { descent, trained, encoding, .. },
            ) if !method.has_body_for_newcomers() => {
                Some(message::Task::Sgd { descent, head_epochs: 0, epochs, trained, encoding })
            }
            _ => None,
        };
        Self { network, baseline, joins, alone, fit: None, start: None }
    }

    /// The network that this device is scored with, when these layers are everyone's and it trains on these samples.
    #[must_use]
    pub fn scored(&self, shared: &[Tensor], train: &Set) -> Vec<f32> {
        let everyones = self.with_layers(shared);
        match (&self.baseline, &train.y) {
            (Some(baseline), Labels::Classes(classes)) => {
                let mut samples = Recording::classification(&train.x, classes, self.shape().features);
                baseline.scored(&everyones, self.own(), &mut samples)
            }
            _ => everyones,
        }
    }

    /// The network on the device with these layers in it.
    fn with_layers(&self, shared: &[Tensor]) -> Vec<f32> {
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

    /// What the adapter stands beside.
    #[must_use]
    pub fn frozen(&self) -> Frozen<'_> {
        self.network.frozen()
    }

    /// The network as it is on the device.
    #[must_use]
    pub fn own(&self) -> &[f32] {
        self.network.parameters()
    }

    /// Before a head is fitted: the network that is scored, where that is not the one that came.
    fn prepare_fit(
        &mut self,
        id: RoundId,
        fit: &RoundOpen,
        source: &mut dyn SampleSource,
    ) -> Result<(), DeclineReason> {
        if let Some(baseline) = &self.baseline {
            let came = self.network.parameters();
            // Who comes after training begins with everyone's.
            let scored = baseline.scored(came, self.start.as_deref().unwrap_or(came), source);
            // As long as the memory.
            let _ = self.network.set_parameters(&scored);
        }
        if let Some(task) = self.alone {
            let began = self.network.parameters().to_vec();
            let ran = self
                .network
                .open(&RoundOpen { task, ..fit.clone() })
                .and_then(|()| self.network.run(id, source))
                .and_then(|_| self.network.open(fit));
            if let Err(reason) = ran {
                // As long as the memory.
                let _ = self.network.set_parameters(&began);
                return Err(reason);
            }
            // Asked again, as after a reset, it has a body.
            self.alone = None;
        }
        Ok(())
    }

    /// SCAFFOLD's control variate: all layers, one after the other. Nothing before the first round.
    #[must_use]
    pub fn control(&self) -> Option<&[f32]> {
        self.baseline.as_ref().and_then(Rounds::control)
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
        Some(tensor) if !matches!(tensor.role, Role::Representation | Role::AdapterDown) => {
            shape.layers().saturating_sub(tensors.len())..shape.layers()
        }
        _ => 0..tensors.len().min(shape.layers()),
    }
}

impl Task for SimNetwork {
    fn capabilities(&self) -> Capabilities {
        let own = self.network.capabilities();
        let Some(baseline) = &self.baseline else { return own };
        let copies = u32::try_from(baseline.copies()).unwrap_or(u32::MAX);
        Capabilities {
            tasks: own.tasks | baseline.task_bit(),
            tensor_elements: own.tensor_elements.saturating_mul(copies),
            total_elements: own.total_elements.saturating_mul(copies),
            ..own
        }
    }

    fn streamed_tasks(&self) -> u16 {
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
            if fits_head && self.joins == Joins::First {
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
                for (place, value) in out.iter_mut().zip(baseline.tensor(index).iter().skip(first)) {
                    *place = *value;
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
