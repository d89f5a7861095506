//! Ditto (Li et al. 2021, "Ditto: Fair and Robust Federated Learning Through Personalization"): FedAvg, and beside it on
//! each device a network v of its own that minimises its loss plus `lambda/2 |v - w0|^2`. Scored is v: on a device that
//! was in no round the network that all begin with.

use fedspan_protocol::message::{Baseline, Task};

use super::{NetworkParameters, Plan, Travelling};

pub(super) fn plan(parameters: &NetworkParameters, pull: f32) -> Plan {
    let NetworkParameters { descent, epochs, upload_encoding: encoding, .. } = *parameters;
    let baseline = Baseline::Ditto { proximal_weight: pull };
    Plan { travelling: Travelling::All, task: Task::Baseline { baseline, descent, epochs, encoding } }
}
