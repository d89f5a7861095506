//! Training rounds of networks on synthetic samples in batches of ten, with the calls that the session makes,
//! and a hash of their results. The rounds also run on the host, for comparison with the results of a board.

#[cfg(feature = "adapter")]
mod adapter;
#[cfg(feature = "recurrent")]
mod cells;
mod dense;
#[cfg(feature = "convolution")]
mod filters;

use fedspan_client::memory::NetworkMemory;
use fedspan_client::{Network, Recording, Task};
use fedspan_protocol::frame::crc32c_f32;
use fedspan_protocol::message::{
    DeclineReason, Descent, Descriptors, RoundId, RoundOpen, Task as Wire, Trained,
};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

#[cfg(feature = "adapter")]
pub use adapter::Adapter;
#[cfg(feature = "recurrent")]
pub use cells::Cells;
pub use dense::Dense;
#[cfg(feature = "convolution")]
pub use filters::Filters;

use crate::problem::{Problem, pattern};

/// The model for which the program is built.
#[cfg(feature = "adapter")]
pub type Chosen = Adapter;
/// The model for which the program is built.
#[cfg(all(feature = "convolution", not(feature = "adapter")))]
pub type Chosen = Filters;
/// The model for which the program is built.
#[cfg(all(feature = "recurrent", not(any(feature = "adapter", feature = "convolution"))))]
pub type Chosen = Cells;
/// The model for which the program is built.
#[cfg(not(any(feature = "adapter", feature = "convolution", feature = "recurrent")))]
pub type Chosen = Dense;

/// Number of features.
pub const D: usize = 64;
/// Number of classes.
pub const C: usize = 7;
/// Number of samples per batch.
pub const N: usize = 10;
/// Number of samples; the last batch is smaller.
pub const M: usize = <Chosen as Model>::SAMPLES;

/// A network whose training is measured.
pub trait Model {
    /// Name of the model in the printed results.
    const NAME: &'static str;
    /// Number of samples. An epoch must be shorter than the range of the instruction counter, 671 million on a Cortex-M.
    const SAMPLES: usize = 75;

    /// Memory of the model, including the memory for momentum.
    type Memory: NetworkMemory;

    /// Returns zeroed memory.
    fn memory() -> Self::Memory;

    /// Returns the descriptors of the tensors that the server sends in a round.
    fn tensors() -> Descriptors {
        let shape = Self::memory().shape();
        let descriptor_of = |layer| {
            let matrix = shape.layer(layer).matrix();
            tensor(Role::Representation, shape.layer(layer).rows(), matrix.1)
        };
        (0..shape.layers() - 1).map(descriptor_of).collect()
    }

    /// Sets the state of a device before its first round. The default does nothing.
    fn prepare(_client: &mut Network<impl NetworkMemory>) {}

    /// Returns a round of the given number of epochs over all trained layers.
    fn whole(epochs: u16) -> Wire {
        sgd(0, epochs, Trained::All)
    }

    /// Returns a round of the given number of epochs over the last layer only: the head, or an adapter's
    /// up-projection.
    fn last(epochs: u16) -> Wire {
        sgd(epochs, 0, Trained::Shared)
    }

    /// Returns the two rounds of [`rounds`]: one of FedRep and one of FedPer, or two that train an adapter's
    /// factors in turn.
    fn rounds() -> [Wire; 2] {
        [sgd(3, 1, Trained::Shared), sgd(0, 2, Trained::All)]
    }
}

/// Returns the descriptor of an f32 tensor that is sent in one piece.
fn tensor(role: Role, rows: usize, cols: usize) -> TensorDescriptor {
    let dimension = |n| u16::try_from(n).unwrap_or(u16::MAX);
    TensorDescriptor::inline(role, Encoding::F32, dimension(rows), dimension(cols))
}

/// Returns a round with `head_epochs` epochs over the personal layers, then `epochs` over the layers that
/// `trained` selects.
fn sgd(head_epochs: u16, epochs: u16, trained: Trained) -> Wire {
    let descent = Descent { step_size: 0.1, momentum: 0.5, batch: N as u16 };
    Wire::Sgd { descent, head_epochs, epochs, trained, encoding: Encoding::F32 }
}

/// Number of the measured round.
pub const ROUND: RoundId = RoundId { round: 1, stage: 0 };

/// Classes of the samples. They are arbitrary, because the cost of training does not depend on them.
static CLASSES: [u8; M] = {
    let mut classes = [0; M];
    let mut i = 0;
    while i < M {
        #[allow(clippy::cast_possible_truncation, reason = "below C")]
        {
            classes[i] = (i % C) as u8;
        }
        i += 1;
    }
    classes
};

/// Returns the samples of a problem, with classes instead of targets.
#[must_use]
pub fn samples(problem: &Problem<D, M>) -> Recording<'_> {
    Recording::classification(problem.x.as_flattened(), &CLASSES, D)
}

/// Opens a round and loads its tensors with arbitrary weights.
///
/// # Errors
/// The client's reason for declining the round.
pub fn open<T: Model>(client: &mut Network<impl NetworkMemory>, task: Wire) -> Result<(), DeclineReason> {
    let tensors = T::tensors();
    let count = tensors.len();
    client.open(&RoundOpen { id: ROUND, task, tensors })?;
    for index in 0..count {
        weights(client.tensor_mut(index).ok_or(DeclineReason::Tensors)?);
    }
    client.verify()
}

/// Fills a layer with small, arbitrary weights.
fn weights(layer: &mut [f32]) {
    pattern(layer);
    for weight in layer {
        *weight *= 0.125;
    }
}

/// Result of two rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Name of the model.
    pub model: &'static str,
    /// Hash of the results: CRC-32C of all layers after each round. The first is rotated by five bits and
    /// XORed with the second.
    pub update: u32,
}

/// Runs the two rounds of [`Model::rounds`] on a fresh client.
///
/// # Errors
/// The client's reason for declining a round.
pub fn rounds<T: Model>(
    client: &mut Network<impl NetworkMemory>,
    source: &mut Recording<'_>,
) -> Result<Outcome, DeclineReason> {
    T::prepare(client);
    let mut update = 0u32;
    for task in T::rounds() {
        open::<T>(client, task)?;
        client.run(ROUND, source)?;
        update = update.rotate_left(5) ^ crc32c_f32(client.parameters());
    }
    Ok(Outcome { model: T::NAME, update })
}

impl core::fmt::Display for Outcome {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "\"path\":\"{}\",\"update\":\"{:08x}\"", self.model, self.update)
    }
}
