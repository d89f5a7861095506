//! What `status` says of the devices' privacy.

use std::collections::BTreeMap;

use serde::Serialize;

use fedspan_engine::DeviceId;
use fedspan_engine::privacy::{Delta, Ledger};

/// What all releases of the devices' lives have cost so far, as far as the server knows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PrivacyStatus {
    /// The delta that epsilon is for.
    pub delta: f64,
    /// The largest epsilon of a device.
    pub epsilon: f64,
    /// Each device's.
    pub devices: BTreeMap<DeviceId, f64>,
    /// Times that a device said that it had spent less than it had before.
    pub fell_back: u64,
}

impl PrivacyStatus {
    /// Of the accounts as they are; `None` where no device adds noise.
    #[must_use]
    pub fn of(ledger: &Ledger, delta: Delta) -> Option<Self> {
        if ledger.accounts().is_empty() {
            return None;
        }
        let (devices, epsilon) = ledger.epsilons(delta);
        let devices = devices.into_iter().collect();
        Some(Self { delta: delta.get(), epsilon, devices, fell_back: ledger.fell_back() })
    }
}
