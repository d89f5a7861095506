//! What is said within a round: its opening, the tensors both ways, what becomes of it.

use heapless::Vec;
use serde::{Deserialize, Serialize};

use super::{Descriptors, RoundId, Task};
use crate::limits::MISSING_MAX;

/// Opens a round for a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundOpen {
    /// Which round.
    pub id: RoundId,
    /// What to compute.
    pub task: Task,
    /// The tensors that come with it. Either all have `chunk == 0` and are the body, in order, or all
    /// have `chunk > 0` and follow as chunks.
    pub tensors: Descriptors,
}

/// The result of a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Update {
    /// Which round.
    pub id: RoundId,
    /// Samples that were used.
    pub samples: u32,
    /// Samples that were not usable (not finite, out of range) and were skipped.
    pub skipped: u32,
    /// The tensors, as in [`RoundOpen::tensors`].
    pub tensors: Descriptors,
}

/// Announces a part of a tensor; its elements are the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// Which round.
    pub id: RoundId,
    /// Index of the tensor among the round's (or the update's) descriptors.
    pub tensor: u8,
    /// First element; a multiple of the descriptor's chunk length.
    pub offset: u32,
}

/// Asks for chunks by number (offset over chunk length).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Which round.
    pub id: RoundId,
    /// Index of the tensor.
    pub tensor: u8,
    /// The first missing chunk numbers, in ascending order.
    pub chunks: Vec<u16, MISSING_MAX>,
}

/// The device will not take part in a round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decline {
    /// Which round.
    pub id: RoundId,
    /// Why.
    pub reason: DeclineReason,
}

/// Why a device declines a round. Head, counters and storage are as before it, except where an update was
/// computed and could not leave ([`Self::UpdateNonFinite`], [`Self::Device`]): the head may be new then.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum DeclineReason {
    /// The task is not compiled into this device, or not allowed on it.
    Task,
    /// A tensor has another role or shape than the task needs, or there are too many, or too few: a layer of a network
    /// that does not come has to be on the device.
    Tensors,
    /// A hyper-parameter is not finite or out of range.
    Parameter,
    /// The round is not after the last one that this device finished.
    RoundRepeated {
        /// The last finished round.
        last: u32,
    },
    /// The representation that came is not finite.
    NonFinite,
    /// The columns of the representation that came are not orthonormal.
    NotOrthonormal {
        /// `max |B^T B - I|`.
        error: f32,
    },
    /// The device has no usable sample.
    NoSamples,
    /// The update would not be finite.
    UpdateNonFinite,
    /// The device could not read its samples or write its storage.
    Device,
    /// The release would cost more than is left of the device's privacy budget.
    Budget {
        /// What is left, in the units of [`Privacy`](super::Privacy).
        left: u64,
    },
    /// The device has no entropy for the noise that its update needs.
    Entropy,
}

/// What became of an update.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ack {
    /// Which round.
    pub id: RoundId,
    /// What became of it.
    pub outcome: AckOutcome,
}

/// What became of an update.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum AckOutcome {
    /// It counts.
    Counted,
    /// It had been counted already; it counts once.
    Duplicate,
    /// The round was complete; it does not count.
    Late,
    /// It does not count.
    Rejected(Rejection),
}

/// Why an update does not count.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Rejection {
    /// The device was not asked in this round.
    NotAsked,
    /// No such round is open.
    WrongRound,
    /// Roles, shapes or encodings are not what the round asked for.
    Tensors,
    /// A value is not finite.
    NonFinite,
    /// The norm is over the bound.
    NormOverBound {
        /// Frobenius norm of the update.
        norm: f32,
        /// The bound.
        bound: f32,
    },
    /// Another update for the same round was counted already, with other content.
    ContentChanged,
    /// No sample was used.
    NoSamples,
}

/// What was wrong with a message that was ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Fault {
    /// It could not be decoded.
    Malformed,
    /// It has no place here.
    Unexpected,
    /// A descriptor or a chunk does not fit what was announced.
    Tensors,
    /// Nobody has said hello on this link, as far as the server knows: the device greets again. Sent on links
    /// that do not close when the server restarts, such as serial lines.
    Greet,
}
