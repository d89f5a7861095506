//! Server side of the algorithms: each creates the request of a round, absorbs the updates, and computes the
//! next model. The choice of participants is separate (see [`crate::participation`]).
//!
//! A *start* is an algorithm that runs before training and provides the initial representation, or a scale of
//! the samples.

mod decoded;
mod linear;
mod names;
pub mod network;
pub mod scale;
mod start;

use fedspan_protocol::message::HeadSolve;
use fedspan_protocol::tensor::Role;

pub use decoded::decoded_representation;
pub use linear::*;
pub use names::{algorithms, network_only_names};
pub use scale::{Scale, ScaleSource};
pub use start::{MomentsStart, PowerStart, random_start};

use crate::aggregate::UpdateWeight;
use crate::linalg::{Matrix, RankDeficient};
use crate::participation::UploadLayout;
use crate::types::{DeviceId, Request, Tensor};

/// Algorithm on the server, with its state.
pub trait Algorithm: Send {
    /// Creates the request of the next round.
    fn request(&self) -> Request;

    /// Returns one request for each kind of round. The required capabilities of devices follow from these.
    fn requests(&self) -> Vec<Request> {
        vec![self.request()]
    }

    /// Roles of the request's tensors that have not changed since the last round. A device that trained in
    /// the last round is sent only the other tensors.
    fn unchanged(&self) -> &[Role] {
        &[]
    }

    /// Device of `fleet` (ascending, not empty) that the next round needs as a reference, if any. The
    /// reference is invited even if it was not drawn.
    fn reference(&self, _fleet: &[DeviceId]) -> Option<DeviceId> {
        None
    }

    /// Whether the present round is for this device. An algorithm that compares groups of devices trains with some of them in a round
    /// and scores others in the next.
    fn asks(&self, _device: DeviceId) -> bool {
        true
    }

    /// Whether the present round invites all present devices that it [asks](Self::asks), without the participation policy. An algorithm that
    /// chooses between models by the scores of devices compares them on the same devices.
    fn asks_all(&self) -> bool {
        false
    }

    /// Whether an update computed from `samples` samples is usable. The update matches [`Request::expects`].
    fn admits(&self, _samples: u32, _tensors: &[Tensor]) -> bool {
        true
    }

    /// Absorbs a device's update that matches [`Request::expects`] and was admitted.
    fn absorb(&mut self, device: DeviceId, weight: UpdateWeight, tensors: &[Tensor]);

    /// Computes the next model from the absorbed updates.
    ///
    /// # Errors
    /// [`RankDeficient`] if the new representation would not have full rank; the model is then unchanged.
    fn finish(&mut self) -> Result<(), RankDeficient>;

    /// Representation, d x k; for a network, all shared layers concatenated into one column.
    fn representation(&self) -> &Matrix;

    /// Model whose steps participation policies measure: the representation, d x k, or all shared layers of a
    /// network in one column.
    fn model(&self) -> &Matrix {
        self.representation()
    }

    /// Place in [`Self::model`] of the values that devices upload in the present round.
    fn upload_layout(&self) -> UploadLayout {
        UploadLayout::Representation
    }

    /// Whether the present round is the first of a cycle. An algorithm that trains different values in
    /// successive rounds, as alternating factors, has trained all of them after one cycle.
    fn begins_cycle(&self) -> bool {
        true
    }

    /// Relative error, in the last round, of the product of the averaged factors compared with the average of
    /// the products; `None` for a model that is not a product of two factors.
    fn interference(&self) -> Option<f64> {
        None
    }

    /// Shared head, k x C, if the algorithm has one.
    fn shared_head(&self) -> Option<&Matrix> {
        None
    }

    /// Prior of heads that the fleet has chosen; `None` before that, and for an algorithm without one.
    fn chosen_prior(&self) -> Option<ChosenPrior> {
        None
    }

    /// Matrices of the prior that the fleet has chosen; `None` as for [`Self::chosen_prior`].
    fn head_prior(&self) -> Option<HeadPrior> {
        None
    }

    /// Creates the request that makes devices fit their heads on the current representation.
    fn fit_request(&self, head: HeadSolve) -> Request;

    /// State on which the next round depends, as numbers in a fixed order.
    fn state(&self) -> Vec<f64>;

    /// Restores a state that [`Self::state`] returned. If its length differs, returns false and changes
    /// nothing.
    fn restore(&mut self, state: &[f64]) -> bool;

    /// Representation with which training begins after this start; `None` if the start computes no
    /// representation (for example, only a scale).
    fn basis(&self) -> Option<&Matrix> {
        Some(self.representation())
    }

    /// Scale of the devices' samples, if the campaign has one and it has been computed.
    fn scale(&self) -> Option<Scale> {
        None
    }

    /// Sets the scale of the samples, which a start has computed.
    fn set_scale(&mut self, _scale: &Scale) {}

    /// Copy of the algorithm with the updates that it has absorbed, for a rehearsal of a round
    /// ([`Engine::rehearsal`](crate::Engine::rehearsal)); `None` if the algorithm offers none.
    fn copy(&self) -> Option<Box<dyn Algorithm>> {
        None
    }

    /// Number of rounds of a start; `u32::MAX` for training algorithms, whose number of rounds the campaign
    /// sets.
    fn rounds_needed(&self) -> u32 {
        u32::MAX
    }
}
