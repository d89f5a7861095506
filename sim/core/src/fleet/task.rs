//! Task of a simulated device: the task of the client crate that matches the scenario's model.

use std::ops::{Deref, DerefMut};

use fedspan_client::Millis;
use fedspan_client::source::{SampleSource, Targets};
use fedspan_client::task::lanes::{LaneStep, VerifiedRepresentation};
use fedspan_client::task::{ErrorFeedback, LearnedPrior, PriorNetwork, Scaled, Usage};
use fedspan_client::{Linear, Release, Task};
use fedspan_protocol::message::{self, Capabilities, DeclineReason, Descriptors, RoundId, RoundOpen};

use super::HeapWorkspace;
use crate::network::{HeapNetwork, SimNetwork};
use crate::noise::SimNoise;

/// Task of a simulated device.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one of them in all devices of a run")]
pub enum SimTask {
    /// Task of a linear model.
    Linear(SimLinear),
    /// Task of a network.
    Network(SimNetwork),
    /// Task of a linear model with a learned prior.
    LearnedPrior(LearnedPrior<Vec<f32>>),
    /// Task of a network whose last layer has a learned prior.
    PriorNetwork(PriorNetwork<HeapNetwork, Vec<f32>>),
    /// Task of a linear model or a network on standardised samples.
    Scaled(Box<Scaled<SimTask, Vec<f32>>>),
    /// One of the others, whose uploads leave values out.
    ErrorFeedback(Box<ErrorFeedback<SimTask, Vec<f32>>>),
}

/// Task of a linear model, with the step of the next round if it has been computed in a lane.
#[derive(Debug)]
pub struct SimLinear {
    linear: Linear<HeapWorkspace, SimNoise>,
    /// Round of `step`, and the representation that it was computed on; `None` without a step.
    prepared: Option<(RoundId, VerifiedRepresentation)>,
    step: LaneStep,
}

impl SimLinear {
    /// Creates the task of a model.
    #[must_use]
    pub fn new(linear: Linear<HeapWorkspace, SimNoise>) -> Self {
        Self { linear, prepared: None, step: LaneStep::default() }
    }

    /// Stores the step of round `id` on the representation `b`, which `copy` writes. There is none if `copy` returns false.
    pub fn prepare_step(
        &mut self,
        id: RoundId,
        b: &VerifiedRepresentation,
        copy: impl FnOnce(&mut LaneStep) -> bool,
    ) {
        self.prepared = copy(&mut self.step).then(|| (id, b.clone()));
    }

    /// Takes the verification of the representation if the one in memory has been verified, and otherwise verifies it.
    fn verify_or_take(&mut self) -> Result<(), DeclineReason> {
        match &self.prepared {
            Some((_, verified)) if self.linear.take_verification(verified) => Ok(()),
            _ => self.linear.verify(),
        }
    }

    /// Takes the step of the round if there is one on the representation in memory, and otherwise runs the round.
    fn run_or_take(&mut self, id: RoundId, source: &mut dyn SampleSource) -> Result<Usage, DeclineReason> {
        if let Some((round, b)) = self.prepared.take()
            && round == id
            && self.linear.representation().is_some_and(|own| b.has_same_bits(own))
            && let Some(usage) = self.linear.take_step(&self.step)
        {
            return Ok(usage);
        }
        self.linear.run(id, source)
    }
}

impl Deref for SimLinear {
    type Target = Linear<HeapWorkspace, SimNoise>;

    fn deref(&self) -> &Self::Target {
        &self.linear
    }
}

impl DerefMut for SimLinear {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.linear
    }
}

impl SimTask {
    /// Scale of the samples, 2 x d; empty without one.
    #[must_use]
    pub fn scale(&self) -> &[f32] {
        match self {
            Self::Scaled(scaled) => scaled.scale().unwrap_or_default(),
            Self::ErrorFeedback(feedback) => feedback.task().scale(),
            Self::Linear(_) | Self::Network(_) | Self::LearnedPrior(_) | Self::PriorNetwork(_) => &[],
        }
    }

    /// Task of the model, without the scaling of samples and the feedback of errors.
    #[must_use]
    pub fn model(&self) -> &Self {
        match self {
            Self::Scaled(scaled) => scaled.task().model(),
            Self::ErrorFeedback(feedback) => feedback.task().model(),
            own => own,
        }
    }
}

/// Evaluates an expression with the task of the variant.
macro_rules! delegate {
    ($own:expr, $task:ident => $does:expr) => {
        match $own {
            SimTask::Linear($task) => $does,
            SimTask::Network($task) => $does,
            SimTask::LearnedPrior($task) => $does,
            SimTask::PriorNetwork($task) => $does,
            SimTask::Scaled($task) => $does,
            SimTask::ErrorFeedback($task) => $does,
        }
    };
}

impl Task for SimTask {
    fn capabilities(&self) -> Capabilities {
        delegate!(self, task => task.capabilities())
    }

    fn streamed_tasks(&self) -> u32 {
        delegate!(self, task => task.streamed_tasks())
    }

    fn open(&mut self, round: &RoundOpen) -> Result<(), DeclineReason> {
        delegate!(self, task => task.open(round))
    }

    fn tensor_mut(&mut self, index: usize) -> Option<&mut [f32]> {
        delegate!(self, task => task.tensor_mut(index))
    }

    fn verify(&mut self) -> Result<(), DeclineReason> {
        match self {
            Self::Linear(task) => task.verify_or_take(),
            Self::Network(task) => task.verify(),
            Self::LearnedPrior(task) => task.verify(),
            Self::PriorNetwork(task) => task.verify(),
            Self::Scaled(task) => task.verify(),
            Self::ErrorFeedback(task) => task.verify(),
        }
    }

    fn run(&mut self, id: RoundId, source: &mut dyn SampleSource) -> Result<Usage, DeclineReason> {
        match self {
            Self::Linear(task) => task.run_or_take(id, source),
            Self::Network(task) => task.run(id, source),
            Self::LearnedPrior(task) => task.run(id, source),
            Self::PriorNetwork(task) => task.run(id, source),
            Self::Scaled(task) => task.run(id, source),
            Self::ErrorFeedback(task) => task.run(id, source),
        }
    }

    fn begin(&mut self) -> Result<(), DeclineReason> {
        delegate!(self, task => task.begin())
    }

    fn sample(&mut self, x: &[f32], target: Targets<'_>) -> u32 {
        delegate!(self, task => task.sample(x, target))
    }

    fn finish(&mut self) -> Result<Usage, DeclineReason> {
        delegate!(self, task => task.finish())
    }

    fn upload(&self) -> Descriptors {
        delegate!(self, task => task.upload())
    }

    fn emit(&self, index: usize, first: usize, out: &mut [f32]) {
        delegate!(self, task => task.emit(index, first, out));
    }

    fn acknowledged(&mut self, outcome: message::AckOutcome) {
        delegate!(self, task => task.acknowledged(outcome));
    }

    fn cost(&self, task_message: &message::Task) -> u64 {
        delegate!(self, task => task.cost(task_message))
    }

    fn slot(&self) -> Millis {
        delegate!(self, task => task.slot())
    }

    fn prepare(&mut self, release: &Release) -> Result<(), DeclineReason> {
        delegate!(self, task => task.prepare(release))
    }

    fn head(&self) -> &[f32] {
        delegate!(self, task => task.head())
    }

    fn head_mut(&mut self) -> &mut [f32] {
        delegate!(self, task => task.head_mut())
    }

    fn head_fitted_on(&self) -> Option<u32> {
        delegate!(self, task => task.head_fitted_on())
    }

    fn restore_head(&mut self, representation: u32) {
        delegate!(self, task => task.restore_head(representation));
    }
}
