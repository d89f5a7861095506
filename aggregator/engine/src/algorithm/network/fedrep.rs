//! FedRep on networks (Collins et al. 2021, Algorithm 1): the body is everyone's, the head one's own. A device trains its
//! head on the body that came, then the body under that head, and sends the body.

use fedspan_protocol::message::{Task, Trained};

use super::{NetworkParameters, Plan, Travelling};

pub(super) fn plan(parameters: &NetworkParameters) -> Plan {
    let NetworkParameters { descent, head_epochs, epochs, upload_encoding: encoding, .. } = *parameters;
    let task = Task::Sgd { descent, head_epochs, epochs, trained: Trained::Shared, encoding };
    Plan { travelling: Travelling::Body, task }
}
