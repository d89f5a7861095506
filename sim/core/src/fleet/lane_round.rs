//! Rounds whose steps are computed for several simulated devices side by side, before the devices process their frames.
//!
//! The session of each device runs as always: it decodes the round, verifies the representation and asks its task for the
//! step. The task then has the step already, with the same bits, if it was computed on the same representation.

use std::sync::{Arc, Mutex};

use fedspan_client::memory::Shape;
use fedspan_client::task::lanes::{LaneSteps, VerifiedRepresentation, lanes};
use fedspan_engine::RoundBroadcast;
use fedspan_protocol::message::{HeadSolve, RoundId, Task};
use fedspan_protocol::tensor::{Encoding, Role};

use super::{SimDevice, SimTask};
use crate::data::Set;

/// Memory of steps that threads share, so that each group of devices finds memory of the right size.
#[derive(Debug, Default)]
pub struct StepsPool(Mutex<Vec<LaneSteps>>);

impl StepsPool {
    /// Takes memory out of the pool until it is dropped.
    pub fn take(&self) -> PooledSteps<'_> {
        let steps = self.0.lock().ok().and_then(|mut steps| steps.pop());
        PooledSteps { pool: self, steps: steps.unwrap_or_default() }
    }
}

/// Memory of steps that returns to its pool.
#[derive(Debug)]
pub struct PooledSteps<'a> {
    pool: &'a StepsPool,
    /// The memory.
    pub steps: LaneSteps,
}

impl Drop for PooledSteps<'_> {
    fn drop(&mut self) {
        if let Ok(mut pool) = self.pool.0.lock() {
            pool.push(std::mem::take(&mut self.steps));
        }
    }
}

/// Number of devices for which lanes are faster than computing one device after the other.
const DEVICES_MIN: usize = 3;

/// Round of FedRep that devices may compute in lanes.
#[derive(Clone, Debug)]
pub struct LaneRound {
    /// Id of the round.
    pub id: RoundId,
    ridge: f32,
    /// Representation that devices receive, d x k.
    b: VerifiedRepresentation,
    width: usize,
}

impl LaneRound {
    /// Returns the round of a broadcast; `None` if devices compute something else, receive rounded values or a representation
    /// that they decline, or the machine has no vectors.
    #[must_use]
    pub fn of(broadcast: &RoundBroadcast) -> Option<Self> {
        let request = &broadcast.request;
        let Task::FedRep { head: HeadSolve::LeastSquares { ridge }, .. } = request.task else { return None };
        match request.tensors.as_slice() {
            [b] if b.role == Role::Representation && request.encoding == Encoding::F32 && lanes() > 1 => {
                let width = b.cols.into();
                let b = VerifiedRepresentation::verify(b.values.as_slice().into(), width)?;
                Some(Self { id: broadcast.id, ridge, b, width })
            }
            _ => None,
        }
    }

    /// Computes the steps of devices, at most [`lanes`], and stores them in their tasks. Devices of other kinds, with other
    /// numbers of samples than the first, or whose samples change from round to round compute by themselves.
    pub fn prepare(&self, devices: &mut [&mut SimDevice], steps: &mut LaneSteps) {
        let mut samples: Vec<(usize, Arc<Set>)> = Vec::with_capacity(devices.len());
        let mut of_first = None;
        for (index, device) in devices.iter_mut().enumerate() {
            let Some(set) = device.session.source_mut().fixed_samples() else { continue };
            let SimTask::Linear(linear) = device.session.task() else { continue };
            let Some(solver) = linear.lane_solver() else { continue };
            let kind = (linear.shape(), set.len(), linear.solves_normal_equations_only());
            let (kind_of_first, _) = *of_first.get_or_insert((kind, solver));
            if kind == kind_of_first {
                samples.push((index, set));
            }
        }
        let Some(((shape, ..), solver)) = of_first.filter(|_| samples.len() >= DEVICES_MIN) else { return };
        let Shape { width, .. } = shape;
        if width != self.width {
            return;
        }
        let all: Vec<_> = samples.iter().map(|(_, set)| set.samples()).collect();
        steps.compute(self.b.values(), shape, self.ridge, &solver, &all);
        for (lane, (index, _)) in samples.iter().enumerate() {
            if let Some(SimTask::Linear(linear)) =
                devices.get_mut(*index).map(|device| device.session.task_mut())
            {
                linear.prepare_step(self.id, &self.b, |step| steps.copy_step(lane, step));
            }
        }
    }
}
