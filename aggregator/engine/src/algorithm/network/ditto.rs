//! Ditto (Li et al. 2021, "Ditto: Fair and Robust Federated Learning Through Personalization"): FedAvg, plus
//! on each device a network v of its own that minimises its loss plus `lambda/2 |v - w0|^2`. Evaluated is v;
//! on a device that took part in no round, the initial network.

use fedspan_protocol::message::{Baseline, Task};
use toml_edit::Value;

use super::{
    MethodKeys, NetworkAlgorithm, NetworkParameters, OWN_NETWORK, Plan, SHARED_AND_HEAD, SharedLayers,
};
use crate::reader::{Problem, shortest};

/// Ditto: FedAvg, and personal networks near the shared one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ditto {
    /// Proximal weight lambda.
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
