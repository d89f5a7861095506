//! Messages within a round: the start, the tensors in both directions, and the outcome of an update.

use heapless::Vec;
use serde::{Deserialize, Serialize};

use super::{Descriptors, RoundId, Task};
use crate::limits::BEACON_TAG;
use crate::limits::MISSING_MAX;

/// Start of a round for a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundOpen {
    /// Identifier of the round.
    pub id: RoundId,
    /// Task to compute.
    pub task: Task,
    /// Tensors that the server sends with the round. Either all tensors have `chunk == 0` and form the body,
    /// in order, or all have `chunk > 0` and follow as chunks.
    pub tensors: Descriptors,
}

/// Announcement of a round whose [`RoundOpen`] comes as a beacon: a frame with a checksum only, the same for all devices of the
/// round. The announcement is sealed for one device, and its tag proves that the server has sent the beacon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announced {
    /// Identifier of the round.
    pub id: RoundId,
    /// Tag of the beacon under the keys of this connection
    /// ([`Channel::beacon_tag`](crate::secure::Channel::beacon_tag)).
    pub tag: [u8; BEACON_TAG],
}

/// Result of a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Update {
    /// Identifier of the round.
    pub id: RoundId,
    /// Number of samples that were used.
    pub samples: u32,
    /// Number of samples that were skipped because they were not usable (not finite, out of range).
    pub skipped: u32,
    /// Tensors of the update, sent in the same way as [`RoundOpen::tensors`].
    pub tensors: Descriptors,
}

/// Header of a part of a tensor. The elements of the part are the body of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// Identifier of the round.
    pub id: RoundId,
    /// Index of the tensor among the descriptors of the round, or of the update.
    pub tensor: u8,
    /// Index of the first element of the part; a multiple of the descriptor's chunk length.
    pub offset: u32,
}

/// Request for chunks by number (offset divided by chunk length).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Identifier of the round.
    pub id: RoundId,
    /// Index of the tensor.
    pub tensor: u8,
    /// Lowest missing chunk numbers, in ascending order.
    pub chunks: Vec<u16, MISSING_MAX>,
}

/// Refusal of a device to take part in a round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decline {
    /// Identifier of the round.
    pub id: RoundId,
    /// Reason of the refusal.
    pub reason: DeclineReason,
}

/// Reason why a device declines a round. The head, the counters and the storage are the same as before the
/// round, with two exceptions: after [`Self::UpdateNonFinite`] and [`Self::Device`], which can occur after
/// the update was computed, the head may be new. A device whose new representation has failed a check has no
/// representation until a round brings a valid one, and refuses predictions until then.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(all(feature = "defmt", target_os = "none"), derive(defmt::Format))]
#[non_exhaustive]
pub enum DeclineReason {
    /// The task is not compiled into this firmware or not allowed on this device, or the device's memory has
    /// no buffers for the task (such as the second matrix of FedPower or the block of a stream).
    Task,
    /// A tensor has the wrong role or shape for the task, or there are too many or too few tensors. Layers of
    /// a network that are not sent must already be on the device.
    Tensors,
    /// A hyper-parameter is not finite or out of range, or too large for the device's memory (batch,
    /// momentum, ridges of a grid).
    Parameter,
    /// The round number is not above the number of the last round that this device finished.
    RoundRepeated {
        /// Number of the last finished round.
        last: u32,
    },
    /// The received representation is not finite.
    NonFinite,
    /// The columns of the received representation are not orthonormal.
    NotOrthonormal {
        /// Deviation from orthonormality, `max |B^T B - I|`.
        error: f32,
    },
    /// The device has no usable sample.
    NoSamples,
    /// The update would not be finite.
    UpdateNonFinite,
    /// The device could not read its samples or write its storage.
    Device,
    /// The release would cost more than the unspent part of the device's privacy budget.
    Budget {
        /// Unspent part of the budget, in the units of [`Privacy`](super::Privacy).
        left: u64,
    },
    /// The device has no entropy for the noise that its update needs.
    Entropy,
    /// The device's samples do not determine the head well enough for the only solver that its firmware has: fewer samples than
    /// columns of the representation, or projections of the samples that are nearly dependent, with a ridge that is too small.
    Undetermined,
}

/// Server's answer to an update.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ack {
    /// Identifier of the round.
    pub id: RoundId,
    /// Outcome of the update.
    pub outcome: AckOutcome,
}

/// Outcome of an update.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(all(feature = "defmt", target_os = "none"), derive(defmt::Format))]
#[non_exhaustive]
pub enum AckOutcome {
    /// The update is part of the round's aggregate.
    Counted,
    /// The same update was already counted, and is not counted again.
    Duplicate,
    /// The round was already complete, and the update is not counted.
    Late,
    /// The update was rejected and is not counted.
    Rejected(Rejection),
}

/// Reason why the server rejected an update.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(all(feature = "defmt", target_os = "none"), derive(defmt::Format))]
#[non_exhaustive]
pub enum Rejection {
    /// The device was not invited to this round.
    NotAsked,
    /// No round with this identifier is open.
    WrongRound,
    /// Roles, shapes or encodings do not match the round.
    Tensors,
    /// A value is not finite.
    NonFinite,
    /// The norm of the update is above the bound.
    NormOverBound {
        /// Frobenius norm of the update.
        norm: f32,
        /// Largest allowed norm.
        bound: f32,
    },
    /// An update of this device with other content was already counted for the round.
    ContentChanged,
    /// The update reports zero samples.
    NoSamples,
}

/// Reason why the server ignored a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(all(feature = "defmt", target_os = "none"), derive(defmt::Format))]
#[non_exhaustive]
pub enum Fault {
    /// The message could not be decoded.
    Malformed,
    /// The message is not allowed in the connection's current state.
    Unexpected,
    /// A descriptor or a chunk does not match the announced tensors.
    Tensors,
    /// The server has received no hello on this link, so the device must send one. This occurs on links that
    /// stay connected when the server restarts, such as serial lines.
    Greet,
}
