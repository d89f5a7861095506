//! Active keys: a handle to the key table that connections share.

use std::sync::{Arc, PoisonError};

use super::KeyError;
use super::accepted_key::AcceptedKey;
use super::table::{KeyTable, LookupError};
use crate::sync::RwLock;
use fedspan_engine::DeviceId;

/// Shared key table; all clones see every change.
#[derive(Clone, Debug, Default)]
pub struct ActiveKeys(Arc<RwLock<KeyTable>>);

impl ActiveKeys {
    /// Shares a table.
    #[must_use]
    pub fn new(table: KeyTable) -> Self {
        Self(Arc::new(RwLock::new(table)))
    }

    /// Returns the device's key of this epoch if it is accepted.
    #[must_use]
    pub fn lookup(&self, device: DeviceId, epoch: u16) -> Option<Arc<AcceptedKey>> {
        self.read(|table| table.lookup(device, epoch).ok())
    }

    /// Looks up a key like [`Self::lookup`], with the reason of a failure for the operator. An unauthenticated
    /// peer must not learn it.
    ///
    /// # Errors
    /// [`LookupError`] if there is no such key, or it is no longer accepted.
    pub fn find(&self, device: DeviceId, epoch: u16) -> Result<Arc<AcceptedKey>, LookupError> {
        self.read(|table| table.lookup(device, epoch))
    }

    /// Ends the grace of replaced keys after a round has closed, and returns their number. Where there is a key
    /// store [`KeyStore::round_closed`](super::KeyStore::round_closed) must be called instead, which also
    /// writes the file: a request that the store is writing meanwhile would restore those keys.
    pub fn round_closed(&self) -> usize {
        self.change(KeyTable::round_closed)
    }

    /// Revokes keys as [`KeyTable::revoke`] does. Frames under these keys are rejected when this returns.
    pub(super) fn revoke(&self, devices: &[DeviceId], now: u64) -> Result<(), KeyError> {
        self.change(|table| table.revoke(devices, now))
    }

    /// Replaces the table.
    pub(super) fn replace_table(&self, table: KeyTable) {
        self.change(|current| *current = table);
    }

    /// Calls `look` with the table.
    pub fn read<T>(&self, look: impl FnOnce(&KeyTable) -> T) -> T {
        // A panic elsewhere cannot leave the table half changed.
        look(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Calls `change` with the table.
    fn change<T>(&self, change: impl FnOnce(&mut KeyTable) -> T) -> T {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner))
    }
}
