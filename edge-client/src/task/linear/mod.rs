//! Linear models: [`Linear`], with its functions for local use (`fit_head`, `predict`). Its rounds are in
//! `rounds`.

mod arithmetic;
mod capabilities;
#[cfg(feature = "privacy")]
mod noise;
mod rounds;

use fedspan_protocol::frame::crc32c_f32;
use fedspan_protocol::message::{DeclineReason, HeadSolve, RoundId, Task as Wire};
use fedspan_protocol::tensor::Encoding;

#[cfg(all(feature = "wide", not(target_os = "none")))]
use super::fedrep::copy;
#[cfg(all(feature = "wide", not(target_os = "none")))]
use super::lanes::{LaneSolver, LaneStep, VerifiedRepresentation};
use super::{HeadFits, HeadSolver, Usage, paced_hash};
use crate::error::{
    NotReady, RepresentationError, check_finite, check_length, check_prediction, check_representation,
};
use crate::kernel::constant_column::ConstantColumn;
use crate::kernel::project;
#[cfg(all(feature = "wide", not(target_os = "none")))]
use fedspan_protocol::message::Numeric;

#[cfg(all(feature = "wide", not(target_os = "none")))]
use crate::mechanism::is_private;
use crate::mechanism::{Mechanism, NoPrivacy};
use crate::memory::{Memory, PartsRef, Shape};
#[cfg(feature = "privacy")]
use crate::privacy::PrivacySettingsError;
use crate::source::SampleSource;
#[cfg(feature = "power")]
use crate::task::PowerCounts;

/// True if this build computes an initial representation by power iterations (`PowerStart`).
const POWER_START: bool = cfg!(feature = "power-start");

/// Linear model `y = W^T B^T x` with the memory `M`. The mechanism `P` protects its updates.
#[derive(Clone, Debug)]
pub struct Linear<M, P = NoPrivacy> {
    memory: M,
    mechanism: P,
    state: State,
}

/// State of a linear model in addition to its buffers.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Hash of the representation in memory; `None` while it is invalid.
    representation: Option<u32>,
    /// Hash of the representation that the head was fitted on.
    head: Option<u32>,
    /// True if `head` is from a record, which may have been written by a version whose hash was the CRC-32C.
    is_restored: bool,
    /// Task of the open round.
    task: Option<Wire>,
    /// Encoding of the open round's tensors.
    received: Encoding,
    /// True if the open round does not send the adapter's down-projection because it is already in memory.
    #[cfg(feature = "shared-head")]
    keeps_adapter: bool,
    /// Numbers of used and skipped samples of the last round.
    usage: Usage,
    /// Solver of heads, with statistics of the fits.
    solver: HeadSolver,
    /// Constant column of streamed samples.
    constant: ConstantColumn,
    /// Row counts of the last FedPower round.
    #[cfg(feature = "power")]
    power: PowerCounts,
}

impl State {
    /// Creates the state without a representation and a head.
    const fn new() -> Self {
        Self {
            representation: None,
            head: None,
            is_restored: false,
            task: None,
            received: Encoding::F32,
            #[cfg(feature = "shared-head")]
            keeps_adapter: false,
            usage: Usage { samples: 0, skipped: 0 },
            solver: HeadSolver::NEW,
            constant: ConstantColumn::NONE,
            #[cfg(feature = "power")]
            power: PowerCounts::NOTHING,
        }
    }

    /// Marks the head as fitted on the representation in memory.
    fn head_is_fitted(&mut self) {
        self.head = self.representation;
        self.is_restored = false;
    }
}

impl<M: Memory> Linear<M> {
    /// Creates a model without a representation and a head. Its updates are sent without noise.
    pub const fn new(memory: M) -> Self {
        Self { memory, mechanism: NoPrivacy, state: State::new() }
    }
}

impl<M: Memory, P: Mechanism> Linear<M, P> {
    /// Creates a model without a representation and a head, whose uploads all receive the noise of
    /// `mechanism`. The model supports fitting the head, FedPower (with the feature `power`), and FedRep if
    /// the mechanism clips ([`Clipped`](crate::privacy::Clipped); not in 16-bit fixed point). FedPower and
    /// FedRep need memory with a second d x k matrix ([`PowerWorkspace`](crate::memory::PowerWorkspace)). The
    /// device answers after the response time of the settings.
    ///
    /// # Errors
    /// [`PrivacySettingsError`] if the mechanism's settings do not match the sizes of the model.
    #[cfg(feature = "privacy")]
    pub fn private(memory: M, mechanism: P) -> Result<Self, PrivacySettingsError> {
        if let Some(settings) = mechanism.settings() {
            noise::variance(&settings, memory.parts_ref().shape)?;
            if let Some(clipping) = mechanism.clipping() {
                noise::gradient_variance(&settings, clipping.clip())?;
            }
        } else if mechanism.clipping().is_some() {
            return Err(PrivacySettingsError::ClipWithoutNoise);
        }
        Ok(Self { memory, mechanism, state: State::new() })
    }

    /// Returns the mechanism, for example to inspect its entropy source.
    pub fn mechanism(&self) -> &P {
        &self.mechanism
    }

    /// Returns the numbers of used and skipped samples of the last round, for use by the firmware. The report
    /// of a device with noise does not depend on these numbers.
    pub fn usage(&self) -> Usage {
        self.state.usage
    }

    /// Returns statistics of head fits, for use by the firmware. The statistics are never sent.
    pub fn head_fits(&self) -> HeadFits {
        self.state.solver.fits
    }

    /// Makes the model decline rounds whose samples do not determine the head, as a build without the feature
    /// `minimum-norm` does ([`DeclineReason::Undetermined`]), so that a simulation decides like such a device. Streamed samples
    /// are solved by the other method in any case.
    #[must_use]
    pub const fn with_normal_equations_only(mut self) -> Self {
        self.state.solver.full_rank_only = true;
        self
    }

    /// Returns true if rounds whose samples do not determine the head are declined.
    pub fn solves_normal_equations_only(&self) -> bool {
        !self.state.solver.has_minimum_norm()
    }

    /// Returns the sizes of the model.
    pub fn shape(&self) -> Shape {
        self.memory.parts_ref().shape
    }

    /// Returns the representation in memory, d x k, or `None` while it is invalid.
    pub fn representation(&self) -> Option<&[f32]> {
        self.state.representation.map(|_| self.memory.parts_ref().representation)
    }

    /// Stores a representation (d x k, row-major, orthonormal columns) without a server.
    ///
    /// # Errors
    /// [`RepresentationError`] if `b` has another number of values, or one that is not finite. The model is then unchanged.
    pub fn set_representation(&mut self, b: &[f32]) -> Result<(), RepresentationError> {
        let parts = self.memory.parts();
        let expected = parts.representation.len();
        if b.len() != expected {
            return Err(RepresentationError::Length { expected, got: b.len() });
        }
        check_representation(b)?;
        for (target, &value) in parts.representation.iter_mut().zip(b) {
            *target = value;
        }
        arithmetic::accept(&mut self.memory);
        self.identify_representation();
        Ok(())
    }

    /// Returns the solver of heads, for the computation of steps in [`lanes`](crate::task::lanes). `None` if the device computes
    /// in another arithmetic or adds noise.
    #[cfg(all(feature = "wide", not(target_os = "none")))]
    pub fn lane_solver(&self) -> Option<LaneSolver> {
        let computes_in_f32 = self.memory.numeric() == Numeric::F32 && !is_private(&self.mechanism);
        computes_in_f32.then_some(LaneSolver(self.state.solver))
    }

    /// Replaces [`Task::verify`](crate::Task::verify) in a round of FedRep whose representation was received in f32 and has the
    /// bits of `verified`. Otherwise returns false and changes nothing.
    #[cfg(all(feature = "wide", not(target_os = "none")))]
    pub fn take_verification(&mut self, verified: &VerifiedRepresentation) -> bool {
        let is_of_round = matches!(self.state.task, Some(Wire::FedRep { .. }))
            && self.state.received == Encoding::F32
            && self.lane_solver().is_some()
            && verified.has_same_bits(self.memory.parts_ref().representation);
        if is_of_round {
            self.state.representation = Some(verified.hash);
            self.recognise_earlier_hash();
        }
        is_of_round
    }

    /// Completes a round of FedRep with a step that was computed in a lane, which replaces [`Task::run`](crate::Task::run). The
    /// caller ensures that it was computed on the representation in memory with the samples of this device. Returns `None` and
    /// changes nothing if there is no step, or the round or the sizes are others.
    #[cfg(all(feature = "wide", not(target_os = "none")))]
    pub fn take_step(&mut self, step: &LaneStep) -> Option<Usage> {
        let Some(Wire::FedRep { head: HeadSolve::LeastSquares { ridge }, .. }) = self.state.task else {
            return None;
        };
        let is_same_round = step.shape == self.shape() && step.ridge.to_bits() == ridge.to_bits();
        if !is_same_round || self.lane_solver().is_none() {
            return None;
        }
        let parts = self.memory.parts();
        copy(parts.head, &step.head);
        copy(parts.residual, &step.residual);
        let width = parts.shape.width;
        self.state.solver.record(step.usage, width, width, ridge);
        self.state.head_is_fitted();
        self.state.usage = step.usage;
        Some(step.usage)
    }

    /// Returns the row counts of the last FedPower round.
    #[cfg(feature = "power")]
    pub fn power_counts(&self) -> PowerCounts {
        self.state.power
    }

    /// Computes the hash of the valid representation in memory.
    fn identify_representation(&mut self) {
        let PartsRef { representation, pace, .. } = self.memory.parts_ref();
        self.state.representation = Some(paced_hash(representation, pace));
        self.recognise_earlier_hash();
    }

    /// Replaces the hash of a restored head if it is the CRC-32C of the representation in memory.
    fn recognise_earlier_hash(&mut self) {
        let State { representation, head, is_restored, .. } = &mut self.state;
        if *is_restored
            && representation.is_some()
            && *head == Some(crc32c_f32(self.memory.parts_ref().representation))
        {
            *head = *representation;
        }
    }

    /// Fits the head on the representation in memory, from `samples`.
    ///
    /// # Errors
    /// [`DeclineReason::Tensors`] without a representation, [`DeclineReason::Parameter`] if a ridge or a step size is not finite or
    /// is negative, or if there are no steps or no such solver in this build, [`DeclineReason::NoSamples`] without a usable
    /// sample, [`DeclineReason::Device`] if the source fails, [`DeclineReason::UpdateNonFinite`] if gradient
    /// steps diverge.
    pub fn fit_head(
        &mut self,
        head: HeadSolve,
        samples: &mut dyn SampleSource,
    ) -> Result<Usage, DeclineReason> {
        if self.state.representation.is_none() {
            return Err(DeclineReason::Tensors);
        }
        if !capabilities::valid_parameters(self.shape(), &Wire::FitHead { head }) {
            return Err(DeclineReason::Parameter);
        }
        let Self { memory, state, .. } = self;
        let usage = arithmetic::solve_head(memory, head, &mut state.solver, RoundId::default(), samples)?;
        self.state.head_is_fitted();
        Ok(usage)
    }

    /// Computes the prediction for one sample: `out = W^T B^T x`.
    ///
    /// # Errors
    /// [`NotReady`] if there is no verified representation or no head fitted on it, if a value of `x` or of the prediction is not
    /// finite, or if a length does not match.
    pub fn predict(&mut self, x: &[f32], out: &mut [f32]) -> Result<(), NotReady> {
        let hash = self.state.representation.ok_or(NotReady::NoRepresentation)?;
        if self.state.head != Some(hash) {
            return Err(NotReady::NoHead);
        }
        let shape = self.shape();
        check_length(shape.features, x.len())?;
        check_length(shape.outputs, out.len())?;
        check_finite(x)?;
        arithmetic::project(&mut self.memory, x);
        let parts = self.memory.parts();
        project::apply_head(parts.head, parts.z, out);
        // Finite values can be so large that a sum overflows, or fixed point has no room for them.
        check_prediction(out)
    }
}
