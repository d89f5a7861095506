//! FedPer (Arivazhagan et al. 2019, "Federated Learning with Personalization Layers"): like FedRep, but body
//! and head are trained together.

use fedspan_protocol::message::{Task, Trained};

use super::{NetworkParameters, Plan, SharedLayers};

pub(super) fn plan(parameters: &NetworkParameters) -> Plan {
    let NetworkParameters { descent, epochs, upload_encoding: encoding, .. } = *parameters;
    let task = Task::Sgd { descent, head_epochs: 0, epochs, trained: Trained::All, encoding };
    Plan { shared: SharedLayers::Body, task }
}
