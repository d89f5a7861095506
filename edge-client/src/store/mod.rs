//! Non-volatile storage of a device: one small record per round, written before the update is sent, and two
//! monotonic counters, the reserved handshake numbers and the spent privacy budget.

#[cfg(feature = "async-flash")]
mod asynchronous;
#[cfg(feature = "flash")]
mod blocking;
#[cfg(feature = "flash")]
mod counters;
#[cfg(feature = "flash")]
mod flash_error;
#[cfg(all(feature = "flash", feature = "key-rotation"))]
mod key_codec;
#[cfg(feature = "flash")]
mod log_state;
#[cfg(feature = "flash")]
mod record_codec;

#[cfg(feature = "async-flash")]
pub use asynchronous::AsyncFlashStore;
#[cfg(feature = "flash")]
pub use blocking::{FlashStore, SplitErase};
#[cfg(feature = "flash")]
pub use flash_error::FlashError;
#[cfg(feature = "flash")]
pub use record_codec::record_len;

#[cfg(feature = "key-rotation")]
use fedspan_protocol::secure::Key;

/// Key that the server has sent, in storage.
#[cfg(feature = "key-rotation")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredKey {
    /// Key.
    pub key: Key,
    /// [Check value](fedspan_protocol::secure::check_value) of the key that the device was provisioned with when it stored this one. A device
    /// that was provisioned with another key since, or under another number, does not use this one.
    pub provisioned: u32,
}

/// Personal head, with the fields that decide whether it may be used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record<'a> {
    /// Campaign that `round` belongs to.
    pub campaign: u64,
    /// Number of the last round that the device finished.
    pub round: u32,
    /// Hash of the representation that the head was fitted on.
    pub representation: u32,
    /// Head `W`, k x C.
    pub head: &'a [f32],
}

/// Fields of a [`Record`] except the head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordHeader {
    /// Campaign that `round` belongs to.
    pub campaign: u64,
    /// Number of the last round that the device finished.
    pub round: u32,
    /// Hash of the representation that the head was fitted on.
    pub representation: u32,
}

/// Error of the storage: a read or a write failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(all(feature = "defmt", target_os = "none"), derive(defmt::Format))]
pub struct StoreError;

impl core::fmt::Display for StoreError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the device's storage failed")
    }
}

impl core::error::Error for StoreError {}

/// Non-volatile memory for one [`Record`] and two counters.
pub trait Store {
    /// Writes the record durably.
    ///
    /// # Errors
    /// [`StoreError`] if the record is not written. The session then declines the round, so that no update is
    /// sent that would be forgotten after a reset.
    fn save(&mut self, record: &Record<'_>) -> Result<(), StoreError>;

    /// Reads the last record and writes its head to `head`. Returns `None` if there is no record with a head
    /// of this length.
    ///
    /// # Errors
    /// [`StoreError`] if the storage cannot be read.
    fn load(&mut self, head: &mut [f32]) -> Result<Option<RecordHeader>, StoreError>;

    /// Writes the number of reserved handshake numbers durably. The number never decreases.
    ///
    /// # Errors
    /// [`StoreError`] if the number is not written. A device with a key then sends nothing.
    fn save_handshakes(&mut self, reserved: u64) -> Result<(), StoreError>;

    /// Returns the largest written number of reserved handshake numbers; 0 if no number was written.
    ///
    /// # Errors
    /// [`StoreError`] if the storage cannot be read.
    fn load_handshakes(&mut self) -> Result<u64, StoreError>;

    /// Writes the total cost of all updates with noise (the privacy ledger) durably. The total never
    /// decreases.
    ///
    /// # Errors
    /// [`StoreError`] if the total may not have been written. The update is then not sent. The next call may
    /// write the same value.
    fn save_spent(&mut self, spent: u64) -> Result<(), StoreError>;

    /// Returns the largest written total cost; 0 on a new device. If a ledger existed but cannot be read,
    /// returns [`ALL_SPENT`], permanently.
    ///
    /// # Errors
    /// [`StoreError`] if the storage cannot be read. The whole budget then counts as spent.
    fn load_spent(&mut self) -> Result<u64, StoreError>;

    /// Writes a key that the server has sent durably. Without an own function, no key can be stored.
    ///
    /// # Errors
    /// [`StoreError`] if the key may not have been written. The device then goes on with the key that it has.
    #[cfg(feature = "key-rotation")]
    fn save_key(&mut self, _key: &StoredKey) -> Result<(), StoreError> {
        Err(StoreError)
    }

    /// Returns the key that was written last; `None` if no key was written.
    ///
    /// # Errors
    /// [`StoreError`] if the storage cannot be read. The device then uses the key that it was provisioned with.
    #[cfg(feature = "key-rotation")]
    fn load_key(&mut self) -> Result<Option<StoredKey>, StoreError> {
        Ok(None)
    }
}

/// Storage whose items are first kept in memory and later written durably by [`Self::commit`]. The driver commits before it sends a
/// frame ([`crate::link::run_async_with_commit`]).
pub trait Commit: Store {
    /// Returns true if an item is not written yet.
    fn is_dirty(&self) -> bool;

    /// Writes all items durably. If the future is dropped, or fails, the items are written by the next call.
    ///
    /// # Errors
    /// [`StoreError`] if an item is not written. No frame may then be sent.
    fn commit(&mut self) -> impl Future<Output = Result<(), StoreError>>;
}

impl<S: Store + ?Sized> Store for &mut S {
    fn save(&mut self, record: &Record<'_>) -> Result<(), StoreError> {
        (**self).save(record)
    }

    fn load(&mut self, head: &mut [f32]) -> Result<Option<RecordHeader>, StoreError> {
        (**self).load(head)
    }

    fn save_handshakes(&mut self, reserved: u64) -> Result<(), StoreError> {
        (**self).save_handshakes(reserved)
    }

    fn load_handshakes(&mut self) -> Result<u64, StoreError> {
        (**self).load_handshakes()
    }

    fn save_spent(&mut self, spent: u64) -> Result<(), StoreError> {
        (**self).save_spent(spent)
    }

    fn load_spent(&mut self) -> Result<u64, StoreError> {
        (**self).load_spent()
    }

    #[cfg(feature = "key-rotation")]
    fn save_key(&mut self, key: &StoredKey) -> Result<(), StoreError> {
        (**self).save_key(key)
    }

    #[cfg(feature = "key-rotation")]
    fn load_key(&mut self) -> Result<Option<StoredKey>, StoreError> {
        (**self).load_key()
    }
}

/// Spent budget of a device that has lost its ledger: at least as large as any budget.
pub const ALL_SPENT: u64 = u64::MAX;

/// Store that keeps nothing, for hosts, emulators and simulations. After a restart, handshakes are only as
/// unique as the session's random numbers, and a private device has its whole budget again. A real device
/// needs a store that keeps its data.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoStore;

impl Store for NoStore {
    fn save(&mut self, _record: &Record<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    fn load(&mut self, _head: &mut [f32]) -> Result<Option<RecordHeader>, StoreError> {
        Ok(None)
    }

    fn save_handshakes(&mut self, _reserved: u64) -> Result<(), StoreError> {
        Ok(())
    }

    fn load_handshakes(&mut self) -> Result<u64, StoreError> {
        Ok(0)
    }

    fn save_spent(&mut self, _spent: u64) -> Result<(), StoreError> {
        Ok(())
    }

    fn load_spent(&mut self) -> Result<u64, StoreError> {
        Ok(0)
    }
}
