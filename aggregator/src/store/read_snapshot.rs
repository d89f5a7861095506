//! Read snapshot: the state of the database at one moment, which can be read while writes continue (MVCC).
//! The database does not reuse pages of a snapshot until the snapshot is dropped.

use std::path::PathBuf;

use redb::ReadTransaction;

use super::corruption_guard::catch_corruption;
use super::{CampaignState, StoreError, tables};

/// State of the database at one moment.
pub struct ReadSnapshot {
    read: ReadTransaction,
    path: PathBuf,
}

impl ReadSnapshot {
    pub(super) fn new(read: ReadTransaction, path: PathBuf) -> Self {
        Self { read, path }
    }

    /// Loads the campaign without the updates of the open round, which remain encrypted.
    ///
    /// # Errors
    /// [`StoreError`] if the database cannot be read or is inconsistent.
    pub fn campaign(&self) -> Result<Option<CampaignState>, StoreError> {
        catch_corruption(|| tables::load_without_updates(&self.read))
            .map_err(|error| error.with_path(&self.path))
    }

    /// Returns the number of committed rounds.
    ///
    /// # Errors
    /// Same as [`Self::campaign`].
    pub fn count_rounds(&self) -> Result<u64, StoreError> {
        catch_corruption(|| tables::count_rounds(&self.read)).map_err(|error| error.with_path(&self.path))
    }

    /// Passes the committed rounds, one line of JSON each, to `each` in order, until `each` returns false.
    ///
    /// # Errors
    /// Same as [`Self::campaign`].
    pub fn rounds(&self, mut each: impl FnMut(&str) -> bool) -> Result<(), StoreError> {
        catch_corruption(|| tables::for_each_round(&self.read, |_, line| each(line)))
            .map_err(|error| error.with_path(&self.path))
    }

    /// Passes the journal lines to `each` in order, until `each` returns false.
    ///
    /// # Errors
    /// [`StoreError`] if the lines cannot be read.
    pub fn journal(&self, mut each: impl FnMut(&str) -> bool) -> Result<(), StoreError> {
        catch_corruption(|| tables::for_each_journal_line(&self.read, 0, |_, line| each(line)))
            .map_err(|error| error.with_path(&self.path))
    }
}
