//! Rounds of a network: its implementation of the [`Task`] trait.

use core::ops::Range;

use fedspan_protocol::limits::{PLATEAU_EPOCHS_MAX, UNTIL_PLATEAU};
use fedspan_protocol::message::{
    Capabilities, DeclineReason, Descent, Descriptors, HeadSolve, RoundId, RoundOpen, Task as Wire, Trained,
};
use fedspan_protocol::tensor::{Encoding, TensorDescriptor};

use super::epochs::{self, Phase};
use super::{Network, capabilities, layers_bits, sample_order};
use crate::kernel::all_within;
use crate::memory::{NetworkMemory, NetworkShape};
use crate::pace::Pace;
use crate::source::{SampleSource, Targets};
use crate::task::{Task, Usage};

/// Returns the SGD parameters of a task.
fn descent_of(task: &Wire) -> Result<Descent, DeclineReason> {
    match *task {
        Wire::Sgd { descent, .. } | Wire::FitHead { head: HeadSolve::Sgd { descent, .. } } => Ok(descent),
        Wire::FitHead { .. } => Err(DeclineReason::Parameter),
        _ => Err(DeclineReason::Task),
    }
}

/// Returns the two phases of epochs of a round with these shared layers.
fn training_phases(
    shape: NetworkShape,
    task: &Wire,
    shared: &Range<usize>,
) -> Result<[Phase; 2], DeclineReason> {
    let all_layers = 0..shape.layers();
    match *task {
        Wire::Sgd { head_epochs, epochs, trained, .. } => {
            let personal = match capabilities::factors(shape) {
                factors if !factors.is_empty() => factors.end..all_layers.end,
                _ if shared.start > 0 => 0..shared.start,
                _ => shared.end..all_layers.end,
            };
            let trained = trained_layers(shape, trained, shared).ok_or(DeclineReason::Parameter)?;
            let until_plateau = false;
            let phases = [
                Phase { layers: personal, epochs: head_epochs, until_plateau },
                Phase { layers: trained, epochs, until_plateau },
            ];
            // At least one phase must train a layer.
            if phases.iter().any(Phase::is_active) { Ok(phases) } else { Err(DeclineReason::Parameter) }
        }
        Wire::FitHead { head: HeadSolve::Sgd { epochs, .. } } => {
            let until_plateau = epochs == UNTIL_PLATEAU;
            let epochs = if until_plateau { PLATEAU_EPOCHS_MAX } else { epochs };
            let head = Phase { layers: all_layers.end - 1..all_layers.end, epochs, until_plateau };
            Ok([head, Phase { layers: 0..0, epochs: 0, until_plateau: false }])
        }
        _ => Err(DeclineReason::Task),
    }
}

/// Returns the layers that the second phase trains, if the parameters are valid.
fn trained_layers(shape: NetworkShape, trained: Trained, shared: &Range<usize>) -> Option<Range<usize>> {
    let factors = capabilities::factors(shape);
    match trained {
        Trained::Shared if factors.is_empty() || *shared == factors => Some(shared.clone()),
        Trained::All if factors.is_empty() => Some(0..shape.layers()),
        Trained::Down if !factors.is_empty() => Some(0..1),
        Trained::Up if !factors.is_empty() => Some(1..2),
        _ => None,
    }
}

/// Returns the layers that are uploaded after a round of `task`.
fn sent_layers(shape: NetworkShape, task: &Wire, shared: &Range<usize>) -> Range<usize> {
    match *task {
        Wire::Sgd { trained: trained @ (Trained::Down | Trained::Up), .. } => {
            trained_layers(shape, trained, shared).unwrap_or_default()
        }
        Wire::Sgd { .. } => shared.clone(),
        _ => 0..0,
    }
}

impl<M: NetworkMemory> Task for Network<M> {
    fn capabilities(&self) -> Capabilities {
        capabilities::capabilities(&self.memory)
    }

    fn streamed_tasks(&self) -> u32 {
        0
    }

    fn open(&mut self, round: &RoundOpen) -> Result<(), DeclineReason> {
        let shape = self.memory.shape();
        let descent = descent_of(&round.task)?;
        let shared = capabilities::shared_layers(shape, &round.tensors)?;
        training_phases(shape, &round.task, &shared)?;
        #[cfg(feature = "adapter")]
        if !capabilities::frozen_fits(&self.memory) {
            return Err(DeclineReason::Device);
        }
        let velocity = self.memory.parts().velocity.len() == shape.parameters();
        if !capabilities::is_valid_descent(shape, descent, velocity) {
            return Err(DeclineReason::Parameter);
        }
        let head = shape.layers() - 1;
        let missing = self.state.missing & !layers_bits(&shared);
        if missing & layers_bits(&(0..head)) != 0 {
            return Err(DeclineReason::Tensors);
        }
        let head_bit = layers_bits(&(head..head + 1));
        if missing & head_bit != 0 {
            self.head_mut().fill(0.0);
            self.state.missing &= !head_bit;
        }
        self.state.task = Some(round.task);
        self.state.shared = shared;
        Ok(())
    }

    fn tensor_mut(&mut self, index: usize) -> Option<&mut [f32]> {
        self.state.task.as_ref()?;
        let shape = self.memory.shape();
        let layer = self.state.shared.clone().nth(index)?;
        self.state.missing |= layers_bits(&(layer..layer + 1));
        self.state.body = None;
        if layer + 1 == shape.layers() {
            self.state.head = None;
        }
        self.memory.parts().parameters.get_mut(shape.range(layer..layer + 1))
    }

    fn verify(&mut self) -> Result<(), DeclineReason> {
        let range = self.memory.shape().range(self.state.shared.clone());
        if !all_within(self.memory.parameters().get(range).unwrap_or_default(), f32::MAX) {
            return Err(DeclineReason::NonFinite);
        }
        self.state.missing &= !layers_bits(&self.state.shared);
        self.accept_body();
        Ok(())
    }

    fn run(&mut self, id: RoundId, source: &mut dyn SampleSource) -> Result<Usage, DeclineReason> {
        let shape = self.memory.shape();
        let task = self.state.task.ok_or(DeclineReason::Task)?;
        let (descent, phases) = (descent_of(&task)?, training_phases(shape, &task, &self.state.shared)?);
        let usage = epochs::count(shape, id, source)?;
        self.state.usage = usage;
        if usage.samples == 0 {
            return Err(DeclineReason::NoSamples);
        }
        // Checked before any value changes.
        if phases.iter().any(Phase::is_active) && source.at(0).is_none() {
            return Err(DeclineReason::Device);
        }
        let seed = sample_order::round_seed(self.state.seed, id);
        let ran = epochs::run(&mut self.memory.parts(), &phases, descent, usage, seed, source);
        if ran == Err(DeclineReason::UpdateNonFinite) || !self.is_finite() {
            for phase in phases.iter().filter(|phase| phase.is_active()) {
                self.invalidate(&phase.layers);
            }
            return Err(DeclineReason::UpdateNonFinite);
        }
        // If the source has failed during training, the trained values are kept.
        self.accept();
        ran.map(|()| usage)
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
        let Some(task @ Wire::Sgd { encoding, .. }) = self.state.task else { return Descriptors::new() };
        let sent = sent_layers(shape, &task, &self.state.shared);
        let from_above = sent.start > 0;
        let mut tensors = Descriptors::new();
        for layer in sent {
            // Not collected, because `collect` would link a panic.
            match layer_descriptor(shape, layer, from_above, encoding).map(|tensor| tensors.push(tensor)) {
                Some(Ok(())) => {}
                _ => return Descriptors::new(),
            }
        }
        tensors
    }

    fn emit(&self, index: usize, first: usize, out: &mut [f32]) {
        let shape = self.memory.shape();
        let Some(layer) =
            self.state.task.and_then(|task| sent_layers(shape, &task, &self.state.shared).nth(index))
        else {
            return;
        };
        let range = shape.range(layer..layer + 1);
        let values = self.memory.parameters().get(range).unwrap_or_default();
        for (target, &value) in out.iter_mut().zip(values.iter().skip(first)) {
            *target = value;
        }
    }

    fn pace(&self) -> Pace<'_> {
        self.memory.pace()
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
        let head = self.memory.shape().layers() - 1;
        self.state.missing &= !layers_bits(&(head..head + 1));
        self.state.head = Some(representation);
        self.state.is_restored = true;
        self.recognise_earlier_hash();
    }
}

/// Returns the descriptor of a layer; `None` if the layer is too large for a descriptor.
fn layer_descriptor(
    shape: NetworkShape,
    layer: usize,
    from_above: bool,
    encoding: Encoding,
) -> Option<TensorDescriptor> {
    let matrix = shape.layer(layer);
    let role = capabilities::role(shape, layer, from_above);
    let (rows, cols) = (u16::try_from(matrix.rows()).ok()?, u16::try_from(matrix.matrix().1).ok()?);
    Some(TensorDescriptor::inline(role, encoding, rows, cols))
}
