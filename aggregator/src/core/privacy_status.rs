//! Privacy loss of the devices, as the command `status` prints it.

use std::collections::BTreeMap;

use serde::Serialize;

use fedspan_engine::DeviceId;
use fedspan_engine::privacy::{Delta, Ledger};

/// Privacy loss of all releases so far, as reported by the devices.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PrivacyStatus {
    /// Delta of the (epsilon, delta) guarantee.
    pub delta: f64,
    /// Largest epsilon of any device.
    pub epsilon: f64,
    /// Epsilon of each device, by device number.
    pub devices: BTreeMap<DeviceId, f64>,
    /// Number of reports with less privacy spending than an earlier report of the same device.
    pub fell_back: u64,
}

impl PrivacyStatus {
    /// Computes the status from the ledger; `None` if no device adds noise.
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
