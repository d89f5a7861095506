//! Rounds of networks in batches of ten on made-up samples, as the session drives them, and the hash of what they give. The same on
//! the host: what a board prints can be compared with it.

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

/// The model that a program is built for.
#[cfg(feature = "adapter")]
pub type Chosen = Adapter;
/// The model that a program is built for.
#[cfg(all(feature = "convolution", not(feature = "adapter")))]
pub type Chosen = Filters;
/// The model that a program is built for.
#[cfg(all(feature = "recurrent", not(any(feature = "adapter", feature = "convolution"))))]
pub type Chosen = Cells;
/// The model that a program is built for.
#[cfg(not(any(feature = "adapter", feature = "convolution", feature = "recurrent")))]
pub type Chosen = Dense;

/// Features.
pub const D: usize = 64;
/// Classes.
pub const C: usize = 7;
/// Samples of a batch.
pub const N: usize = 10;
/// Samples: the last batch is smaller.
pub const M: usize = 75;

/// A model that is measured.
pub trait Model {
    /// As lists have it.
    const NAME: &'static str;

    /// Its memory, with momentum.
    type Memory: NetworkMemory;

    /// Nothing but zeros.
    fn memory() -> Self::Memory;

    /// What comes with a round.
    fn tensors() -> Descriptors {
        let shape = Self::memory().shape();
        let one = |layer| {
            let matrix = shape.layer(layer).matrix();
            tensor(Role::Representation, shape.layer(layer).rows(), matrix.1)
        };
        (0..shape.layers() - 1).map(one).collect()
    }

    /// What a device has before its first round.
    fn prepare(_client: &mut Network<impl NetworkMemory>) {}

    /// A round of so many epochs of everything that learns.
    fn whole(epochs: u16) -> Wire {
        sgd(0, epochs, Trained::All)
    }

    /// A round of so many epochs of its last part: the head, or an adapter's up-projection.
    fn last(epochs: u16) -> Wire {
        sgd(epochs, 0, Trained::Shared)
    }

    /// FedRep's round, then FedPer's; or two that train an adapter's factors in turn.
    fn rounds() -> [Wire; 2] {
        [sgd(3, 1, Trained::Shared), sgd(0, 2, Trained::All)]
    }
}

/// A tensor of a round.
fn tensor(role: Role, rows: usize, cols: usize) -> TensorDescriptor {
    let side = |n| u16::try_from(n).unwrap_or(u16::MAX);
    TensorDescriptor::inline(role, Encoding::F32, side(rows), side(cols))
}

/// Epochs of the layers that stay, then of what is trained.
fn sgd(head_epochs: u16, epochs: u16, trained: Trained) -> Wire {
    let descent = Descent { step_size: 0.1, momentum: 0.5, batch: N as u16 };
    Wire::Sgd { descent, head_epochs, epochs, trained, encoding: Encoding::F32 }
}

/// The round that is measured.
pub const ROUND: RoundId = RoundId { round: 1, stage: 0 };

/// Classes that follow from nothing: what it costs to learn them does not depend on them.
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

/// The samples of a problem, with classes.
#[must_use]
pub fn samples(problem: &Problem<D, M>) -> Recording<'_> {
    Recording::classification(problem.x.as_flattened(), &CLASSES, D)
}

/// Opens a round and receives its tensors.
///
/// # Errors
/// The reason for which the client declines.
pub fn open<T: Model>(client: &mut Network<impl NetworkMemory>, task: Wire) -> Result<(), DeclineReason> {
    let tensors = T::tensors();
    let count = tensors.len();
    client.open(&RoundOpen { id: ROUND, task, tensors })?;
    for index in 0..count {
        weights(client.tensor_mut(index).ok_or(DeclineReason::Tensors)?);
    }
    client.verify()
}

/// Small weights that follow from nothing.
fn weights(layer: &mut [f32]) {
    pattern(layer);
    for weight in layer {
        *weight *= 0.125;
    }
}

/// What came out of two rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Of which model.
    pub model: &'static str,
    /// CRC-32C of all layers after each round, one rotated by five bits.
    pub update: u32,
}

/// [`Model::rounds`] of a fresh client.
///
/// # Errors
/// The reason for which the client declines.
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
