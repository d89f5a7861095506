//! Privacy ledger: the spent part of the device's budget. It is written before an update is sent, and costs
//! are never refunded.

use fedspan_protocol::message::{DeclineReason, Privacy};

use crate::store::{ALL_SPENT, Store, StoreError};

/// Privacy ledger of a device, in memory.
#[derive(Debug)]
pub struct Ledger {
    /// Total cost of all updates so far.
    spent: u64,
    /// True if the ledger existed but could not be read.
    lost: bool,
}

impl Ledger {
    /// Reads the spent budget if updates are private. If the ledger cannot be read, the whole budget counts
    /// as spent.
    pub fn load(privacy: Privacy, store: &mut impl Store) -> Self {
        let spent = match privacy {
            Privacy::None => return Self { spent: ALL_SPENT, lost: false },
            _ => store.load_spent().unwrap_or(ALL_SPENT),
        };
        Self { spent, lost: spent == ALL_SPENT }
    }

    /// Returns true if the ledger existed but could not be read.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// Returns the total cost of all updates so far.
    pub fn spent(&self) -> u64 {
        self.spent
    }

    /// Adds the spent budget to the privacy parameters of a hello.
    pub fn with_spent(&self, mut privacy: Privacy) -> Privacy {
        if let Privacy::Gaussian { spent, .. } = &mut privacy {
            *spent = self.spent;
        }
        privacy
    }

    /// Checks that the unspent budget covers `cost`. Without a budget only a cost of 0 is covered.
    ///
    /// # Errors
    /// [`DeclineReason::Budget`] with the unspent budget, if the cost is larger.
    pub fn check_budget(&self, privacy: Privacy, cost: u64) -> Result<(), DeclineReason> {
        let budget_left = match privacy {
            Privacy::Gaussian { budget, .. } => budget.saturating_sub(self.spent),
            _ => 0,
        };
        if cost > budget_left { Err(DeclineReason::Budget { left: budget_left }) } else { Ok(()) }
    }

    /// Adds a cost that [`check_budget`](Self::check_budget) has admitted, and writes the total to storage.
    ///
    /// # Errors
    /// [`StoreError`] if the total could not be written. The device must then send nothing. The next charge
    /// may write the same total, whether or not this write reached the storage.
    pub fn charge(&mut self, cost: u64, store: &mut impl Store) -> Result<(), StoreError> {
        let spent = self.spent.saturating_add(cost);
        store.save_spent(spent)?;
        self.spent = spent;
        Ok(())
    }
}
