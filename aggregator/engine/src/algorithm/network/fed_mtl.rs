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
use toml_edit::Value;

use super::{
    MethodKeys, NetworkAlgorithm, NetworkParameters, OWN_NETWORK, Plan, SHARED_AND_HEAD, SharedLayers,
};
use crate::reader::{Problem, shortest};

/// Fed-MTL: personal networks drawn towards their mean at each step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FedMtl {
    /// Penalty weight lambda.
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
