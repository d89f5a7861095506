//! Erasing a page so that nobody is in doubt about it when the power goes meanwhile.
//!
//! A page that is half erased holds anything: also what the library takes for a page in use, or for one that is full. It would
//! then begin to copy such a page once more, and first erase the only whole copy of what was in it; or it would find an
//! old record there. So before a page is erased, the page in use says which one that is: a note, in an item that the
//! library skips and does not copy. As long as the page in use is not full, the page that its newest note names is
//! blank, or was to be.

use embedded_storage::nor_flash::{NorFlash, NorFlashError, NorFlashErrorKind};

use super::counter_copy::{CounterCopy, CounterKind};
use super::guarded_flash::{Aligned, BLOCK, GuardedFlash, MARK_ZEROS_MIN};

/// Bytes of the library's header: a check of the data (0 for an item that is to be skipped), their length, a check of that.
const HEADER: usize = 8;

/// A note counts the erasures, and names a page in as many of its last bits.
const PAGE_INDEX_BITS: u32 = 16;

/// As the library sees it, by its first and last bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PageState {
    Open,
    Used,
    Full,
}

impl<F: NorFlash> GuardedFlash<F> {
    const PAGE: u32 = F::ERASE_SIZE as u32;

    /// Erases a page, after a note of that in the page in use, where there is room.
    #[inline(never)]
    pub fn erase_logged(&mut self, page: u32) -> Result<(), NorFlashErrorKind> {
        if let Some(used) = self.pages().find_map(|used| self.intent_address_in(used, page).transpose()) {
            self.write_erase_intent(used?, page)?;
        }
        self.flash.erase(page, page.saturating_add(Self::PAGE)).map_err(|error| error.kind())
    }

    /// Erases the page in which the power went, if there is one.
    pub fn complete_interrupted_erase(&mut self) -> Result<(), NorFlashErrorKind> {
        let (start, end) = (self.range.start, self.range.end);
        let found = self.scan(start..end)?;
        let mut full = true;
        for page in self.pages() {
            full &= self.page_state(page)? == PageState::Full;
        }
        let noted = found.value(CounterKind::Erasures).map(|intent| {
            let name = (intent & ((1 << PAGE_INDEX_BITS) - 1)) as u32;
            let inside = found.end(CounterKind::Erasures).saturating_sub(1);
            (
                start.saturating_add(inside / Self::PAGE * Self::PAGE),
                start.saturating_add(name.saturating_mul(Self::PAGE)),
            )
        });
        let next = |page: u32| {
            if page.saturating_add(Self::PAGE) < end { page.saturating_add(Self::PAGE) } else { start }
        };
        let page = match noted {
            Some((used, page)) if self.page_state(used)? == PageState::Used && page != used => page,
            // One of them was to be in use, and had to be begun anew: the one behind that in which the last note is. There are
            // no notes before the last page is in use for the first time.
            Some((used, page)) if full && page == next(used) => page,
            _ if full => end.saturating_sub(Self::PAGE),
            _ => return Ok(()),
        };
        let behind = page.saturating_add(Self::PAGE);
        if page >= end || self.scan(page..behind)?.is_blank {
            return Ok(());
        }
        let (before, after) = (self.scan(start..page)?, self.scan(behind..end)?);
        // Also one that is half in the page before it: somebody else has put it there.
        let needed = |kind: CounterKind| found.value(kind) > before.value(kind).max(after.value(kind));
        if CounterKind::PROTECTED.into_iter().any(needed) || before.is_blank && after.is_blank {
            return Ok(());
        }
        self.flash.erase(page, behind).map_err(|error| error.kind())
    }

    fn pages(&self) -> impl Iterator<Item = u32> + use<F> {
        self.range.clone().step_by(F::ERASE_SIZE)
    }

    #[inline(never)]
    fn page_state(&mut self, page: u32) -> Result<PageState, NorFlashErrorKind> {
        let last = page.saturating_add((F::ERASE_SIZE - F::READ_SIZE) as u32);
        let mut marked = [false; 2];
        for (marked, place) in marked.iter_mut().zip([page, last]) {
            let mut zeros = 0;
            self.for_each_byte(place..place.saturating_add(F::READ_SIZE as u32), &mut |byte| {
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

    /// Where in `used` a note would go, if that is the page in use and not the one that is erased.
    fn intent_address_in(&mut self, used: u32, erased: u32) -> Result<Option<u32>, NorFlashErrorKind> {
        if used == erased || self.page_state(used)? != PageState::Used {
            return Ok(None);
        }
        let word = F::WRITE_SIZE;
        let header = HEADER.next_multiple_of(word);
        let length = (header + CounterKind::Erasures.length().next_multiple_of(word)) as u32;
        let mut place = used.saturating_add(word as u32);
        let end = used.saturating_add((F::ERASE_SIZE - word) as u32);
        // Item by item, as the library goes.
        while place.saturating_add(length) <= end {
            let (mut bytes, mut read) = ([0xFF; HEADER], 0);
            self.for_each_byte(place..place.saturating_add(header as u32), &mut |byte| {
                if let Some(place) = bytes.get_mut(read) {
                    *place = byte;
                }
                read += 1;
            })?;
            if bytes == [0xFF; HEADER] {
                let blank = self.scan(place..place.saturating_add(length))?.is_blank;
                return Ok(blank.then_some(place));
            }
            let [_, _, _, _, low, high, check @ ..] = bytes;
            let item = header + usize::from(u16::from_le_bytes([low, high])).next_multiple_of(word);
            let behind = place.saturating_add(item as u32);
            let whole = check == length_check([low, high]) && behind <= end;
            place = if whole { behind } else { place.saturating_add(word as u32) };
        }
        Ok(None)
    }

    /// Writes the note that `page` is erased.
    fn write_erase_intent(&mut self, place: u32, page: u32) -> Result<(), NorFlashErrorKind> {
        let found = self.scan(self.range.clone())?;
        let last = found.value(CounterKind::Erasures).unwrap_or_default() >> PAGE_INDEX_BITS;
        let name = page.saturating_sub(self.range.start) / Self::PAGE;
        let number = last.saturating_add(1) << PAGE_INDEX_BITS | u64::from(name);
        if number > CounterKind::Erasures.max_value() || name >> PAGE_INDEX_BITS > 0 {
            return Ok(());
        }
        let intent = CounterCopy::new(CounterKind::Erasures, number);
        let length = (intent.bytes().len() as u16).to_le_bytes();
        let header = HEADER.next_multiple_of(F::WRITE_SIZE);
        let mut block = Aligned([0xFF; BLOCK]);
        let head = [[0; 2], [0; 2], length, length_check(length)];
        block.0.iter_mut().zip(head.as_flattened()).for_each(|(place, byte)| *place = *byte);
        block.0.iter_mut().skip(header).zip(intent.bytes()).for_each(|(place, byte)| *place = *byte);
        let all = header + intent.bytes().len().next_multiple_of(F::WRITE_SIZE);
        // The header is there before anything behind it, so that the library never takes the place for free.
        for part in [0..header, header..all] {
            let at = place.saturating_add(part.start as u32);
            let bytes = block.0.get(part).ok_or(NorFlashErrorKind::OutOfBounds)?;
            self.flash.write(at, bytes).map_err(|error| error.kind())?;
        }
        Ok(())
    }
}

/// The library's check of a length: CRC-16F/4.2 of Koopman, reflected, inverted, and never all ones.
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
