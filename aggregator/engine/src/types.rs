//! Types that every part of the engine uses: devices, time, tensors, requests and updates.

use fedspan_protocol::frame::crc32c_f32;
use fedspan_protocol::message::{RoundId, Task};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};
use serde::{Deserialize, Serialize};

/// The identity of a device on the server.
pub type DeviceId = u64;

/// Milliseconds on the caller's clock.
pub type Millis = u64;

/// A tensor on the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tensor {
    /// What it is.
    pub role: Role,
    /// Rows.
    pub rows: u16,
    /// Columns.
    pub cols: u16,
    /// Row-major.
    pub values: Vec<f32>,
}

impl Tensor {
    /// The descriptor, without chunks, of a request in this encoding: a scale is always f32.
    #[must_use]
    pub fn descriptor(&self, encoding: Encoding) -> TensorDescriptor {
        let encoding = if self.role == Role::Scale { Encoding::F32 } else { encoding };
        TensorDescriptor::inline(self.role, encoding, self.rows, self.cols)
    }
}

/// What a round asks of its devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// What to compute.
    pub task: Task,
    /// What to compute it from.
    pub tensors: Vec<Tensor>,
    /// How these are encoded.
    pub encoding: Encoding,
    /// What is expected back.
    pub expects: Vec<TensorDescriptor>,
}

/// The weight of an update in the mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weighting {
    /// All devices alike.
    #[default]
    Uniform,
    /// By the number of samples.
    Samples,
}

impl Weighting {
    /// The weight of an update from `samples` samples.
    #[must_use]
    pub fn weight(self, samples: u32) -> u32 {
        match self {
            Self::Uniform => 1,
            Self::Samples => samples,
        }
    }
}

/// A device's answer, reassembled and decoded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Update {
    /// Which round it answers.
    pub id: RoundId,
    /// Samples used.
    pub samples: u32,
    /// Samples skipped.
    pub skipped: u32,
    /// Descriptors as they came.
    pub descriptors: Vec<TensorDescriptor>,
    /// The tensors.
    pub tensors: Vec<Tensor>,
}

impl Update {
    pub(crate) fn digest(&self) -> u32 {
        self.tensors.iter().fold(self.samples, |hash, t| hash.rotate_left(5) ^ crc32c_f32(&t.values))
    }
}
