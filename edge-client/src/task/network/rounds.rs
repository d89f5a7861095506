//! A network's rounds, step by step: the [`Task`] trait.

use core::ops::Range;

use fedspan_protocol::message::{
    Capabilities, DeclineReason, Descent, Descriptors, HeadSolve, RoundId, RoundOpen, Task as Wire, Trained,
};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

use super::epochs::{self, Phase};
use super::{Network, accepts, order};
use crate::kernel::all_within;
use crate::memory::{NetworkMemory, NetworkShape};
use crate::source::{SampleSource, Targets};
use crate::task::{Task, Usage};

/// What a round does with the layers of which `travelling` travel: its steps, and two phases of epochs.
fn phases(
    shape: NetworkShape,
    task: &Wire,
    travelling: &Range<usize>,
) -> Result<(Descent, [Phase; 2]), DeclineReason> {
    let all = 0..shape.layers();
    match *task {
        Wire::Sgd { descent, head_epochs, epochs, trained, .. } => {
            let staying = if travelling.start > 0 { 0..travelling.start } else { travelling.end..all.end };
            let trained = match trained {
                Trained::Travelling => travelling.clone(),
                Trained::All => all,
                _ => return Err(DeclineReason::Parameter),
            };
            let phases = [Phase { layers: staying, epochs: head_epochs }, Phase { layers: trained, epochs }];
            // Something has to be learnt.
            if phases.iter().all(|phase| phase.layers.is_empty() || phase.epochs == 0) {
                return Err(DeclineReason::Parameter);
            }
            Ok((descent, phases))
        }
        Wire::FitHead { head: HeadSolve::Sgd { epochs, descent } } => {
            let head = Phase { layers: all.end - 1..all.end, epochs };
            Ok((descent, [head, Phase { layers: 0..0, epochs: 0 }]))
        }
        Wire::FitHead { .. } => Err(DeclineReason::Parameter),
        _ => Err(DeclineReason::Task),
    }
}

impl<M: NetworkMemory> Task for Network<M> {
    fn capabilities(&self) -> Capabilities {
        accepts::capabilities(self.memory.shape())
    }

    fn streamed_tasks(&self) -> u16 {
        0
    }

    fn open(&mut self, round: &RoundOpen) -> Result<(), DeclineReason> {
        let shape = self.memory.shape();
        let travelling = accepts::travelling(shape, &round.tensors)?;
        let (descent, _) = phases(shape, &round.task, &travelling)?;
        let velocity = !self.memory.parts().velocity.is_empty();
        if !accepts::possible(shape, descent, velocity) {
            return Err(DeclineReason::Parameter);
        }
        self.state.task = Some(round.task);
        self.state.travelling = travelling;
        Ok(())
    }

    fn tensor_mut(&mut self, index: usize) -> Option<&mut [f32]> {
        self.state.task.as_ref()?;
        let shape = self.memory.shape();
        let layer = self.state.travelling.clone().nth(index)?;
        self.state.body = None;
        if layer + 1 == shape.layers() {
            self.state.head = None;
        }
        self.memory.parts().parameters.get_mut(shape.range(layer..layer + 1))
    }

    fn verify(&mut self) -> Result<(), DeclineReason> {
        let range = self.memory.shape().range(self.state.travelling.clone());
        if !all_within(self.memory.parameters().get(range).unwrap_or_default(), f32::MAX) {
            return Err(DeclineReason::NonFinite);
        }
        self.state.body = Some(self.hash());
        Ok(())
    }

    fn run(&mut self, id: RoundId, source: &mut dyn SampleSource) -> Result<Usage, DeclineReason> {
        let shape = self.memory.shape();
        let task = self.state.task.ok_or(DeclineReason::Task)?;
        let (descent, phases) = phases(shape, &task, &self.state.travelling)?;
        let usage = epochs::count(shape, id, source)?;
        self.state.usage = usage;
        if usage.samples == 0 {
            return Err(DeclineReason::NoSamples);
        }
        let seed = order::of_round(self.state.seed, id);
        let ran = epochs::run(&mut self.memory.parts(), &phases, descent, usage, seed, source);
        if ran == Err(DeclineReason::UpdateNonFinite) || ran.is_ok() && !self.is_finite() {
            self.head_mut().fill(0.0);
            (self.state.body, self.state.head) = (None, None);
            return Err(DeclineReason::UpdateNonFinite);
        }
        ran?;
        self.accept();
        Ok(usage)
    }

    fn begin(&mut self) -> Result<(), DeclineReason> {
        Err(DeclineReason::Task)
    }

    fn sample(&mut self, _x: &[f32], _target: Targets<'_>) -> u32 {
        0
    }

    fn finish(&mut self) -> Result<Usage, DeclineReason> {
        Err(DeclineReason::Task)
    }

    fn upload(&self) -> Descriptors {
        let shape = self.memory.shape();
        let Some(Wire::Sgd { encoding, .. }) = self.state.task else { return Descriptors::new() };
        let travelling = self.state.travelling.clone();
        let from_above = travelling.start > 0;
        travelling.filter_map(|layer| descriptor(shape, layer, from_above, encoding)).collect()
    }

    fn emit(&self, index: usize, first: usize, out: &mut [f32]) {
        let (Some(Wire::Sgd { .. }), Some(layer)) =
            (self.state.task, self.state.travelling.clone().nth(index))
        else {
            return;
        };
        let range = self.memory.shape().range(layer..layer + 1);
        let values = self.memory.parameters().get(range).unwrap_or_default();
        for (place, &value) in out.iter_mut().zip(values.iter().skip(first)) {
            *place = value;
        }
    }

    fn head(&self) -> &[f32] {
        let shape = self.memory.shape();
        let last = shape.layers() - 1;
        self.memory.parameters().get(shape.range(last..last + 1)).unwrap_or_default()
    }

    fn head_mut(&mut self) -> &mut [f32] {
        let shape = self.memory.shape();
        let last = shape.layers() - 1;
        self.memory.parts().parameters.get_mut(shape.range(last..last + 1)).unwrap_or_default()
    }

    fn head_fitted_on(&self) -> Option<u32> {
        self.state.head
    }

    fn restore_head(&mut self, representation: u32) {
        self.state.head = Some(representation);
    }
}

/// A layer as it travels; `None` for sizes that no descriptor can hold.
fn descriptor(
    shape: NetworkShape,
    layer: usize,
    from_above: bool,
    encoding: Encoding,
) -> Option<TensorDescriptor> {
    let (inputs, outputs) = shape.layer(layer);
    let head = layer + 1 == shape.layers();
    let role = if head || from_above { Role::SharedHead } else { Role::Representation };
    let (rows, cols) = (u16::try_from(inputs + 1).ok()?, u16::try_from(outputs).ok()?);
    Some(TensorDescriptor::inline(role, encoding, rows, cols))
}
