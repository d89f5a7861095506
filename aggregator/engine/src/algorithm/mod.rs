//! Server side of each algorithm: the request of a round, the absorption of updates, and the next model. The
//! choice of participants is separate (see [`crate::participation`]). A start is an algorithm that runs before training
//! and hands over its representation or a scale.

mod decoded;
mod linear;
mod names;
pub mod network;
pub mod scale;
mod start;

use fedspan_protocol::message::HeadSolve;
use fedspan_protocol::tensor::Role;

pub use linear::*;
pub use names::{algorithms, network_only_names};
pub use scale::{Scale, ScaleSource};
pub use start::{MomentsStart, PowerStart, random_start};

use crate::aggregate::UpdateWeight;
use crate::linalg::{Matrix, RankDeficient};
use crate::types::{DeviceId, Request, Tensor};

/// State of one algorithm on the server.
pub trait Algorithm: Send {
    /// Request of the next round.
    fn request(&self) -> Request;

    /// One request of each kind of round, from which the required capabilities of devices follow.
    fn requests(&self) -> Vec<Request> {
        vec![self.request()]
    }

    /// Roles of the request's tensors that have not changed since the last round. Devices that trained in it
    /// are sent only the others.
    fn unchanged(&self) -> &[Role] {
        &[]
    }

    /// Device of `fleet` (ascending, not empty) that the next round needs as a reference, if any. It is
    /// invited even if it was not drawn.
    fn reference(&self, _fleet: &[DeviceId]) -> Option<DeviceId> {
        None
    }

    /// Whether an update of `samples` samples that matches [`Request::expects`] is usable.
    fn admits(&self, _samples: u32, _tensors: &[Tensor]) -> bool {
        true
    }

    /// Absorbs a device's update that matches [`Request::expects`] and was admitted.
    fn absorb(&mut self, device: DeviceId, weight: UpdateWeight, tensors: &[Tensor]);

    /// Computes the next model from the absorbed updates.
    ///
    /// # Errors
    /// [`RankDeficient`] if no representation of full width is left; the model is unchanged then.
    fn finish(&mut self) -> Result<(), RankDeficient>;

    /// Representation, d x k; for a network all shared layers, concatenated into one column.
    fn representation(&self) -> &Matrix;

    /// Model to which the first tensor of an update refers; participation policies watch how it moves.
    fn model(&self) -> &Matrix {
        self.representation()
    }

    /// Relative error, in the last round, of the product of the averaged factors compared with the average of the
    /// products; `None` for a model that is not a product of two factors.
    fn interference(&self) -> Option<f64> {
        None
    }

    /// Shared head, k x C, if the algorithm has one.
    fn shared_head(&self) -> Option<&Matrix> {
        None
    }

    /// Request with which devices fit their heads on the current representation.
    fn fit_request(&self, head: HeadSolve) -> Request;

    /// State on which the next round depends, in a fixed order.
    fn state(&self) -> Vec<f64>;

    /// Restores [`Self::state`]. Returns false, with nothing changed, if the length differs.
    fn restore(&mut self, state: &[f64]) -> bool;

    /// Representation with which training begins after this start; `None` if the start computes none (as that of a
    /// scale).
    fn basis(&self) -> Option<&Matrix> {
        Some(self.representation())
    }

    /// Scale of the devices' samples, if there is one and it is known.
    fn scale(&self) -> Option<Scale> {
        None
    }

    /// Sets the scale of the samples that a start has computed.
    fn set_scale(&mut self, _scale: &Scale) {}

    /// Number of rounds of a start; `u32::MAX` for other algorithms, whose rounds the campaign counts.
    fn rounds_needed(&self) -> u32 {
        u32::MAX
    }
}
