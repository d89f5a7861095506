//! Page erases that survive a power cut, by means of erase intents.
//!
//! A half-erased page may hold any content, including content that the storage library interprets as a page
//! in use or a full page. The library would then copy from such a page again, and first erase the only valid
//! copy of its content; or it would find an old record in the page. Therefore an erase intent is written
//! before a page is erased. An erase intent is an item in the page in use that names the page to be erased;
//! the library skips the item and does not copy it. As long as the page in use is not full, the page named by
//! its newest intent is blank or must be erased.

use embedded_storage::nor_flash::{NorFlash, NorFlashError, NorFlashErrorKind};

use super::counter_copy::{CounterCopy, CounterKind};
use super::guarded_flash::{Aligned, BLOCK, GuardedFlash, MARK_ZEROS_MIN};

/// Length of the library's item header: checksum of the data (0 for an item to be skipped), length, and
/// checksum of the length.
const HEADER: usize = 8;

/// Width of the page index in the low bits of an erase intent. The other bits contain the number of the
/// erase.
const PAGE_INDEX_BITS: u32 = 16;

/// State of a page as the library interprets its first and last bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PageState {
    /// Without marks: the library treats the page as erased and free.
    Open,
    /// Marked at the beginning: in use.
    Used,
    /// Marked at both ends: full.
    Full,
}

impl<F: NorFlash> GuardedFlash<F> {
    /// Page size in bytes.
    const PAGE: u32 = F::ERASE_SIZE as u32;

    /// Erases a page, after writing an erase intent to the page in use if that page has enough free space.
    #[inline(never)]
    pub fn erase_logged(&mut self, page: u32) -> Result<(), NorFlashErrorKind> {
        if let Some(used) = self.pages().find_map(|used| self.intent_address_in(used, page).transpose()) {
            self.write_erase_intent(used?, page)?;
        }
        self.flash.erase(page, page.saturating_add(Self::PAGE)).map_err(|error| error.kind())
    }

    /// Completes an erase that a power cut interrupted.
    pub fn complete_interrupted_erase(&mut self) -> Result<(), NorFlashErrorKind> {
        let (start, end) = (self.range.start, self.range.end);
        let counters = self.scan(start..end)?;
        let mut all_full = true;
        for page in self.pages() {
            all_full &= self.page_state(page)? == PageState::Full;
        }
        let intent = counters.value(CounterKind::Erasures).map(|value| {
            let page_index = (value & ((1 << PAGE_INDEX_BITS) - 1)) as u32;
            let inside = counters.end(CounterKind::Erasures).saturating_sub(1);
            (
                start.saturating_add(inside / Self::PAGE * Self::PAGE),
                start.saturating_add(page_index.saturating_mul(Self::PAGE)),
            )
        });
        let next = |page: u32| {
            if page.saturating_add(Self::PAGE) < end { page.saturating_add(Self::PAGE) } else { start }
        };
        let page = match intent {
            Some((used, page)) if self.page_state(used)? == PageState::Used && page != used => page,
            // All pages are full: one page was about to be reused, and its erase has to be repeated. This is
            // the page after the page with the newest intent. There are no intents before the last page is
            // first used; the erase then concerned the last page.
            Some((used, page)) if all_full && page == next(used) => page,
            _ if all_full => end.saturating_sub(Self::PAGE),
            _ => return Ok(()),
        };
        let page_end = page.saturating_add(Self::PAGE);
        if page >= end || self.scan(page..page_end)?.is_blank {
            return Ok(());
        }
        let (before, after) = (self.scan(start..page)?, self.scan(page_end..end)?);
        // Also detects a copy that begins in the previous page, where only other software can have written
        // it.
        let needed = |kind: CounterKind| counters.value(kind) > before.value(kind).max(after.value(kind));
        if CounterKind::PROTECTED.into_iter().any(needed) || before.is_blank && after.is_blank {
            return Ok(());
        }
        self.flash.erase(page, page_end).map_err(|error| error.kind())
    }

    /// Returns the addresses of all pages.
    fn pages(&self) -> impl Iterator<Item = u32> + use<F> {
        self.range.clone().step_by(F::ERASE_SIZE)
    }

    /// Returns the state of a page.
    #[inline(never)]
    fn page_state(&mut self, page: u32) -> Result<PageState, NorFlashErrorKind> {
        let last = page.saturating_add((F::ERASE_SIZE - F::READ_SIZE) as u32);
        let mut marked = [false; 2];
        for (marked, address) in marked.iter_mut().zip([page, last]) {
            let mut zeros = 0;
            self.for_each_byte(address..address.saturating_add(F::READ_SIZE as u32), &mut |byte| {
                zeros += byte.count_zeros()
            })?;
            *marked = zeros >= MARK_ZEROS_MIN;
        }
        Ok(match marked {
            [true, false] => PageState::Used,
            [true, true] => PageState::Full,
            [false, _] => PageState::Open,
        })
    }

    /// Returns the address for an erase intent in the page `used`. Returns `None` if that page is not in use,
    /// has no free space, or is the page to be erased.
    fn intent_address_in(&mut self, used: u32, erased: u32) -> Result<Option<u32>, NorFlashErrorKind> {
        if used == erased || self.page_state(used)? != PageState::Used {
            return Ok(None);
        }
        let word = F::WRITE_SIZE;
        let header = HEADER.next_multiple_of(word);
        let length = (header + CounterKind::Erasures.length().next_multiple_of(word)) as u32;
        let mut address = used.saturating_add(word as u32);
        let end = used.saturating_add((F::ERASE_SIZE - word) as u32);
        // Walks the items in the same way as the library.
        while address.saturating_add(length) <= end {
            let (mut bytes, mut read) = ([0xFF; HEADER], 0);
            self.for_each_byte(address..address.saturating_add(header as u32), &mut |byte| {
                if let Some(target) = bytes.get_mut(read) {
                    *target = byte;
                }
                read += 1;
            })?;
            if bytes == [0xFF; HEADER] {
                let blank = self.scan(address..address.saturating_add(length))?.is_blank;
                return Ok(blank.then_some(address));
            }
            let [_, _, _, _, low, high, check @ ..] = bytes;
            let item = header + usize::from(u16::from_le_bytes([low, high])).next_multiple_of(word);
            let behind = address.saturating_add(item as u32);
            let is_complete = check == length_check([low, high]) && behind <= end;
            address = if is_complete { behind } else { address.saturating_add(word as u32) };
        }
        Ok(None)
    }

    /// Writes the intent to erase `page`.
    fn write_erase_intent(&mut self, address: u32, page: u32) -> Result<(), NorFlashErrorKind> {
        let scan = self.scan(self.range.clone())?;
        let last = scan.value(CounterKind::Erasures).unwrap_or_default() >> PAGE_INDEX_BITS;
        let page_index = page.saturating_sub(self.range.start) / Self::PAGE;
        let number = last.saturating_add(1) << PAGE_INDEX_BITS | u64::from(page_index);
        if number > CounterKind::Erasures.max_value() || page_index >> PAGE_INDEX_BITS > 0 {
            return Ok(());
        }
        let intent = CounterCopy::new(CounterKind::Erasures, number);
        let length = (intent.bytes().len() as u16).to_le_bytes();
        let header = HEADER.next_multiple_of(F::WRITE_SIZE);
        let mut block = Aligned([0xFF; BLOCK]);
        let head = [[0; 2], [0; 2], length, length_check(length)];
        block.0.iter_mut().zip(head.as_flattened()).for_each(|(target, byte)| *target = *byte);
        block.0.iter_mut().skip(header).zip(intent.bytes()).for_each(|(target, byte)| *target = *byte);
        let total_length = header + intent.bytes().len().next_multiple_of(F::WRITE_SIZE);
        // The header is written first, so that the library never treats the place as free.
        for part in [0..header, header..total_length] {
            let part_address = address.saturating_add(part.start as u32);
            let bytes = block.0.get(part).ok_or(NorFlashErrorKind::OutOfBounds)?;
            self.flash.write(part_address, bytes).map_err(|error| error.kind())?;
        }
        Ok(())
    }
}

/// Returns the library's checksum of a length: Koopman's CRC-16F/4.2, reflected, inverted, and never all
/// ones.
fn length_check(length: [u8; 2]) -> [u8; 2] {
    let mut crc = 0xFFFFu16;
    for byte in length {
        crc ^= u16::from(byte);
        for _ in 0..u8::BITS {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x1A2E } else { crc >> 1 };
        }
    }
    if crc == 0 { 0xFFFE } else { !crc }.to_le_bytes()
}
