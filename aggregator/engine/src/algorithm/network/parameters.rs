//! Parameters common to the algorithms on networks, and the shared layers and task of their rounds.

use fedspan_protocol::message::{Descent, Task};
use fedspan_protocol::tensor::Encoding;

use super::layers::{NetworkShape, SharedLayers};
use crate::aggregate::Rule;
use crate::types::Weighting;

/// Parameters common to all algorithms on networks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkParameters {
    /// Sizes of the network.
    pub shape: NetworkShape,
    /// Stochastic gradient descent of the devices: step size, momentum and batch size.
    pub descent: Descent,
    /// Number of epochs per round in which devices train the head (FedRep).
    pub head_epochs: u16,
    /// Number of epochs per round in which devices train the other layers.
    pub epochs: u16,
    /// Encoding of the layers sent to devices.
    pub download_encoding: Encoding,
    /// Encoding of the devices' uploads.
    pub upload_encoding: Encoding,
    /// Weighting of the updates.
    pub weighting: Weighting,
    /// Rule that combines the updates.
    pub rule: Rule,
    /// Number of devices in the fleet.
    pub fleet: usize,
    /// Seed of the initial network and of L2GD's coin.
    pub seed: u64,
    /// Number of rounds in which the network is trained.
    pub training_rounds: u32,
    /// Number of the first device.
    pub first_device: u64,
}

/// Shared layers and task of the rounds of an algorithm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// Layers that devices and server exchange.
    pub shared: SharedLayers,
    /// Task of the devices.
    pub task: Task,
}
