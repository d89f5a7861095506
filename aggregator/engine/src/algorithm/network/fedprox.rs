//! FedProx (Li et al. 2020, "Federated Optimization in Heterogeneous Networks"): FedAvg whose devices minimise their loss
//! plus `mu/2 |w - w0|^2`, w0 the network that came.

use fedspan_protocol::message::{Baseline, Task};

use super::{NetworkParameters, Plan, Travelling};

pub(super) fn plan(parameters: &NetworkParameters, pull: f32) -> Plan {
    let NetworkParameters { descent, epochs, upload_encoding: encoding, .. } = *parameters;
    let baseline = Baseline::FedProx { proximal_weight: pull };
    Plan { travelling: Travelling::All, task: Task::Baseline { baseline, descent, epochs, encoding } }
}
