//! Types that all parts of the engine use: tensors, requests and updates, with [`DeviceId`] and [`Millis`].

use fedspan_protocol::frame::crc32c_f32;
use fedspan_protocol::message::{RoundId, Task};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};
use serde::{Deserialize, Serialize};

pub use crate::device_id::DeviceId;
pub use fedspan_protocol::time::Millis;

/// Tensor in the server's memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tensor {
    /// Role of the tensor in the protocol.
    pub role: Role,
    /// Number of rows.
    pub rows: u16,
    /// Number of columns.
    pub cols: u16,
    /// Elements, row-major.
    pub values: Vec<f32>,
}

impl Tensor {
    /// Wire descriptor of this tensor in a request with the given encoding, before it is split into chunks. A
    /// scale is always f32.
    #[must_use]
    pub fn descriptor(&self, encoding: Encoding) -> TensorDescriptor {
        let encoding = if self.role == Role::Scale { Encoding::F32 } else { encoding };
        TensorDescriptor::inline(self.role, encoding, self.rows, self.cols)
    }
}

/// Request that a round sends to its devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Task that the device computes.
    pub task: Task,
    /// Tensors that the server sends to the device.
    pub tensors: Vec<Tensor>,
    /// Encoding of these tensors.
    pub encoding: Encoding,
    /// Tensors that the device must send back.
    pub expects: Vec<TensorDescriptor>,
}

/// Weighting of updates in a mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weighting {
    /// Equal weight for all devices.
    #[default]
    Uniform,
    /// Weight proportional to the number of samples.
    Samples,
}

impl Weighting {
    /// Weight of an update computed from `samples` samples.
    #[must_use]
    pub fn weight(self, samples: u32) -> u32 {
        match self {
            Self::Uniform => 1,
            Self::Samples => samples,
        }
    }
}

/// Update of a device, reassembled from chunks and decoded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Update {
    /// Id of the round that the update answers.
    pub id: RoundId,
    /// Number of samples from which the device computed the update.
    pub samples: u32,
    /// Number of samples that the device skipped.
    pub skipped: u32,
    /// Tensor descriptors as the device sent them.
    pub descriptors: Vec<TensorDescriptor>,
    /// Decoded tensors.
    pub tensors: Vec<Tensor>,
}

impl Update {
    /// Digest of the sample count and the tensors, to recognise repeated updates.
    pub(crate) fn digest(&self) -> u32 {
        self.tensors.iter().fold(self.samples, |hash, t| hash.rotate_left(5) ^ crc32c_f32(&t.values))
    }
}
