//! FedRep on networks (Collins et al. 2021, Algorithm 1): a shared body and personal heads. A device trains
//! its head on the broadcast body, then the body under that head, and uploads the body.

use fedspan_protocol::message::{Task, Trained};

use super::{MethodKeys, NetworkAlgorithm, NetworkParameters, Plan, SharedLayers};
use crate::reader::Problem;

/// FedRep: shared body and personal heads. Each round trains first the head, then the body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FedRep;

impl NetworkAlgorithm for FedRep {
    const NAME: &'static str = "fedrep";
    const SUMMARY: &'static str = "shared representation, personal heads (Collins et al. 2021)";
    const RUNS_ON_FIRMWARE: bool = true;
    const HAS_HEAD_EPOCHS: bool = true;
    const HAS_OWN_HEAD: bool = true;

    fn read(_keys: &MethodKeys<'_, '_>) -> Result<Self, Problem> {
        Ok(Self)
    }

    fn plan(&self, parameters: &NetworkParameters) -> Plan {
        let NetworkParameters { descent, head_epochs, epochs, upload_encoding: encoding, .. } = *parameters;
        let task = Task::Sgd { descent, head_epochs, epochs, trained: Trained::Shared, encoding };
        Plan { shared: SharedLayers::Body, task }
    }

    fn evaluated_model(&self) -> &'static str {
        "the shared body with the client's head as last trained; a zero head if the client took part in no round"
    }

    fn evaluated_newcomer_model(&self) -> &'static str {
        "the shared body with a head that the newcomer trained"
    }
}
