//! Ditto (Li et al. 2021, "Ditto: Fair and Robust Federated Learning Through Personalization"): FedAvg, and
//! in addition each device trains a personal network v on its local loss plus `lambda/2 |v - w0|^2`, where w0
//! is the received network. Clients are evaluated on v, or on the initial network if they took part in no
//! round. Newcomers are evaluated on the shared network with a head that they trained.

use fedspan_protocol::message::{Baseline, Task};
use toml_edit::Value;

use super::{
    MethodKeys, NetworkAlgorithm, NetworkParameters, OWN_NETWORK, Plan, SHARED_AND_HEAD, SharedLayers,
};
use crate::reader::{Problem, shortest};

/// Ditto: FedAvg, and a personal network on each device that stays close to the shared one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ditto {
    /// Proximal weight lambda, the key `pull`.
    pub proximal_weight: f32,
}

impl NetworkAlgorithm for Ditto {
    const NAME: &'static str = "ditto";
    const SUMMARY: &'static str = "fedavg, and personal models that stay near it (networks)";

    fn read(keys: &MethodKeys<'_, '_>) -> Result<Self, Problem> {
        Ok(Self { proximal_weight: keys.number("pull", 0.1, 0.0..=1e6)? })
    }

    fn write(&self, set: &mut dyn FnMut(&str, Value)) {
        set("pull", shortest(self.proximal_weight).into());
    }

    fn plan(&self, parameters: &NetworkParameters) -> Plan {
        let NetworkParameters { descent, epochs, upload_encoding: encoding, .. } = *parameters;
        let baseline = Baseline::Ditto { proximal_weight: self.proximal_weight };
        Plan { shared: SharedLayers::All, task: Task::Baseline { baseline, descent, epochs, encoding } }
    }

    fn evaluated_model(&self) -> &'static str {
        OWN_NETWORK
    }

    fn evaluated_newcomer_model(&self) -> &'static str {
        SHARED_AND_HEAD
    }
}
