//! Connection set-up messages: the device's hello with its capabilities, and the server's welcome or refusal.

use serde::{Deserialize, Serialize};

use super::Model;
use crate::limits::{SCHEMA_HASH, WIRE_VERSION};
use crate::{Error, codec};

/// Identity and capabilities of a device. The layout of the first three fields is the same in every wire
/// version, so that a server can answer a hello of any version with a typed refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`WIRE_VERSION`] of the firmware.
    pub wire_version: u16,
    /// [`SCHEMA_HASH`] of the firmware.
    pub schema_hash: u32,
    /// Identity of the device, unique in the fleet.
    pub device: u64,
    /// Capabilities of the firmware.
    pub capabilities: Capabilities,
}

impl Hello {
    /// Creates a hello of this wire version.
    #[must_use]
    pub const fn new(device: u64, capabilities: Capabilities) -> Self {
        Self { wire_version: WIRE_VERSION, schema_hash: SCHEMA_HASH, device, capabilities }
    }
}

/// Leading fields of a hello, which are the same in every wire version. A server reads them first, because
/// [`decode`](super::decode) reports [`Error::Malformed`] if the remaining fields have the layout of another
/// version.
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

/// Variant number of [`ToServer::Hello`].
const HELLO_TAG: u32 = 0;

/// Bit of [`Capabilities::roles`] that means an ability instead of a role: the device can select the ridge of
/// a head by leave-one-out ([`HeadSolve::LeaveOneOut`](super::HeadSolve::LeaveOneOut)).
pub const CHOOSES_RIDGE: u32 = 1 << 15;

/// Bit of [`Capabilities::roles`] that means an ability instead of a role: the device can fit a head of a linear model by gradient
/// steps ([`HeadSolve::Gradient`](super::HeadSolve::Gradient)).
pub const FITS_BY_STEPS: u32 = 1 << 14;

/// Bit of [`Capabilities::roles`] that means an ability instead of a role: the device receives beacons, by which a server opens a round
/// on many devices at once ([`ToDevice::Announced`](super::ToDevice)).
pub const RECEIVES_BEACONS: u32 = 1 << 13;

/// Bit of [`Capabilities::roles`] that means an ability instead of a role: the device seals its frames with AES-128-CCM, and its server
/// must do so too. Without it, both seal with ChaCha20-Poly1305.
pub const SEALS_WITH_AES_CCM: u32 = 1 << 12;

/// Bit of [`Capabilities::roles`] that means an ability instead of a role: the device stores a key that its server sends
/// ([`ToDevice::NewKey`](super::ToDevice)).
pub const RECEIVES_KEYS: u32 = 1 << 11;

/// Capabilities of a device: the tasks, tensors and sizes that it supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Largest decoded frame that the device can receive, in bytes, including the header and the check.
    pub frame_limit: u16,
    /// Model that the device's buffers are sized for.
    pub model: Model,
    /// Set of [`TaskKind::bit`](super::TaskKind::bit). The bits in
    /// [`PRIVATE_TASKS`](crate::limits::PRIVATE_TASKS) are for private use.
    pub tasks: u32,
    /// Set of [`Role::bit`](crate::tensor::Role::bit) of the tensors that this device may send, and six flags
    /// for abilities: [`Role::Scale`](crate::tensor::Role::Scale) if the device applies a scale (a scale is
    /// never sent by a device), [`CHOOSES_RIDGE`], [`FITS_BY_STEPS`], [`RECEIVES_BEACONS`],
    /// [`SEALS_WITH_AES_CCM`] and [`RECEIVES_KEYS`].
    pub roles: u32,
    /// Set of [`Encoding::bit`](crate::tensor::Encoding::bit) that the device reads and writes.
    pub encodings: u8,
    /// Arithmetic in which the device computes updates.
    pub numeric: Numeric,
    /// Maximum number of tensors in one direction of a round.
    pub tensors: u8,
    /// Maximum number of elements of one tensor.
    pub tensor_elements: u32,
    /// Maximum number of elements of all tensors in one direction of a round.
    pub total_elements: u32,
    /// Noise in the device's updates.
    pub privacy: Privacy,
}

/// Noise in a device's updates and its privacy budget, both set on the device. Costs are in units of
/// `2^-30 (sensitivity / standard deviation)^2` of Gaussian noise, rounded up. The cost of several releases
/// is the sum of their costs, and the (epsilon, delta) of record-level differential privacy follows from it
/// in closed form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(all(feature = "defmt", target_os = "none"), derive(defmt::Format))]
#[non_exhaustive]
pub enum Privacy {
    /// No noise.
    #[default]
    None,
    /// Discrete Gaussian noise.
    Gaussian {
        /// Cost of one noisy release.
        release: u32,
        /// Budget for all releases during the device's lifetime.
        budget: u64,
        /// Total cost of all releases so far.
        spent: u64,
    },
}

/// Arithmetic in which a device computes updates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(all(feature = "defmt", target_os = "none"), derive(defmt::Format))]
#[non_exhaustive]
pub enum Numeric {
    /// IEEE 754 binary32.
    #[default]
    F32,
    /// 16-bit fixed point.
    I16,
}

/// Acceptance of a hello: the connection is established.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Identifier of the training run; round numbers increase within it.
    pub campaign: u64,
    /// Idle limit in milliseconds: the server closes the connection if it receives nothing for this long. The
    /// device sends `Alive` well before.
    pub idle_milliseconds: u32,
}

/// Reason why the server refused a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(all(feature = "defmt", target_os = "none"), derive(defmt::Format))]
#[non_exhaustive]
pub enum Refusal {
    /// The server supports another wire version.
    WireVersion {
        /// Wire version of the server.
        served: u16,
    },
    /// The server has the same wire version but other messages (a development build).
    Schema {
        /// Schema hash of the server.
        served: u32,
    },
    /// The campaign trains a model of another shape.
    Model {
        /// Model of the campaign.
        expected: Model,
    },
    /// The device lacks a capability that the campaign requires.
    Capability(Requirement),
    /// The device is not on the allow-list, or its key is unknown or no longer accepted.
    UnknownDevice,
    /// The device's frame limit is outside the range that the server accepts.
    FrameLimit {
        /// Smallest accepted frame limit, in bytes.
        min: u16,
        /// Largest accepted frame limit, in bytes.
        max: u16,
    },
    /// The server encrypts frames, and the hello does not name a key.
    KeyNeeded,
    /// The server does not encrypt frames (on a test bench), and the hello names a key.
    NoKeysHere,
}

/// Capability that a campaign requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(all(feature = "defmt", target_os = "none"), derive(defmt::Format))]
#[non_exhaustive]
pub enum Requirement {
    /// Tasks, as a set of [`TaskKind::bit`](super::TaskKind::bit).
    Tasks(u32),
    /// Roles, as a set of [`Role::bit`](crate::tensor::Role::bit).
    Roles(u32),
    /// Encodings, as a set of [`Encoding::bit`](crate::tensor::Encoding::bit).
    Encodings(u8),
    /// Arithmetic in which updates are computed.
    Numeric(Numeric),
    /// Number of elements in one tensor.
    TensorElements(u32),
    /// Number of tensors in one direction of a round.
    Tensors(u8),
    /// Number of elements of all tensors in one direction of a round.
    TotalElements(u32),
    /// Noise whose total cost stays within this budget, in the units of [`Privacy`].
    Privacy(u64),
}
