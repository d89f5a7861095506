//! Fed-MTL (Smith et al. 2017, "Federated Multi-Task Learning") with equally related tasks: each device
//! trains a personal network, and each step moves it towards the mean of the participants' networks. Each
//! client is evaluated on its personal network.
//!
//! The paper's penalty is `tr(W Omega W^T)` over the clients' models, the columns of `W`. This file
//! simplifies it in two ways. First, `Omega` is fixed to `I - 1 1^T / n`, so that the penalty is the models'
//! squared distance to their mean: mean-regularised multi-task learning (Evgeniou and Pontil 2004), which the
//! paper lists among the cases of a known relation. To learn `Omega`, the server would have to keep the model
//! of every client and send each client a different mean; here the server keeps one mean for all clients.
//! Second, devices take steps of stochastic gradient descent, as usual in comparisons on networks: the solver
//! of the paper works on the dual of a convex loss, and the loss of a network is not convex.

use fedspan_protocol::message::{Baseline, Task};
use toml_edit::Value;

use super::{
    MethodKeys, NetworkAlgorithm, NetworkParameters, OWN_NETWORK, Plan, SHARED_AND_HEAD, SharedLayers,
};
use crate::reader::{Problem, shortest};

/// Fed-MTL: personal networks, which each step moves towards their mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FedMtl {
    /// Penalty weight lambda, the key `pull`.
    pub proximal_weight: f32,
}

impl NetworkAlgorithm for FedMtl {
    const NAME: &'static str = "fed-mtl";
    const SUMMARY: &'static str = "personal models drawn to their mean at each step (networks)";

    fn read(keys: &MethodKeys<'_, '_>) -> Result<Self, Problem> {
        Ok(Self { proximal_weight: keys.number("pull", 0.05, 0.0..=1e6)? })
    }

    fn write(&self, set: &mut dyn FnMut(&str, Value)) {
        set("pull", shortest(self.proximal_weight).into());
    }

    fn plan(&self, parameters: &NetworkParameters) -> Plan {
        let NetworkParameters { descent, epochs, upload_encoding: encoding, .. } = *parameters;
        let baseline = Baseline::FedMtl { proximal_weight: self.proximal_weight };
        Plan { shared: SharedLayers::All, task: Task::Baseline { baseline, descent, epochs, encoding } }
    }

    fn evaluated_model(&self) -> &'static str {
        OWN_NETWORK
    }

    fn evaluated_newcomer_model(&self) -> &'static str {
        SHARED_AND_HEAD
    }
}
