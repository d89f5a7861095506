//! Fed-MTL (Smith et al. 2017, "Federated Multi-Task Learning") with the relation of tasks fixed to `I - 1 1^T / n`, as
//! comparisons on networks have it: everyone's own network, drawn towards the mean of all at each step. The mean is of
//! those who took part. Scored is everyone's own.

use fedspan_protocol::message::{Baseline, Task};

use super::{NetworkParameters, Plan, Travelling};

pub(super) fn plan(parameters: &NetworkParameters, pull: f32) -> Plan {
    let NetworkParameters { descent, epochs, upload_encoding: encoding, .. } = *parameters;
    let baseline = Baseline::MultiTask { pull };
    Plan { travelling: Travelling::All, task: Task::Baseline { baseline, descent, epochs, encoding } }
}
