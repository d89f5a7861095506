//! What a device computes in a round.
//!
//! [`Task`] is what the session needs to know: which tensors come in, where they go, what goes out.
//! [`Linear`] implements it for linear models: FedRep, fit-head, and the starts; FedAvg, RoLoRA, FedPower and the choice of a ridge
//! behind features.
//! `Scaled` (a feature) wraps either of them: its samples are scaled as they are read.
//! `Network` (a feature) implements it for networks: FedRep, FedPer; FedAvg and LG-FedAvg behind a feature.

mod fedrep;
mod fits;
#[cfg(feature = "i16")]
mod fixed;
#[cfg(feature = "privacy")]
mod hidden;
#[cfg(feature = "ridge-choice")]
mod left_out;
mod linear;
#[cfg(feature = "network")]
mod network;
mod pass;
#[cfg(feature = "power")]
mod power;
#[cfg(feature = "privacy")]
mod presented;
mod projected;
#[cfg(feature = "ridge-choice")]
mod ridge_scores;
#[cfg(feature = "privacy")]
mod rounded;
mod rows;
#[cfg(feature = "scale")]
mod scaled;
#[cfg(feature = "shared-head")]
mod shared;
mod start;

use fedspan_protocol::message::{self, Capabilities, DeclineReason, Descriptors, RoundId, RoundOpen};

use crate::mechanism::Release;
use crate::source::{SampleSource, Targets};
use crate::time::Millis;

pub use fits::{HeadFit, HeadFits};
pub use linear::Linear;
#[cfg(feature = "network")]
pub use network::{Batches, Network, add_gradient};
#[cfg(feature = "power")]
pub use power::PowerCounts;
#[cfg(feature = "scale")]
pub use scaled::{Scaled, scaled_values};

/// How many samples a round used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Samples that entered the sums.
    pub samples: u32,
    /// Samples that were skipped: not finite, out of range, or of an unknown class.
    pub skipped: u32,
}

impl Usage {
    fn count(&mut self, samples: u32, used: bool) {
        let counter = if used { &mut self.samples } else { &mut self.skipped };
        *counter = counter.saturating_add(samples);
    }
}

/// One device's part of the algorithms it can take part in.
///
/// A round is `open`, the tensors through `tensor_mut`, `verify`, then either `run` (samples that can be
/// read twice) or `begin`, `sample`..., `finish` (samples that are seen once), then the upload through
/// `upload` and `emit`. An error before an update has been computed leaves the head as it was, with these
/// exceptions: a shared head is downloaded in place; gradient steps over a stream that diverge leave zero, and so do those
/// of a network, which learns in place (`Network` says more).
pub trait Task {
    /// What this device can do; the session fills in the frame limit.
    fn capabilities(&self) -> Capabilities;

    /// Which of the tasks can be computed from samples that are seen once: a set of task bits.
    fn streamed_tasks(&self) -> u16;

    /// Checks a round before any of its tensors is taken: task, parameters, roles, shapes.
    ///
    /// # Errors
    /// The reason to decline; nothing has changed then.
    fn open(&mut self, round: &RoundOpen) -> Result<(), DeclineReason>;

    /// The buffer of incoming tensor `index` of the open round. From the first call until `verify` the
    /// representation is invalid.
    fn tensor_mut(&mut self, index: usize) -> Option<&mut [f32]>;

    /// Checks the tensors when all have come: finite, orthonormal where that is promised.
    ///
    /// # Errors
    /// The reason to decline; the representation stays invalid.
    fn verify(&mut self) -> Result<(), DeclineReason>;

    /// Computes the round from samples that can be read twice.
    ///
    /// # Errors
    /// The reason to decline.
    fn run(&mut self, id: RoundId, source: &mut dyn SampleSource) -> Result<Usage, DeclineReason>;

    /// Starts a round whose samples will be seen once.
    ///
    /// # Errors
    /// [`DeclineReason::Task`] if the task or the memory cannot do that.
    fn begin(&mut self) -> Result<(), DeclineReason>;

    /// Takes one sample (d values, one target) and returns how many have been used so far.
    fn sample(&mut self, x: &[f32], target: Targets<'_>) -> u32;

    /// Ends a round whose samples were seen once.
    ///
    /// # Errors
    /// The reason to decline.
    fn finish(&mut self) -> Result<Usage, DeclineReason>;

    /// The tensors that leave, without chunk lengths. Empty if the task uploads nothing.
    fn upload(&self) -> Descriptors;

    /// Elements `first..` of outgoing tensor `index`, as many as `out` holds. Always the same values
    /// until the next round opens, so that a retry sends the same bytes.
    fn emit(&self, index: usize, first: usize, out: &mut [f32]);

    /// What a round of `task` costs of the device's privacy budget, in the units of
    /// [`Privacy`](fedspan_protocol::message::Privacy): 0 where nothing leaves, or nothing is hidden in noise. What costs
    /// something needs the feature `privacy` and a [`slot`](Self::slot): without them the session declines it.
    fn cost(&self, _task: &message::Task) -> u64 {
        0
    }

    /// How long a private device is quiet after it has begun to compute, whatever it computes: longer than that ever
    /// takes. 0 where nothing is private.
    fn slot(&self) -> Millis {
        Millis::ZERO
    }

    /// A round that costs something is about to be paid for and computed; its noise is for this release alone.
    ///
    /// # Errors
    /// The reason to decline. Nothing is paid then, and no sample was read.
    fn prepare(&mut self, _release: &Release) -> Result<(), DeclineReason> {
        Ok(())
    }

    /// The head in use.
    fn head(&self) -> &[f32];

    /// Where a stored head is read into.
    fn head_mut(&mut self) -> &mut [f32];

    /// Hash of the representation that the head was fitted on, if it was fitted.
    fn head_fitted_on(&self) -> Option<u32>;

    /// States that the head in memory was fitted on the representation with this hash.
    fn restore_head(&mut self, representation: u32);
}
