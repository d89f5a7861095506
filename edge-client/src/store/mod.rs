//! What survives a reset: one small record a round, written before the update leaves; and two numbers that only grow,
//! of handshakes and of what noisy updates have cost.

#[cfg(feature = "flash")]
mod counter_copy;
#[cfg(feature = "flash")]
mod flash;
#[cfg(feature = "flash")]
mod guarded_flash;
#[cfg(feature = "flash")]
mod monotonic_counters;
#[cfg(feature = "flash")]
mod page_erase;
#[cfg(feature = "flash")]
mod record_codec;

#[cfg(feature = "flash")]
pub use flash::{FlashError, FlashStore};
#[cfg(feature = "flash")]
pub use record_codec::record_len;

/// The personal head with all that says whether it may be used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record<'a> {
    /// The campaign that `round` belongs to.
    pub campaign: u64,
    /// The last round that the device finished.
    pub round: u32,
    /// Hash of the representation that the head was fitted on.
    pub representation: u32,
    /// The head, k x C.
    pub head: &'a [f32],
}

/// What [`Store::load`] gives back beside the head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordHeader {
    /// The campaign that `round` belongs to.
    pub campaign: u64,
    /// The last round that the device finished.
    pub round: u32,
    /// Hash of the representation that the head was fitted on.
    pub representation: u32,
}

/// The storage failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreError;

impl core::fmt::Display for StoreError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the device's storage failed")
    }
}

impl core::error::Error for StoreError {}

/// Non-volatile memory for one [`Record`] and two numbers.
pub trait Store {
    /// Writes the record; it is durable when this returns.
    ///
    /// # Errors
    /// [`StoreError`]; the round is then declined, so that nothing leaves that could be forgotten.
    fn save(&mut self, record: &Record<'_>) -> Result<(), StoreError>;

    /// Reads the last record; the head goes into `head`. `None` if there is none of this length.
    ///
    /// # Errors
    /// [`StoreError`] if the storage cannot be read.
    fn load(&mut self, head: &mut [f32]) -> Result<Option<RecordHeader>, StoreError>;

    /// Writes how many handshakes are numbered for use; durable when this returns. The number only grows.
    ///
    /// # Errors
    /// [`StoreError`]; a device with a key then says nothing.
    fn save_handshakes(&mut self, reserved: u64) -> Result<(), StoreError>;

    /// The largest number that was written; 0 if there is none.
    ///
    /// # Errors
    /// [`StoreError`] if the storage cannot be read.
    fn load_handshakes(&mut self) -> Result<u64, StoreError>;

    /// Writes what all noisy updates have cost so far (the privacy ledger); durable when this returns. It only grows.
    ///
    /// # Errors
    /// [`StoreError`]; the update then does not leave. The next number may be the same.
    fn save_spent(&mut self, spent: u64) -> Result<(), StoreError>;

    /// The largest number that was written; 0 on a new device. Where something was there that cannot be read any more,
    /// it is [`ALL_SPENT`], and stays so.
    ///
    /// # Errors
    /// [`StoreError`] if the storage cannot be read; everything is then taken for spent.
    fn load_spent(&mut self) -> Result<u64, StoreError>;
}

/// All of every budget: what a device has spent that cannot tell any more.
pub const ALL_SPENT: u64 = u64::MAX;

/// Forgets everything: for hosts, emulators and simulations. Where there is a key, every handshake after a restart is
/// as new as the session's randomness is; and a device whose updates are private has its whole budget again. A board
/// needs storage instead.
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
