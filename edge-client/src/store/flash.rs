//! [`FlashStore`]: the record in NOR flash, through `embedded-storage` and `sequential-storage`, which spread
//! the wear over the pages, check what they read, and leave the old record or the new one when the power
//! goes in the middle of a write.

use core::ops::Range;

use embedded_storage::nor_flash::NorFlash;
use sequential_storage::Error;
use sequential_storage::cache::{Cache, Uncached};
use sequential_storage::map::{MapConfig, MapConfigError, MapStorage, SerializationError, Value};

use super::careful::{Aligned, Careful, wait};
use super::copies::{COPY, MOST, copy};
use super::{Loaded, Record, Store, StoreError, encoded};

/// The record's name.
const KEY: u8 = 0;

/// Bytes that an item takes beside its value in the buffer, at most: its name, and what fills up a word of the flash.
const FRAMING: usize = 1 + 32;

/// Names of the number of handshakes, which is there twice: should one copy spoil, the other does not fall behind it.
const HANDSHAKES: [u8; 2] = [1, 2];

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
/// first write and counted in [`FlashStore::erased`].
pub struct FlashStore<F: NorFlash, const N: usize> {
    map: MapStorage<u8, Careful<F>, Cache<Uncached, Uncached, Uncached, u8>>,
    buffer: Aligned<N>,
    /// The largest number of handshakes that is known: erasing must not forget it.
    handshakes: u64,
    /// What was looked for last could not be told from what else is there.
    unreadable: bool,
    erased: u32,
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
        let map = MapStorage::new(Careful::new(flash, range), config, Cache::new_uncached());
        Ok(Self { map, buffer: Aligned([0; N]), handshakes: 0, unreadable: false, erased: 0 })
    }

    /// How often all of it was erased because it could not be used as it was.
    #[must_use]
    pub fn erased(&self) -> u32 {
        self.erased
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
    fn write(&mut self, key: u8, item: &Item<'_>) -> Result<bool, StoreError> {
        let buffer = &mut self.buffer.0;
        let length = item.serialize_into(buffer).map_err(|_| StoreError)?;
        match wait(self.map.store_item(buffer, &key, item)) {
            Ok(()) => {}
            Err(Error::Corrupted { .. } | Error::LogicBug { .. } | Error::FullStorage) => return Ok(false),
            Err(Error::Storage { .. }) if self.map.flash().has_refused() => return Ok(false),
            // Not for this item, but for one that must be moved out of its way: no record of ours is so long.
            Err(Error::BufferTooSmall(needed)) if needed > length + FRAMING => return Ok(false),
            Err(_) => return Err(StoreError),
        }
        Ok(self.fetch(key)?.is_some_and(|stored| item.is(stored)))
    }

    /// An item; none if there is none, or what is there is none of ours.
    #[inline(never)]
    fn fetch(&mut self, key: u8) -> Result<Option<&[u8]>, StoreError> {
        match wait(self.map.fetch_item(&mut self.buffer.0, &key)) {
            Ok(found) => Ok(found),
            Err(Error::Storage { .. }) if !self.map.flash().has_refused() => Err(StoreError),
            Err(_) => {
                self.unreadable = true;
                Ok(None)
            }
        }
    }

    fn write_handshakes(&mut self, numbered: u64) -> Result<bool, StoreError> {
        if numbered >= MOST {
            return Err(StoreError);
        }
        let mut all = true;
        for key in HANDSHAKES {
            all &= self.write(key, &Item::Handshakes(copy(numbered)))?;
        }
        Ok(all)
    }

    /// Whether both items are there, with this number.
    fn has_handshakes(&mut self, number: u64) -> Result<bool, StoreError> {
        let mut all = true;
        for key in HANDSHAKES {
            all &= self.fetch(key)? == Some(&copy(number));
        }
        Ok(all)
    }

    /// The largest number of all copies in the flash, old ones included, wherever they are: what cannot be read as
    /// records any more still says how far the numbers went. And where the last copy of it ends.
    fn read_handshakes(&mut self) -> Result<(u64, u32), StoreError> {
        let range = self.map.flash_range();
        let (number, end) = self.map.flash().newest(range).map_err(|_| StoreError)?;
        self.handshakes = self.handshakes.max(number);
        Ok((self.handshakes, end))
    }

    /// Erases everything but the number of handshakes, as far as that is known or can still be read. Whenever the power
    /// goes, a copy of it is in one page or another.
    fn erase(&mut self) -> Result<(), StoreError> {
        self.erased = self.erased.saturating_add(1);
        let (handshakes, end) = self.read_handshakes()?;
        let Range { start: first, end: last } = self.map.flash_range();
        let page = u32::try_from(F::ERASE_SIZE).map_err(|_| StoreError)?;
        let last = last.saturating_sub(page);
        if handshakes > 0 {
            // Out of the last page, if the only copy may be there, and into it.
            if end > last {
                self.keep(first, handshakes)?;
            }
            self.keep(last, handshakes)?;
        }
        self.map.flash().flash.erase(first, last).map_err(|_| StoreError)?;
        // Into the first page.
        if handshakes > 0 && !self.write_handshakes(handshakes)? {
            return Err(StoreError);
        }
        self.map.flash().flash.erase(last, last.saturating_add(page)).map_err(|_| StoreError)
    }

    /// Erases what an erasure that the power interrupted has left: pages that are taken for erased, and are not.
    fn tidy(&mut self) -> Result<(), StoreError> {
        let Range { start, end } = self.map.flash_range();
        let page = u32::try_from(F::ERASE_SIZE).map_err(|_| StoreError)?;
        let flash = self.map.flash();
        let mut first = start;
        while first < end {
            let next = first.saturating_add(page);
            if flash.is_half_erased(first..next).map_err(|_| StoreError)? {
                flash.flash.erase(first, next).map_err(|_| StoreError)?;
            }
            first = next;
        }
        Ok(())
    }

    /// Erases the page at `first` and leaves the number in the middle of it, where no page has its marks.
    fn keep(&mut self, first: u32, handshakes: u64) -> Result<(), StoreError> {
        let length = COPY.next_multiple_of(F::WRITE_SIZE);
        let bytes = self.buffer.0.get_mut(..length).ok_or(StoreError)?;
        bytes.fill(0xFF);
        bytes.iter_mut().zip(copy(handshakes)).for_each(|(place, byte)| *place = byte);
        let middle = F::ERASE_SIZE / 2 / F::WRITE_SIZE * F::WRITE_SIZE;
        let (page, middle) = (u32::try_from(F::ERASE_SIZE), u32::try_from(middle));
        let (page, middle) = page.and_then(|page| Ok((page, middle?))).map_err(|_| StoreError)?;
        let flash = &mut self.map.flash().flash;
        flash.erase(first, first.saturating_add(page)).map_err(|_| StoreError)?;
        flash.write(first.saturating_add(middle), bytes).map_err(|_| StoreError)
    }
}

impl<F: NorFlash, const N: usize> Store for FlashStore<F, N> {
    fn save(&mut self, record: &Record<'_>) -> Result<(), StoreError> {
        let item = Item::Record(record);
        if self.write(KEY, &item)? {
            return Ok(());
        }
        // Something else is in these pages. It took the new record down with it.
        self.erase()?;
        if self.write(KEY, &item)? { Ok(()) } else { Err(StoreError) }
    }

    fn save_handshakes(&mut self, numbered: u64) -> Result<(), StoreError> {
        self.handshakes = self.handshakes.max(numbered);
        if self.write_handshakes(numbered)? { Ok(()) } else { self.erase() }
    }

    fn load_handshakes(&mut self) -> Result<u64, StoreError> {
        let (number, _) = self.read_handshakes()?;
        if number > 0 {
            // What is found, but not where it belongs, would go with its page.
            if !self.has_handshakes(number)? {
                self.save_handshakes(number)?;
            }
            self.tidy()?;
        }
        Ok(number)
    }

    fn load(&mut self, head: &mut [f32]) -> Result<Option<Loaded>, StoreError> {
        self.unreadable = false;
        let loaded = self.fetch(KEY)?.and_then(|bytes| encoded::read(bytes, head));
        if self.unreadable {
            self.erase()?;
        }
        Ok(loaded)
    }
}

/// What is on its way into flash: of one type, so that the library's code is there once.
enum Item<'a> {
    Record(&'a Record<'a>),
    Handshakes([u8; COPY]),
}

impl Item<'_> {
    /// Whether `stored` is this.
    fn is(&self, stored: &[u8]) -> bool {
        match self {
            Self::Record(record) => encoded::is(stored, record),
            Self::Handshakes(copy) => stored == copy,
        }
    }
}

impl<'a> Value<'a> for Item<'_> {
    fn serialize_into(&self, buffer: &mut [u8]) -> Result<usize, SerializationError> {
        let written = match self {
            Self::Record(record) => encoded::write(record, buffer),
            Self::Handshakes(copy) => buffer.split_at_mut_checked(COPY).map(|(place, _)| {
                place.iter_mut().zip(copy).for_each(|(place, byte)| *place = *byte);
                COPY
            }),
        };
        written.ok_or(SerializationError::BufferTooSmall)
    }

    fn deserialize_from(_buffer: &'a [u8]) -> Result<(Self, usize), SerializationError> {
        Err(SerializationError::InvalidFormat)
    }
}
