//! [`FlashStore`]: stores the record and the counters in NOR flash, through `embedded-storage` and
//! `sequential-storage`. The crate `sequential-storage` levels wear over the pages, verifies content when
//! reading, and leaves either the old record or the new one after a power cut during a write.

use core::ops::Range;

use embedded_storage::nor_flash::NorFlash;
use sequential_storage::Error;
use sequential_storage::cache::{Cache, Uncached};
use sequential_storage::map::{MapConfig, MapConfigError, MapStorage, SerializationError, Value};

use super::counter_copy::{CounterCopy, CounterKind, MAX_LEN};
use super::guarded_flash::{Aligned, GuardedFlash, block_on};
use super::{Record, RecordHeader, Store, StoreError, record_codec};

/// Key of the record in the map.
const RECORD_KEY: u8 = 0;

/// Largest number of bytes that an item takes in the buffer in addition to its value: its key, and padding to
/// a flash word.
const FRAMING: usize = 1 + 32;

/// Reason why a range of flash cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlashError {
    /// A bound of the range is not a multiple of the erase size.
    NotAtPage {
        /// Address of the bound.
        address: u32,
        /// Erase size in bytes.
        page: usize,
    },
    /// The range has fewer than two pages, or extends beyond the flash.
    Range {
        /// Length of the range in bytes.
        bytes: u32,
        /// Smallest usable length in bytes.
        needed: usize,
    },
    /// The flash cannot hold records: its pages are too small or its words too large.
    Geometry {
        /// Erase size in bytes.
        page: usize,
        /// Write size in bytes.
        word: usize,
    },
}

impl core::fmt::Display for FlashError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::NotAtPage { address, page } => {
                write!(f, "{address:#x} is not a multiple of the erase size, {page} bytes")
            }
            Self::Range { bytes, needed } => {
                write!(
                    f,
                    "the range of {bytes} bytes is too short or extends beyond the flash; at least {needed} bytes inside it are needed"
                )
            }
            Self::Geometry { page, word } => {
                write!(f, "flash with pages of {page} and words of {word} bytes cannot hold records")
            }
        }
    }
}

impl core::error::Error for FlashError {}

/// [`Store`] in at least two pages of the flash `F`. A buffer of `N` bytes of RAM holds a record while it is
/// written: `N` is [`super::record_len`], rounded up to whole flash words.
///
/// A round costs one write of the record with eight bytes of framing, which is read back. A page is erased
/// when all other pages are full. Content that is not a record of this model (data of another firmware,
/// random bytes) is erased by the first write and counted in [`FlashStore::erased`]; the handshake counter
/// and the privacy ledger are preserved.
///
/// Power may fail during any write or erase, and again during the repair at the next start. The record is
/// then the old one or the new one, and no counter is below its saved value (`tests/power_cuts.rs`). Before a
/// page is erased, an erase intent (24 bytes with words of up to 8 bytes) is written to the page in use, so
/// that the next start recognises a half-erased page.
///
/// # Versions
///
/// This is version 2 of the flash content. `tests/images` contains golden pages of it: later firmware must
/// open them, or refuse them in the same way as this version refuses unknown content. A record of another
/// version counts as missing. A ledger of another version counts as spent, since the pages are not blank. A
/// handshake counter of another version (any valid item under its keys that does not begin with its magic) is
/// an error of [`Store::load_handshakes`], and a device with a key then stays silent. A version that changes
/// one of these formats must change its first bytes and keep the keys.
///
/// # Privacy ledger
///
/// A round with a private update costs two more writes, of 21 bytes with eight bytes of framing each. After a
/// reset the ledger is never below its last saved value, at any point of a power cut.
///
/// Blank pages (every byte 0xFF) mean a new device. A new device writes a ledger of 0 before any other
/// content; if the power fails during this write, the next start repeats it. Pages with other content but
/// without a valid copy of a ledger belong to a device that has lost its ledger, so its whole budget counts
/// as spent ([`ALL_SPENT`](super::ALL_SPENT)), permanently. This includes a device that has run without
/// privacy: to enable privacy, erase the range once. Erasing also restarts the handshake counter, so the
/// device needs a new key. Anyone who can erase the range can reset the ledger.
///
/// The largest value is stored twice. Damage to one copy has no effect. If every copy in the flash is
/// damaged, the whole budget counts as spent. If both current copies are damaged and an older copy is not,
/// the ledger returns to the older value; a power cut during the repair of pages that other software has
/// written to may have the same effect.
pub struct FlashStore<F: NorFlash, const N: usize> {
    pub(super) map: MapStorage<u8, GuardedFlash<F>, Cache<Uncached, Uncached, Uncached, u8>>,
    pub(super) buffer: Aligned<N>,
    /// Largest known values of the counters, which an erase must preserve.
    pub(super) known: KnownCounters,
    /// True once an interrupted erase has been completed, so that no page is half erased.
    erase_completed: bool,
    /// True if the counters are stored under their keys and no page that looks erased holds data.
    pub(super) repaired: bool,
    /// True if the last lookup failed because of damaged content.
    unreadable: bool,
    /// Number of erases of unusable content.
    pub(super) erased: u32,
}

/// Largest known values of the counters.
#[derive(Debug, Default)]
pub struct KnownCounters {
    handshakes: Option<u64>,
    spent: Option<u64>,
}

impl KnownCounters {
    /// Returns the largest known value of a protected counter.
    pub fn get(&self, kind: CounterKind) -> Option<u64> {
        match kind {
            CounterKind::Handshakes => self.handshakes,
            CounterKind::Spent => self.spent,
            CounterKind::Erasures => None,
        }
    }

    /// Raises a counter to `value`. A smaller value has no effect.
    pub fn raise(&mut self, kind: CounterKind, value: Option<u64>) {
        let known = match kind {
            CounterKind::Handshakes => &mut self.handshakes,
            CounterKind::Spent => &mut self.spent,
            CounterKind::Erasures => return,
        };
        *known = value.max(*known);
    }
}

impl<F: NorFlash, const N: usize> FlashStore<F, N> {
    /// Creates a store in the pages of `range`, in addresses of `F`.
    ///
    /// # Errors
    /// - [`FlashError::NotAtPage`] if a bound of `range` is not a multiple of the erase size.
    /// - [`FlashError::Range`] if `range` is shorter than two pages or extends beyond the flash.
    /// - [`FlashError::Geometry`] if pages are too small or words too large for records.
    pub fn new(flash: F, range: Range<u32>) -> Result<Self, FlashError> {
        let (page, word) = (F::ERASE_SIZE, F::WRITE_SIZE);
        let bytes = range.end.saturating_sub(range.start);
        let short = FlashError::Range { bytes, needed: 2 * page };
        let beyond = usize::try_from(range.end).map_or(true, |end| end > flash.capacity());
        if beyond || range.is_empty() {
            return Err(short);
        }
        let config = MapConfig::try_new(range.clone()).map_err(|error| match error {
            MapConfigError::StartRangeNotAtPageBoundary => {
                FlashError::NotAtPage { address: range.start, page }
            }
            MapConfigError::EndRangeNotAtPageBoundary => FlashError::NotAtPage { address: range.end, page },
            MapConfigError::RangeTooSmall => short,
            _ => FlashError::Geometry { page, word },
        })?;
        if page / 2 < CounterKind::PROTECTED.len() * MAX_LEN.next_multiple_of(word) {
            return Err(FlashError::Geometry { page, word });
        }
        let map = MapStorage::new(GuardedFlash::new(flash, range), config, Cache::new_uncached());
        Ok(Self {
            map,
            buffer: Aligned([0; N]),
            known: KnownCounters::default(),
            erase_completed: false,
            repaired: false,
            unreadable: false,
            erased: 0,
        })
    }

    /// Returns the number of times that everything except the counters was erased, because the content was
    /// unusable.
    #[must_use]
    pub fn erased(&self) -> u32 {
        self.erased
    }

    /// Completes an erase that a power cut interrupted. Must run before any other access.
    pub(super) fn complete_erase_once(&mut self) -> Result<(), StoreError> {
        if !self.erase_completed {
            self.map.flash().complete_interrupted_erase().map_err(|_| StoreError)?;
            self.erase_completed = true;
        }
        Ok(())
    }

    /// Returns the flash and drops the store.
    pub fn into_flash(self) -> F {
        self.map.destroy().0.flash
    }

    /// Writes an item and reads it back, because a write over bytes that were not erased is corrupted.
    /// Returns false if the item was corrupted.
    ///
    /// # Errors
    /// [`StoreError`] if the flash does not work or the item does not fit. Erasing would then not help, and
    /// would lose the current content.
    // Not inlined: each call would contain the whole library.
    #[inline(never)]
    pub(super) fn write(&mut self, key: u8, item: &Item<'_>) -> Result<bool, StoreError> {
        let buffer = &mut self.buffer.0;
        let length = item.serialize_into(buffer).map_err(|_| StoreError)?;
        match block_on(self.map.store_item(buffer, &key, item)) {
            Ok(()) => {}
            Err(Error::Corrupted { .. } | Error::LogicBug { .. } | Error::FullStorage) => return Ok(false),
            Err(Error::Storage { .. }) if self.map.flash().take_refused() => return Ok(false),
            // The buffer is too small for another item that has to be moved. No item of this store is that
            // long.
            Err(Error::BufferTooSmall(needed)) if needed > length + FRAMING => return Ok(false),
            Err(_) => return Err(StoreError),
        }
        Ok(self.fetch(key)?.is_some_and(|stored| item.matches(stored)))
    }

    /// Reads an item. Returns `None` if the item is missing or the content is not readable.
    #[inline(never)]
    pub(super) fn fetch(&mut self, key: u8) -> Result<Option<&[u8]>, StoreError> {
        match block_on(self.map.fetch_item(&mut self.buffer.0, &key)) {
            Ok(content) => Ok(content),
            Err(Error::Storage { .. }) if !self.map.flash().take_refused() => Err(StoreError),
            Err(_) => {
                self.unreadable = true;
                Ok(None)
            }
        }
    }
}

impl<F: NorFlash, const N: usize> Store for FlashStore<F, N> {
    fn save(&mut self, record: &Record<'_>) -> Result<(), StoreError> {
        self.repair_once()?;
        let item = Item::Record(record);
        if self.write(RECORD_KEY, &item)? {
            return Ok(());
        }
        // The pages hold foreign content, which has corrupted the new record.
        self.erase_all_but_counters()?;
        if self.write(RECORD_KEY, &item)? { Ok(()) } else { Err(StoreError) }
    }

    fn save_handshakes(&mut self, reserved: u64) -> Result<(), StoreError> {
        self.save_counter(CounterKind::Handshakes, reserved)
    }

    fn load_handshakes(&mut self) -> Result<u64, StoreError> {
        self.repaired = false;
        self.repair_once()?;
        if let Some(reserved) = self.known.get(CounterKind::Handshakes) {
            return Ok(reserved);
        }
        // A valid item under these keys that is not a counter of this version was written by another version.
        for key in CounterKind::Handshakes.keys() {
            if self.fetch(key)?.is_some() {
                return Err(StoreError);
            }
        }
        Ok(0)
    }

    fn save_spent(&mut self, spent: u64) -> Result<(), StoreError> {
        self.save_counter(CounterKind::Spent, spent)
    }

    fn load_spent(&mut self) -> Result<u64, StoreError> {
        self.complete_erase_once()?;
        self.read_counters()?;
        let spent = match self.known.get(CounterKind::Spent) {
            Some(spent) => spent,
            None => self.create_ledger()?,
        };
        self.repair()?;
        Ok(spent)
    }

    fn load(&mut self, head: &mut [f32]) -> Result<Option<RecordHeader>, StoreError> {
        self.complete_erase_once()?;
        self.unreadable = false;
        let loaded = self.fetch(RECORD_KEY)?.and_then(|bytes| record_codec::decode(bytes, head));
        if self.unreadable {
            self.erase_all_but_counters()?;
        }
        Ok(loaded)
    }
}

/// Item to be written. A single type, so that the storage library is instantiated only once.
pub enum Item<'a> {
    Record(&'a Record<'a>),
    Counter(CounterCopy),
}

impl Item<'_> {
    /// Returns true if `stored` is the encoding of this item.
    fn matches(&self, stored: &[u8]) -> bool {
        match self {
            Self::Record(record) => record_codec::matches(stored, record),
            Self::Counter(copy) => stored == copy.bytes(),
        }
    }
}

impl<'a> Value<'a> for Item<'_> {
    fn serialize_into(&self, buffer: &mut [u8]) -> Result<usize, SerializationError> {
        let written = match self {
            Self::Record(record) => record_codec::encode(record, buffer),
            Self::Counter(copy) => buffer.get_mut(..copy.bytes().len()).map(|target| {
                target.iter_mut().zip(copy.bytes()).for_each(|(target, byte)| *target = *byte);
                target.len()
            }),
        };
        written.ok_or(SerializationError::BufferTooSmall)
    }

    fn deserialize_from(_buffer: &'a [u8]) -> Result<(Self, usize), SerializationError> {
        Err(SerializationError::InvalidFormat)
    }
}
