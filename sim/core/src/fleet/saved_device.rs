//! State of a simulated device between two rounds, for simulations that are saved and continued.

use std::sync::Arc;

use fedspan_client::store::{Record, RecordHeader, Store, StoreError};
use fedspan_client::{Linear, Task};
use fedspan_protocol::message::Privacy;
use serde::{Deserialize, Serialize};

use super::{HeapWorkspace, SimDevice, SimTask};
use crate::network::SavedNetwork;
use crate::noise::SimNoise;

/// State that a device keeps between rounds. Everything else is computed or received again in each round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedDevice {
    /// Privacy budget that the device has spent.
    pub spent: u64,
    task: SavedTask,
    /// Residual of error feedback, d x k; empty without it.
    residual: Vec<f32>,
    /// Scale of the samples, 2 x d; empty without one.
    scale: Vec<f32>,
}

/// State of the model's task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum SavedTask {
    Linear {
        /// Representation, d x k, which many devices may share; `None` if the device has none.
        representation: Option<Arc<[f32]>>,
        head: Vec<f32>,
        /// Hash of the representation that the head is fitted on; `None` if it is not fitted.
        fitted_on: Option<u32>,
        /// Number of seeds drawn for noise.
        seeds_drawn: u32,
    },
    Network(SavedNetwork),
    LearnedPrior {
        head: Vec<f32>,
        /// Hash of the prior under which the head is fitted; `None` if it is not fitted.
        fitted_on: Option<u32>,
    },
}

impl SavedDevice {
    /// Copies the state of a device. No round may be open on it, and none of its frames may be in flight.
    #[must_use]
    pub fn of(device: &SimDevice) -> Self {
        let spent = match device.session.privacy() {
            Privacy::Gaussian { spent, .. } => spent,
            _ => 0,
        };
        let task = match device.session.task().model() {
            SimTask::Linear(linear) => SavedTask::Linear {
                representation: linear.representation().map(Arc::from),
                head: linear.head().to_vec(),
                fitted_on: linear.head_fitted_on(),
                seeds_drawn: linear.mechanism().seeds_drawn(),
            },
            SimTask::Network(network) => SavedTask::Network(network.saved()),
            SimTask::PriorNetwork(task) => {
                SavedTask::Network(SavedNetwork::of_parameters(task.network().parameters()))
            }
            SimTask::LearnedPrior(task) => {
                SavedTask::LearnedPrior { head: task.head().to_vec(), fitted_on: task.head_fitted_on() }
            }
            // These contain a model.
            SimTask::Scaled(_) | SimTask::ErrorFeedback(_) => SavedTask::Network(SavedNetwork::default()),
        };
        let residual = match device.session.task() {
            SimTask::ErrorFeedback(feedback) => feedback.residual().to_vec(),
            _ => Vec::new(),
        };
        Self { spent, task, residual, scale: device.session.task().scale().to_vec() }
    }

    /// Shares the representation with that of the last device, if it has the same bits.
    #[must_use]
    pub fn sharing(mut self, last: &mut Option<Arc<[f32]>>) -> Self {
        if let SavedTask::Linear { representation: Some(own), .. } = &mut self.task {
            let are_same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
            match last {
                Some(last) if last.len() == own.len() && last.iter().zip(own.iter()).all(are_same) => {
                    *own = Arc::clone(last);
                }
                _ => *last = Some(Arc::clone(own)),
            }
        }
        self
    }

    /// Number of seeds that the device has drawn for noise.
    pub(super) fn seeds_drawn(&self) -> u32 {
        match self.task {
            SavedTask::Linear { seeds_drawn, .. } => seeds_drawn,
            SavedTask::Network(_) | SavedTask::LearnedPrior { .. } => 0,
        }
    }

    /// Restores the state in a new task. Returns false if the task is of another kind or has other sizes.
    pub(super) fn restore(&self, task: &mut SimTask) -> bool {
        match (task, &self.task) {
            (SimTask::ErrorFeedback(feedback), _) => {
                feedback.set_residual(&self.residual).is_ok() && self.restore(feedback.task_mut())
            }
            (SimTask::Scaled(scaled), _) => {
                let is_set = self.scale.is_empty() || scaled.set_scale(&self.scale).is_ok();
                is_set && self.restore(scaled.task_mut())
            }
            (
                SimTask::Linear(linear),
                SavedTask::Linear { representation, head, fitted_on, seeds_drawn: _ },
            ) => restore_linear(linear, representation.as_deref(), head, *fitted_on),
            (SimTask::Network(network), SavedTask::Network(saved)) => network.restore(saved),
            (SimTask::PriorNetwork(task), SavedTask::Network(saved)) => {
                task.network_mut().set_parameters(saved.parameters()).is_ok()
            }
            (SimTask::LearnedPrior(task), SavedTask::LearnedPrior { head, fitted_on }) => {
                restore_head(task, head, *fitted_on)
            }
            _ => false,
        }
    }
}

fn restore_linear(
    linear: &mut Linear<HeapWorkspace, SimNoise>,
    representation: Option<&[f32]>,
    head: &[f32],
    fitted_on: Option<u32>,
) -> bool {
    let is_accepted = representation.is_none_or(|values| linear.set_representation(values).is_ok());
    is_accepted && restore_head(linear, head, fitted_on)
}

/// Restores a head, with the hash of what it is fitted on. Returns false if it has another length.
fn restore_head(task: &mut impl Task, head: &[f32], fitted_on: Option<u32>) -> bool {
    if task.head().len() != head.len() {
        return false;
    }
    task.head_mut().copy_from_slice(head);
    if let Some(hash) = fitted_on {
        task.restore_head(hash);
    }
    true
}

/// Storage of a simulated device: it holds the privacy budget that the device has spent before the simulation was
/// continued, and keeps nothing else.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpentBudget(pub u64);

impl Store for SpentBudget {
    fn save(&mut self, _record: &Record<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    fn load(&mut self, _head: &mut [f32]) -> Result<Option<RecordHeader>, StoreError> {
        Ok(None)
    }

    fn save_handshakes(&mut self, _reserved: u64) -> Result<(), StoreError> {
        Ok(())
    }

    fn load_handshakes(&mut self) -> Result<u64, StoreError> {
        Ok(0)
    }

    fn save_spent(&mut self, spent: u64) -> Result<(), StoreError> {
        self.0 = spent;
        Ok(())
    }

    fn load_spent(&mut self) -> Result<u64, StoreError> {
        Ok(self.0)
    }
}
