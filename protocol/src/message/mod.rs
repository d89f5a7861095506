//! Messages in both directions. Messages are encoded with postcard (varints, declaration order, no field
//! names). A message that carries tensors is followed by a *body*: all bytes up to the end of the frame.
//!
//! New variants and fields are appended at the end, and never within a released wire version; `SPEC.md`
//! contains the byte tables. Round numbers strictly increase within a campaign.

mod hello;
mod model;
#[cfg(feature = "key-rotation")]
mod new_key;
mod report;
mod round;
mod task;

use heapless::Vec;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use hello::{
    CHOOSES_RIDGE, Capabilities, FITS_BY_STEPS, Hello, HelloPrefix, Numeric, Privacy, RECEIVES_BEACONS,
    RECEIVES_KEYS, Refusal, Requirement, SEALS_WITH_AES_CCM, Welcome,
};
pub use model::{Filters, Image, MODEL_WORDS, Model, ModelSizes};
#[cfg(feature = "key-rotation")]
pub use new_key::NewKey;
pub use report::{Firmware, REPORT_COUNTERS, Report, ReportCounters, ResetReason};
pub use round::{
    Ack, AckOutcome, Announced, Chunk, Decline, DeclineReason, Fault, Missing, Rejection, RoundOpen, Update,
};
pub use task::{
    Baseline, Descent, GeometricGrid, HeadSolve, PowerRows, PowerUpload, PrivateTask, Task, TaskKind,
    Trained, Upload,
};

use crate::limits::TENSORS_MAX;
use crate::tensor::TensorDescriptor;
use crate::{Error, codec};

/// Tensor descriptors of one direction of a round.
pub type Descriptors = Vec<TensorDescriptor, TENSORS_MAX>;

/// Message that can be sent in one of the two directions.
pub trait Message: Serialize + DeserializeOwned {
    /// Returns true if the bytes after the message are its body. For other messages such bytes are an error.
    fn has_body(&self) -> bool;
}

impl Message for ToServer {
    fn has_body(&self) -> bool {
        #[cfg(feature = "reports")]
        if matches!(self, Self::Report(_)) {
            return true;
        }
        matches!(self, Self::Hello(_) | Self::Update(_) | Self::Chunk(_))
    }
}

impl Message for ToDevice {
    fn has_body(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::RoundOpen(_) | Self::Chunk(_))
    }
}

/// Decodes one message, and returns it with its body.
///
/// # Errors
/// [`Error::Malformed`] if `bytes` do not start with a message of type `M`; [`Error::TrailingBytes`] if bytes
/// follow a message that has no body.
pub fn decode<M: Message>(bytes: &[u8]) -> Result<(M, &[u8]), Error> {
    let (message, body) = codec::read::<M>(bytes)?;
    if !message.has_body() && !body.is_empty() {
        return Err(Error::TrailingBytes { count: body.len() });
    }
    Ok((message, body))
}

/// Identifier of a round within a campaign.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(all(feature = "defmt", target_os = "none"), derive(defmt::Format))]
pub struct RoundId {
    /// Round number, from 1; strictly increasing within a campaign.
    pub round: u32,
    /// Participation stage that the round belongs to.
    pub stage: u16,
}

/// Message from the device to the aggregator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(clippy::large_enum_variant, reason = "only one exists at a time, on the stack; boxes need a heap")]
pub enum ToServer {
    /// First message on a connection. Body: a [`HandshakeInit`](crate::secure::HandshakeInit); empty if
    /// frames are not encrypted.
    Hello(Hello),
    /// Result of a round. Body: the tensors, if they fit the frame.
    Update(Update),
    /// Part of a tensor of the update. Body: its elements.
    Chunk(Chunk),
    /// Request for chunks of the round's tensors that have not arrived.
    Missing(Missing),
    /// Refusal of the device to take part in this round.
    Decline(Decline),
    /// Keep-alive without content.
    Alive,
    /// Report of the device about itself. Body: [`ReportCounters`].
    // Only the last variant may be absent without a change of other variants' numbers.
    #[cfg(feature = "reports")]
    Report(Report),
}

/// Message from the aggregator to the device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(clippy::large_enum_variant, reason = "only one exists at a time, on the stack; boxes need a heap")]
pub enum ToDevice {
    /// Acceptance of a hello.
    Welcome(Welcome),
    /// Refusal of a hello; the server closes the connection. Body: tags by which a device with a key recognises a refusal that is not
    /// sealed ([`refusal_tag`](crate::secure::refusal_tag)), one for each key that the device may have; empty otherwise.
    Refused(Refusal),
    /// Start of a round for this device. Body: the tensors, if they fit the frame.
    RoundOpen(RoundOpen),
    /// Part of a tensor of the round. Body: its elements.
    Chunk(Chunk),
    /// Request for chunks of the update that have not arrived.
    Missing(Missing),
    /// Outcome of an update.
    Ack(Ack),
    /// End of a round. The device may stop its work on the round, and keeps the head from before the round.
    RoundClosed(RoundId),
    /// The server is full. The device must disconnect, and may reconnect after the delay.
    RetryAfter {
        /// Delay in milliseconds.
        milliseconds: u32,
    },
    /// Report that a message of the device was malformed or unexpected; the server ignored and counted it.
    Fault(Fault),
    /// Shortest time until another round opens. A device that sleeps between rounds may disconnect for this
    /// time.
    NextRound {
        /// Time in milliseconds.
        milliseconds: u32,
    },
    /// Start of a round whose [`RoundOpen`] comes as a beacon: one unsealed frame for all devices.
    // Only the last variants may be absent without a change of other variants' numbers.
    #[cfg(any(feature = "beacons", feature = "key-rotation"))]
    Announced(Announced),
    /// New key for this device.
    #[cfg(feature = "key-rotation")]
    NewKey(NewKey),
}
