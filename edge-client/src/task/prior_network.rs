//! Networks whose last layer has a prior that the fleet has learned: [`PriorNetwork`].

use core::ops::Range;

use fedspan_protocol::message::{Capabilities, DeclineReason, Descriptors, RoundId, RoundOpen, Task as Wire};
use fedspan_protocol::tensor::{Role, TensorDescriptor};

use super::learned_prior::TASKS;
use super::{LearnedPrior, Network, Task, Usage, learned_prior_values};
use crate::error::{NotReady, ShapeMismatch};
use crate::memory::{NetworkMemory, NetworkShape, Shape};
use crate::pace::Pace;
use crate::source::{SampleSource, Targets};

/// Network in the memory `M` whose head, the last layer, is the posterior mean under a prior that the fleet has learned
/// ([`LearnedPrior`], in the memory `V`).
///
/// Devices train all layers with a server (FedAvg). Then the outputs of the last hidden layer,
/// with a 1 behind them for the bias, are the samples of a linear model on one-hot targets, and the fleet learns the prior of its
/// heads. Every round of the prior sends the body again, so devices can come and go. The width of the prior's representation is the
/// number of classes, or of the head's inputs if that is smaller.
///
/// ```
/// use fedspan_client::memory::{NetworkShape, NetworkWorkspace};
/// use fedspan_client::task::{PriorNetwork, prior_network_values};
/// use fedspan_client::{Network, Task};
///
/// const SHAPE: NetworkShape = NetworkShape::new(20, &[16], 3, 10);
/// const VALUES: usize = prior_network_values(SHAPE, false);
/// # fn example(memory: impl fedspan_client::memory::NetworkMemory) -> Result<(), fedspan_client::ShapeMismatch> {
/// let model = PriorNetwork::new(Network::new(memory, 1), [0.0; VALUES])?;
/// assert_eq!(model.capabilities().tensors, 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct PriorNetwork<M, V> {
    network: Network<M>,
    prior: LearnedPrior<V>,
    /// Whether the open round, or the last one, is about the prior.
    is_of_prior: bool,
}

/// Returns the sizes of the linear model that acts on the outputs of a network's body.
const fn shape_of_head(shape: NetworkShape) -> Shape {
    let inputs = shape.layer(shape.layers() - 1).inputs();
    let width = if shape.outputs < inputs { shape.outputs } else { inputs };
    Shape { features: inputs.saturating_add(1), width, outputs: shape.outputs }
}

/// Returns the number of values that a [`PriorNetwork`] needs in addition to the network's memory; saturating. `has_metric` is
/// whether it has room for the fleet's second moments, as the metric of the prior.
#[must_use]
pub const fn prior_network_values(shape: NetworkShape, has_metric: bool) -> usize {
    learned_prior_values(shape_of_head(shape), has_metric)
}

impl<M: NetworkMemory, V: AsRef<[f32]> + AsMut<[f32]>> PriorNetwork<M, V> {
    /// Adds the prior of the last layer to a network, without a prior and a head.
    ///
    /// # Errors
    /// [`ShapeMismatch`] if there are fewer values than [`prior_network_values`] for the network without a metric.
    pub fn new(network: Network<M>, values: V) -> Result<Self, ShapeMismatch> {
        let prior = LearnedPrior::new(shape_of_head(network.shape()), values)?;
        Ok(Self { network, prior, is_of_prior: false })
    }

    /// Returns the network.
    pub fn network(&self) -> &Network<M> {
        &self.network
    }

    /// Returns the network, mutable, for example to set its parameters.
    pub fn network_mut(&mut self) -> &mut Network<M> {
        &mut self.network
    }

    /// Computes the outputs of the head for n samples, as [`Network::predict`]. With one-hot targets, the largest one is that of the
    /// predicted class.
    ///
    /// # Errors
    /// [`NotReady`] for the reasons of [`Network::predict`].
    pub fn predict(&mut self, x: &[f32], out: &mut [f32]) -> Result<(), NotReady> {
        self.network.predict(x, out)
    }

    /// Returns the round of the linear model for a round of the network, and the layers of the body, if its tensors are these and a
    /// prior.
    fn split_round(&self, round: &RoundOpen) -> Result<(RoundOpen, Range<usize>), DeclineReason> {
        let body = self.network.shape().layers() - 1;
        // Without a layer before the head there is nothing that learns with the fleet: the linear model has these rounds.
        if body == 0 {
            return Err(DeclineReason::Tensors);
        }
        let (layers, prior) = round.tensors.split_at_checked(body).ok_or(DeclineReason::Tensors)?;
        let layers = self.network.body_layers(layers)?;
        let mut tensors = Descriptors::new();
        if round.task != Wire::PooledMoments {
            let [sent] = prior else { return Err(DeclineReason::Tensors) };
            let has_metric = self.prior.has_metric_buffer() && is_row(sent, self.prior.prior_len(true));
            if !has_metric && !is_row(sent, self.prior.prior_len(false)) {
                return Err(DeclineReason::Tensors);
            }
            for descriptor in self.prior.prior_descriptors(true, has_metric) {
                tensors.push(descriptor).map_err(|_| DeclineReason::Tensors)?;
            }
        } else if !prior.is_empty() {
            return Err(DeclineReason::Tensors);
        }
        Ok((RoundOpen { tensors, ..round.clone() }, layers))
    }
}

/// Returns whether a tensor is a prior of this many values.
fn is_row(tensor: &TensorDescriptor, values: usize) -> bool {
    tensor.role == Role::HeadPrior && tensor.rows == 1 && usize::from(tensor.cols) == values
}

/// Returns whether a round is about the prior: all its tasks, and of the fits of heads those under a prior.
fn is_of_prior(task: &Wire) -> bool {
    match task {
        Wire::FitHead { head } => matches!(head, fedspan_protocol::message::HeadSolve::Prior { .. }),
        other => TASKS & other.bit() != 0,
    }
}

impl<M: NetworkMemory, V: AsRef<[f32]> + AsMut<[f32]>> Task for PriorNetwork<M, V> {
    fn capabilities(&self) -> Capabilities {
        let (network, prior) = (self.network.capabilities(), self.prior.capabilities());
        let shape = self.network.shape();
        let wide = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let sent = wide(self.prior.prior_len(self.prior.has_metric_buffer()));
        let body = wide(shape.range(0..shape.layers() - 1).len());
        Capabilities {
            tasks: network.tasks | prior.tasks,
            roles: network.roles | prior.roles,
            encodings: network.encodings & prior.encodings,
            tensors: network.tensors.max(u8::try_from(shape.layers()).unwrap_or(u8::MAX)).max(2),
            tensor_elements: network.tensor_elements.max(prior.tensor_elements).max(sent),
            total_elements: network.total_elements.max(prior.total_elements).max(body.saturating_add(sent)),
            ..network
        }
    }

    fn streamed_tasks(&self) -> u32 {
        0
    }

    fn open(&mut self, round: &RoundOpen) -> Result<(), DeclineReason> {
        if is_of_prior(&round.task) {
            let (of_prior, layers) = self.split_round(round)?;
            self.prior.open(&of_prior)?;
            self.network.receive_body(layers, round.task);
            self.is_of_prior = true;
        } else {
            self.network.open(round)?;
            self.is_of_prior = false;
        }
        Ok(())
    }

    fn tensor_mut(&mut self, index: usize) -> Option<&mut [f32]> {
        if self.is_of_prior && index + 1 == self.network.shape().layers() {
            self.prior.prior_mut()
        } else {
            self.network.tensor_mut(index)
        }
    }

    fn verify(&mut self) -> Result<(), DeclineReason> {
        self.network.verify()?;
        if self.is_of_prior { self.prior.verify() } else { Ok(()) }
    }

    fn run(&mut self, id: RoundId, source: &mut dyn SampleSource) -> Result<Usage, DeclineReason> {
        if !self.is_of_prior {
            return self.network.run(id, source);
        }
        let mut outputs = self.network.body_outputs(id, source)?;
        let ran = self.prior.run(id, &mut outputs);
        // A source that has failed is the reason for all other errors.
        let usage = outputs.usage()?;
        ran?;
        self.network.set_usage(usage);
        if self.prior.head_fitted_on().is_some() {
            self.network.set_head(self.prior.head());
        }
        Ok(usage)
    }

    fn begin(&mut self) -> Result<(), DeclineReason> {
        Err(DeclineReason::Task)
    }

    fn sample(&mut self, _x: &[f32], _target: Targets<'_>) -> u32 {
        0
    }

    fn finish(&mut self) -> Result<Usage, DeclineReason> {
        Err(DeclineReason::Task)
    }

    fn upload(&self) -> Descriptors {
        if self.is_of_prior { self.prior.upload() } else { self.network.upload() }
    }

    fn emit(&self, index: usize, first: usize, out: &mut [f32]) {
        if self.is_of_prior {
            self.prior.emit(index, first, out);
        } else {
            self.network.emit(index, first, out);
        }
    }

    fn pace(&self) -> Pace<'_> {
        self.network.pace()
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
