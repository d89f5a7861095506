//! Per-FedAvg (Fallah et al. 2020, "Personalized Federated Learning with Theoretical Guarantees: A
//! Model-Agnostic Meta-Learning Approach"): one network from which a step of size alpha on a device's own
//! samples leads to a good one. A step is `w <- w - eta (I - alpha H) g(w - alpha g'(w))` on separate
//! batches; without the second derivative H (first order), or with `H v` as a difference of two gradients
//! (Hessian-free).
//!
//! Evaluated as by its authors: the shared network after one step of size alpha down the gradient of all the
//! samples that a client trains on.

use fedspan_protocol::message::{Baseline, Task};

use super::{NetworkParameters, Plan, SharedLayers};

pub(super) fn plan(parameters: &NetworkParameters, inner_step: f32, hessian_free: bool) -> Plan {
    let NetworkParameters { descent, epochs, upload_encoding: encoding, .. } = *parameters;
    let baseline =
        if hessian_free { Baseline::PerFedAvgHf { inner_step } } else { Baseline::PerFedAvg { inner_step } };
    Plan { shared: SharedLayers::All, task: Task::Baseline { baseline, descent, epochs, encoding } }
}
