//! Example of a custom task next to the tasks of the client: [`Mean`] uploads the mean of the samples'
//! features, d x 1. The task uses a task number for private use, so neither the protocol nor the client
//! changes. The server needs an algorithm that opens rounds with the same number.
//!
//! In firmware, `Tasks::new(model, Mean::<58>::new())` replaces the model, and `Session` makes the calls that
//! `main` makes here. The mean of few samples is close to each sample: use such a task for data that are no
//! secret, or add noise.
#![allow(missing_docs)]

use fedspan_client::task::{Tasks, Usage};
use fedspan_client::{Linear, Recording, SampleSource, Targets, Task, Workspace};
use fedspan_protocol::message::{
    Capabilities, DeclineReason, Descriptors, Model, Numeric, Privacy, PrivateTask, RoundId, RoundOpen,
    Task as Wire, TaskKind,
};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

/// Task that uploads the mean of the samples' features, as a moment of shape d x 1. Each feature is clamped
/// to at most `parameters[0]` in magnitude.
#[derive(Clone, Debug)]
pub struct Mean<const D: usize> {
    /// Sum of the clamped features.
    sum: [f32; D],
    /// Largest magnitude of a feature; larger features are clamped to it.
    bound: f32,
    encoding: Encoding,
    usage: Usage,
}

impl<const D: usize> Mean<D> {
    /// Creates the task, without an open round.
    pub const fn new() -> Self {
        let usage = Usage { samples: 0, skipped: 0 };
        Self { sum: [0.0; D], bound: 0.0, encoding: Encoding::F32, usage }
    }
}

impl<const D: usize> Default for Mean<D> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const D: usize> Task for Mean<D> {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            frame_limit: 0,                       // the session's
            model: Model::linear(D as u16, 1, 1), // as the second of two tasks: the first one's
            tasks: TaskKind::Private12.bit(),
            roles: Role::Moment.bit(),
            encodings: Encoding::F32.bit() | Encoding::F16.bit() | Encoding::I8.bit(), // the session's work
            numeric: Numeric::F32,
            tensors: 1,
            tensor_elements: D as u32,
            total_elements: D as u32,
            privacy: Privacy::None,
        }
    }

    fn streamed_tasks(&self) -> u32 {
        TaskKind::Private12.bit()
    }

    fn open(&mut self, round: &RoundOpen) -> Result<(), DeclineReason> {
        let Wire::Private12(PrivateTask { encoding, parameters: [bound, ..] }) = round.task else {
            return Err(DeclineReason::Task);
        };
        if bound.is_nan() || bound <= 0.0 {
            return Err(DeclineReason::Parameter);
        }
        if !round.tensors.is_empty() {
            return Err(DeclineReason::Tensors);
        }
        *self = Self { bound, encoding, ..Self::new() };
        Ok(())
    }

    fn tensor_mut(&mut self, _index: usize) -> Option<&mut [f32]> {
        None // nothing comes down
    }

    fn verify(&mut self) -> Result<(), DeclineReason> {
        Ok(())
    }

    fn run(&mut self, id: RoundId, source: &mut dyn SampleSource) -> Result<Usage, DeclineReason> {
        self.begin()?;
        source.rewind(id).map_err(|_| DeclineReason::Device)?;
        while let Some(samples) = source.next() {
            for x in samples.x.chunks(D) {
                self.sample(x, samples.targets);
            }
        }
        self.finish()
    }

    fn begin(&mut self) -> Result<(), DeclineReason> {
        (self.sum, self.usage) = ([0.0; D], Usage::default());
        Ok(())
    }

    fn sample(&mut self, x: &[f32], _target: Targets<'_>) -> u32 {
        if x.len() == D && x.iter().all(|value| value.is_finite()) {
            for (sum, value) in self.sum.iter_mut().zip(x) {
                *sum += value.clamp(-self.bound, self.bound);
            }
            self.usage.samples += 1;
        } else {
            self.usage.skipped += 1;
        }
        self.usage.samples
    }

    fn finish(&mut self) -> Result<Usage, DeclineReason> {
        if self.usage.samples == 0 { Err(DeclineReason::NoSamples) } else { Ok(self.usage) }
    }

    fn upload(&self) -> Descriptors {
        Descriptors::from_iter([TensorDescriptor::inline(Role::Moment, self.encoding, D as u16, 1)])
    }

    fn emit(&self, _index: usize, first: usize, out: &mut [f32]) {
        for (mean, sum) in out.iter_mut().zip(self.sum.iter().skip(first)) {
            *mean = sum / self.usage.samples as f32;
        }
    }

    // A mean has no head, so nothing is stored.
    fn head(&self) -> &[f32] {
        &[]
    }

    fn head_mut(&mut self) -> &mut [f32] {
        &mut []
    }

    fn head_fitted_on(&self) -> Option<u32> {
        None
    }

    fn restore_head(&mut self, _representation: u32) {}
}

/// Runs one round of a custom task, with the calls that a session makes, and returns the usage of samples and
/// the mean.
pub fn own_round(
    task: &mut impl Task,
    bound: f32,
    samples: &mut dyn SampleSource,
) -> Result<(Usage, Vec<f32>), DeclineReason> {
    let private = PrivateTask { encoding: Encoding::F32, parameters: [bound, 0.0, 0.0, 0.0, 0.0] };
    let id = RoundId { round: 1, stage: 0 };
    task.open(&RoundOpen { id, task: Wire::Private12(private), tensors: Descriptors::new() })?;
    task.verify()?;
    let usage = task.run(id, samples)?;
    let mut mean = vec![0.0; task.upload().first().map_or(0, |tensor| tensor.rows.into())];
    task.emit(0, 0, &mut mean);
    Ok((usage, mean))
}

#[allow(dead_code, reason = "tests include this file for the task")]
fn main() -> Result<(), DeclineReason> {
    let x = [1.0, -2.0, 0.5, 3.0, 4.0, 0.5, 1e9, 1.0, 0.5];
    let mut samples = Recording::regression(&x, &[0.0; 3], 3, 1);
    let mut tasks = Tasks::new(Linear::new(Workspace::<3, 1>::new()), Mean::<3>::new());
    println!("tasks {:#06x}, {} bytes", tasks.capabilities().tasks, size_of_val(&tasks));
    let (usage, mean) = own_round(&mut tasks, 8.0, &mut samples)?;
    println!("{} samples, mean {mean:?}", usage.samples);
    assert_eq!(mean, [4.0, 1.0, 0.5]);
    Ok(())
}
