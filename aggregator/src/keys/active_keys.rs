//! The keys that connections use: a handle that many tasks share, and keys that can be withdrawn from under them.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use fedspan_protocol::secure::Key;

use super::KeyError;
use super::table::{KeyTable, LookupError};
use crate::sync::{AtomicBool, RwLock};
use fedspan_engine::DeviceId;

/// One key of one device. A connection keeps it as long as it lives, and asks before every frame whether it
/// [still counts](Self::is_accepted).
pub struct AcceptedKey {
    device: DeviceId,
    key: Key,
    accepted: AtomicBool,
}

impl AcceptedKey {
    pub(super) fn new(device: DeviceId, key: Key) -> Arc<Self> {
        Arc::new(Self { device, key, accepted: AtomicBool::new(true) })
    }

    /// Whose it is.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// Which of the device's keys it is.
    #[must_use]
    pub fn epoch(&self) -> u16 {
        self.key.epoch()
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Whether frames under this key are still taken. Once `false`, for ever: it was revoked, or a later key's
    /// grace is over. One load of an atomic flag, no lock.
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

/// The table as connections see it: cheap to clone, every clone sees every change.
#[derive(Clone, Debug, Default)]
pub struct ActiveKeys(Arc<RwLock<KeyTable>>);

impl ActiveKeys {
    /// Shares a table.
    #[must_use]
    pub fn new(table: KeyTable) -> Self {
        Self(Arc::new(RwLock::new(table)))
    }

    /// The `epoch`th key of a device, if it is accepted now.
    #[must_use]
    pub fn lookup(&self, device: DeviceId, epoch: u16) -> Option<Arc<AcceptedKey>> {
        self.read(|table| table.lookup(device, epoch).ok())
    }

    /// [`Self::lookup`] with the reason why not, for the operator: a peer that has not proved a key learns nothing
    /// of it.
    ///
    /// # Errors
    /// [`LookupError`] if there is no such key, or none any more.
    pub fn find(&self, device: DeviceId, epoch: u16) -> Result<Arc<AcceptedKey>, LookupError> {
        self.read(|table| table.lookup(device, epoch))
    }

    /// A round has closed: keys that were replaced before are not accepted any more. Says how many those were.
    /// [`KeyStore::round_closed`](super::KeyStore::round_closed) does the same and writes the file, too; where there is
    /// a store it is the one to call, as a request that the store is writing meanwhile would bring those keys back.
    pub fn round_closed(&self) -> usize {
        self.change(KeyTable::round_closed)
    }

    /// [`KeyTable::revoke`]. When this returns no frame under these keys is taken any more.
    pub(super) fn revoke(&self, devices: &[DeviceId], now: u64) -> Result<(), KeyError> {
        self.change(|table| table.revoke(devices, now))
    }

    /// Puts another table in place of this one.
    pub(super) fn adopt(&self, table: KeyTable) {
        self.change(|current| *current = table);
    }

    /// Looks at the table.
    pub fn read<T>(&self, look: impl FnOnce(&KeyTable) -> T) -> T {
        // A table is whole between operations: a thread that panicked elsewhere has not spoilt it.
        look(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the table.
    fn change<T>(&self, change: impl FnOnce(&mut KeyTable) -> T) -> T {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner))
    }
}
