//! The secret that a device and its server share.

use core::fmt;

use zeroize::Zeroize;

/// Bytes of a key.
pub const KEY: usize = 32;

/// A pre-shared key, and which of a device's keys it is. Its bytes are overwritten when it is dropped, and never
/// printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    epoch: u16,
    bytes: [u8; KEY],
}

impl Key {
    /// The `epoch`th key of a device, from 0: every rotation adds one.
    #[must_use]
    pub const fn new(epoch: u16, bytes: [u8; KEY]) -> Self {
        Self { epoch, bytes }
    }

    /// Which of the device's keys it is.
    #[must_use]
    pub const fn epoch(&self) -> u16 {
        self.epoch
    }

    /// The secret itself.
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
