//! FedPer (Arivazhagan et al. 2019, "Federated Learning with Personalization Layers"): a shared body and
//! personal heads as in FedRep, but devices train body and head together.

use fedspan_protocol::message::{Task, Trained};

use super::{MethodKeys, NetworkAlgorithm, NetworkParameters, Plan, SharedLayers};
use crate::reader::Problem;

/// FedPer: shared body and personal heads, trained together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FedPer;

impl NetworkAlgorithm for FedPer {
    const NAME: &'static str = "fedper";
    const SUMMARY: &'static str = "shared body, personal heads, trained together (networks)";
    const RUNS_ON_FIRMWARE: bool = true;
    const HAS_OWN_HEAD: bool = true;

    fn read(_keys: &MethodKeys<'_, '_>) -> Result<Self, Problem> {
        Ok(Self)
    }

    fn plan(&self, parameters: &NetworkParameters) -> Plan {
        let NetworkParameters { descent, epochs, upload_encoding: encoding, .. } = *parameters;
        let task = Task::Sgd { descent, head_epochs: 0, epochs, trained: Trained::All, encoding };
        Plan { shared: SharedLayers::Body, task }
    }

    fn evaluated_model(&self) -> &'static str {
        "the shared body with the client's head as last trained; a zero head if the client took part in no round"
    }

    fn evaluated_newcomer_model(&self) -> &'static str {
        "the shared body with a head that the newcomer trained"
    }
}
