//! What a database held at one moment, read while it is written: writers do not wait for it. Pages that it holds are not used again
//! as long as it lives.

use std::path::PathBuf;

use redb::ReadTransaction;

use super::corruption_guard::catch_corruption;
use super::{CampaignState, StoreError, tables};

/// The database of a moment.
pub struct ReadSnapshot {
    read: ReadTransaction,
    path: PathBuf,
}

impl ReadSnapshot {
    pub(super) fn new(read: ReadTransaction, path: PathBuf) -> Self {
        Self { read, path }
    }

    /// The campaign, but for what the open round has of its devices: that is nobody's until the round is over.
    ///
    /// # Errors
    /// [`StoreError`] if it cannot be read, or not be made sense of.
    pub fn campaign(&self) -> Result<Option<CampaignState>, StoreError> {
        catch_corruption(|| tables::load_without_updates(&self.read)).map_err(|error| error.at(&self.path))
    }

    /// How many rounds were committed.
    ///
    /// # Errors
    /// As [`Self::campaign`].
    pub fn count_rounds(&self) -> Result<u64, StoreError> {
        catch_corruption(|| tables::count_rounds(&self.read)).map_err(|error| error.at(&self.path))
    }

    /// Gives the rounds that were committed, a line of JSON each, to `each`, in their order, until it wants no more.
    ///
    /// # Errors
    /// As [`Self::campaign`].
    pub fn rounds(&self, mut each: impl FnMut(&str) -> bool) -> Result<(), StoreError> {
        catch_corruption(|| tables::for_each_round(&self.read, |_, line| each(line)))
            .map_err(|error| error.at(&self.path))
    }

    /// Gives the journal's lines to `each`, in their order, until it wants no more.
    ///
    /// # Errors
    /// [`StoreError`] if they cannot be read.
    pub fn journal(&self, mut each: impl FnMut(&str) -> bool) -> Result<(), StoreError> {
        catch_corruption(|| tables::for_each_journal_line(&self.read, 0, |_, line| each(line)))
            .map_err(|error| error.at(&self.path))
    }
}
