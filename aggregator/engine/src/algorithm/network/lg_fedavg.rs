//! LG-FedAvg (Liang et al. 2020, "Think Locally, Act Globally"): a personal body and shared last layers,
//! which devices train together.

use fedspan_protocol::message::{Task, Trained};
use toml_edit::Value;

use super::{MethodKeys, NetworkAlgorithm, NetworkParameters, Plan, SharedLayers};
use crate::reader::Problem;

/// LG-FedAvg: personal bodies and shared last layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LgFedAvg {
    /// Number of shared layers at the end of the network.
    pub layers: usize,
}

impl NetworkAlgorithm for LgFedAvg {
    const NAME: &'static str = "lg-fedavg";
    const SUMMARY: &'static str = "personal bodies, shared last layers (networks)";
    const HAS_BODY_FOR_NEWCOMERS: bool = false;
    const RUNS_ON_FIRMWARE: bool = true;

    fn read(keys: &MethodKeys<'_, '_>) -> Result<Self, Problem> {
        let (front, hidden) = keys.layers;
        // At least one layer is not shared, since the algorithm would otherwise be FedAvg. After filters or
        // cells, all dense layers are shared by default (Collins et al. 2021, appendix A).
        let layers_max = (front + hidden) as u64;
        let default = if front > 0 { hidden as u64 + 1 } else { layers_max.min(2) };
        Ok(Self { layers: keys.count("shared_layers", default, 1..=layers_max)?.into() })
    }

    fn write(&self, set: &mut dyn FnMut(&str, Value)) {
        set("shared_layers", i64::try_from(self.layers).unwrap_or(i64::MAX).into());
    }

    fn plan(&self, parameters: &NetworkParameters) -> Plan {
        let NetworkParameters { descent, epochs, upload_encoding: encoding, .. } = *parameters;
        let task = Task::Sgd { descent, head_epochs: 0, epochs, trained: Trained::All, encoding };
        Plan { shared: SharedLayers::Last(self.layers), task }
    }

    fn evaluated_model(&self) -> &'static str {
        "the client's body as last trained with the shared last layers; the initial body if the client took part in \
         no round"
    }

    fn evaluated_newcomer_model(&self) -> &'static str {
        "the newcomer's own network, trained from the initial body and the shared last layers for as many epochs as \
         clients have had on average, then its head"
    }
}
