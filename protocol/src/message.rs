//! The vocabulary. Messages are encoded with postcard (varints, declaration order, no field names);
//! those that carry tensors are followed by a *body*: all bytes up to the end of the frame.
//!
//! Variants and fields are only ever appended, and never within a tagged version; `SPEC.md` holds the
//! byte tables. Rounds count exchanges and strictly increase within a campaign.

use heapless::Vec;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::limits::{MISSING_MAX, SCHEMA_HASH, TENSORS_MAX, WIRE_VERSION};
use crate::tensor::{Encoding, Role, TensorDescriptor};

/// The descriptors of one direction of one round.
pub type Descriptors = Vec<TensorDescriptor, TENSORS_MAX>;

/// A message of one direction.
pub trait Message: Serialize + DeserializeOwned {
    /// Bytes after the message are its body, not an error.
    fn has_body(&self) -> bool;
}

impl Message for ToServer {
    fn has_body(&self) -> bool {
        matches!(self, Self::Update(_) | Self::Chunk(_))
    }
}

impl Message for ToDevice {
    fn has_body(&self) -> bool {
        matches!(self, Self::RoundOpen(_) | Self::Chunk(_))
    }
}

/// Reads one message and returns it with its body.
///
/// # Errors
/// [`Error::Malformed`] if `bytes` do not start with a message of type `M`; [`Error::TrailingBytes`] if
/// something follows a message that has no body.
pub fn decode<M: Message>(bytes: &[u8]) -> Result<(M, &[u8]), Error> {
    let (message, body) = postcard::take_from_bytes::<M>(bytes).map_err(|_| Error::Malformed)?;
    if !message.has_body() && !body.is_empty() {
        return Err(Error::TrailingBytes { count: body.len() });
    }
    Ok((message, body))
}

/// Which exchange of a campaign.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RoundId {
    /// Counts exchanges from 1; strictly increasing within a campaign.
    pub round: u32,
    /// The participation stage that the round belongs to.
    pub stage: u16,
}

/// From the device to the aggregator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(clippy::large_enum_variant, reason = "one lives on the stack at a time, and boxes need a heap")]
pub enum ToServer {
    /// The first message on a connection.
    Hello(Hello),
    /// The result of a round. Body: the tensors, where they fit the frame.
    Update(Update),
    /// A part of a tensor of the update. Body: its elements.
    Chunk(Chunk),
    /// Asks for chunks of the round's tensors that have not come.
    Missing(Missing),
    /// The device will not take part in this round.
    Decline(Decline),
    /// Nothing to say, still here.
    Alive,
}

/// From the aggregator to the device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(clippy::large_enum_variant, reason = "one lives on the stack at a time, and boxes need a heap")]
pub enum ToDevice {
    /// Hello was accepted.
    Welcome(Welcome),
    /// Hello was refused; the connection is closed.
    Refused(Refusal),
    /// A round opens for this device. Body: the tensors, where they fit the frame.
    RoundOpen(RoundOpen),
    /// A part of a tensor of the round. Body: its elements.
    Chunk(Chunk),
    /// Asks for chunks of the update that have not come.
    Missing(Missing),
    /// What became of the update.
    Ack(Ack),
    /// The round is over; work on it may stop. The device keeps the head it had.
    RoundClosed(RoundId),
    /// No room now: disconnect and come back after this many milliseconds.
    RetryAfter {
        /// Milliseconds.
        milliseconds: u32,
    },
    /// A message could not be understood or was out of place; it was ignored and counted.
    Fault(Fault),
}

/// Who the device is and what it can do. The layout of the first three fields never changes, in any
/// wire version, so that every server can refuse politely.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`WIRE_VERSION`] of the firmware.
    pub wire_version: u16,
    /// [`SCHEMA_HASH`] of the firmware.
    pub schema_hash: u32,
    /// The device's identity, unique in the fleet.
    pub device: u64,
    /// What it can do.
    pub capabilities: Capabilities,
}

impl Hello {
    /// A hello of this wire version.
    #[must_use]
    pub const fn new(device: u64, capabilities: Capabilities) -> Self {
        Self { wire_version: WIRE_VERSION, schema_hash: SCHEMA_HASH, device, capabilities }
    }
}

/// The fields of a hello that never change. A server reads them first: a hello of another wire version may
/// go on differently, so that [`decode`] would call it malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Introduction {
    /// [`Hello::wire_version`].
    pub wire_version: u16,
    /// [`Hello::schema_hash`].
    pub schema_hash: u32,
    /// [`Hello::device`].
    pub device: u64,
}

impl Introduction {
    /// Reads the start of a hello of any wire version.
    ///
    /// # Errors
    /// [`Error::Malformed`] if `bytes` do not start like a hello.
    pub fn read(bytes: &[u8]) -> Result<Self, Error> {
        match postcard::take_from_bytes(bytes) {
            Ok(((HELLO_TAG, introduction), _)) => Ok(introduction),
            _ => Err(Error::Malformed),
        }
    }
}

/// Number of [`ToServer::Hello`].
const HELLO_TAG: u32 = 0;

/// What a device can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Largest decoded frame that the device can hold, header and check included.
    pub frame_limit: u16,
    /// The model that its buffers are made for.
    pub model: Model,
    /// Set of [`Task::bit`].
    pub tasks: u16,
    /// Set of [`Role::bit`]: what may leave this device.
    pub roles: u16,
    /// Set of [`Encoding::bit`] that it reads and writes.
    pub encodings: u8,
    /// Arithmetic of the update.
    pub numeric: Numeric,
    /// Tensors in one direction of a round, at most.
    pub tensors: u8,
    /// Elements of one tensor, at most.
    pub tensor_elements: u32,
    /// Elements of all tensors of one direction, at most.
    pub total_elements: u32,
}

/// The model that a device's buffers are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Model {
    /// `y = W^T B^T x`.
    Linear {
        /// `d`, length of a sample.
        features: u16,
        /// `k`, columns of the representation.
        width: u16,
        /// `C`, outputs of the head.
        outputs: u16,
    },
}

/// Arithmetic of the device's update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Numeric {
    /// IEEE 754 binary32.
    #[default]
    F32,
    /// 16-bit fixed point.
    I16,
}

/// The connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Identifies the training run; rounds increase within it.
    pub campaign: u64,
    /// The connection is closed after this many milliseconds of silence; say `Alive` well before.
    pub idle_milliseconds: u32,
}

/// Why hello was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Refusal {
    /// Another wire version is spoken here.
    WireVersion {
        /// The version that is served.
        served: u16,
    },
    /// The version's messages differ (a development build).
    Schema {
        /// The hash that is served.
        served: u32,
    },
    /// The model's shape is another.
    Model {
        /// The model that is trained here.
        expected: Model,
    },
    /// The device cannot do something that the campaign needs.
    Capability(Need),
    /// The device is not on the allow-list.
    UnknownDevice,
    /// The frame limit is outside of what the protocol allows.
    FrameLimit {
        /// Smallest.
        least: u16,
        /// Largest.
        most: u16,
    },
}

/// A capability that a campaign needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Need {
    /// Tasks, as a set of [`Task::bit`].
    Tasks(u16),
    /// Roles, as a set of [`Role::bit`].
    Roles(u16),
    /// Encodings, as a set of [`Encoding::bit`].
    Encodings(u8),
    /// This arithmetic.
    Numeric(Numeric),
    /// Elements in one tensor.
    TensorElements(u32),
}

/// What a device computes in a round, with its hyper-parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Task {
    /// FedRep: solve the head on `B`, then one gradient step on `B` (Collins et al. 2021, Algorithm 2).
    /// Down: representation. Up: gradient or representation.
    FedRep {
        /// Step size eta of the representation; only used where the new representation is sent.
        step_size: f32,
        /// How the head is solved.
        head: HeadSolve,
        /// What is sent.
        upload: Upload,
        /// How it is encoded.
        encoding: Encoding,
    },
    /// Fit the head on the final `B`; nothing is uploaded. Down: representation.
    FitHead {
        /// How the head is solved.
        head: HeadSolve,
    },
    /// Gradient steps on one shared linear model. Down and up: representation and shared head.
    FedAvg {
        /// Step size of the representation.
        step_size: f32,
        /// Step size of the head.
        head_step_size: f32,
        /// Gradient steps before the upload.
        local_steps: u16,
        /// How the upload is encoded.
        encoding: Encoding,
    },
    /// One power iteration of the start: `(1/m) sum |y|^2 x (x^T Q)`. Down and up: subspace.
    PowerStart,
    /// Rows of the moment matrix `(1/m) sum |y|^2 x x^T`, upper half. Up: moment. Reveals records: the
    /// device must have been built to allow it.
    MomentRows {
        /// First row.
        first: u16,
        /// Rows.
        count: u16,
    },
}

impl Task {
    /// This task's bit in a set of tasks.
    #[must_use]
    pub const fn bit(&self) -> u16 {
        match self {
            Self::FedRep { .. } => 1,
            Self::FitHead { .. } => 1 << 1,
            Self::FedAvg { .. } => 1 << 2,
            Self::PowerStart => 1 << 3,
            Self::MomentRows { .. } => 1 << 4,
        }
    }
}

/// How a device finds its head on a given representation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum HeadSolve {
    /// Minimises `1/(2m) |X B W - Y|^2 + ridge/2 |W|^2`; the minimum-norm solution where that is not
    /// unique.
    LeastSquares {
        /// The ridge; 0 for none.
        ridge: f32,
    },
    /// Gradient steps from the head the device has (zero at first): GD-GD with one, 10GD-GD with ten.
    Gradient {
        /// How many.
        steps: u16,
        /// Step size.
        step_size: f32,
    },
}

/// What a FedRep device sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Upload {
    /// The gradient of its loss.
    #[default]
    Gradient,
    /// Its representation after the step.
    Representation,
}

impl Upload {
    /// The role of the tensor that is sent.
    #[must_use]
    pub const fn role(self) -> Role {
        match self {
            Self::Gradient => Role::Gradient,
            Self::Representation => Role::Representation,
        }
    }
}

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
    /// A tensor has another role or shape than the task needs, or there are too many.
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
}
