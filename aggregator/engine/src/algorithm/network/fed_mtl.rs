//! Fed-MTL (Smith et al. 2017, "Federated Multi-Task Learning") with all tasks related alike: everyone's own network, drawn
//! towards the mean of all at each step. The mean is of those who took part. Scored is everyone's own.
//!
//! The paper's penalty is `tr(W Omega W^T)` over the clients' models, the columns of `W`. It is reduced here in two ways.
//! `Omega` is not learnt but `I - 1 1^T / n`, with which the penalty is the models' squared distance to their mean:
//! mean-regularised multi-task learning (Evgeniou and Pontil 2004), which the paper has among its cases of a relation known
//! beforehand. To learn `Omega` the server would keep every client's model by name and send each client a mean of its own;
//! here it knows one mean, the same for all. And steps are those of stochastic gradient descent, as comparisons on networks
//! have it: the paper's own solver works on the dual of a convex loss, which a network has not.

use fedspan_protocol::message::{Baseline, Task};

use super::{NetworkParameters, Plan, Travelling};

pub(super) fn plan(parameters: &NetworkParameters, pull: f32) -> Plan {
    let NetworkParameters { descent, epochs, upload_encoding: encoding, .. } = *parameters;
    let baseline = Baseline::FedMtl { proximal_weight: pull };
    Plan { travelling: Travelling::All, task: Task::Baseline { baseline, descent, epochs, encoding } }
}
