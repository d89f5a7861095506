//! FedProx (Li et al. 2020, "Federated Optimization in Heterogeneous Networks"): FedAvg with a proximal term,
//! so that devices minimise their loss plus `mu/2 |w - w0|^2`, where w0 is the broadcast network.

use fedspan_protocol::message::{Baseline, Task};

use super::{NetworkParameters, Plan, SharedLayers};

pub(super) fn plan(parameters: &NetworkParameters, proximal_weight: f32) -> Plan {
    let NetworkParameters { descent, epochs, upload_encoding: encoding, .. } = *parameters;
    let baseline = Baseline::FedProx { proximal_weight };
    Plan { shared: SharedLayers::All, task: Task::Baseline { baseline, descent, epochs, encoding } }
}
