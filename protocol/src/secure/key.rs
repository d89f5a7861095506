//! Pre-shared key of a device and its server.

use core::fmt;

use zeroize::Zeroize;

/// Length of a key, in bytes.
pub const KEY: usize = 32;

/// Pre-shared key with its epoch. The bytes are never printed, and are overwritten when the key is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    epoch: u16,
    bytes: [u8; KEY],
}

impl Key {
    /// Creates the key of an epoch. The first key of a device has epoch 0, and every key rotation adds one.
    #[must_use]
    pub const fn new(epoch: u16, bytes: [u8; KEY]) -> Self {
        Self { epoch, bytes }
    }

    /// Returns the key's epoch.
    #[must_use]
    pub const fn epoch(&self) -> u16 {
        self.epoch
    }

    /// Returns the secret bytes.
    #[must_use]
    pub const fn expose(&self) -> &[u8; KEY] {
        &self.bytes
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key {{ epoch: {}, bytes: secret }}", self.epoch)
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}
