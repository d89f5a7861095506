//! L2GD (Hanzely and Richtarik 2020, "Federated Learning of a Mixture of Global and Local Models"): everyone's own network,
//! with a penalty on the distance to the mean of all. A round is one step towards the mean, then epochs alone; the mean
//! is of those who took part. Scored is everyone's own.

use fedspan_protocol::message::{Baseline, Task};

use super::{NetworkParameters, Plan, Travelling};

pub(super) fn plan(parameters: &NetworkParameters, part: f32) -> Plan {
    let NetworkParameters { descent, epochs, upload_encoding: encoding, .. } = *parameters;
    let baseline = Baseline::TowardsMean { part };
    Plan { travelling: Travelling::All, task: Task::Baseline { baseline, descent, epochs, encoding } }
}
