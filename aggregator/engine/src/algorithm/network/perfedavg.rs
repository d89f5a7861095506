//! Per-FedAvg (Fallah et al. 2020, "Personalized Federated Learning with Theoretical Guarantees: A
//! Model-Agnostic Meta-Learning Approach"): trains one network such that one gradient step of size alpha on a
//! device's samples adapts the network to that device. A training step is
//! `w <- w - eta (I - alpha H) g(w - alpha g'(w))`, where the gradients `g` and `g'` are on separate batches.
//! The first-order variant omits the second derivative H; the Hessian-free variant approximates `H v` by a
//! difference of two gradients.
//!
//! As in the paper, each client is evaluated on the shared network after one step of size alpha down the
//! gradient of all its training samples.

use fedspan_protocol::message::{Baseline, Task};
use toml_edit::Value;

use super::{MethodKeys, NetworkAlgorithm, NetworkParameters, Plan, SharedLayers};
use crate::reader::{Problem, shortest};

/// Per-FedAvg: one network that adapts to a client in one step. Second derivatives are omitted, or
/// approximated if `HESSIAN_FREE` is set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerFedAvg<const HESSIAN_FREE: bool> {
    /// Size alpha of the adaptation step.
    pub inner_step: f32,
}

impl<const HESSIAN_FREE: bool> NetworkAlgorithm for PerFedAvg<HESSIAN_FREE> {
    const NAME: &'static str = if HESSIAN_FREE { "perfedavg-hf" } else { "perfedavg" };
    const SUMMARY: &'static str = if HESSIAN_FREE {
        "perfedavg with a Hessian-free second derivative (networks)"
    } else {
        "a shared model that adapts in one step, first order (networks)"
    };

    fn read(keys: &MethodKeys<'_, '_>) -> Result<Self, Problem> {
        // If the curvature of a batch is above 1 / alpha, the factor `I - alpha H` reverses a step. So alpha
        // is smaller where second derivatives are used.
        let default = if HESSIAN_FREE { 0.05 } else { 0.1 };
        Ok(Self { inner_step: keys.number("inner_step", default, 0.0..=1e6)? })
    }

    fn write(&self, set: &mut dyn FnMut(&str, Value)) {
        set("inner_step", shortest(self.inner_step).into());
    }

    fn plan(&self, parameters: &NetworkParameters) -> Plan {
        let Self { inner_step } = *self;
        let NetworkParameters { descent, epochs, upload_encoding: encoding, .. } = *parameters;
        let baseline = if HESSIAN_FREE {
            Baseline::PerFedAvgHf { inner_step }
        } else {
            Baseline::PerFedAvg { inner_step }
        };
        Plan { shared: SharedLayers::All, task: Task::Baseline { baseline, descent, epochs, encoding } }
    }

    fn evaluated_model(&self) -> &'static str {
        "the shared network after one step down the gradient of all the client's samples"
    }

    fn evaluated_newcomer_model(&self) -> &'static str {
        "the shared network after one step down the gradient of all the newcomer's samples and epochs on its head"
    }
}
