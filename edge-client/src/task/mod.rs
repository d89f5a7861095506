//! Tasks: the computations that a device performs in a round.
//!
//! [`Task`] is the interface between the session and a model: the buffers of incoming tensors, the
//! computation, and the outgoing tensors. [`Linear`] implements it for linear models: FedRep, fit-head and
//! the computation of an initial representation; with features also FedAvg, RoLoRA, FedPower and the
//! selection of a ridge. `Network` (with a feature) implements it for networks: FedRep and FedPer; with a
//! feature also FedAvg and LG-FedAvg. `Scaled` (with a feature) wraps any task and scales the samples as they
//! are read; `ErrorFeedback` (with a feature) adds to a gradient what earlier uploads left out. [`Tasks`] combines two tasks, for example a model and a custom task under a number for private
//! use (`examples/own_device_task.rs`).

#[cfg(feature = "privacy")]
mod counting_source;
#[cfg(feature = "top-k")]
mod error_feedback;
mod fedrep;
#[cfg(feature = "i16")]
mod fixed_point;
#[cfg(feature = "gather")]
mod gather;
mod head_fit;
mod head_solver;
#[cfg(all(feature = "wide", not(target_os = "none")))]
pub mod lanes;
#[cfg(feature = "learned-prior")]
mod learned_prior;
#[cfg(feature = "ridge-choice")]
mod leave_one_out;
mod linear;
mod moments;
#[cfg(feature = "network")]
mod network;
#[cfg(feature = "power")]
mod power;
#[cfg(all(feature = "network", feature = "learned-prior"))]
mod prior_network;
#[cfg(feature = "privacy")]
mod private_fedrep;
mod projection_cache;
#[cfg(feature = "privacy")]
mod quantise;
mod representation_hash;
#[cfg(feature = "ridge-choice")]
mod ridge_scores;
mod row_blocks;
mod sample_pass;
#[cfg(feature = "scale")]
mod scaled;
#[cfg(feature = "shared-head")]
mod shared_head;
mod tasks;

#[cfg(feature = "top-k")]
use fedspan_protocol::message::AckOutcome;
use fedspan_protocol::message::{self, Capabilities, DeclineReason, Descriptors, RoundId, RoundOpen};

use crate::pace::Pace;
use crate::release::Release;
use crate::source::{SampleSource, Targets};
use crate::time::Millis;

#[cfg(feature = "top-k")]
pub use error_feedback::ErrorFeedback;
pub use head_fit::{HeadFit, HeadFits};
use head_solver::{GRADIENT_HEAD, HeadSolver, MINIMUM_NORM};
#[cfg(feature = "learned-prior")]
pub use learned_prior::{LearnedPrior, learned_prior_values};
pub use linear::Linear;
#[cfg(feature = "network")]
pub use network::{Batches, Network, add_gradient};
#[cfg(feature = "power")]
pub use power::PowerCounts;
#[cfg(all(feature = "network", feature = "learned-prior"))]
pub use prior_network::{PriorNetwork, prior_network_values};
use representation_hash::paced_hash;
pub use representation_hash::representation_hash;
#[cfg(feature = "scale")]
pub use scaled::{Scaled, scaled_values};
pub use tasks::Tasks;

/// Numbers of samples in a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of samples used.
    pub samples: u32,
    /// Number of samples skipped because they were not finite, out of range, or of an unknown class.
    pub skipped: u32,
}

impl Usage {
    /// Adds to the number of used or skipped samples.
    fn count(&mut self, samples: u32, used: bool) {
        let counter = if used { &mut self.samples } else { &mut self.skipped };
        *counter = counter.saturating_add(samples);
    }
}

/// Device side of the algorithms that a model supports.
///
/// The session calls `open`, fills the tensors of `tensor_mut`, calls `verify`, then either `run` (for
/// samples that can be read twice) or `begin`, `sample` for each sample, and `finish` (for streamed samples),
/// and uploads the result with `upload` and `emit`. An error before the update is computed leaves the head
/// unchanged, with two exceptions: a shared head is downloaded in place; and after diverging gradient steps
/// the head of a stream, and of a network (which trains in place), is zero (see `Network`).
pub trait Task {
    /// Returns the device's capabilities; the session fills in the frame limit.
    fn capabilities(&self) -> Capabilities;

    /// Returns the set of tasks, as task bits, that can be computed from streamed samples.
    fn streamed_tasks(&self) -> u32;

    /// Checks a round before its tensors are received: task, parameters, roles, shapes.
    ///
    /// # Errors
    /// [`DeclineReason`] if the device declines the round. The state is then unchanged.
    fn open(&mut self, round: &RoundOpen) -> Result<(), DeclineReason>;

    /// Returns the buffer of incoming tensor `index` of the open round. The representation is invalid from
    /// the first call until `verify`.
    fn tensor_mut(&mut self, index: usize) -> Option<&mut [f32]>;

    /// Checks the complete tensors: their values are finite, and orthonormal where the task requires it.
    ///
    /// # Errors
    /// [`DeclineReason`] if a check fails. The representation is then still invalid.
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

    /// Returns the descriptors of the outgoing tensors, without chunk lengths; empty if the task uploads
    /// nothing.
    fn upload(&self) -> Descriptors;

    /// Fills `out` with elements of outgoing tensor `index`, starting at element `first`. The values do not
    /// change until the next round opens, so that a retry sends the same bytes.
    fn emit(&self, index: usize, first: usize, out: &mut [f32]);

    /// Records the server's answer to the update of the last round (feature `top-k`). Called before another round opens, at most once
    /// for a round.
    #[cfg(feature = "top-k")]
    fn acknowledged(&mut self, _outcome: AckOutcome) {}

    /// Returns the privacy cost of a round of `task`, in the units of
    /// [`Privacy`](fedspan_protocol::message::Privacy); 0 if nothing is uploaded or no noise is added. The
    /// session declines a task with a cost unless the feature `privacy` is enabled and [`slot`](Self::slot)
    /// is not 0.
    fn cost(&self, _task: &message::Task) -> u64 {
        0
    }

    /// Returns the response time of a private device, in milliseconds after the start of a computation; 0
    /// without noise. The response time must be longer than any computation, and is the same for all
    /// computations.
    fn slot(&self) -> Millis {
        Millis::ZERO
    }

    /// Prepares the noise of one release, before the session charges its cost and computes the round.
    ///
    /// # Errors
    /// [`DeclineReason`] if the noise cannot be prepared. No cost is then charged, and no sample has been
    /// read.
    fn prepare(&mut self, _release: &Release) -> Result<(), DeclineReason> {
        Ok(())
    }

    /// Returns the pauses of the task's computations, for the work of wrappers such as
    #[cfg_attr(feature = "scale", doc = "[`Scaled`].")]
    #[cfg_attr(not(feature = "scale"), doc = "`Scaled`.")]
    fn pace(&self) -> Pace<'_> {
        Pace::NONE
    }

    /// Returns the current head.
    fn head(&self) -> &[f32];

    /// Returns the current head, for loading a stored head.
    fn head_mut(&mut self) -> &mut [f32];

    /// Returns the hash of the representation that the head was fitted on; `None` if the head was not fitted.
    fn head_fitted_on(&self) -> Option<u32>;

    /// Declares that the head in memory was fitted on the representation with this hash, which [`Self::head_fitted_on`] of
    /// this or an earlier version has returned.
    fn restore_head(&mut self, representation: u32);
}
