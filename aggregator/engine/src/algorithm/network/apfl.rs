//! APFL (Deng et al. 2020, "Adaptive Personalized Federated Learning"): FedAvg, and beside it on each device a network v
//! trained so that the mixture `alpha v + (1 - alpha) w` answers well. alpha may be learnt, a step a round. Scored is the
//! mixture with everyone's network as w; a device that was in no round has the network that all begin with as v.

use fedspan_protocol::message::{Baseline, Task};

use super::{NetworkParameters, Plan, Travelling};

pub(super) fn plan(parameters: &NetworkParameters, own: f32, adaptation: f32) -> Plan {
    let NetworkParameters { descent, epochs, upload_encoding: encoding, .. } = *parameters;
    let baseline = Baseline::Apfl { mixing_weight: own, mixing_step_size: adaptation };
    Plan { travelling: Travelling::All, task: Task::Baseline { baseline, descent, epochs, encoding } }
}
