//! FedRep on networks (Collins et al. 2021, Algorithm 1): a shared body and personal heads. A device trains
//! its head on the broadcast body, then the body under that head, and uploads the body.

use fedspan_protocol::message::{Task, Trained};

use super::{NetworkParameters, Plan, SharedLayers};

pub(super) fn plan(parameters: &NetworkParameters) -> Plan {
    let NetworkParameters { descent, head_epochs, epochs, upload_encoding: encoding, .. } = *parameters;
    let task = Task::Sgd { descent, head_epochs, epochs, trained: Trained::Shared, encoding };
    Plan { shared: SharedLayers::Body, task }
}
