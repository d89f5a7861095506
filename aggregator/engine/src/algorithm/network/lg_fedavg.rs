//! LG-FedAvg (Liang et al. 2020, "Think Locally, Act Globally"): a personal body and shared last layers,
//! trained together.

use fedspan_protocol::message::{Task, Trained};

use super::{NetworkParameters, Plan, SharedLayers};

pub(super) fn plan(parameters: &NetworkParameters, layers: usize) -> Plan {
    let NetworkParameters { descent, epochs, upload_encoding: encoding, .. } = *parameters;
    let task = Task::Sgd { descent, head_epochs: 0, epochs, trained: Trained::All, encoding };
    Plan { shared: SharedLayers::Last(layers), task }
}
