//! Local training of networks without communication. A round is a number of epochs on each device.

use fedspan_protocol::message::{Task, Trained};

use super::{MethodKeys, NetworkAlgorithm, NetworkParameters, OWN_NETWORK, Plan, SharedLayers};
use crate::reader::Problem;

/// Local training without communication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalOnly;

impl NetworkAlgorithm for LocalOnly {
    const NAME: &'static str = "local-only";
    const SUMMARY: &'static str = "each client on its own samples, no communication";
    const HAS_BODY_FOR_NEWCOMERS: bool = false;
    const COMMUNICATES: bool = false;
    const RUNS_ON_FIRMWARE: bool = true;

    fn read(_keys: &MethodKeys<'_, '_>) -> Result<Self, Problem> {
        Ok(Self)
    }

    fn plan(&self, parameters: &NetworkParameters) -> Plan {
        let NetworkParameters { descent, epochs, upload_encoding: encoding, .. } = *parameters;
        let task = Task::Sgd { descent, head_epochs: 0, epochs, trained: Trained::All, encoding };
        Plan { shared: SharedLayers::Nothing, task }
    }

    fn evaluated_model(&self) -> &'static str {
        OWN_NETWORK
    }

    fn evaluated_newcomer_model(&self) -> &'static str {
        "the newcomer's own network, trained from the initial network for as many epochs as clients have had on \
         average, then its head"
    }
}
