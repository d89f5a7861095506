//! Active keys: a handle to the key table that connections share, and keys that can be revoked while
//! connections use them.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use fedspan_protocol::secure::Key;

use super::KeyError;
use super::table::{KeyTable, LookupError};
use crate::sync::{AtomicBool, RwLock};
use fedspan_engine::DeviceId;

/// Key of one device. A connection holds it for its lifetime and checks before every frame whether it is [still
/// accepted](Self::is_accepted).
pub struct AcceptedKey {
    device: DeviceId,
    key: Key,
    accepted: AtomicBool,
}

impl AcceptedKey {
    pub(super) fn new(device: DeviceId, key: Key) -> Arc<Self> {
        Arc::new(Self { device, key, accepted: AtomicBool::new(true) })
    }

    /// Returns the device that owns the key.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// Returns the epoch of the key, its number among the device's keys.
    #[must_use]
    pub fn epoch(&self) -> u16 {
        self.key.epoch()
    }

    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns true while frames under this key are accepted. Once false it stays false: the key was revoked,
    /// or replaced and its grace is over. The check is one atomic load without a lock.
    #[must_use]
    pub fn is_accepted(&self) -> bool {
        self.accepted.load(Ordering::Acquire)
    }

    pub(super) fn withdraw(&self) {
        self.accepted.store(false, Ordering::Release);
    }
}

impl fmt::Debug for AcceptedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let accepted = self.is_accepted();
        f.debug_struct("AcceptedKey")
            .field("device", &self.device)
            .field("key", &self.key)
            .field("accepted", &accepted)
            .finish()
    }
}

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
