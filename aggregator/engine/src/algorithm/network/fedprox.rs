//! FedProx (Li et al. 2020, "Federated Optimization in Heterogeneous Networks"): FedAvg with a proximal term,
//! so that devices minimise their loss plus `mu/2 |w - w0|^2`, where w0 is the broadcast network.

use fedspan_protocol::message::{Baseline, Task};
use toml_edit::Value;

use super::{MethodKeys, NetworkAlgorithm, NetworkParameters, Plan, SHARED_AND_HEAD, SharedLayers};
use crate::reader::{Problem, shortest};

/// FedProx: FedAvg with a proximal term.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FedProx {
    /// Proximal weight mu, the key `pull`.
    pub proximal_weight: f32,
}

impl NetworkAlgorithm for FedProx {
    const NAME: &'static str = "fedprox";
    const SUMMARY: &'static str = "fedavg with a proximal term (networks)";
    const SHARES_WHOLE_NETWORK: bool = true;

    fn read(keys: &MethodKeys<'_, '_>) -> Result<Self, Problem> {
        Ok(Self { proximal_weight: keys.number("pull", 0.1, 0.0..=1e6)? })
    }

    fn write(&self, set: &mut dyn FnMut(&str, Value)) {
        set("pull", shortest(self.proximal_weight).into());
    }

    fn plan(&self, parameters: &NetworkParameters) -> Plan {
        let NetworkParameters { descent, epochs, upload_encoding: encoding, .. } = *parameters;
        let baseline = Baseline::FedProx { proximal_weight: self.proximal_weight };
        Plan { shared: SharedLayers::All, task: Task::Baseline { baseline, descent, epochs, encoding } }
    }

    fn evaluated_model(&self) -> &'static str {
        "the shared network"
    }

    fn evaluated_newcomer_model(&self) -> &'static str {
        SHARED_AND_HEAD
    }
}
