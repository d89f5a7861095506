//! New key of a device, sent under the old one.

use core::fmt;

use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

use crate::secure::{KEY, Key};

/// Key of a later epoch for this device, which replaces its key. The device stores it, and then begins a handshake with it.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct NewKey {
    /// Epoch of the key.
    epoch: u16,
    /// Secret bytes.
    bytes: [u8; KEY],
}

impl NewKey {
    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> Key {
        Key::new(self.epoch, self.bytes)
    }
}

impl From<&Key> for NewKey {
    fn from(key: &Key) -> Self {
        Self { epoch: key.epoch(), bytes: *key.expose() }
    }
}

impl fmt::Debug for NewKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NewKey {{ epoch: {}, bytes: secret }}", self.epoch)
    }
}

impl Drop for NewKey {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}
