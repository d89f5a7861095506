//! [`AsyncFlashStore`]: stores the record and the counters in pages of NOR flash with an asynchronous driver.

use core::ops::Range;

use embedded_storage_async::nor_flash::NorFlash;
use maybe_async::must_be_async as either;

#[cfg(feature = "key-rotation")]
use super::StoredKey;
use super::{Commit, FlashError, Record, RecordHeader, Store, StoreError};
use flash_log::FlashLog;

#[allow(clippy::duplicate_mod, reason = "compiled for blocking and for asynchronous drivers")]
#[path = "flash_log.rs"]
mod flash_log;
#[allow(clippy::duplicate_mod, reason = "compiled for blocking and for asynchronous drivers")]
#[path = "pages.rs"]
mod pages;

/// [`Store`] in at least two pages of a flash whose driver is asynchronous: radio and other tasks run while a page is erased. The content of the
/// pages is that of [`FlashStore`](super::FlashStore), which can open them.
///
/// A session stores without waiting, so items are first kept in memory, and [`Commit::commit`] writes them before the frame that depends
/// on them is sent: [`run_async_with_commit`](crate::link::run_async_with_commit) does. An own driver must do the same. A second item of a
/// kind is refused as long as the first is not written, so that a driver that never commits completes one round and no second one.
///
/// The spent budget of a device with noise is written before the update is sent, not before it is computed: after a reset in between, the
/// round is computed again, and nothing has left the device.
///
/// `N` is the size of the buffer for a record, as for `FlashStore`, and `H` the length of the head, k C. Besides the
/// driver of the flash, the type takes at most `N + 4 H + 200` bytes of RAM, and 90 more with the feature `key-rotation`.
pub struct AsyncFlashStore<F: NorFlash, const N: usize, const H: usize> {
    log: FlashLog<F, N>,
    record: Unwritten<Option<(RecordHeader, [f32; H])>>,
    handshakes: Unwritten<u64>,
    spent: Unwritten<u64>,
    #[cfg(feature = "key-rotation")]
    key: Unwritten<Option<StoredKey>>,
    /// True if the ledger is in use.
    has_ledger: bool,
    /// True while the log is written: if it still is at the next access, the future was dropped in between.
    is_writing: bool,
}

/// Item that may not be in the flash yet.
struct Unwritten<T> {
    /// Newest value; `None` until it has been read from the flash.
    value: Option<T>,
    is_dirty: bool,
}

impl<T: Clone> Unwritten<T> {
    /// Item that has not been read.
    const UNREAD: Self = Self { value: None, is_dirty: false };

    /// Keeps what has been read, unless there is something newer.
    fn read(&mut self, value: T) {
        self.value.get_or_insert(value);
    }

    /// Keeps a new value.
    fn set(&mut self, value: T) -> Result<(), StoreError> {
        if self.is_dirty {
            return Err(StoreError);
        }
        (self.value, self.is_dirty) = (Some(value), true);
        Ok(())
    }

    /// Returns the newest value.
    fn get(&self) -> Result<T, StoreError> {
        self.value.clone().ok_or(StoreError)
    }

    /// Returns the value that is to be written.
    fn to_write(&self) -> Option<T> {
        self.value.clone().filter(|_| self.is_dirty)
    }
}

impl Unwritten<u64> {
    /// Keeps a larger value. A smaller one changes nothing.
    fn raise(&mut self, value: u64) -> Result<(), StoreError> {
        if self.get()? >= value { Ok(()) } else { self.set(value) }
    }
}

impl<F: NorFlash, const N: usize, const H: usize> AsyncFlashStore<F, N, H> {
    /// Opens a store in the pages of `range`, in addresses of `F`, and reads it. `has_ledger` is true for a device with noise, whose spent
    /// budget is then stored. What cannot be read now is an error of the session's first access, and is read again by the next commit.
    ///
    /// # Errors
    /// [`FlashError`] for the reasons of [`FlashStore::new`](super::FlashStore::new).
    pub async fn open(flash: F, range: Range<u32>, has_ledger: bool) -> Result<Self, FlashError> {
        let mut store = Self {
            log: FlashLog::new(flash, range)?,
            record: Unwritten::UNREAD,
            handshakes: Unwritten::UNREAD,
            spent: Unwritten::UNREAD,
            #[cfg(feature = "key-rotation")]
            key: Unwritten::UNREAD,
            has_ledger,
            is_writing: false,
        };
        // An error leaves items unread, which the session then notices.
        let _ = store.read().await;
        Ok(store)
    }

    /// Reads what has not been read.
    async fn read(&mut self) -> Result<(), StoreError> {
        if self.has_ledger && self.spent.value.is_none() {
            self.spent.read(self.log.load_spent().await?);
        }
        #[cfg(feature = "key-rotation")]
        if self.key.value.is_none() {
            self.key.read(self.log.load_key().await?);
        }
        if self.record.value.is_none() {
            let mut head = [0.0; H];
            let loaded = self.log.load(&mut head).await?;
            self.record.read(loaded.map(|header| (header, head)));
        }
        if self.handshakes.value.is_none() {
            self.handshakes.read(self.log.load_handshakes().await?);
        }
        Ok(())
    }

    /// Reads what has not been read, and writes what has not been written.
    async fn read_and_write(&mut self) -> Result<(), StoreError> {
        self.read().await?;
        // Counters come first: a record is useless to a device that has lost its counters.
        if let Some(spent) = self.spent.to_write() {
            self.log.save_spent(spent).await?;
            self.spent.is_dirty = false;
        }
        #[cfg(feature = "key-rotation")]
        if let Some(Some(key)) = self.key.to_write() {
            self.log.save_key(&key).await?;
            self.key.is_dirty = false;
        }
        if let Some(reserved) = self.handshakes.to_write() {
            self.log.save_handshakes(reserved).await?;
            self.handshakes.is_dirty = false;
        }
        if let Some(Some((RecordHeader { campaign, round, representation }, head))) = self.record.to_write() {
            self.log.save(&Record { campaign, round, representation, head: &head }).await?;
            self.record.is_dirty = false;
        }
        Ok(())
    }

    /// Erases the page that is used next, if it is not erased, for a firmware that has time now.
    ///
    /// # Errors
    /// [`StoreError`] if the flash fails.
    pub async fn erase_ahead(&mut self) -> Result<(), StoreError> {
        self.begin();
        let erased = self.log.erase_ahead().await;
        self.is_writing = false;
        erased
    }

    /// Begins an access to the log, which reads the flash again if the last one was interrupted.
    fn begin(&mut self) {
        if core::mem::replace(&mut self.is_writing, true) {
            self.log.forget();
        }
    }

    /// Returns the number of times that a page with unusable content was erased although no page was in use.
    #[must_use]
    pub fn erased(&self) -> u32 {
        self.log.erased()
    }

    /// Returns the flash and drops the store, with what is not written.
    pub fn into_flash(self) -> F {
        self.log.into_flash()
    }
}

impl<F: NorFlash, const N: usize, const H: usize> Commit for AsyncFlashStore<F, N, H> {
    fn is_dirty(&self) -> bool {
        #[cfg(feature = "key-rotation")]
        if self.key.value.is_none() || self.key.is_dirty {
            return true;
        }
        let is_unread = self.record.value.is_none()
            || self.handshakes.value.is_none()
            || self.has_ledger && self.spent.value.is_none();
        is_unread || self.record.is_dirty || self.handshakes.is_dirty || self.spent.is_dirty
    }

    async fn commit(&mut self) -> Result<(), StoreError> {
        self.begin();
        let written = self.read_and_write().await;
        self.is_writing = false;
        written
    }
}

impl<F: NorFlash, const N: usize, const H: usize> Store for AsyncFlashStore<F, N, H> {
    fn save(&mut self, record: &Record<'_>) -> Result<(), StoreError> {
        let Record { campaign, round, representation, head } = *record;
        let head = head.try_into().map_err(|_| StoreError)?;
        self.record.set(Some((RecordHeader { campaign, round, representation }, head)))
    }

    fn load(&mut self, head: &mut [f32]) -> Result<Option<RecordHeader>, StoreError> {
        let Some((header, stored)) = self.record.get()?.filter(|_| head.len() == H) else { return Ok(None) };
        head.iter_mut().zip(stored).for_each(|(target, value)| *target = value);
        Ok(Some(header))
    }

    fn save_handshakes(&mut self, reserved: u64) -> Result<(), StoreError> {
        self.handshakes.raise(reserved)
    }

    fn load_handshakes(&mut self) -> Result<u64, StoreError> {
        self.handshakes.get()
    }

    fn save_spent(&mut self, spent: u64) -> Result<(), StoreError> {
        self.spent.raise(spent)
    }

    fn load_spent(&mut self) -> Result<u64, StoreError> {
        self.spent.get()
    }

    #[cfg(feature = "key-rotation")]
    fn save_key(&mut self, key: &StoredKey) -> Result<(), StoreError> {
        if !FlashLog::<F, N>::has_room_for_keys() {
            return Err(StoreError);
        }
        self.key.set(Some(key.clone()))
    }

    #[cfg(feature = "key-rotation")]
    fn load_key(&mut self) -> Result<Option<StoredKey>, StoreError> {
        self.key.get()
    }
}
