//! Test helpers for the privacy budget: a task whose updates have a cost, although it adds no noise.

use fedspan_client::source::{SampleSource, Targets};
use fedspan_client::task::Usage;
use fedspan_client::{Linear, Millis, Release, Task};
use fedspan_protocol::message::{
    Capabilities, DeclineReason, Descriptors, Privacy, RoundId, RoundOpen, Task as Wire,
};

use super::Heap;
use super::problem::{Problem, session_config};
use super::server::{Bench, Flash};

/// Wrapper of task `T` with a privacy budget: each update costs `release` of `budget`, and the device is
/// silent for `slot` milliseconds when it computes. Without a budget the task announces no privacy, but its
/// updates still have the cost.
#[derive(Clone, Debug)]
pub struct PricedTask<T> {
    pub task: T,
    pub release: u32,
    pub budget: Option<u64>,
    pub slot: u64,
    /// Releases for which the task was prepared, in order.
    pub releases: Vec<Release>,
    /// True if preparing a release fails for want of entropy.
    pub entropy_fails: bool,
    /// True if each computation fails at its end.
    pub computation_fails: bool,
}

impl<T> PricedTask<T> {
    /// Wraps a task. A release costs 3 units of the budget, if there is one.
    pub fn new(task: T, budget: Option<u64>, slot: u64) -> Self {
        Self {
            task,
            release: 3,
            budget,
            slot,
            releases: Vec::new(),
            entropy_fails: false,
            computation_fails: false,
        }
    }
}

impl<T: Task> Task for PricedTask<T> {
    fn capabilities(&self) -> Capabilities {
        let privacy = match self.budget {
            Some(budget) => Privacy::Gaussian { release: self.release, budget, spent: 0 },
            None => Privacy::None,
        };
        Capabilities { privacy, ..self.task.capabilities() }
    }

    fn cost(&self, task: &Wire) -> u64 {
        if let Wire::FitHead { .. } = task { 0 } else { self.release.into() }
    }

    fn slot(&self) -> Millis {
        Millis::new(self.slot)
    }

    fn prepare(&mut self, release: &Release) -> Result<(), DeclineReason> {
        self.releases.push(*release);
        if self.entropy_fails { Err(DeclineReason::Entropy) } else { Ok(()) }
    }

    fn streamed_tasks(&self) -> u32 {
        self.task.streamed_tasks()
    }

    fn open(&mut self, round: &RoundOpen) -> Result<(), DeclineReason> {
        self.task.open(round)
    }

    fn tensor_mut(&mut self, index: usize) -> Option<&mut [f32]> {
        self.task.tensor_mut(index)
    }

    fn verify(&mut self) -> Result<(), DeclineReason> {
        self.task.verify()
    }

    fn run(&mut self, id: RoundId, source: &mut dyn SampleSource) -> Result<Usage, DeclineReason> {
        let usage = self.task.run(id, source)?;
        if self.computation_fails { Err(DeclineReason::UpdateNonFinite) } else { Ok(usage) }
    }

    fn begin(&mut self) -> Result<(), DeclineReason> {
        self.task.begin()
    }

    fn sample(&mut self, x: &[f32], target: Targets<'_>) -> u32 {
        self.task.sample(x, target)
    }

    fn finish(&mut self) -> Result<Usage, DeclineReason> {
        let usage = self.task.finish()?;
        if self.computation_fails { Err(DeclineReason::UpdateNonFinite) } else { Ok(usage) }
    }

    fn upload(&self) -> Descriptors {
        self.task.upload()
    }

    fn emit(&self, index: usize, first: usize, out: &mut [f32]) {
        self.task.emit(index, first, out);
    }

    fn head(&self) -> &[f32] {
        self.task.head()
    }

    fn head_mut(&mut self) -> &mut [f32] {
        self.task.head_mut()
    }

    fn head_fitted_on(&self) -> Option<u32> {
        self.task.head_fitted_on()
    }

    fn restore_head(&mut self, representation: u32) {
        self.task.restore_head(representation);
    }
}

pub type PrivateBench = Bench<super::Sliced, PricedTask<Linear<Heap>>>;

/// Creates a device whose update costs 3 of `budget`, and which answers `slot` milliseconds after the start
/// of a computation.
pub fn priced_bench(
    problem: &Problem,
    limit: u16,
    budget: Option<u64>,
    slot: u64,
    flash: &Flash,
) -> PrivateBench {
    let task = Linear::new(Heap::new(problem.d, problem.k, problem.c));
    Bench::with_task(
        session_config(limit),
        PricedTask::new(task, budget, slot),
        problem.samples.clone(),
        flash.clone(),
    )
}
