//! Rounds of a linear model: its implementation of the [`Task`] trait.

use fedspan_protocol::message::{
    Capabilities, DeclineReason, Descriptors, Numeric, RoundId, RoundOpen, Task as Wire, Upload,
};
use fedspan_protocol::orthonormal::orthonormalise_in_parts;
#[cfg(feature = "shared-head")]
use fedspan_protocol::tensor::Role;
use fedspan_protocol::tensor::{Encoding, TensorDescriptor};

#[cfg(feature = "privacy")]
use super::noise;
use super::{Linear, POWER_START, arithmetic, capabilities};
use crate::kernel::constant_column::ConstantColumn;
use crate::kernel::{all_within, gradient};
use crate::mechanism::{Mechanism, declared_privacy, is_private, sends_gradients};
use crate::memory::{Memory, Parts, PartsRef};
use crate::pace::Pace;
#[cfg(feature = "privacy")]
use crate::release::Release;
use crate::source::{SampleSource, Targets};
#[cfg(feature = "power")]
use crate::task::power;
#[cfg(feature = "privacy")]
use crate::task::private_fedrep;
#[cfg(feature = "ridge-choice")]
use crate::task::ridge_scores;
#[cfg(feature = "shared-head")]
use crate::task::sample_pass::SampleSet;
use crate::task::sample_pass::count;
#[cfg(feature = "shared-head")]
use crate::task::shared_head;
use crate::task::{Task, Usage, fedrep, moments};
#[cfg(feature = "privacy")]
use crate::time::Millis;

impl<M: Memory, P: Mechanism> Task for Linear<M, P> {
    fn capabilities(&self) -> Capabilities {
        let second = self.memory.parts_ref().extra_matrix.is_some();
        let (numeric, privacy) = (self.memory.numeric(), declared_privacy(&self.mechanism));
        let has_minimum_norm = self.state.solver.has_minimum_norm();
        capabilities::capabilities(
            self.shape(),
            numeric,
            second,
            privacy,
            self.supports_fedrep(),
            has_minimum_norm,
        )
    }

    fn streamed_tasks(&self) -> u32 {
        capabilities::streamed_tasks(self.supports_fedrep())
    }

    fn open(&mut self, round: &RoundOpen) -> Result<(), DeclineReason> {
        let expected = capabilities::expected(self.shape(), &round.task)?;
        let open = !is_private(&self.mechanism);
        let possible = match round.task {
            Wire::FitHead { .. } => true,
            Wire::FedRep { .. } => self.supports_fedrep(),
            Wire::FedAvg { .. } | Wire::AdapterUp { .. } | Wire::AdapterDown { .. } => {
                open && self.memory.numeric() == Numeric::F32
            }
            #[cfg(feature = "power")]
            Wire::FedPower { .. } => self.memory.parts_ref().extra_matrix.is_some(),
            #[cfg(feature = "ridge-choice")]
            Wire::RidgeScores { .. } => open && self.state.solver.has_minimum_norm(),
            _ => open,
        };
        if !possible {
            return Err(DeclineReason::Task);
        }
        if !capabilities::valid_parameters(self.shape(), &round.task)
            || capabilities::iterations(&round.task) > self.iterations_max()
        {
            return Err(DeclineReason::Parameter);
        }
        let same = |(a, b): (&TensorDescriptor, &TensorDescriptor)| {
            a.role == b.role && a.rows == b.rows && a.cols == b.cols
        };
        #[cfg(feature = "shared-head")]
        let (expected, keeps_adapter) = {
            let is_adapter = matches!(round.task, Wire::AdapterUp { .. } | Wire::AdapterDown { .. });
            let keeps_adapter = is_adapter
                && self.state.representation.is_some()
                && round.tensors.first().is_none_or(|tensor| tensor.role != Role::AdapterDown);
            (expected.get(usize::from(keeps_adapter)..).unwrap_or_default(), keeps_adapter)
        };
        if expected.len() != round.tensors.len() || !expected.iter().zip(&round.tensors).all(same) {
            return Err(DeclineReason::Tensors);
        }
        let mut encodings = round.tensors.iter().map(|t| t.encoding);
        let first = encodings.next().unwrap_or_default();
        if encodings.any(|other| other != first) {
            return Err(DeclineReason::Tensors);
        }
        #[cfg(feature = "privacy")]
        noise::clear(&mut self.mechanism);
        self.state.task = Some(round.task);
        self.state.received = first;
        #[cfg(feature = "shared-head")]
        {
            self.state.keeps_adapter = keeps_adapter;
        }
        Ok(())
    }

    fn tensor_mut(&mut self, index: usize) -> Option<&mut [f32]> {
        #[cfg(feature = "shared-head")]
        let index = index + usize::from(self.state.keeps_adapter);
        let parts = self.memory.parts();
        match (index, &self.state.task) {
            (0, Some(_)) => {
                self.state.representation = None;
                Some(parts.representation)
            }
            #[cfg(feature = "shared-head")]
            (1, Some(Wire::FedAvg { .. } | Wire::AdapterDown { .. })) => {
                self.state.head = None;
                Some(parts.head)
            }
            _ => None,
        }
    }

    fn verify(&mut self) -> Result<(), DeclineReason> {
        // The sensitivity of a noisy product requires an exactly orthonormal basis.
        let certify = self.is_private() && matches!(self.state.task, Some(Wire::FedPower { .. }));
        // `shared`: tasks that receive a head. `trained`: tasks whose `B` is not orthonormal.
        let (shared, trained) = match self.state.task {
            #[cfg(feature = "reveal-moments")]
            Some(Wire::MomentRows { .. }) => return Ok(()),
            #[cfg(feature = "shared-head")]
            Some(Wire::FedAvg { .. }) => (true, true),
            #[cfg(feature = "shared-head")]
            Some(Wire::AdapterDown { .. }) => (true, false),
            _ => (false, false),
        };
        let is_finite = |values: &[f32]| all_within(values, f32::MAX);
        let PartsRef { representation, head, .. } = self.memory.parts_ref();
        // The error below is not finite for any other representation that is not finite.
        if (trained && !is_finite(representation)) || (shared && !is_finite(head)) {
            return Err(DeclineReason::NonFinite);
        }
        // True if the representation in memory is the one that was checked.
        let mut is_checked = false;
        if !trained {
            let tolerance = self.state.received.orthonormality_tolerance();
            let error = arithmetic::orthonormality_error(&mut self.memory, tolerance);
            // The condition is false for a NaN.
            let close = error <= tolerance;
            if !close && !is_finite(self.memory.parts_ref().representation) {
                return Err(DeclineReason::NonFinite);
            }
            if !close {
                return Err(DeclineReason::NotOrthonormal { error });
            }
            is_checked = true;
            if self.state.received == Encoding::I8 || certify {
                let Parts { shape, representation, pace, .. } = self.memory.parts();
                orthonormalise_in_parts(representation, shape.width, &mut |work| pace.spend(work))
                    .map_err(|_| DeclineReason::NotOrthonormal { error })?;
                is_checked = false;
            }
        }
        #[cfg(feature = "power")]
        if let Some(Wire::FedPower { .. }) = self.state.task {
            // The basis of FedPower is not a representation for predictions.
            return Ok(());
        }
        if !is_checked {
            arithmetic::accept(&mut self.memory);
        }
        self.identify_representation();
        Ok(())
    }

    fn run(&mut self, id: RoundId, source: &mut dyn SampleSource) -> Result<Usage, DeclineReason> {
        #[cfg(feature = "privacy")]
        if self.is_private() {
            return noise::run(self, id, source);
        }
        let Self { memory, state, .. } = self;
        let usage = match state.task.ok_or(DeclineReason::Task)? {
            Wire::FedRep { head, .. } => {
                let usage = arithmetic::fedrep(memory, head, &mut state.solver, id, source)?;
                state.head_is_fitted();
                usage
            }
            Wire::FitHead { head } => {
                let usage = arithmetic::solve_head(memory, head, &mut state.solver, id, source)?;
                state.head_is_fitted();
                usage
            }
            #[cfg(feature = "shared-head")]
            Wire::FedAvg { step_size, head_step_size, local_steps, .. } => {
                state.representation = None;
                state.head = None;
                shared_head::run(&mut memory.parts(), step_size, head_step_size, local_steps, id, source)?
            }
            #[cfg(feature = "shared-head")]
            Wire::AdapterUp { head, .. } => {
                let usage = fedrep::solve_head(
                    &mut memory.parts(),
                    head,
                    &mut state.solver,
                    id,
                    SampleSet::All,
                    source,
                )?;
                state.head_is_fitted();
                usage
            }
            #[cfg(feature = "shared-head")]
            Wire::AdapterDown { .. } => {
                let usage = shared_head::residual(&mut memory.parts(), id, source)?;
                state.head_is_fitted();
                usage
            }
            #[cfg(feature = "ridge-choice")]
            ref task @ Wire::RidgeScores { .. } => {
                let grid = ridge_scores::Grid::from_task(task).ok_or(DeclineReason::Task)?;
                // The head must be fitted again on the new representation.
                state.head = None;
                ridge_scores::run(&mut memory.parts(), grid, id, source)?
            }
            Wire::PowerStart if POWER_START => {
                state.representation = None;
                moments::power(&mut memory.parts(), id, source)?
            }
            #[cfg(feature = "reveal-moments")]
            Wire::MomentRows { first, count } => {
                state.representation = None;
                moments::moment_rows(&mut memory.parts(), first.into(), count.into(), id, source)?
            }
            #[cfg(feature = "power")]
            ref task @ Wire::FedPower { .. } => {
                let request = power::PowerRequest::from_task(task).ok_or(DeclineReason::Task)?;
                power::run(&mut memory.parts(), request, &mut state.power, id, source)?
            }
            _ => return Err(DeclineReason::Task),
        };
        state.usage = usage;
        if usage.samples == 0 { Err(DeclineReason::NoSamples) } else { Ok(usage) }
    }

    fn begin(&mut self) -> Result<(), DeclineReason> {
        self.state.usage = Usage::default();
        self.state.constant = ConstantColumn::NONE;
        let Some(task @ (Wire::FedRep { .. } | Wire::FitHead { .. })) = self.state.task else {
            return Err(DeclineReason::Task);
        };
        #[cfg(feature = "privacy")]
        if self.is_private() && matches!(task, Wire::FedRep { .. }) {
            noise::draw(&mut self.mechanism)?;
        }
        let _ = task;
        fedrep::begin(&mut self.memory.parts())
    }

    fn sample(&mut self, x: &[f32], target: Targets<'_>) -> u32 {
        if let Some(Wire::FedRep { head, .. } | Wire::FitHead { head }) = self.state.task {
            let number = self.state.usage.samples;
            let Self { memory, state, .. } = self;
            let used = fedrep::sample(&mut memory.parts(), head, &mut state.constant, number, x, target);
            self.state.usage.count(1, used);
        }
        self.reported().samples
    }

    fn finish(&mut self) -> Result<Usage, DeclineReason> {
        let (usage, reported) = (self.state.usage, self.reported());
        if reported.samples == 0 {
            return Err(DeclineReason::NoSamples);
        }
        let Some(Wire::FedRep { head, .. } | Wire::FitHead { head }) = self.state.task else {
            return Err(DeclineReason::Task);
        };
        let fitted = usage.samples > 0 && {
            self.state.head = None;
            let Self { memory, state, .. } = self;
            match fedrep::finish(&mut memory.parts(), head, &mut state.constant, &mut state.solver, usage) {
                Ok(()) => {
                    self.state.head_is_fitted();
                    true
                }
                // A private device must not reveal to the server that the samples determine no head.
                Err(_) if self.is_private() => false,
                Err(reason) => return Err(reason),
            }
        };
        #[cfg(feature = "privacy")]
        if self.is_private() && matches!(self.state.task, Some(Wire::FedRep { .. })) {
            noise::clip_and_add_noise(self, fitted);
        }
        let _ = fitted;
        Ok(reported)
    }

    fn upload(&self) -> Descriptors {
        self.state.task.map_or_else(Descriptors::new, |task| capabilities::sent(self.shape(), &task))
    }

    fn emit(&self, index: usize, first: usize, out: &mut [f32]) {
        let parts = self.memory.parts_ref();
        let Some(task) = self.state.task else { return };
        let stepped = match task {
            Wire::FedRep { upload, step_size, .. } => Some((upload == Upload::Representation, step_size)),
            #[cfg(feature = "shared-head")]
            Wire::AdapterDown { step_size, .. } => Some((true, step_size)),
            _ => None,
        };
        if let Some((steps, step_size)) = stepped {
            self.emit_gradient(first, out);
            if steps {
                for (target, &b) in out.iter_mut().zip(parts.representation.iter().skip(first)) {
                    *target = b - step_size * *target;
                }
            }
            return;
        }
        let tensor = match (task, index) {
            #[cfg(feature = "power")]
            (Wire::FedPower { .. }, 0) => parts.extra_matrix.unwrap_or_default(),
            #[cfg(feature = "shared-head")]
            (Wire::FedAvg { .. }, 1) | (Wire::AdapterUp { .. }, _) => parts.head,
            // The head of this task is never sent, for any request.
            (Wire::FitHead { .. }, _) => &[],
            #[cfg(feature = "ridge-choice")]
            (Wire::RidgeScores { .. }, _) => parts.residual,
            _ => parts.representation,
        };
        for (target, &value) in out.iter_mut().zip(tensor.iter().skip(first)) {
            *target = value;
        }
    }

    #[cfg(feature = "privacy")]
    fn cost(&self, task: &Wire) -> u64 {
        match (self.mechanism.settings(), *task) {
            (Some(settings), Wire::FedPower { iterations, .. }) => {
                u64::from(iterations) * u64::from(settings.release())
            }
            (Some(settings), Wire::FedRep { .. }) if self.supports_fedrep() => u64::from(settings.release()),
            _ => 0,
        }
    }

    #[cfg(feature = "privacy")]
    fn slot(&self) -> Millis {
        self.mechanism.settings().map_or(Millis::ZERO, |settings| settings.slot())
    }

    #[cfg(feature = "privacy")]
    fn prepare(&mut self, release: &Release) -> Result<(), DeclineReason> {
        self.mechanism.prepare(release).map_err(|_| DeclineReason::Entropy)
    }

    fn pace(&self) -> Pace<'_> {
        self.memory.parts_ref().pace
    }

    fn head(&self) -> &[f32] {
        self.memory.parts_ref().head
    }

    fn head_mut(&mut self) -> &mut [f32] {
        self.memory.parts().head
    }

    fn head_fitted_on(&self) -> Option<u32> {
        self.state.head
    }

    fn restore_head(&mut self, representation: u32) {
        self.state.head = Some(representation);
        self.state.is_restored = true;
        self.recognise_earlier_hash();
    }
}

impl<M: Memory, P: Mechanism> Linear<M, P> {
    /// Returns true if updates have noise.
    fn is_private(&self) -> bool {
        is_private(&self.mechanism)
    }

    /// Returns the maximum number of iterations of a round, which the slot limits if updates have noise.
    fn iterations_max(&self) -> u16 {
        #[cfg(feature = "privacy")]
        if let Some(settings) = self.mechanism.settings() {
            return settings.iterations_max();
        }
        u16::MAX
    }

    /// Returns true if gradients may be sent: unchanged without noise, or clipped and with noise. Noise
    /// requires f32 and a second d x k matrix.
    fn supports_fedrep(&self) -> bool {
        let hides =
            || self.memory.numeric() == Numeric::F32 && self.memory.parts_ref().extra_matrix.is_some();
        sends_gradients(&self.mechanism) && (!self.is_private() || hides())
    }

    /// Writes elements `first..` of the gradient to `out`, with noise if there is a mechanism.
    fn emit_gradient(&self, first: usize, out: &mut [f32]) {
        let parts = self.memory.parts_ref();
        #[cfg(feature = "privacy")]
        if self.is_private() {
            return private_fedrep::emit(&parts, self.mechanism.clipping(), first, out);
        }
        let PartsRef { shape, residual, head, pace, .. } = parts;
        let scale = gradient_scale(self.state.usage);
        pace.split(out.len(), shape.outputs + 1, |elements| {
            let first = first + elements.start;
            let out = out.get_mut(elements).unwrap_or_default();
            gradient::elements(residual, head, shape.width, shape.outputs, scale, first, out);
        });
    }

    /// Returns the reported numbers of samples. With noise they do not depend on the content of records.
    fn reported(&self) -> Usage {
        let Usage { samples, skipped } = self.state.usage;
        if self.is_private() {
            Usage { samples: samples.saturating_add(skipped), skipped: 0 }
        } else {
            self.state.usage
        }
    }
}

/// Returns the factor of the mean gradient: one over the number of samples.
fn gradient_scale(usage: Usage) -> f32 {
    if usage.samples == 0 { 0.0 } else { 1.0 / count(usage) }
}
