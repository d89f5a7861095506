//! What noisy updates have cost of the device's privacy budget: written before anything leaves, never taken back.

use fedspan_protocol::message::{DeclineReason, Privacy};

use crate::store::{ALL_SPENT, Store, StoreError};

#[derive(Debug)]
pub struct Ledger {
    spent: u64,
    /// It should be there, and cannot be read.
    lost: bool,
}

impl Ledger {
    /// Reads what has been spent, where updates are private. What cannot be read is spent.
    pub fn load(privacy: Privacy, store: &mut impl Store) -> Self {
        let spent = match privacy {
            Privacy::None => return Self { spent: ALL_SPENT, lost: false },
            _ => store.load_spent().unwrap_or(ALL_SPENT),
        };
        Self { spent, lost: spent == ALL_SPENT }
    }

    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// What all updates so far have cost.
    pub fn spent(&self) -> u64 {
        self.spent
    }

    /// What hello says.
    pub fn with_spent(&self, mut privacy: Privacy) -> Privacy {
        if let Privacy::Gaussian { spent, .. } = &mut privacy {
            *spent = self.spent;
        }
        privacy
    }

    /// Whether so much is left of the budget. Without a budget nothing is.
    pub fn check_budget(&self, privacy: Privacy, cost: u64) -> Result<(), DeclineReason> {
        let left = match privacy {
            Privacy::Gaussian { budget, .. } => budget.saturating_sub(self.spent),
            _ => 0,
        };
        if cost > left { Err(DeclineReason::Budget { left }) } else { Ok(()) }
    }

    /// Adds a cost that [`afford`](Self::afford) has admitted. Should it fail, nothing may leave, and the next one may
    /// take its place, whether it was written or not.
    pub fn charge(&mut self, cost: u64, store: &mut impl Store) -> Result<(), StoreError> {
        let spent = self.spent.saturating_add(cost);
        store.save_spent(spent)?;
        self.spent = spent;
        Ok(())
    }
}
