//! Rounds of a network, 64-32-7 in batches of ten, on made-up samples, as the session drives them, and the hash of what
//! they give. The same on the host: what a board prints can be compared with it.

use fedspan_client::memory::{NetworkMemory, NetworkShape, NetworkSizes, NetworkWorkspace};
use fedspan_client::{Network, Recording, Task};
use fedspan_protocol::frame::crc32c_f32;
use fedspan_protocol::message::{
    DeclineReason, Descent, Descriptors, RoundId, RoundOpen, Task as Wire, Trained,
};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

use crate::problem::{Problem, pattern};

/// Features.
pub const D: usize = 64;
/// Width of the hidden layer.
pub const H: usize = 32;
/// Classes.
const C: usize = 7;
/// Samples of a batch.
const N: usize = 10;
/// Samples: the last batch is smaller.
pub const M: usize = 75;

/// The network's sizes.
#[derive(Clone, Debug)]
pub struct Sizes;

impl NetworkSizes for Sizes {
    const SHAPE: NetworkShape = NetworkShape::new(D, &[H], C, N);
}

const P: usize = Sizes::SHAPE.parameters();

/// Its memory, with momentum.
pub type Workspace = NetworkWorkspace<Sizes, P, { Sizes::SHAPE.scratch() }, N, P>;

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

/// FedRep's round, and FedPer's.
#[must_use]
pub fn task(head_epochs: u16, epochs: u16, trained: Trained) -> Wire {
    let descent = Descent { step_size: 0.1, momentum: 0.5, batch: N as u16 };
    Wire::Sgd { descent, head_epochs, epochs, trained, encoding: Encoding::F32 }
}

/// Opens a round and receives its body.
///
/// # Errors
/// The reason for which the client declines.
pub fn open<M: NetworkMemory>(client: &mut Network<M>, task: Wire) -> Result<(), DeclineReason> {
    let (rows, cols) = (D as u16 + 1, H as u16);
    let tensor = TensorDescriptor::inline(Role::Representation, Encoding::F32, rows, cols);
    client.open(&RoundOpen { id: ROUND, task, tensors: Descriptors::from_iter([tensor]) })?;
    let body = client.tensor_mut(0).ok_or(DeclineReason::Tensors)?;
    pattern(body);
    for weight in body {
        *weight *= 0.125;
    }
    client.verify()
}

/// What came out of two rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// CRC-32C of body and head.
    pub update: u32,
}

/// FedRep's round of a fresh client, then FedPer's.
///
/// # Errors
/// The reason for which the client declines.
pub fn rounds<M: NetworkMemory>(
    client: &mut Network<M>,
    source: &mut Recording<'_>,
) -> Result<Outcome, DeclineReason> {
    for task in [task(3, 1, Trained::Travelling), task(0, 2, Trained::All)] {
        open(client, task)?;
        client.run(ROUND, source)?;
    }
    Ok(Outcome { update: crc32c_f32(client.parameters()) })
}

impl core::fmt::Display for Outcome {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "\"path\":\"sgd\",\"update\":\"{:08x}\"", self.update)
    }
}
