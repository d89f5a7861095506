//! [`FlashStore`]: stores the record and the counters in pages of NOR flash with a blocking driver.

use core::ops::Range;

use embedded_storage::nor_flash::NorFlash;
use maybe_async::must_be_sync as either;

#[cfg(feature = "key-rotation")]
use super::StoredKey;
use super::{FlashError, Record, RecordHeader, Store, StoreError};
use flash_log::FlashLog;

#[allow(clippy::duplicate_mod, reason = "compiled for blocking and for asynchronous drivers")]
#[path = "flash_log.rs"]
mod flash_log;
#[allow(clippy::duplicate_mod, reason = "compiled for blocking and for asynchronous drivers")]
#[path = "pages.rs"]
mod pages;

/// [`Store`] in at least two pages of the flash `F`. A buffer of `N` bytes of RAM holds a record while it is written: `N` is
/// [`super::record_len`], rounded up to whole flash words.
///
/// A round costs one write of the record, which is read back. Pages are used in turn, and one is erased when the page in use is
/// full. Content that is no record of this model (data of another firmware, random bytes) counts as missing; it is erased when its
/// page is needed, and if that is so at the first write, counted in [`FlashStore::erased`]. The handshake counter and the privacy
/// ledger are preserved.
///
/// Power may fail during any write or erase, and again during the repair at the next start. The record is then the old one or the
/// new one, and no counter is below its saved value (`tests/power_cuts.rs`).
///
/// # Versions
///
/// This is version 3 of the flash content. `tests/images` contains golden pages of it: later firmware must open them, or refuse
/// them in the same way as this version refuses unknown content. Pages of version 2 keep their counters and their ledger; their
/// record counts as missing, so that the device fits its head again. A record of another version counts as missing. A ledger of
/// another version counts as spent, since the pages are not blank. A handshake counter of another version (a copy with a magic of
/// the same family that this version does not know) is an error of [`Store::load_handshakes`], and a device with a key then stays
/// silent, as long as that copy is in the pages. A version that changes one of these formats must change the last letter of its
/// magic.
///
/// # Privacy ledger
///
/// A round with a private update costs two more writes, of 20 bytes each. After a reset the ledger is never below its last saved
/// value, at any point of a power cut.
///
/// Blank pages (every byte 0xFF) mean a new device. A new device writes a ledger of 0 before any other content; if the power fails
/// during this write, the next start repeats it. Pages with other content but without a valid copy of a ledger belong to a device
/// that has lost its ledger, so its whole budget counts as spent ([`ALL_SPENT`](super::ALL_SPENT)), permanently. This includes a
/// device that has run without privacy: to enable privacy, erase the range once. Erasing also restarts the handshake counter, so
/// the device needs a new key. Anyone who can erase the range can reset the ledger.
///
/// The largest value is stored twice. Damage to one copy has no effect. If every copy in the flash is damaged, the whole budget
/// counts as spent. If both current copies are damaged and an older copy is not, the ledger returns to the older value.
pub struct FlashStore<F: NorFlash, const N: usize>(FlashLog<F, N>);

impl<F: NorFlash, const N: usize> FlashStore<F, N> {
    /// Creates a store in the pages of `range`, in addresses of `F`.
    ///
    /// # Errors
    /// - [`FlashError::NotAtPage`] if a bound of `range` is not a multiple of the erase size.
    /// - [`FlashError::Range`] if `range` is shorter than two pages or extends beyond the flash.
    /// - [`FlashError::Geometry`] if pages are too small or words too large for records.
    pub fn new(flash: F, range: Range<u32>) -> Result<Self, FlashError> {
        FlashLog::new(flash, range).map(Self)
    }

    /// Returns the number of times that a page with unusable content was erased although no page was in use.
    #[must_use]
    pub fn erased(&self) -> u32 {
        self.0.erased()
    }

    /// Returns the flash and drops the store.
    pub fn into_flash(self) -> F {
        self.0.into_flash()
    }
}

impl<F: NorFlash, const N: usize> FlashStore<F, N> {
    /// Erases the page that is used next, if it is not erased: a firmware that has time now saves it in a later round. Takes as long
    /// as the flash needs for a page; [`Self::erase_ahead_step`] takes less.
    ///
    /// # Errors
    /// [`StoreError`] if the flash fails.
    pub fn erase_ahead(&mut self) -> Result<(), StoreError> {
        self.0.erase_ahead()
    }
}

/// NOR flash that erases a page in several short steps, between which the core is free. The driver keeps how far it is. It completes
/// the erase of a page before it writes to that page, which may look erased before it is. After a reset in the middle, the driver has
/// forgotten that, and a page that looks erased is used, as after a power cut in an erase of a whole page.
pub trait SplitErase: NorFlash {
    /// Begins to erase the page at `address`, or goes on with it, for one step. Returns true once the page is erased.
    ///
    /// # Errors
    /// The flash's error.
    fn erase_step(&mut self, address: u32) -> Result<bool, Self::Error>;

    /// Returns the address of the page whose erase has begun and is not complete.
    fn erasing(&self) -> Option<u32>;
}

impl<F: SplitErase, const N: usize> FlashStore<F, N> {
    /// Erases the page that is used next for one step. Returns true once it is erased. A firmware calls this between two steps of its
    /// driver, so that no round has to wait for an erase.
    ///
    /// # Errors
    /// [`StoreError`] if the flash fails.
    pub fn erase_ahead_step(&mut self) -> Result<bool, StoreError> {
        let page = match self.0.pages.flash.erasing() {
            Some(page) => Some(page),
            None => self.0.page_to_erase()?,
        };
        match page {
            Some(page) => self.0.pages.flash.erase_step(page).map_err(|_| StoreError),
            None => Ok(true),
        }
    }
}

impl<F: NorFlash, const N: usize> Store for FlashStore<F, N> {
    fn save(&mut self, record: &Record<'_>) -> Result<(), StoreError> {
        self.0.save(record)
    }

    fn load(&mut self, head: &mut [f32]) -> Result<Option<RecordHeader>, StoreError> {
        self.0.load(head)
    }

    fn save_handshakes(&mut self, reserved: u64) -> Result<(), StoreError> {
        self.0.save_handshakes(reserved)
    }

    fn load_handshakes(&mut self) -> Result<u64, StoreError> {
        self.0.load_handshakes()
    }

    fn save_spent(&mut self, spent: u64) -> Result<(), StoreError> {
        self.0.save_spent(spent)
    }

    fn load_spent(&mut self) -> Result<u64, StoreError> {
        self.0.load_spent()
    }

    #[cfg(feature = "key-rotation")]
    fn save_key(&mut self, key: &StoredKey) -> Result<(), StoreError> {
        self.0.save_key(key)
    }

    #[cfg(feature = "key-rotation")]
    fn load_key(&mut self) -> Result<Option<StoredKey>, StoreError> {
        self.0.load_key()
    }
}
