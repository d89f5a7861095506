//! Read snapshot: the database as of one moment, read while writers continue (MVCC). Its pages are not reused
//! before it is dropped.

use std::path::PathBuf;

use redb::ReadTransaction;

use super::corruption_guard::catch_corruption;
use super::{CampaignState, StoreError, tables};

/// Database as of one moment.
pub struct ReadSnapshot {
    read: ReadTransaction,
    path: PathBuf,
}

impl ReadSnapshot {
    pub(super) fn new(read: ReadTransaction, path: PathBuf) -> Self {
        Self { read, path }
    }

    /// Loads the campaign without the updates of the open round, which stay private until the round is over.
    ///
    /// # Errors
    /// [`StoreError`] if the database cannot be read or is inconsistent.
    pub fn campaign(&self) -> Result<Option<CampaignState>, StoreError> {
        catch_corruption(|| tables::load_without_updates(&self.read)).map_err(|error| error.at(&self.path))
    }

    /// Returns the number of committed rounds.
    ///
    /// # Errors
    /// As [`Self::campaign`].
    pub fn count_rounds(&self) -> Result<u64, StoreError> {
        catch_corruption(|| tables::count_rounds(&self.read)).map_err(|error| error.at(&self.path))
    }

    /// Passes the committed rounds, one line of JSON each, to `each` in order, until it returns false.
    ///
    /// # Errors
    /// As [`Self::campaign`].
    pub fn rounds(&self, mut each: impl FnMut(&str) -> bool) -> Result<(), StoreError> {
        catch_corruption(|| tables::for_each_round(&self.read, |_, line| each(line)))
            .map_err(|error| error.at(&self.path))
    }

    /// Passes the journal lines to `each` in order, until it returns false.
    ///
    /// # Errors
    /// [`StoreError`] if they cannot be read.
    pub fn journal(&self, mut each: impl FnMut(&str) -> bool) -> Result<(), StoreError> {
        catch_corruption(|| tables::for_each_journal_line(&self.read, 0, |_, line| each(line)))
            .map_err(|error| error.at(&self.path))
    }
}
