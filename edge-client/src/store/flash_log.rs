//! Log of records and counters in pages of NOR flash. This file is compiled twice, over blocking drivers (`blocking.rs`) and over
//! asynchronous ones (`asynchronous.rs`): `either` removes `async` and `.await`, or keeps them.
//!
//! One page is in use, the one with the largest generation. What is saved is appended to it. When it is full, the next page is
//! erased, the newest record and counters are copied there, and at last its generation is written, with which it is in use. A page
//! in use is never erased, so that a power cut at any time leaves one that is complete.
//!
//! The next item goes behind the last byte of the page that is not erased, so that the remains of an interrupted write are
//! skipped. Items are found by their magic and checksum, not by their place.

use core::ops::Range;

#[cfg(feature = "key-rotation")]
use zeroize::Zeroize;

use super::pages::{Aligned, Pages};
use super::{NorFlash, either};
use crate::store::counters::{CounterCopy, CounterKind, MAX_LEN, ScanResult};
use crate::store::log_state::{Content, State};
use crate::store::{ALL_SPENT, FlashError, Record, RecordHeader, StoreError, record_codec};
#[cfg(feature = "key-rotation")]
use crate::store::{StoredKey, key_codec};

/// Bytes of the largest word that holds the start of a record.
const FRAME_WORDS: usize = 64;

/// Log in the pages of a flash, with a buffer of `N` bytes for a record.
pub struct FlashLog<F: NorFlash, const N: usize> {
    /// Pages of the flash.
    pub pages: Pages<F>,
    buffer: Aligned<N>,
    /// Content of the flash; `None` before the first access.
    state: Option<State>,
    /// True once the page in use has two copies of each counter.
    is_repaired: bool,
    /// Number of erases of unusable content.
    erased: u32,
    /// Key with the largest number in the flash, and this number.
    #[cfg(feature = "key-rotation")]
    key: Option<(u16, StoredKey)>,
}

#[either]
impl<F: NorFlash, const N: usize> FlashLog<F, N> {
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
        Ok(Self {
            pages,
            buffer: Aligned([0; N]),
            state: None,
            is_repaired: false,
            erased: 0,
            #[cfg(feature = "key-rotation")]
            key: None,
        })
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

    /// Forgets what is in the flash, so that the next access reads it.
    pub fn forget(&mut self) {
        #[cfg(feature = "key-rotation")]
        {
            self.key = None;
        }
        (self.state, self.is_repaired) = (None, false);
    }

    /// Returns the page that is used next, if it is not erased yet. If no page is in use, nothing is to be erased: the first item of new
    /// pages must be that of the ledger.
    pub async fn page_to_erase(&mut self) -> Result<Option<u32>, StoreError> {
        if self.open().await?.page.is_none() {
            return Ok(None);
        }
        self.repair_once().await?;
        let Some(page) = self.open().await?.page else { return Ok(None) };
        let next = self.pages.after(page);
        let is_blank = self.pages.scan(Pages::<F>::page(next)).await?.is_blank;
        Ok((!is_blank).then_some(next))
    }

    /// Erases the page that is used next.
    pub async fn erase_ahead(&mut self) -> Result<(), StoreError> {
        match self.page_to_erase().await? {
            Some(page) => self.pages.erase(page).await,
            None => Ok(()),
        }
    }

    /// Returns what is in the flash, which is read once.
    async fn open(&mut self) -> Result<State, StoreError> {
        if let Some(state) = self.state {
            return Ok(state);
        }
        let scan = self.pages.scan(self.pages.all()).await?;
        let mut state = State {
            page: None,
            end: 0,
            generation: scan.value(CounterKind::Generation).unwrap_or(0),
            known: CounterKind::PROTECTED.map(|kind| scan.value(kind)),
            has_unknown: scan.has_unknown,
        };
        for page in self.pages.addresses() {
            let scan = self.pages.scan(Pages::<F>::page(page)).await?;
            if state.generation > 0 && scan.value(CounterKind::Generation) == Some(state.generation) {
                state.page = Some(page);
                state.end = Self::end_of(page, &scan);
            }
        }
        #[cfg(feature = "key-rotation")]
        for page in self.pages.addresses() {
            self.find_keys(page).await?;
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
    async fn repair_once(&mut self) -> Result<(), StoreError> {
        if self.is_repaired {
            return Ok(());
        }
        match self.open().await?.page {
            None => self.begin_page().await?,
            Some(page) => {
                let scan = self.pages.scan(Pages::<F>::page(page)).await?;
                for kind in CounterKind::PROTECTED {
                    let Some(value) = self.open().await?.known(kind) else { continue };
                    let copies = scan
                        .newest(kind)
                        .filter(|newest| newest.value == value)
                        .map_or(0, |newest| newest.copies);
                    for _ in copies..2 {
                        if !self.append_counter(kind, value).await? {
                            // The page is full, and the next one gets all copies.
                            self.rotate(None).await?;
                            break;
                        }
                    }
                }
            }
        }
        #[cfg(feature = "key-rotation")]
        self.repair_key().await?;
        self.is_repaired = true;
        Ok(())
    }

    /// Begins to use a page although none is in use: behind what is written in it, if there is enough room, else after an erase.
    async fn begin_page(&mut self) -> Result<(), StoreError> {
        let needed = Self::content_len();
        #[cfg(feature = "key-rotation")]
        let needed = needed + self.key.as_ref().map_or(0, |_| Self::key_len());
        for page in self.pages.addresses() {
            let end = Self::end_of(page, &self.pages.scan(Pages::<F>::page(page)).await?);
            if Pages::<F>::page(page).end.saturating_sub(end) as usize >= needed {
                return self.fill_page(page, end, Content::Counters).await;
            }
        }
        self.erased = self.erased.saturating_add(1);
        let state = self.state_mut()?;
        if state.known(CounterKind::Spent).is_none() {
            // There may have been a ledger, and blank pages would mean a new device.
            state.raise(CounterKind::Spent, ALL_SPENT);
        }
        let page = self.spare_page().await?;
        self.pages.erase(page).await?;
        self.fill_page(page, page, Content::Counters).await
    }

    /// Returns the page to erase if none is in use: the last one without the only newest copies of a counter; else the page of
    /// the ledger. Without a ledger the whole budget counts as spent, whereas a lost handshake counter would start again.
    async fn spare_page(&mut self) -> Result<u32, StoreError> {
        let all = self.pages.scan(self.pages.all()).await?;
        let mut spare = (u8::MAX, self.pages.all().start);
        for page in self.pages.addresses() {
            let scan = self.pages.scan(Pages::<F>::page(page)).await?;
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
    async fn rotate(&mut self, record: Option<&Record<'_>>) -> Result<(), StoreError> {
        let Some(page) = self.open().await?.page else { return self.begin_page().await };
        let content = match record {
            Some(record) => Content::Record(record),
            None => self
                .find_record(page)
                .await?
                .map_or(Content::Counters, |(address, length)| Content::Copy(address, length)),
        };
        let next = self.pages.after(page);
        if !self.pages.scan(Pages::<F>::page(next)).await?.is_blank {
            self.pages.erase(next).await?;
        }
        self.fill_page(next, next, content).await
    }

    /// Writes the known counters, a record and a new generation into a page from `end` on, which is then in use.
    async fn fill_page(&mut self, page: u32, end: u32, content: Content<'_>) -> Result<(), StoreError> {
        let state = State { page: Some(page), end, ..self.open().await? };
        let generation = state.generation.saturating_add(1);
        if generation > CounterKind::Generation.max_value() {
            return Err(StoreError);
        }
        // Until the generation is written, the old page is in use in the flash, and this one in memory.
        self.state = Some(state);
        let filled = self.write_page(&state, content, generation).await;
        match filled {
            Ok(()) => self.state_mut()?.generation = generation,
            // The next access reads again what the flash contains.
            Err(_) => self.forget(),
        }
        filled
    }

    /// Appends the known counters, a record and at last the generation to a page, which is then in use.
    async fn write_page(
        &mut self,
        state: &State,
        content: Content<'_>,
        generation: u64,
    ) -> Result<(), StoreError> {
        self.write_content(state, content).await?;
        for _ in 0..2 {
            self.append_counter(CounterKind::Generation, generation)
                .await?
                .then_some(())
                .ok_or(StoreError)?;
        }
        Ok(())
    }

    /// Appends the known counters and a record to a page that is not in use yet.
    async fn write_content(&mut self, state: &State, content: Content<'_>) -> Result<(), StoreError> {
        for kind in CounterKind::PROTECTED {
            let Some(value) = state.known(kind) else { continue };
            for _ in 0..2 {
                self.append_counter(kind, value).await?.then_some(()).ok_or(StoreError)?;
            }
        }
        #[cfg(feature = "key-rotation")]
        if !self.append_key(2).await? {
            return Err(StoreError);
        }
        let length = match content {
            Content::Counters => return Ok(()),
            Content::Copy(address, length) => self.read_record(address, length).await?.len(),
            Content::Record(record) => self.encode(record)?,
        };
        self.append(length).await?.then_some(()).ok_or(StoreError)
    }

    /// Encodes a record into the buffer, and returns its length.
    fn encode(&mut self, record: &Record<'_>) -> Result<usize, StoreError> {
        record_codec::encode(record, &mut self.buffer.0).ok_or(StoreError)
    }

    /// Appends a copy of a counter. Returns false if the page has no room for it.
    async fn append_counter(&mut self, kind: CounterKind, value: u64) -> Result<bool, StoreError> {
        let copy = CounterCopy::new(kind, value);
        self.buffer.0.iter_mut().zip(copy.bytes()).for_each(|(target, byte)| *target = *byte);
        self.append(copy.bytes().len()).await
    }

    /// Appends the first `length` bytes of the buffer to the page in use. Returns false if the page has no room for them, or
    /// they were corrupted; the page then counts as full.
    #[inline(never)]
    async fn append(&mut self, length: usize) -> Result<bool, StoreError> {
        let words = Pages::<F>::words(length);
        let bytes = self.buffer.0.get_mut(..words).ok_or(StoreError)?;
        bytes.get_mut(length..).unwrap_or_default().fill(0xFF);
        Self::append_words(&mut self.pages, self.state.as_mut().ok_or(StoreError)?, bytes).await
    }

    /// Appends whole words to the page in use, like [`Self::append`].
    async fn append_words(pages: &mut Pages<F>, state: &mut State, bytes: &[u8]) -> Result<bool, StoreError> {
        let page_end = Pages::<F>::page(state.page.ok_or(StoreError)?).end;
        let (address, end) = (state.end, state.end.saturating_add(bytes.len() as u32));
        if end > page_end {
            return Ok(false);
        }
        state.end = end;
        let is_written = pages.write(address, bytes).await?;
        if !is_written {
            state.end = page_end;
        }
        Ok(is_written)
    }

    /// Returns the address and the length of the last whole record of a page.
    async fn find_record(&mut self, page: u32) -> Result<Option<(u32, usize)>, StoreError> {
        let Range { start: mut address, end } = Pages::<F>::page(page);
        let (mut found, word) = (None, F::WRITE_SIZE as u32);
        while address < end {
            let length = self.record_at(address, end).await?;
            if let Some(length) = length {
                found = Some((address, length));
            }
            address = address.saturating_add(length.map_or(word, |length| Pages::<F>::words(length) as u32));
        }
        Ok(found)
    }

    /// Returns the length of the whole record at `address`, if there is one.
    async fn record_at(&mut self, address: u32, end: u32) -> Result<Option<usize>, StoreError> {
        let mut frame = Aligned([0; FRAME_WORDS]);
        let length = Pages::<F>::words(record_codec::FRAME).min(end.saturating_sub(address) as usize);
        let Some(bytes) = frame.0.get_mut(..length) else { return Ok(None) };
        self.pages.read(address, bytes).await?;
        let length = bytes.first_chunk().and_then(record_codec::length_of);
        let room = end.saturating_sub(address) as usize;
        let Some(length) = length.filter(|length| Pages::<F>::words(*length) <= N.min(room)) else {
            return Ok(None);
        };
        Ok(record_codec::is_whole(self.read_record(address, length).await?).then_some(length))
    }

    /// Reads a record into the buffer.
    async fn read_record(&mut self, address: u32, length: usize) -> Result<&[u8], StoreError> {
        let bytes = self.buffer.0.get_mut(..Pages::<F>::words(length)).ok_or(StoreError)?;
        self.pages.read(address, bytes).await?;
        bytes.get(..length).ok_or(StoreError)
    }

    /// Writes two copies of a counter. A value that is not larger than the known one changes nothing.
    async fn save_counter(&mut self, kind: CounterKind, value: u64) -> Result<(), StoreError> {
        if value > kind.max_value() {
            return Err(StoreError);
        }
        self.repair_once().await?;
        if self.open().await?.known(kind).is_some_and(|known| known >= value) {
            return Ok(());
        }
        let is_written = self.append_counter(kind, value).await? && self.append_counter(kind, value).await?;
        if !is_written {
            self.rotate(None).await?;
            for _ in 0..2 {
                self.append_counter(kind, value).await?.then_some(()).ok_or(StoreError)?;
            }
        }
        self.state_mut()?.raise(kind, value);
        Ok(())
    }

    /// Creates a ledger if there is none: with a spent budget of zero if the flash is blank, else with the whole budget spent.
    async fn create_ledger(&mut self) -> Result<u64, StoreError> {
        let mut address = self.pages.all().start;
        let initial = CounterCopy::new(CounterKind::Spent, 0);
        let length = Pages::<F>::words(initial.bytes().len()) as u32;
        // End of the last whole place.
        let end = address.saturating_add(Pages::<F>::PAGE / length.max(1) * length);
        let all = self.pages.all();
        // Written to the first page before any other content: after a power cut the next start recognises the remains of this
        // write and uses the next place.
        if !self.pages.is_blank_except(all, address..end, length, initial.bytes()).await? {
            self.state_mut()?.raise(CounterKind::Spent, ALL_SPENT);
            return Ok(ALL_SPENT);
        }
        while address.saturating_add(length) <= end {
            let next = address.saturating_add(length);
            if self.pages.scan(address..next).await?.is_blank {
                self.buffer.0.iter_mut().zip(initial.bytes()).for_each(|(target, byte)| *target = *byte);
                let bytes = self.buffer.0.get_mut(..length as usize).ok_or(StoreError)?;
                bytes.get_mut(initial.bytes().len()..).unwrap_or_default().fill(0xFF);
                if self.pages.write(address, bytes).await? {
                    self.state_mut()?.raise(CounterKind::Spent, 0);
                    return Ok(0);
                }
            }
            address = next;
        }
        Err(StoreError)
    }

    /// Writes a record.
    pub async fn save(&mut self, record: &Record<'_>) -> Result<(), StoreError> {
        self.repair_once().await?;
        let length = self.encode(record)?;
        if self.append(length).await? { Ok(()) } else { self.rotate(Some(record)).await }
    }

    /// Reads the last record.
    pub async fn load(&mut self, head: &mut [f32]) -> Result<Option<RecordHeader>, StoreError> {
        let Some(page) = self.open().await?.page else { return Ok(None) };
        let Some((address, length)) = self.find_record(page).await? else { return Ok(None) };
        Ok(record_codec::decode(self.read_record(address, length).await?, head))
    }

    /// Writes a number of reserved handshakes.
    pub async fn save_handshakes(&mut self, reserved: u64) -> Result<(), StoreError> {
        self.save_counter(CounterKind::Handshakes, reserved).await
    }

    /// Returns the largest number of reserved handshakes; 0 if there is none.
    pub async fn load_handshakes(&mut self) -> Result<u64, StoreError> {
        let state = self.open().await?;
        match state.known(CounterKind::Handshakes) {
            Some(reserved) => Ok(reserved),
            None if state.has_unknown => Err(StoreError),
            None => Ok(0),
        }
    }

    /// Writes a spent budget.
    pub async fn save_spent(&mut self, spent: u64) -> Result<(), StoreError> {
        // Without a ledger, pages that are not blank count as spent.
        self.load_spent().await?;
        self.save_counter(CounterKind::Spent, spent).await
    }

    /// Returns the largest spent budget, and creates a ledger if there is none.
    pub async fn load_spent(&mut self) -> Result<u64, StoreError> {
        match self.open().await?.known(CounterKind::Spent) {
            Some(spent) => Ok(spent),
            None => self.create_ledger().await,
        }
    }
}

/// Keys that the server has sent. Each is stored twice, like a counter.
#[cfg(feature = "key-rotation")]
#[either]
impl<F: NorFlash, const N: usize> FlashLog<F, N> {
    /// Keeps the key with the largest number in a page, and returns the number of copies of the kept one.
    async fn find_keys(&mut self, page: u32) -> Result<usize, StoreError> {
        let Range { start: mut address, end } = Pages::<F>::page(page);
        let mut copies = 0;
        let mut item = Aligned([0xFF; KEY_WORDS]);
        let words = Pages::<F>::words(key_codec::ITEM);
        while end.saturating_sub(address) as usize >= words {
            self.pages.read(address, item.0.get_mut(..words).unwrap_or_default()).await?;
            address = address.saturating_add(F::WRITE_SIZE as u32);
            let Some(found) = item.0.first_chunk().and_then(key_codec::decode) else { continue };
            match &self.key {
                Some((number, _)) if *number > found.0 => {}
                Some(known) if *known == found => copies += 1,
                _ => (self.key, copies) = (Some(found), 1),
            }
        }
        item.0.zeroize();
        Ok(copies)
    }

    /// Completes the copies of the key in the page in use.
    async fn repair_key(&mut self) -> Result<(), StoreError> {
        let Some(page) = self.open().await?.page else { return Ok(()) };
        let copies = self.find_keys(page).await?;
        if !self.append_key(2_usize.saturating_sub(copies)).await? {
            self.rotate(None).await?;
        }
        Ok(())
    }

    /// Appends copies of the key, if there is one. Returns false if the page has no room for them.
    async fn append_key(&mut self, copies: usize) -> Result<bool, StoreError> {
        let Some((number, key)) = &self.key else { return Ok(true) };
        let mut item = Aligned([0xFF; KEY_WORDS]);
        key_codec::encode(*number, key, item.0.first_chunk_mut().ok_or(StoreError)?);
        let mut is_written = true;
        for _ in 0..copies {
            let words = item.0.get(..Pages::<F>::words(key_codec::ITEM)).ok_or(StoreError)?;
            let state = self.state.as_mut().ok_or(StoreError)?;
            is_written = is_written && Self::append_words(&mut self.pages, state, words).await?;
        }
        item.0.zeroize();
        Ok(is_written)
    }

    /// Returns the number of bytes that a page needs for two copies of a key and two of a new one.
    fn key_len() -> usize {
        4 * Pages::<F>::words(key_codec::ITEM)
    }

    /// Returns false if pages are too small for keys.
    pub fn has_room_for_keys() -> bool {
        Self::content_len() + Self::key_len() <= Pages::<F>::PAGE as usize
    }

    /// Writes a key. The one that is known changes nothing. Small pages have no room for keys.
    pub async fn save_key(&mut self, key: &StoredKey) -> Result<(), StoreError> {
        if !Self::has_room_for_keys() {
            return Err(StoreError);
        }
        self.repair_once().await?;
        let next = match &self.key {
            Some((_, known)) if known == key => return Ok(()),
            Some((number, _)) => number.checked_add(1).ok_or(StoreError)?,
            None => 0,
        };
        let new = (next, key.clone());
        let known = self.key.replace(new.clone());
        let mut written = self.append_key(2).await;
        if written == Ok(false) {
            // The next page is complete with the old key, before it gets the new one.
            self.key = known;
            self.rotate(None).await?;
            self.key = Some(new);
            written = self.append_key(2).await;
        }
        let is_written = written.and_then(|is_written| is_written.then_some(()).ok_or(StoreError));
        if is_written.is_err() {
            // The next access reads again what the flash contains.
            self.forget();
        }
        is_written
    }

    /// Returns the key that was written last.
    pub async fn load_key(&mut self) -> Result<Option<StoredKey>, StoreError> {
        self.open().await?;
        Ok(self.key.as_ref().map(|(_, key)| key.clone()))
    }
}

/// Bytes of a key's item in words of at most [`FRAME_WORDS`] bytes.
#[cfg(feature = "key-rotation")]
const KEY_WORDS: usize = 64;
