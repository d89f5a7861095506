//! The server's account of each device's privacy spending, for reports alone: devices charge their own
//! ledgers and decline rounds that exceed their budget.
//!
//! An account is the spending that the device reported in its last hello, plus the cost of the updates
//! received since. The first update after a hello may already be included in the reported spending, if the
//! device computed it before it reconnected. Its cost is added anyway, so that between hellos an account is
//! never below the true spending; the next hello corrects the account.

use std::collections::BTreeMap;

use fedspan_protocol::message::{Privacy, Task};
use serde::{Deserialize, Serialize};

use super::ledger_units::epsilon_of;
use super::{Delta, Epsilon};
use crate::types::DeviceId;

/// Privacy account of a device, in the units of [`ledger_units`](super::ledger_units).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Cost of one noisy release.
    pub release: u32,
    /// Budget for all releases.
    pub budget: u64,
    /// Spending that the device reported, plus the cost of the updates received since.
    pub spent: u64,
    /// Number of the last round for which an update was received.
    round: u32,
    /// Whether the device has reported its spending and sent no update since.
    just_reported: bool,
    /// Part of `spent` that may be counted twice: the cost of the first update since the device's report.
    possibly_double: u64,
}

/// Privacy accounts of all devices.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    accounts: BTreeMap<DeviceId, Account>,
    /// Number of reports of less spending than an earlier report. The ledger keeps the earlier spending: the
    /// storage of the device was replaced, or its report is false.
    fell_back: u64,
}

impl Ledger {
    /// Records the privacy parameters of a device's hello. Returns the account if it has changed.
    pub fn record_hello(&mut self, device: DeviceId, reported: Privacy) -> Option<Account> {
        let Privacy::Gaussian { release, budget, spent } = reported else { return None };
        let is_new = !self.accounts.contains_key(&device);
        let account = self.accounts.entry(device).or_default();
        let previous = *account;
        let fell_back = spent < account.spent.saturating_sub(account.possibly_double);
        self.fell_back += u64::from(fell_back);
        let spent = if fell_back { account.spent } else { spent };
        *account = Account { release, budget, spent, just_reported: true, possibly_double: 0, ..*account };
        (is_new || previous != *account).then_some(*account)
    }

    /// Charges an update with `releases` noisy releases to the device. A device has one update per round, so
    /// an update that is received again is not charged again. Returns the account if it has changed.
    pub fn charge_update(&mut self, device: DeviceId, round: u32, releases: u32) -> Option<Account> {
        self.accounts.get_mut(&device).filter(|account| round > account.round).map(|account| {
            account.round = round;
            let cost = u64::from(account.release).saturating_mul(releases.into());
            account.spent = account.spent.saturating_add(cost);
            if std::mem::take(&mut account.just_reported) {
                account.possibly_double = cost;
            }
            *account
        })
    }

    /// Restores an account after a restart.
    pub fn restore(&mut self, device: DeviceId, account: Account) {
        self.accounts.insert(device, account);
    }

    /// Accounts, in the order of devices.
    #[must_use]
    pub fn accounts(&self) -> &BTreeMap<DeviceId, Account> {
        &self.accounts
    }

    /// Number of hellos that reported less spending than an earlier report.
    #[must_use]
    pub fn fell_back(&self) -> u64 {
        self.fell_back
    }

    /// Epsilon spent by each device, in the order of devices, and the largest of these epsilons.
    #[must_use]
    pub fn epsilons(&self, delta: Delta) -> (Vec<(DeviceId, f64)>, f64) {
        let mut cache: BTreeMap<u64, f64> = BTreeMap::new();
        let mut cached_epsilon = |units: u64| *cache.entry(units).or_insert_with(|| epsilon_of(units, delta));
        let epsilons: Vec<(DeviceId, f64)> =
            self.accounts.iter().map(|(device, account)| (*device, cached_epsilon(account.spent))).collect();
        let largest = epsilons.iter().fold(0.0, |largest: f64, (_, epsilon)| largest.max(*epsilon));
        (epsilons, largest)
    }
}

/// Number of noisy releases in an update for this task, for a device that adds noise.
#[must_use]
pub fn releases(task: &Task) -> u32 {
    match *task {
        Task::FedPower { iterations, .. } => iterations.into(),
        // The device uploads no tensor.
        Task::FitHead { .. } => 0,
        _ => 1,
    }
}

/// Privacy that a server requires of every device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrivacyRequirement {
    /// Largest epsilon that a device may ever spend.
    pub epsilon: Epsilon,
    /// Delta of that epsilon.
    pub delta: Delta,
}

impl PrivacyRequirement {
    /// The requirement as a budget in the units of the devices' ledgers.
    #[must_use]
    pub fn budget(self) -> u64 {
        super::ledger_units::max_units(self.epsilon, self.delta)
    }
}
