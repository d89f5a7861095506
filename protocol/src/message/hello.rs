//! Who speaks: what a device says of itself first, and what it is answered.

use serde::{Deserialize, Serialize};

use super::Model;
use crate::limits::{SCHEMA_HASH, WIRE_VERSION};
use crate::{Error, codec};

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
/// go on differently, so that [`decode`](super::decode) would call it malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelloPrefix {
    /// [`Hello::wire_version`].
    pub wire_version: u16,
    /// [`Hello::schema_hash`].
    pub schema_hash: u32,
    /// [`Hello::device`].
    pub device: u64,
}

impl HelloPrefix {
    /// Reads the start of a hello of any wire version.
    ///
    /// # Errors
    /// [`Error::Malformed`] if `bytes` do not start like a hello.
    pub fn read(bytes: &[u8]) -> Result<Self, Error> {
        match codec::read(bytes) {
            Ok(((HELLO_TAG, introduction), _)) => Ok(introduction),
            _ => Err(Error::Malformed),
        }
    }
}

/// Number of [`ToServer::Hello`].
const HELLO_TAG: u32 = 0;

/// Bit of [`Capabilities::roles`] that is no role's: the device finds the ridge of a head by leave-one-out
/// ([`HeadSolve::LeaveOneOut`](super::HeadSolve::LeaveOneOut)).
pub const CHOOSES_RIDGE: u16 = 1 << 15;

/// What a device can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Largest decoded frame that the device can hold, header and check included.
    pub frame_limit: u16,
    /// The model that its buffers are made for.
    pub model: Model,
    /// Set of [`Task::bit`](super::Task::bit). Those in [`PRIVATE_TASKS`](crate::limits::PRIVATE_TASKS) mean what a
    /// fleet's owner says.
    pub tasks: u16,
    /// Set of [`Role::bit`](crate::tensor::Role::bit): what may leave this device; and
    /// [`Role::Scale`](crate::tensor::Role::Scale), which never does, if it applies a scale; and [`CHOOSES_RIDGE`].
    pub roles: u16,
    /// Set of [`Encoding::bit`](crate::tensor::Encoding::bit) that it reads and writes.
    pub encodings: u8,
    /// Arithmetic of the update.
    pub numeric: Numeric,
    /// Tensors in one direction of a round, at most.
    pub tensors: u8,
    /// Elements of one tensor, at most.
    pub tensor_elements: u32,
    /// Elements of all tensors of one direction, at most.
    pub total_elements: u32,
    /// What noise its updates have.
    pub privacy: Privacy,
}

/// What a device's own settings say of the noise in its updates, and what of its budget is used up. All in units of
/// `2^-30 (sensitivity / standard deviation)^2` of Gaussian noise, rounded up: what releases cost adds up, and the
/// whole is (epsilon, delta)-differential privacy of a record by a closed form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Privacy {
    /// None.
    #[default]
    None,
    /// Discrete Gaussian noise.
    Gaussian {
        /// What one noisy release costs.
        release: u32,
        /// What all releases of the device's life may cost together.
        budget: u64,
        /// What they have cost so far.
        spent: u64,
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
    Capability(Requirement),
    /// The device is not on the allow-list, or its key is not known or not accepted any more.
    UnknownDevice,
    /// The frame limit is outside of what the protocol allows.
    FrameLimit {
        /// Smallest.
        min: u16,
        /// Largest.
        max: u16,
    },
    /// Frames are encrypted here, and the device did not say which key it has.
    KeyNeeded,
    /// Frames are not encrypted here (a bench), and the device wants them to be.
    NoKeysHere,
}

/// A capability that a campaign needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Requirement {
    /// Tasks, as a set of [`Task::bit`](super::Task::bit).
    Tasks(u16),
    /// Roles, as a set of [`Role::bit`](crate::tensor::Role::bit).
    Roles(u16),
    /// Encodings, as a set of [`Encoding::bit`](crate::tensor::Encoding::bit).
    Encodings(u8),
    /// This arithmetic.
    Numeric(Numeric),
    /// Elements in one tensor.
    TensorElements(u32),
    /// Tensors in one direction of a round.
    Tensors(u8),
    /// Elements of all tensors of one direction.
    TotalElements(u32),
    /// Noise, of which all releases together cost at most so much ([`Privacy`]).
    Privacy(u64),
}
