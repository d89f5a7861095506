//! Ditto (Li et al. 2021, "Ditto: Fair and Robust Federated Learning Through Personalization"): FedAvg, plus
//! on each device a network v of its own that minimises its loss plus `lambda/2 |v - w0|^2`. Evaluated is v;
//! on a device that took part in no round, the initial network.

use fedspan_protocol::message::{Baseline, Task};

use super::{NetworkParameters, Plan, SharedLayers};

pub(super) fn plan(parameters: &NetworkParameters, proximal_weight: f32) -> Plan {
    let NetworkParameters { descent, epochs, upload_encoding: encoding, .. } = *parameters;
    let baseline = Baseline::Ditto { proximal_weight };
    Plan { shared: SharedLayers::All, task: Task::Baseline { baseline, descent, epochs, encoding } }
}
