//! The server's side of each algorithm: what is broadcast, how updates are absorbed, what a round makes
//! of them. Who takes part is none of their business (see [`crate::participation`]).

mod fedavg;
mod fedpower;
mod fedrep;
pub mod network;
mod rolora;
pub mod scale;
mod start;

use fedspan_protocol::message::HeadSolve;
use fedspan_protocol::tensor::Role;

pub use fedavg::{FedAvg, FedAvgParameters};
pub use fedpower::{FedPower, FedPowerParameters, synchronisations};
pub use fedrep::{FedRep, FedRepParameters};
pub use rolora::{LinearAdapter, LinearAdapterParameters};
pub use scale::{Scale, ScaleSource};
pub use start::{MomentsStart, PowerStart, random_start};

use crate::aggregate::UpdateWeight;
use crate::linalg::{Matrix, RankDeficient};
use crate::types::{DeviceId, Request, Tensor};

/// One algorithm's state on the server.
pub trait Algorithm: Send {
    /// What the next round asks for.
    fn request(&self) -> Request;

    /// One request of each kind of round: what devices must be able to do, and what they may send.
    fn requests(&self) -> Vec<Request> {
        vec![self.request()]
    }

    /// Roles of the request's tensors that are what they were in the round before, for all who trained in it: they get
    /// only the others.
    fn unchanged(&self) -> &[Role] {
        &[]
    }

    /// Who of `fleet` (ascending, not empty) the next round cannot do without, if anybody: it is asked although it was
    /// not drawn.
    fn reference(&self, _fleet: &[DeviceId]) -> Option<DeviceId> {
        None
    }

    /// Whether an update of so many samples that fits [`Request::expects`] can be made use of.
    fn admits(&self, _samples: u32, _tensors: &[Tensor]) -> bool {
        true
    }

    /// Adds a device's update that has been checked against [`Request::expects`] and is admitted.
    fn absorb(&mut self, device: DeviceId, weight: UpdateWeight, tensors: &[Tensor]);

    /// Makes the next model of what was absorbed.
    ///
    /// # Errors
    /// [`RankDeficient`] if no representation of full width is left; the model is unchanged.
    fn finish(&mut self) -> Result<(), RankDeficient>;

    /// The representation, d x k; of a network all layers that travel, one after the other, as one column.
    fn representation(&self) -> &Matrix;

    /// What the first tensor of an update is about: what moves from round to round.
    fn model(&self) -> &Matrix {
        self.representation()
    }

    /// By how much the product of averaged factors missed the mean of products in the round that was finished last, relative to
    /// the latter, where the model is a product.
    fn interference(&self) -> Option<f64> {
        None
    }

    /// The shared head, k x C, where there is one.
    fn shared_head(&self) -> Option<&Matrix> {
        None
    }

    /// The request that lets devices fit their heads on the representation as it is now.
    fn fit_request(&self, head: HeadSolve) -> Request;

    /// All state that the next round depends on, in a fixed order.
    fn state(&self) -> Vec<f64>;

    /// Puts [`Self::state`] back. False, with nothing changed, if it has another length.
    fn restore(&mut self, state: &[f64]) -> bool;

    /// The representation that a start hands over, if it is a start that finds one.
    fn basis(&self) -> Option<&Matrix> {
        Some(self.representation())
    }

    /// The scale of the devices' samples, where they have one and it is known.
    fn scale(&self) -> Option<Scale> {
        None
    }

    /// The scale that a start has found.
    fn set_scale(&mut self, _scale: &Scale) {}

    /// A start is finished when this many rounds are; algorithms run as long as they are told.
    fn rounds_needed(&self) -> u32 {
        u32::MAX
    }
}
