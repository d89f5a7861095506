//! [`FlashStore`]: the record in NOR flash, through `embedded-storage` and `sequential-storage`, which spread
//! the wear over the pages, check what they read, and leave the old record or the new one when the power
//! goes in the middle of a write.

use core::ops::Range;

use embedded_storage::nor_flash::NorFlash;
use sequential_storage::Error;
use sequential_storage::cache::{Cache, Uncached};
use sequential_storage::map::{MapConfig, MapConfigError, MapStorage, SerializationError, Value};

use super::counter_copy::{CounterCopy, CounterKind, MAX_LEN};
use super::guarded_flash::{Aligned, GuardedFlash, block_on};
use super::{Record, RecordHeader, Store, StoreError, record_codec};

/// The record's name.
const RECORD_KEY: u8 = 0;

/// Bytes that an item takes beside its value in the buffer, at most: its name, and what fills up a word of the flash.
const FRAMING: usize = 1 + 32;

/// Why flash cannot be used as it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlashError {
    /// A bound of the range is no multiple of the erase size.
    NotAtPage {
        /// The bound.
        address: u32,
        /// Bytes that are erased at once.
        page: usize,
    },
    /// Fewer than two pages, or beyond the end of the flash.
    Range {
        /// Bytes of the range.
        bytes: u32,
        /// The least that is needed.
        needed: usize,
    },
    /// The flash itself cannot hold records: its pages are too small or its words too large.
    Geometry {
        /// Bytes that are erased at once.
        page: usize,
        /// Bytes that are written at once.
        word: usize,
    },
}

impl core::fmt::Display for FlashError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::NotAtPage { address, page } => {
                write!(f, "{address:#x} is no multiple of a page of {page} bytes")
            }
            Self::Range { bytes, needed } => {
                write!(f, "the range has {bytes} bytes inside the flash, {needed} are needed")
            }
            Self::Geometry { page, word } => {
                write!(f, "flash with pages of {page} and words of {word} bytes cannot hold records")
            }
        }
    }
}

impl core::error::Error for FlashError {}

/// A [`Store`] in the pages `range` of `F`, at least two. `N` bytes of RAM hold a record while it is written:
/// [`super::record_len`], rounded up to the flash's words.
///
/// A round costs one write of a record and eight bytes around it, and is read back; a page is erased when all others are full.
/// What cannot be read as a record of this model (another firmware's data, random bytes) is erased with the
/// first write and counted in [`FlashStore::erased`]; the number of handshakes and the privacy ledger are not.
///
/// Power may go in the middle of any write and any erasure, and again in what the next start does about that: the record is
/// the old one or the new one, no number is less than what was saved (`tests/power_cuts.rs`). A page is erased only after a note of that
/// (24 bytes, where words have up to 8) in the page that is in use, so that a start knows what it finds half erased.
///
/// # Versions
///
/// This is version 2 of what lies in flash: `tests/images` has pages of it, and firmware of a later version opens them, or refuses
/// them as this one does what it does not know. A record of another version is none. A ledger of another version counts as
/// spent, since the pages are not blank. Handshakes of another version (any whole item under their names that does not
/// begin as theirs do) are an error of [`Store::load_handshakes`]: a device with a key then says nothing. So a version that
/// changes one of them changes its first bytes, and keeps the names.
///
/// # The privacy ledger
///
/// A round whose update is private costs two more writes, of 21 bytes each and eight around them. What was saved once is
/// never less after a reset, whenever the power goes.
///
/// Blank pages (erased, every byte 0xFF) are those of a device that has spent nothing. It begins a ledger of 0 there
/// before it writes anything else; should the power go meanwhile, it does so at the next start. Pages that hold something
/// else and no whole copy of a ledger are those of a device that cannot tell what it has spent: all of it
/// ([`ALL_SPENT`](super::ALL_SPENT)). That is written down, and stays so. So it is also for a device that has run without privacy:
/// whoever switches privacy on erases the range once, which makes handshakes begin anew, too, so that the device needs a
/// new key. Who can erase the range can make a device forget.
///
/// There are two copies of the largest number. Damage to one changes nothing, damage to all that are in the flash means
/// that everything is spent; damage to those two that spares an older one goes back to that. So may power that goes while
/// pages are mended that somebody else has written to.
pub struct FlashStore<F: NorFlash, const N: usize> {
    pub(super) map: MapStorage<u8, GuardedFlash<F>, Cache<Uncached, Uncached, Uncached, u8>>,
    pub(super) buffer: Aligned<N>,
    /// The largest numbers that are known: erasing must not forget them.
    pub(super) known: KnownCounters,
    /// No page is half erased.
    erase_completed: bool,
    /// Numbers are where they belong, and no page is taken for erased that is not.
    pub(super) repaired: bool,
    /// What was looked for last could not be told from what else is there.
    unreadable: bool,
    pub(super) erased: u32,
}

/// The largest numbers that are known.
#[derive(Debug, Default)]
pub struct KnownCounters {
    handshakes: Option<u64>,
    spent: Option<u64>,
}

impl KnownCounters {
    pub fn get(&self, kind: CounterKind) -> Option<u64> {
        match kind {
            CounterKind::Handshakes => self.handshakes,
            CounterKind::Spent => self.spent,
            CounterKind::Erasures => None,
        }
    }

    /// A number of a kind; it only grows.
    pub fn raise(&mut self, kind: CounterKind, number: Option<u64>) {
        let known = match kind {
            CounterKind::Handshakes => &mut self.handshakes,
            CounterKind::Spent => &mut self.spent,
            CounterKind::Erasures => return,
        };
        *known = number.max(*known);
    }
}

impl<F: NorFlash, const N: usize> FlashStore<F, N> {
    /// Takes the pages of `range` (addresses as `F` counts them).
    ///
    /// # Errors
    /// [`FlashError`].
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

    /// How often all of it was erased because it could not be used as it was.
    #[must_use]
    pub fn erased(&self) -> u32 {
        self.erased
    }

    /// Before anything is read or written: the page that the power went in while it was erased.
    pub(super) fn complete_erase_once(&mut self) -> Result<(), StoreError> {
        if !self.erase_completed {
            self.map.flash().complete_interrupted_erase().map_err(|_| StoreError)?;
            self.erase_completed = true;
        }
        Ok(())
    }

    /// Gives the flash back.
    pub fn into_flash(self) -> F {
        self.map.destroy().0.flash
    }

    /// Writes an item and reads it back: bytes that were not erased spoil what is written over them. False
    /// if that is what happened. An error if the flash does not work or the item does not fit: erasing
    /// would not help then, and would lose what is there.
    // Each call of the library is as large as the library.
    #[inline(never)]
    pub(super) fn write(&mut self, key: u8, item: &Item<'_>) -> Result<bool, StoreError> {
        let buffer = &mut self.buffer.0;
        let length = item.serialize_into(buffer).map_err(|_| StoreError)?;
        match block_on(self.map.store_item(buffer, &key, item)) {
            Ok(()) => {}
            Err(Error::Corrupted { .. } | Error::LogicBug { .. } | Error::FullStorage) => return Ok(false),
            Err(Error::Storage { .. }) if self.map.flash().take_refused() => return Ok(false),
            // Not for this item, but for one that must be moved out of its way: no record of ours is so long.
            Err(Error::BufferTooSmall(needed)) if needed > length + FRAMING => return Ok(false),
            Err(_) => return Err(StoreError),
        }
        Ok(self.fetch(key)?.is_some_and(|stored| item.matches(stored)))
    }

    /// An item; none if there is none, or what is there is none of ours.
    #[inline(never)]
    pub(super) fn fetch(&mut self, key: u8) -> Result<Option<&[u8]>, StoreError> {
        match block_on(self.map.fetch_item(&mut self.buffer.0, &key)) {
            Ok(found) => Ok(found),
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
        // Something else is in these pages. It took the new record down with it.
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
        // Something whole under these names that is no number of this version is one of another version.
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

/// What is on its way into flash: of one type, so that the library's code is there once.
pub enum Item<'a> {
    Record(&'a Record<'a>),
    Number(CounterCopy),
}

impl Item<'_> {
    /// Whether `stored` is this.
    fn matches(&self, stored: &[u8]) -> bool {
        match self {
            Self::Record(record) => record_codec::matches(stored, record),
            Self::Number(copy) => stored == copy.bytes(),
        }
    }
}

impl<'a> Value<'a> for Item<'_> {
    fn serialize_into(&self, buffer: &mut [u8]) -> Result<usize, SerializationError> {
        let written = match self {
            Self::Record(record) => record_codec::encode(record, buffer),
            Self::Number(copy) => buffer.get_mut(..copy.bytes().len()).map(|place| {
                place.iter_mut().zip(copy.bytes()).for_each(|(place, byte)| *place = *byte);
                place.len()
            }),
        };
        written.ok_or(SerializationError::BufferTooSmall)
    }

    fn deserialize_from(_buffer: &'a [u8]) -> Result<(Self, usize), SerializationError> {
        Err(SerializationError::InvalidFormat)
    }
}
