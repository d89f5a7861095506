//! Tasks: the computations of a device in a round.
//!
//! [`Task`] is the interface of the session to a model: the buffers of incoming tensors, the computation, and the
//! outgoing tensors. [`Linear`] implements it for linear models: FedRep, fit-head and the starts; with features
//! FedAvg, RoLoRA, FedPower and the selection of a ridge. `Network` (a feature) implements it for networks: FedRep
//! and FedPer; with a feature FedAvg and LG-FedAvg. `Scaled` (a feature) wraps any task and scales the samples as
//! they are read. [`Tasks`] combines two tasks, for example a model and an own task under a number for private use
//! (`examples/own_device_task.rs`).

#[cfg(feature = "privacy")]
mod counting_source;
mod fedrep;
#[cfg(feature = "i16")]
mod fixed_point;
mod head_fit;
#[cfg(feature = "ridge-choice")]
mod leave_one_out;
mod linear;
mod moments;
#[cfg(feature = "network")]
mod network;
#[cfg(feature = "power")]
mod power;
#[cfg(feature = "privacy")]
mod private_fedrep;
mod projection_cache;
#[cfg(feature = "privacy")]
mod quantise;
#[cfg(feature = "ridge-choice")]
mod ridge_scores;
mod row_blocks;
mod sample_pass;
#[cfg(feature = "scale")]
mod scaled;
#[cfg(feature = "shared-head")]
mod shared_head;
mod tasks;

use fedspan_protocol::message::{self, Capabilities, DeclineReason, Descriptors, RoundId, RoundOpen};

use crate::release::Release;
use crate::source::{SampleSource, Targets};
use crate::time::Millis;

pub use head_fit::{HeadFit, HeadFits};
pub use linear::Linear;
#[cfg(feature = "network")]
pub use network::{Batches, Network, add_gradient};
#[cfg(feature = "power")]
pub use power::PowerCounts;
#[cfg(feature = "scale")]
pub use scaled::{Scaled, scaled_values};
pub use tasks::Tasks;

/// Numbers of samples in a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of samples used.
    pub samples: u32,
    /// Number of samples skipped: not finite, out of range, or of an unknown class.
    pub skipped: u32,
}

impl Usage {
    fn count(&mut self, samples: u32, used: bool) {
        let counter = if used { &mut self.samples } else { &mut self.skipped };
        *counter = counter.saturating_add(samples);
    }
}

/// Device side of the algorithms that a model can take part in.
///
/// A round calls `open`, fills the tensors of `tensor_mut`, calls `verify`, then either `run` (samples that can be
/// read twice) or `begin`, `sample`..., `finish` (streamed samples), and uploads by `upload` and `emit`. An error
/// before the update is computed leaves the head unchanged, with these exceptions: a shared head is downloaded in
/// place; after diverging gradient steps the head of a stream and of a network, which trains in place, is zero (see
/// `Network`).
pub trait Task {
    /// Returns the device's capabilities; the session fills in the frame limit.
    fn capabilities(&self) -> Capabilities;

    /// Returns the set of tasks, as task bits, that can be computed from streamed samples.
    fn streamed_tasks(&self) -> u16;

    /// Checks a round before its tensors are received: task, parameters, roles, shapes.
    ///
    /// # Errors
    /// [`DeclineReason`] if the device declines the round; nothing has changed then.
    fn open(&mut self, round: &RoundOpen) -> Result<(), DeclineReason>;

    /// Returns the buffer of incoming tensor `index` of the open round. The representation is invalid from the
    /// first call until `verify`.
    fn tensor_mut(&mut self, index: usize) -> Option<&mut [f32]>;

    /// Checks the complete tensors: finite, and orthonormal where the task requires it.
    ///
    /// # Errors
    /// [`DeclineReason`] if a check fails; the representation stays invalid.
    fn verify(&mut self) -> Result<(), DeclineReason>;

    /// Computes the round from samples that can be read twice.
    ///
    /// # Errors
    /// [`DeclineReason`] if the round cannot be computed.
    fn run(&mut self, id: RoundId, source: &mut dyn SampleSource) -> Result<Usage, DeclineReason>;

    /// Starts a round with streamed samples.
    ///
    /// # Errors
    /// [`DeclineReason::Task`] if the task or the memory does not support streams.
    fn begin(&mut self) -> Result<(), DeclineReason>;

    /// Adds one streamed sample (d values, one target) and returns the number of usable samples so far.
    fn sample(&mut self, x: &[f32], target: Targets<'_>) -> u32;

    /// Finishes a round with streamed samples.
    ///
    /// # Errors
    /// [`DeclineReason`] if the round cannot be computed.
    fn finish(&mut self) -> Result<Usage, DeclineReason>;

    /// Returns the descriptors of the outgoing tensors, without chunk lengths. Empty if the task uploads nothing.
    fn upload(&self) -> Descriptors;

    /// Writes elements `first..` of outgoing tensor `index` to fill `out`. The values are the same until the next
    /// round opens, so that a retry sends the same bytes.
    fn emit(&self, index: usize, first: usize, out: &mut [f32]);

    /// Returns the privacy cost of a round of `task`, in the units of
    /// [`Privacy`](fedspan_protocol::message::Privacy): 0 if nothing is uploaded or no noise is added. The session
    /// declines a task with a cost unless the feature `privacy` is enabled and [`slot`](Self::slot) is not 0.
    fn cost(&self, _task: &message::Task) -> u64 {
        0
    }

    /// Returns the response time of a private device, in milliseconds after the start of a computation. It is
    /// longer than any computation, and the same for all. 0 without noise.
    fn slot(&self) -> Millis {
        Millis::ZERO
    }

    /// Prepares the noise of one release, before the session charges its cost and computes the round.
    ///
    /// # Errors
    /// [`DeclineReason`] if the noise cannot be prepared; no cost is charged then, and no sample was read.
    fn prepare(&mut self, _release: &Release) -> Result<(), DeclineReason> {
        Ok(())
    }

    /// Returns the current head.
    fn head(&self) -> &[f32];

    /// Returns the current head for loading a stored one.
    fn head_mut(&mut self) -> &mut [f32];

    /// Returns the hash of the representation that the head was fitted on, if it was fitted.
    fn head_fitted_on(&self) -> Option<u32>;

    /// Declares that the head in memory was fitted on the representation with this hash.
    fn restore_head(&mut self, representation: u32);
}
