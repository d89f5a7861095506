//! APFL (Deng et al. 2020, "Adaptive Personalized Federated Learning"): FedAvg, plus on each device a network
//! v trained so that the mixture `alpha v + (1 - alpha) w` predicts well. alpha may be learnt, by one step
//! per round. Evaluated is the mixture with the shared network as w; a device that took part in no round has
//! the initial network as v.

use fedspan_protocol::message::{Baseline, Task};

use super::{NetworkParameters, Plan, SharedLayers};

pub(super) fn plan(parameters: &NetworkParameters, mixing_weight: f32, mixing_step_size: f32) -> Plan {
    let NetworkParameters { descent, epochs, upload_encoding: encoding, .. } = *parameters;
    let baseline = Baseline::Apfl { mixing_weight, mixing_step_size };
    Plan { shared: SharedLayers::All, task: Task::Baseline { baseline, descent, epochs, encoding } }
}
