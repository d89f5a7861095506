//! Networks: [`Network`], a body and a head, with its functions for local use. Its rounds are in `rounds`.

mod batch;
mod batches;
mod body_cache;
#[cfg(feature = "learned-prior")]
mod body_outputs;
mod capabilities;
mod epochs;
mod forward;
mod rounds;
mod sample_order;

use core::ops::Range;

use fedspan_protocol::frame::crc32c_f32;
#[cfg(feature = "learned-prior")]
use fedspan_protocol::message::{DeclineReason, RoundId};
use fedspan_protocol::message::{Model, Task as Wire};
#[cfg(feature = "learned-prior")]
use fedspan_protocol::tensor::TensorDescriptor;
use rand_core::Rng;

use super::{Task, Usage, paced_hash};
use crate::error::{NotReady, ShapeMismatch, check_finite, check_prediction};
use crate::kernel::all_within;
#[cfg(feature = "adapter")]
use crate::kernel::frozen::Frozen;
use crate::memory::{NetworkMemory, NetworkParts, NetworkShape};
#[cfg(feature = "learned-prior")]
use crate::source::SampleSource;
use batch::{Scratch, activations_range};
#[cfg(feature = "learned-prior")]
use body_outputs::BodyOutputs;
use forward::forward;

pub use batches::{Batches, add_gradient};

/// Network in the memory `M`, which consists of dense layers and optionally a front end ([`NetworkShape`]).
/// The body is the representation, and the last layer is the head (Collins et al. 2021, section 2).
///
/// The network trains by stochastic gradient descent with momentum on the cross-entropy of batches. The
/// server chooses the shared layers among the layers that the firmware allows: the body, and with the feature
/// `shared-head` the head. The source must allow random access
/// ([`SampleSource::at`](crate::source::SampleSource::at)).
///
/// The head is initially zero. The body exists only after it was received, [set](Self::set_parameters) or
/// [drawn](Self::draw). If a part of the body is personal (LG-FedAvg), the firmware must set or draw it. That
/// part is lost when power is lost, because the [store](crate::store) keeps only the head. Rounds that need a
/// missing body are declined ([`DeclineReason::Tensors`](fedspan_protocol::message::DeclineReason)).
///
/// If the loss becomes infinite or NaN, the round is declined and the trained layers become invalid: a head
/// is set to zero, and a body must be received, set or drawn again. If the source fails during training, the
/// layers keep their current values.
#[derive(Clone, Debug)]
pub struct Network<M> {
    memory: M,
    state: State,
}

/// State of a network in addition to its buffers.
#[derive(Clone, Debug)]
struct State {
    /// Seed of the order of samples.
    seed: u64,
    /// Hash of the body in memory, `None` while it is invalid.
    body: Option<u32>,
    /// Hash of the body that the head was trained with.
    head: Option<u32>,
    /// True if `head` is from a record, which may have been written by a version whose hash was the CRC-32C.
    is_restored: bool,
    /// Bit set of invalid layers: layers that were never received, received only in part, or lost. An invalid
    /// head must be set to zero before use.
    missing: u8,
    /// Task of the open round.
    task: Option<Wire>,
    /// Shared layers of the open round.
    shared: Range<usize>,
    /// Numbers of used and skipped samples of the last round.
    usage: Usage,
}

impl<M: NetworkMemory> Network<M> {
    /// Creates a network without a body. `seed` determines the order of the samples.
    pub const fn new(memory: M, seed: u64) -> Self {
        let usage = Usage { samples: 0, skipped: 0 };
        let missing = u8::MAX;
        let state = State {
            seed,
            body: None,
            head: None,
            is_restored: false,
            missing,
            task: None,
            shared: 0..0,
            usage,
        };
        Self { memory, state }
    }

    /// Returns the sizes of the network.
    pub fn shape(&self) -> NetworkShape {
        self.memory.shape()
    }

    /// Returns the model that the hello announces.
    pub fn model(&self) -> Model {
        capabilities::model(&self.memory)
    }

    /// Returns the parameters of all layers, layer by layer.
    pub fn parameters(&self) -> &[f32] {
        self.memory.parameters()
    }

    /// Returns the frozen layer that the adapter belongs to.
    #[cfg(feature = "adapter")]
    pub fn frozen(&self) -> Frozen<'_> {
        self.memory.frozen()
    }

    /// Returns the numbers of used and skipped samples of the last round.
    pub fn usage(&self) -> Usage {
        self.state.usage
    }

    /// Stores the parameters of all layers, including the head, without a server.
    ///
    /// # Errors
    /// [`ShapeMismatch`] if the number of values is wrong. The network is then unchanged.
    pub fn set_parameters(&mut self, parameters: &[f32]) -> Result<(), ShapeMismatch> {
        let target = self.memory.parts().parameters;
        let expected = target.len();
        if parameters.len() != expected {
            return Err(ShapeMismatch { expected, got: parameters.len() });
        }
        for (target, &value) in target.iter_mut().zip(parameters) {
            *target = value;
        }
        self.accept();
        Ok(())
    }

    /// Draws random parameters of all layers except the head. Weights and biases are uniform with a magnitude
    /// of at most one over the square root of the fan-in (the variance of LeCun et al. 2012, and PyTorch's
    /// default). In an LSTM the fan-in is the number of cells, and the biases of forget gates are one. A head
    /// that was trained with another body is not used until it has been trained with the new body.
    pub fn draw(&mut self, random: &mut impl Rng) {
        let parts = self.memory.parts();
        let shape = parts.shape;
        let body = 0..shape.layers() - 1;
        for layer in body.clone() {
            #[allow(clippy::cast_precision_loss, reason = "a width is far below 2^24")]
            let bound = 1.0 / fedspan_protocol::sqrt::sqrtf(shape.layer(layer).init_fan_in() as f32);
            for value in parts.parameters.get_mut(shape.range(layer..layer + 1)).unwrap_or_default() {
                #[allow(clippy::cast_precision_loss, reason = "24 bits")]
                let unit = (random.next_u32() >> 8) as f32 / 8_388_608.0 - 1.0;
                *value = bound * unit;
            }
            let biases = shape.start(layer) + shape.layer(layer).forget_biases().start;
            let open = biases..biases + shape.layer(layer).forget_biases().len();
            parts.parameters.get_mut(open).unwrap_or_default().fill(1.0);
        }
        self.state.missing &= !layers_bits(&body);
        self.accept_body();
    }

    /// Marks all layers as valid, and the head as trained with the current body.
    fn accept(&mut self) {
        self.state.missing = 0;
        self.accept_body();
        self.state.head = self.state.body;
        self.state.is_restored = false;
    }

    /// Marks these layers as invalid.
    fn invalidate(&mut self, layers: &Range<usize>) {
        let head = self.shape().layers() - 1;
        self.state.missing |= layers_bits(layers);
        if layers.start < head {
            self.state.body = None;
        }
        if layers.contains(&head) {
            self.head_mut().fill(0.0);
            self.state.head = None;
        }
    }

    /// Returns the parameters of the body.
    fn body(&self) -> &[f32] {
        let body = self.shape().range(0..self.shape().layers() - 1);
        self.memory.parameters().get(body).unwrap_or_default()
    }

    /// Marks the body as valid.
    fn accept_body(&mut self) {
        let NetworkParts { shape, parameters, pace, .. } = self.memory.parts();
        let body = parameters.get(shape.range(0..shape.layers() - 1)).unwrap_or_default();
        self.state.body = Some(paced_hash(body, pace));
        self.recognise_earlier_hash();
    }

    /// Replaces the hash of a restored head if it is the CRC-32C of the body in memory.
    fn recognise_earlier_hash(&mut self) {
        let State { body, head, is_restored, .. } = &self.state;
        if *is_restored && body.is_some() && *head == Some(crc32c_f32(self.body())) {
            self.state.head = *body;
        }
    }

    /// Computes the logits of n samples: `x` is n x d, `out` receives n x C. The predicted class is the one
    /// with the largest logit.
    ///
    /// # Errors
    /// [`NotReady`] if there is no body or no head trained with it, if a value or a logit is not finite, or if a length
    /// does not match.
    pub fn predict(&mut self, x: &[f32], out: &mut [f32]) -> Result<(), NotReady> {
        let hash = self.state.body.ok_or(NotReady::NoRepresentation)?;
        if self.state.head != Some(hash) {
            return Err(NotReady::NoHead);
        }
        let mut parts = self.memory.parts();
        let shape = parts.shape;
        let (d, c) = (shape.features.max(1), shape.outputs.max(1));
        if !x.len().is_multiple_of(d) {
            return Err(NotReady::Length { expected: x.len() / d * d, got: x.len() });
        }
        let expected = x.len() / d * c;
        if out.len() != expected {
            return Err(NotReady::Length { expected, got: out.len() });
        }
        check_finite(x)?;
        let batch = shape.batch.max(1);
        for (x, out) in x.chunks(batch * d).zip(out.chunks_mut(batch * c)) {
            for (target, &value) in Scratch::split(shape, parts.scratch).inputs.iter_mut().zip(x) {
                *target = value;
            }
            let size = x.len() / d;
            forward(&mut parts, size, 0);
            let logits = activations_range(shape, shape.layers() - 1, size);
            let logits = Scratch::split(shape, parts.scratch).activations.get(logits).unwrap_or_default();
            for (target, &logit) in out.iter_mut().zip(logits) {
                *target = logit;
            }
        }
        // Finite parameters can be so large that a sum overflows.
        check_prediction(out)
    }

    /// Returns the layers of the body if the tensors of a round are these.
    ///
    /// # Errors
    /// [`DeclineReason::Tensors`] if the tensors are not the layers of the body.
    #[cfg(feature = "learned-prior")]
    pub(super) fn body_layers(&self, tensors: &[TensorDescriptor]) -> Result<Range<usize>, DeclineReason> {
        let shape = self.shape();
        let layers = capabilities::shared_layers(shape, tensors)?;
        let is_body = layers == (0..shape.layers() - 1) && !shape.is_adapted();
        if is_body { Ok(layers) } else { Err(DeclineReason::Tensors) }
    }

    /// Opens a round of another task, whose tensors are these layers ([`Self::body_layers`]); [`Task::tensor_mut`] and [`Task::verify`]
    /// then receive them.
    #[cfg(feature = "learned-prior")]
    pub(super) fn receive_body(&mut self, layers: Range<usize>, task: Wire) {
        (self.state.shared, self.state.task) = (layers, Some(task));
    }

    /// Sets the numbers of samples of a round of another task.
    #[cfg(feature = "learned-prior")]
    pub(super) fn set_usage(&mut self, usage: Usage) {
        self.state.usage = usage;
    }

    /// Replaces the head by one that was fitted on the outputs of the body in memory.
    #[cfg(feature = "learned-prior")]
    pub(super) fn set_head(&mut self, head: &[f32]) {
        for (target, &value) in self.head_mut().iter_mut().zip(head) {
            *target = value;
        }
        let last = self.shape().layers() - 1;
        self.state.missing &= !layers_bits(&(last..last + 1));
        self.state.head = self.state.body;
        self.state.is_restored = false;
    }

    /// Returns the outputs of the body in memory for the samples of `source`.
    ///
    /// # Errors
    /// [`DeclineReason`] as for [`BodyOutputs::new`].
    #[cfg(feature = "learned-prior")]
    pub(super) fn body_outputs<'a>(
        &'a mut self,
        id: RoundId,
        source: &'a mut dyn SampleSource,
    ) -> Result<BodyOutputs<'a>, DeclineReason> {
        BodyOutputs::new(self.memory.parts(), id, source)
    }

    /// Returns true if the parameters of all layers are finite.
    fn is_finite(&self) -> bool {
        all_within(self.memory.parameters(), f32::MAX)
    }
}

/// Returns a bit set of these layers.
fn layers_bits(layers: &Range<usize>) -> u8 {
    layers.clone().fold(0, |bits, layer| bits | 1 << layer)
}
