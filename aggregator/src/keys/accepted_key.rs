//! Device key that can be revoked while connections use it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fedspan_protocol::secure::Key;

use crate::sync::AtomicBool;
use fedspan_engine::DeviceId;

/// Key of one device. A connection holds the key for its lifetime and checks before every frame whether the
/// key is [still accepted](Self::is_accepted).
pub struct AcceptedKey {
    device: DeviceId,
    key: Key,
    accepted: AtomicBool,
    /// True once a device has completed a handshake with the key.
    used: AtomicBool,
}

impl AcceptedKey {
    /// Creates an accepted key.
    pub(super) fn new(device: DeviceId, key: Key) -> Arc<Self> {
        Arc::new(Self { device, key, accepted: AtomicBool::new(true), used: AtomicBool::new(false) })
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

    /// Returns true while frames under this key are accepted. A key that was revoked, or replaced by a
    /// rotation before the last closed round, is never accepted again. The check is one atomic load without a
    /// lock.
    #[must_use]
    pub fn is_accepted(&self) -> bool {
        self.accepted.load(Ordering::Acquire)
    }

    /// Returns true if a device has completed a handshake with the key, since the server was started.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    /// Marks the key as used.
    pub fn mark_used(&self) {
        self.used.store(true, Ordering::Release);
    }

    /// Marks the key as not accepted, for all connections that hold it.
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
