//! Task of a simulated device: the task of the client crate that matches the scenario's model.

use fedspan_client::Millis;
use fedspan_client::source::{SampleSource, Targets};
use fedspan_client::task::{ErrorFeedback, Scaled, Usage};
use fedspan_client::{Linear, Release, Task};
use fedspan_protocol::message::{self, Capabilities, DeclineReason, Descriptors, RoundId, RoundOpen};

use super::HeapWorkspace;
use crate::network::SimNetwork;
use crate::noise::SimNoise;

/// Task of a simulated device.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one of them in all devices of a run")]
pub enum SimTask {
    /// Task of a linear model.
    Linear(Linear<HeapWorkspace, SimNoise>),
    /// Task of a network.
    Network(SimNetwork),
    /// Task of a linear model or a network on standardised samples.
    Scaled(Box<Scaled<SimTask, Vec<f32>>>),
    /// One of the others, whose uploads leave values out.
    ErrorFeedback(Box<ErrorFeedback<SimTask, Vec<f32>>>),
}

impl SimTask {
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
            SimTask::Scaled($task) => $does,
            SimTask::ErrorFeedback($task) => $does,
        }
    };
}

impl Task for SimTask {
    fn capabilities(&self) -> Capabilities {
        delegate!(self, task => task.capabilities())
    }

    fn streamed_tasks(&self) -> u16 {
        delegate!(self, task => task.streamed_tasks())
    }

    fn open(&mut self, round: &RoundOpen) -> Result<(), DeclineReason> {
        delegate!(self, task => task.open(round))
    }

    fn tensor_mut(&mut self, index: usize) -> Option<&mut [f32]> {
        delegate!(self, task => task.tensor_mut(index))
    }

    fn verify(&mut self) -> Result<(), DeclineReason> {
        delegate!(self, task => task.verify())
    }

    fn run(&mut self, id: RoundId, source: &mut dyn SampleSource) -> Result<Usage, DeclineReason> {
        delegate!(self, task => task.run(id, source))
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
