//! What the server knows of the devices' privacy budgets. It spends nothing: devices charge themselves, and refuse what
//! is over their budget. The server's own account is there to be read. It is what a device says in its hello, and what came after
//! that. The first update that comes after a hello may have been paid for before it and waited for a link: it is added as if it had
//! not, so that between hellos an account is never below the truth, and the next hello says which it was.

use std::collections::BTreeMap;

use fedspan_protocol::message::{Privacy, Task};
use serde::{Deserialize, Serialize};

use super::ledger_units::epsilon_of;
use super::{Delta, Epsilon};
use crate::types::DeviceId;

/// A device's account, in the units of [`units`](super::ledger_units).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// What one noisy release costs.
    pub release: u32,
    /// What all may cost.
    pub budget: u64,
    /// What they have cost: what the device has said, and what was received here since.
    pub spent: u64,
    /// The last round of which an update has come.
    round: u32,
    /// Nothing has come since the device has said that.
    just_reported: bool,
    /// The part of `spent` that the device may have said as well: what came first since then.
    possibly_double: u64,
}

/// All accounts.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    accounts: BTreeMap<DeviceId, Account>,
    /// Times that a device said that it had spent less than before: its storage was replaced, or it lies.
    fell_back: u64,
}

impl Ledger {
    /// A device has said hello.
    pub fn record_hello(&mut self, device: DeviceId, reported: Privacy) {
        let Privacy::Gaussian { release, budget, spent } = reported else { return };
        let account = self.accounts.entry(device).or_default();
        let fell_back = spent < account.spent.saturating_sub(account.possibly_double);
        self.fell_back += u64::from(fell_back);
        let spent = if fell_back { account.spent } else { spent };
        *account = Account { release, budget, spent, just_reported: true, possibly_double: 0, ..*account };
    }

    /// An update of so many noisy releases has come. A device has one for each round: whatever became of it, the same again
    /// costs nothing.
    pub fn charge_update(&mut self, device: DeviceId, round: u32, releases: u32) {
        if let Some(account) = self.accounts.get_mut(&device).filter(|account| round > account.round) {
            account.round = round;
            let cost = u64::from(account.release).saturating_mul(releases.into());
            account.spent = account.spent.saturating_add(cost);
            if std::mem::take(&mut account.just_reported) {
                account.possibly_double = cost;
            }
        }
    }

    /// Puts an account back that was kept over a restart.
    pub fn restore(&mut self, device: DeviceId, account: Account) {
        self.accounts.insert(device, account);
    }

    /// The accounts, in order of devices.
    #[must_use]
    pub fn accounts(&self) -> &BTreeMap<DeviceId, Account> {
        &self.accounts
    }

    /// Times that a device said that it had spent less than it had.
    #[must_use]
    pub fn fell_back(&self) -> u64 {
        self.fell_back
    }

    /// Epsilon of what each device has spent, in order of devices, and the largest.
    #[must_use]
    pub fn epsilons(&self, delta: Delta) -> (Vec<(DeviceId, f64)>, f64) {
        let mut known: BTreeMap<u64, f64> = BTreeMap::new();
        let mut of = |units: u64| *known.entry(units).or_insert_with(|| epsilon_of(units, delta));
        let all: Vec<(DeviceId, f64)> =
            self.accounts.iter().map(|(device, account)| (*device, of(account.spent))).collect();
        let largest = all.iter().fold(0.0, |most: f64, (_, epsilon)| most.max(*epsilon));
        (all, largest)
    }
}

/// Noisy releases in an update for this task, of a device that adds noise.
#[must_use]
pub fn releases(task: &Task) -> u32 {
    match *task {
        Task::FedPower { iterations, .. } => iterations.into(),
        // Nothing leaves.
        Task::FitHead { .. } => 0,
        _ => 1,
    }
}

/// What a server asks of its devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrivacyRequirement {
    /// No device may ever spend more than this,
    pub epsilon: Epsilon,
    /// at this delta.
    pub delta: Delta,
}

impl PrivacyRequirement {
    /// The same in the units of the devices.
    #[must_use]
    pub fn budget(self) -> u64 {
        super::ledger_units::max_units(self.epsilon, self.delta)
    }
}
