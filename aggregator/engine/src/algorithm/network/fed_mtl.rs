//! Fed-MTL (Smith et al. 2017, "Federated Multi-Task Learning") with equally related tasks: each device
//! trains its own network, drawn towards the mean of all at each step. The mean is over the participants.
//! Evaluated is each device's own network.
//!
//! The paper's penalty is `tr(W Omega W^T)` over the clients' models, the columns of `W`. It is simplified
//! here in two ways. `Omega` is fixed to `I - 1 1^T / n`, with which the penalty is the models' squared
//! distance to their mean: mean-regularised multi-task learning (Evgeniou and Pontil 2004), which the paper
//! lists among the cases of a known relation. To learn `Omega`, the server would have to keep every client's
//! model by name and send each client a mean of its own; here it keeps one mean for all. And the steps are
//! those of stochastic gradient descent, as in comparisons on networks: the paper's own solver works on the
//! dual of a convex loss, which a network does not have.

use fedspan_protocol::message::{Baseline, Task};

use super::{NetworkParameters, Plan, SharedLayers};

pub(super) fn plan(parameters: &NetworkParameters, proximal_weight: f32) -> Plan {
    let NetworkParameters { descent, epochs, upload_encoding: encoding, .. } = *parameters;
    let baseline = Baseline::FedMtl { proximal_weight };
    Plan { shared: SharedLayers::All, task: Task::Baseline { baseline, descent, epochs, encoding } }
}
