//! [`FlashStore`]: stores the record and the counters in pages of NOR flash, as a log.
//!
//! One page is in use, the one with the largest generation. What is saved is appended to it. When it is full, the next page is
//! erased, the newest record and counters are copied there, and at last its generation is written, with which it is in use. A page
//! in use is never erased, so that a power cut at any time leaves one that is complete.
//!
//! The next item goes behind the last byte of the page that is not erased, so that the remains of an interrupted write are
//! skipped. Items are found by their magic and checksum, not by their place.

use core::ops::Range;

use embedded_storage::nor_flash::NorFlash;

use super::counters::{CounterCopy, CounterKind, MAX_LEN, ScanResult};
use super::pages::{Aligned, Pages};
use super::{ALL_SPENT, Record, RecordHeader, Store, StoreError, record_codec};

/// Reason why a range of flash cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
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
pub struct FlashStore<F: NorFlash, const N: usize> {
    pages: Pages<F>,
    buffer: Aligned<N>,
    /// Content of the flash; `None` before the first access.
    state: Option<State>,
    /// True once the page in use has two copies of each counter.
    is_repaired: bool,
    /// Number of erases of unusable content.
    erased: u32,
}

/// First content of a page, in addition to the counters.
enum Content<'a> {
    /// Nothing.
    Counters,
    /// A copy of the record with this address and length.
    Copy(u32, usize),
    /// A new record. Until the page is in use, the old one counts.
    Record(&'a Record<'a>),
}

/// Content of the flash.
#[derive(Clone, Copy, Debug)]
struct State {
    /// Address of the page in use, if there is one.
    page: Option<u32>,
    /// End of what is written in that page: the address of the next write.
    end: u32,
    /// Largest generation.
    generation: u64,
    /// Largest value of each protected counter.
    known: [Option<u64>; CounterKind::PROTECTED.len()],
    /// True if there is a counter of another version.
    has_unknown: bool,
}

impl State {
    /// Returns the largest value of a protected counter.
    fn known(&self, kind: CounterKind) -> Option<u64> {
        self.known.get(kind.index()).copied().flatten()
    }

    /// Raises a protected counter to `value`. A smaller value has no effect.
    fn raise(&mut self, kind: CounterKind, value: u64) {
        if let Some(known) = self.known.get_mut(kind.index()) {
            *known = Some(value).max(*known);
        }
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
        let needed = 2 * page;
        let is_at_page =
            |address: u32| usize::try_from(address).is_ok_and(|address| address.is_multiple_of(page.max(1)));
        for address in [range.start, range.end] {
            if !is_at_page(address) {
                return Err(FlashError::NotAtPage { address, page });
            }
        }
        let fits = usize::try_from(range.end).is_ok_and(|end| end <= flash.capacity());
        if !fits || usize::try_from(bytes).is_ok_and(|bytes| bytes < needed) {
            return Err(FlashError::Range { bytes, needed });
        }
        let is_usable =
            (1..=FRAME_WORDS).contains(&word) && page.is_multiple_of(word) && Self::content_len() <= page;
        if !is_usable || Pages::<F>::words(MAX_LEN) > N {
            return Err(FlashError::Geometry { page, word });
        }
        let pages = Pages::new(flash, range);
        Ok(Self { pages, buffer: Aligned([0; N]), state: None, is_repaired: false, erased: 0 })
    }

    /// Returns the number of bytes that a page must have room for: two copies of all counters, a record, and two copies of a new
    /// value.
    fn content_len() -> usize {
        let counters = CounterKind::ALL.into_iter().chain([CounterKind::Spent]);
        counters.map(|kind| 2 * Pages::<F>::words(kind.length())).sum::<usize>() + Pages::<F>::words(N)
    }

    /// Returns the number of times that a page with unusable content was erased although no page was in use.
    #[must_use]
    pub fn erased(&self) -> u32 {
        self.erased
    }

    /// Returns the flash and drops the store.
    pub fn into_flash(self) -> F {
        self.pages.flash
    }

    /// Returns what is in the flash, which is read once.
    fn open(&mut self) -> Result<State, StoreError> {
        if let Some(state) = self.state {
            return Ok(state);
        }
        let scan = self.pages.scan(self.pages.all())?;
        let mut state = State {
            page: None,
            end: 0,
            generation: scan.value(CounterKind::Generation).unwrap_or(0),
            known: CounterKind::PROTECTED.map(|kind| scan.value(kind)),
            has_unknown: scan.has_unknown,
        };
        for page in self.pages.addresses() {
            let scan = self.pages.scan(Pages::<F>::page(page))?;
            if state.generation > 0 && scan.value(CounterKind::Generation) == Some(state.generation) {
                state.page = Some(page);
                state.end = Self::end_of(page, &scan);
            }
        }
        self.state = Some(state);
        Ok(state)
    }

    /// Returns the address behind the last word of a page that is not erased.
    fn end_of(page: u32, scan: &ScanResult) -> u32 {
        page.saturating_add(Pages::<F>::words(scan.used as usize) as u32)
    }

    /// Returns the state, which [`Self::open`] has read.
    fn state_mut(&mut self) -> Result<&mut State, StoreError> {
        self.state.as_mut().ok_or(StoreError)
    }

    /// Makes a page the one in use, if there is none, and completes its counters. Must run before the first write.
    fn repair_once(&mut self) -> Result<(), StoreError> {
        if self.is_repaired {
            return Ok(());
        }
        match self.open()?.page {
            None => self.begin_page()?,
            Some(page) => {
                let scan = self.pages.scan(Pages::<F>::page(page))?;
                for kind in CounterKind::PROTECTED {
                    let Some(value) = self.open()?.known(kind) else { continue };
                    let copies = scan
                        .newest(kind)
                        .filter(|newest| newest.value == value)
                        .map_or(0, |newest| newest.copies);
                    for _ in copies..2 {
                        if !self.append_counter(kind, value)? {
                            // The page is full, and the next one gets all copies.
                            self.rotate(None)?;
                            break;
                        }
                    }
                }
            }
        }
        self.is_repaired = true;
        Ok(())
    }

    /// Begins to use a page although none is in use: behind what is written in it, if there is enough room, else after an erase.
    fn begin_page(&mut self) -> Result<(), StoreError> {
        let needed = Self::content_len();
        for page in self.pages.addresses() {
            let end = Self::end_of(page, &self.pages.scan(Pages::<F>::page(page))?);
            if Pages::<F>::page(page).end.saturating_sub(end) as usize >= needed {
                return self.fill_page(page, end, Content::Counters);
            }
        }
        self.erased = self.erased.saturating_add(1);
        let state = self.state_mut()?;
        if state.known(CounterKind::Spent).is_none() {
            // There may have been a ledger, and blank pages would mean a new device.
            state.raise(CounterKind::Spent, ALL_SPENT);
        }
        let page = self.spare_page()?;
        self.pages.erase(page)?;
        self.fill_page(page, page, Content::Counters)
    }

    /// Returns the page to erase if none is in use: the last one without the only newest copies of a counter; else the page of
    /// the ledger. Without a ledger the whole budget counts as spent, whereas a lost handshake counter would start again.
    fn spare_page(&mut self) -> Result<u32, StoreError> {
        let all = self.pages.scan(self.pages.all())?;
        let mut spare = (u8::MAX, self.pages.all().start);
        for page in self.pages.addresses() {
            let scan = self.pages.scan(Pages::<F>::page(page))?;
            // True if all copies of the largest value are in this page.
            let holds = |kind| scan.newest(kind).is_some() && scan.newest(kind) == all.newest(kind);
            let missed = match (holds(CounterKind::Handshakes), holds(CounterKind::Spent)) {
                (false, false) => 0,
                (false, true) => 1,
                (true, _) => 2,
            };
            if missed <= spare.0 {
                spare = (missed, page);
            }
        }
        Ok(spare.1)
    }

    /// Uses the next page in place of the full one. Its record is `record`, or a copy of the newest one.
    fn rotate(&mut self, record: Option<&Record<'_>>) -> Result<(), StoreError> {
        let Some(page) = self.open()?.page else { return self.begin_page() };
        let content = match record {
            Some(record) => Content::Record(record),
            None => self
                .find_record(page)?
                .map_or(Content::Counters, |(address, length)| Content::Copy(address, length)),
        };
        let next = self.pages.after(page);
        if !self.pages.scan(Pages::<F>::page(next))?.is_blank {
            self.pages.erase(next)?;
        }
        self.fill_page(next, next, content)
    }

    /// Writes the known counters, a record and a new generation into a page from `end` on, which is then in use.
    fn fill_page(&mut self, page: u32, end: u32, content: Content<'_>) -> Result<(), StoreError> {
        let state = State { page: Some(page), end, ..self.open()? };
        let generation = state.generation.saturating_add(1);
        if generation > CounterKind::Generation.max_value() {
            return Err(StoreError);
        }
        // Until the generation is written, the old page is in use in the flash, and this one in memory.
        self.state = Some(state);
        let filled = self.write_content(&state, content).and_then(|()| {
            for _ in 0..2 {
                self.append_counter(CounterKind::Generation, generation)?.then_some(()).ok_or(StoreError)?;
            }
            Ok(())
        });
        match filled {
            Ok(()) => self.state_mut()?.generation = generation,
            // The next access reads again what the flash contains.
            Err(_) => (self.state, self.is_repaired) = (None, false),
        }
        filled
    }

    /// Appends the known counters and a record to a page that is not in use yet.
    fn write_content(&mut self, state: &State, content: Content<'_>) -> Result<(), StoreError> {
        for kind in CounterKind::PROTECTED {
            let Some(value) = state.known(kind) else { continue };
            for _ in 0..2 {
                self.append_counter(kind, value)?.then_some(()).ok_or(StoreError)?;
            }
        }
        let length = match content {
            Content::Counters => return Ok(()),
            Content::Copy(address, length) => self.read_record(address, length)?.len(),
            Content::Record(record) => self.encode(record)?,
        };
        self.append(length)?.then_some(()).ok_or(StoreError)
    }

    /// Encodes a record into the buffer, and returns its length.
    fn encode(&mut self, record: &Record<'_>) -> Result<usize, StoreError> {
        record_codec::encode(record, &mut self.buffer.0).ok_or(StoreError)
    }

    /// Appends a copy of a counter. Returns false if the page has no room for it.
    fn append_counter(&mut self, kind: CounterKind, value: u64) -> Result<bool, StoreError> {
        let copy = CounterCopy::new(kind, value);
        self.buffer.0.iter_mut().zip(copy.bytes()).for_each(|(target, byte)| *target = *byte);
        self.append(copy.bytes().len())
    }

    /// Appends the first `length` bytes of the buffer to the page in use. Returns false if the page has no room for them, or
    /// they were corrupted; the page then counts as full.
    #[inline(never)]
    fn append(&mut self, length: usize) -> Result<bool, StoreError> {
        let words = Pages::<F>::words(length);
        let bytes = self.buffer.0.get_mut(..words).ok_or(StoreError)?;
        bytes.get_mut(length..).unwrap_or_default().fill(0xFF);
        let state = self.state.as_mut().ok_or(StoreError)?;
        let page_end = Pages::<F>::page(state.page.ok_or(StoreError)?).end;
        let (address, end) = (state.end, state.end.saturating_add(words as u32));
        if end > page_end {
            return Ok(false);
        }
        state.end = end;
        let is_written = self.pages.write(address, bytes)?;
        if !is_written {
            self.state_mut()?.end = page_end;
        }
        Ok(is_written)
    }

    /// Returns the address and the length of the last whole record of a page.
    fn find_record(&mut self, page: u32) -> Result<Option<(u32, usize)>, StoreError> {
        let Range { start: mut address, end } = Pages::<F>::page(page);
        let (mut found, word) = (None, F::WRITE_SIZE as u32);
        while address < end {
            let length = self.record_at(address, end)?;
            if let Some(length) = length {
                found = Some((address, length));
            }
            address = address.saturating_add(length.map_or(word, |length| Pages::<F>::words(length) as u32));
        }
        Ok(found)
    }

    /// Returns the length of the whole record at `address`, if there is one.
    fn record_at(&mut self, address: u32, end: u32) -> Result<Option<usize>, StoreError> {
        let mut frame = Aligned([0; FRAME_WORDS]);
        let length = Pages::<F>::words(record_codec::FRAME).min(end.saturating_sub(address) as usize);
        let Some(bytes) = frame.0.get_mut(..length) else { return Ok(None) };
        self.pages.read(address, bytes)?;
        let length = bytes.first_chunk().and_then(record_codec::length_of);
        let room = end.saturating_sub(address) as usize;
        let Some(length) = length.filter(|length| Pages::<F>::words(*length) <= N.min(room)) else {
            return Ok(None);
        };
        Ok(record_codec::is_whole(self.read_record(address, length)?).then_some(length))
    }

    /// Reads a record into the buffer.
    fn read_record(&mut self, address: u32, length: usize) -> Result<&[u8], StoreError> {
        let bytes = self.buffer.0.get_mut(..Pages::<F>::words(length)).ok_or(StoreError)?;
        self.pages.read(address, bytes)?;
        bytes.get(..length).ok_or(StoreError)
    }

    /// Writes two copies of a counter. A value that is not larger than the known one changes nothing.
    fn save_counter(&mut self, kind: CounterKind, value: u64) -> Result<(), StoreError> {
        if value > kind.max_value() {
            return Err(StoreError);
        }
        self.repair_once()?;
        if self.open()?.known(kind).is_some_and(|known| known >= value) {
            return Ok(());
        }
        let is_written = self.append_counter(kind, value)? && self.append_counter(kind, value)?;
        if !is_written {
            self.rotate(None)?;
            for _ in 0..2 {
                self.append_counter(kind, value)?.then_some(()).ok_or(StoreError)?;
            }
        }
        self.state_mut()?.raise(kind, value);
        Ok(())
    }

    /// Creates a ledger if there is none: with a spent budget of zero if the flash is blank, else with the whole budget spent.
    fn create_ledger(&mut self) -> Result<u64, StoreError> {
        let mut address = self.pages.all().start;
        let initial = CounterCopy::new(CounterKind::Spent, 0);
        let length = Pages::<F>::words(initial.bytes().len()) as u32;
        // End of the last whole place.
        let end = address.saturating_add(Pages::<F>::PAGE / length.max(1) * length);
        let all = self.pages.all();
        // Written to the first page before any other content: after a power cut the next start recognises the remains of this
        // write and uses the next place.
        if !self.pages.is_blank_except(all, address..end, length, initial.bytes())? {
            self.state_mut()?.raise(CounterKind::Spent, ALL_SPENT);
            return Ok(ALL_SPENT);
        }
        while address.saturating_add(length) <= end {
            let next = address.saturating_add(length);
            if self.pages.scan(address..next)?.is_blank {
                self.buffer.0.iter_mut().zip(initial.bytes()).for_each(|(target, byte)| *target = *byte);
                let bytes = self.buffer.0.get_mut(..length as usize).ok_or(StoreError)?;
                bytes.get_mut(initial.bytes().len()..).unwrap_or_default().fill(0xFF);
                if self.pages.write(address, bytes)? {
                    self.state_mut()?.raise(CounterKind::Spent, 0);
                    return Ok(0);
                }
            }
            address = next;
        }
        Err(StoreError)
    }
}

/// Bytes of the largest word that holds the start of a record.
const FRAME_WORDS: usize = 64;

impl<F: NorFlash, const N: usize> Store for FlashStore<F, N> {
    fn save(&mut self, record: &Record<'_>) -> Result<(), StoreError> {
        self.repair_once()?;
        let length = self.encode(record)?;
        if self.append(length)? { Ok(()) } else { self.rotate(Some(record)) }
    }

    fn load(&mut self, head: &mut [f32]) -> Result<Option<RecordHeader>, StoreError> {
        let Some(page) = self.open()?.page else { return Ok(None) };
        let Some((address, length)) = self.find_record(page)? else { return Ok(None) };
        Ok(record_codec::decode(self.read_record(address, length)?, head))
    }

    fn save_handshakes(&mut self, reserved: u64) -> Result<(), StoreError> {
        self.save_counter(CounterKind::Handshakes, reserved)
    }

    fn load_handshakes(&mut self) -> Result<u64, StoreError> {
        let state = self.open()?;
        match state.known(CounterKind::Handshakes) {
            Some(reserved) => Ok(reserved),
            None if state.has_unknown => Err(StoreError),
            None => Ok(0),
        }
    }

    fn save_spent(&mut self, spent: u64) -> Result<(), StoreError> {
        // Without a ledger, pages that are not blank count as spent.
        self.load_spent()?;
        self.save_counter(CounterKind::Spent, spent)
    }

    fn load_spent(&mut self) -> Result<u64, StoreError> {
        match self.open()?.known(CounterKind::Spent) {
            Some(spent) => Ok(spent),
            None => self.create_ledger(),
        }
    }
}
