//! The vocabulary. Messages are encoded with postcard (varints, declaration order, no field names);
//! those that carry tensors are followed by a *body*: all bytes up to the end of the frame.
//!
//! Variants and fields are only ever appended, and never within a tagged version; `SPEC.md` holds the
//! byte tables. Rounds count exchanges and strictly increase within a campaign.

mod hello;
mod model;
mod round;
mod task;

use heapless::Vec;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use hello::{
    CHOOSES_RIDGE, Capabilities, Hello, HelloPrefix, Numeric, Privacy, Refusal, Requirement, Welcome,
};
pub use model::{Filters, Image, Model};
pub use round::{
    Ack, AckOutcome, Chunk, Decline, DeclineReason, Fault, Missing, Rejection, RoundOpen, Update,
};
pub use task::{Baseline, Descent, HeadSolve, PowerRows, PowerUpload, Task, Trained, Upload};

use crate::limits::TENSORS_MAX;
use crate::tensor::TensorDescriptor;
use crate::{Error, codec};

/// The descriptors of one direction of one round.
pub type Descriptors = Vec<TensorDescriptor, TENSORS_MAX>;

/// A message of one direction.
pub trait Message: Serialize + DeserializeOwned {
    /// Bytes after the message are its body, not an error.
    fn has_body(&self) -> bool;
}

impl Message for ToServer {
    fn has_body(&self) -> bool {
        matches!(self, Self::Hello(_) | Self::Update(_) | Self::Chunk(_))
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
    let (message, body) = codec::read::<M>(bytes)?;
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
    /// The first message on a connection. Body: a [`HandshakeInit`](crate::secure::HandshakeInit), or nothing where frames are
    /// not encrypted.
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
