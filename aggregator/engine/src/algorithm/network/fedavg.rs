//! FedAvg on networks (McMahan et al. 2017): one network for all devices, which train and upload all of it.

use fedspan_protocol::message::{Task, Trained};

use super::{MethodKeys, NetworkAlgorithm, NetworkParameters, Plan, SHARED_AND_HEAD, SharedLayers};
use crate::reader::Problem;

/// FedAvg: one network for all devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FedAvg;

impl NetworkAlgorithm for FedAvg {
    const NAME: &'static str = "fedavg";
    const SUMMARY: &'static str = "one model for all, averaged";
    const SHARES_WHOLE_NETWORK: bool = true;
    const RUNS_ON_FIRMWARE: bool = true;

    fn read(_keys: &MethodKeys<'_, '_>) -> Result<Self, Problem> {
        Ok(Self)
    }

    fn plan(&self, parameters: &NetworkParameters) -> Plan {
        let NetworkParameters { descent, epochs, upload_encoding: encoding, .. } = *parameters;
        let task = Task::Sgd { descent, head_epochs: 0, epochs, trained: Trained::All, encoding };
        Plan { shared: SharedLayers::All, task }
    }

    fn evaluated_model(&self) -> &'static str {
        "the shared network"
    }

    fn evaluated_newcomer_model(&self) -> &'static str {
        SHARED_AND_HEAD
    }
}
