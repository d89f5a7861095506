//! Handle to the key table that all connections share.

use std::sync::{Arc, PoisonError};

use super::KeyError;
use super::accepted_key::AcceptedKey;
use super::table::{KeyTable, LookupError};
use crate::sync::RwLock;
use fedspan_engine::DeviceId;

/// Shared key table; all clones see every change.
#[derive(Clone, Debug, Default)]
pub struct ActiveKeys(Arc<RwLock<Shared>>);

/// Content of [`ActiveKeys`].
#[derive(Debug, Default)]
struct Shared {
    table: KeyTable,
    /// True while the table may not survive a power cut. No key is sent then, because a device would go on with a
    /// key that the server has lost.
    is_volatile: bool,
}

impl ActiveKeys {
    /// Shares a table.
    #[must_use]
    pub fn new(table: KeyTable) -> Self {
        Self(Arc::new(RwLock::new(Shared { table, is_volatile: false })))
    }

    /// Returns the device's key of an epoch; `None` if there is no such key, or it is not accepted.
    #[must_use]
    pub fn lookup(&self, device: DeviceId, epoch: u16) -> Option<Arc<AcceptedKey>> {
        self.read(|table| table.lookup(device, epoch).ok())
    }

    /// Looks up a key as [`Self::lookup`] does and returns the reason of a failure. The reason is for the
    /// operator and must not be sent to an unauthenticated peer.
    ///
    /// # Errors
    /// [`LookupError`] if there is no such key, or it is no longer accepted.
    pub fn find(&self, device: DeviceId, epoch: u16) -> Result<Arc<AcceptedKey>, LookupError> {
        self.read(|table| table.lookup(device, epoch))
    }

    /// Returns the keys of a device that are accepted: the current one, then the previous one while it is being replaced.
    #[must_use]
    pub fn keys_of(&self, device: DeviceId) -> Vec<Arc<AcceptedKey>> {
        self.read(|table| table.keys_of(device).cloned().collect())
    }

    /// Returns true if the device has a key that is accepted.
    #[must_use]
    pub fn has_key(&self, device: DeviceId) -> bool {
        self.read(|table| table.has_key(device))
    }

    /// Returns the key that is to be sent to a device whose connection uses the key of `epoch`; `None` while the
    /// table is not durable.
    #[must_use]
    pub fn key_to_send(&self, device: DeviceId, epoch: u16) -> Option<Arc<AcceptedKey>> {
        let shared = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if shared.is_volatile { None } else { shared.table.key_to_send(device, epoch) }
    }

    /// Returns true if the table survives a power cut.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        !self.0.read().unwrap_or_else(PoisonError::into_inner).is_volatile
    }

    /// Records whether the table may not survive a power cut.
    pub(super) fn set_volatile(&self, is_volatile: bool) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).is_volatile = is_volatile;
    }

    /// Returns true if a device has used a key that the server has sent, and its previous key is still accepted.
    #[must_use]
    pub fn has_used_sent_key(&self, device: DeviceId) -> bool {
        self.read(|table| table.has_used_sent_key(device))
    }

    /// Revokes a key as [`KeyTable::sent_key_used`] does.
    pub(super) fn sent_key_used(&self, device: DeviceId) -> bool {
        self.change(|table| table.sent_key_used(device))
    }

    /// Revokes replaced keys after a round has closed, and returns the number of revoked keys. If the keys
    /// belong to a key store, call [`KeyStore::round_closed`](super::KeyStore::round_closed) instead, which
    /// also writes the file: otherwise a request that the store is performing at the same time would restore
    /// the revoked keys.
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

    /// Calls `inspect` with a reference to the table.
    pub fn read<T>(&self, inspect: impl FnOnce(&KeyTable) -> T) -> T {
        // The lock may be poisoned: a panic in another thread cannot leave the table half changed.
        inspect(&self.0.read().unwrap_or_else(PoisonError::into_inner).table)
    }

    /// Calls `change` with a mutable reference to the table.
    fn change<T>(&self, change: impl FnOnce(&mut KeyTable) -> T) -> T {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner).table)
    }
}
