//! APFL (Deng et al. 2020, "Adaptive Personalized Federated Learning"): FedAvg, and in addition each device
//! trains a network v such that the mixture `alpha v + (1 - alpha) w` with the shared network w predicts
//! well. The weight alpha may be learnt, by one step per round. Clients are evaluated on this mixture; for a
//! client that took part in no round, v is the initial network.

use fedspan_protocol::message::{Baseline, Task};
use toml_edit::Value;

use super::{MethodKeys, NetworkAlgorithm, NetworkParameters, Plan, SHARED_AND_HEAD, SharedLayers};
use crate::reader::{Problem, shortest};

/// APFL: mixtures of a shared and personal networks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Apfl {
    /// Initial mixing weight alpha of the personal network.
    pub mixing_weight: f32,
    /// Step size of alpha; 0 keeps it fixed.
    pub mixing_step_size: f32,
}

impl NetworkAlgorithm for Apfl {
    const NAME: &'static str = "apfl";
    const SUMMARY: &'static str = "mixtures of a shared and personal models (networks)";

    fn read(keys: &MethodKeys<'_, '_>) -> Result<Self, Problem> {
        Ok(Self {
            mixing_weight: keys.number("own", 0.25, 0.0..=1.0)?,
            mixing_step_size: keys.number("adaptation", 0.0, 0.0..=1e6)?,
        })
    }

    fn write(&self, set: &mut dyn FnMut(&str, Value)) {
        set("own", shortest(self.mixing_weight).into());
        set("adaptation", shortest(self.mixing_step_size).into());
    }

    fn plan(&self, parameters: &NetworkParameters) -> Plan {
        let Self { mixing_weight, mixing_step_size } = *self;
        let NetworkParameters { descent, epochs, upload_encoding: encoding, .. } = *parameters;
        let baseline = Baseline::Apfl { mixing_weight, mixing_step_size };
        Plan { shared: SharedLayers::All, task: Task::Baseline { baseline, descent, epochs, encoding } }
    }

    fn evaluated_model(&self) -> &'static str {
        "the client's mixture of the shared network and its own, which is the initial one if it took part in no round"
    }

    fn evaluated_newcomer_model(&self) -> &'static str {
        SHARED_AND_HEAD
    }
}
