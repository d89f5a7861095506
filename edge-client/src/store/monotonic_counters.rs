//! The numbers that only grow in the pages of a [`FlashStore`]: what erasing must leave, and where it is meanwhile.

use core::ops::Range;

use embedded_storage::nor_flash::NorFlash;

use super::counter_copy::{CounterCopy, CounterKind, MAX_LEN, ScanResult};
use super::flash::{FlashStore, Item};
use super::{ALL_SPENT, StoreError};

impl<F: NorFlash, const N: usize> FlashStore<F, N> {
    /// Writes a number, or a larger one that is known.
    pub(super) fn save_counter(&mut self, kind: CounterKind, number: u64) -> Result<(), StoreError> {
        if number > kind.max_value() {
            return Err(StoreError);
        }
        self.repair_once()?;
        self.known.raise(kind, Some(number));
        if self.write_counter(kind)? { Ok(()) } else { self.erase_all_but_counters() }
    }

    /// Writes what is known of a kind under both names.
    fn write_counter(&mut self, kind: CounterKind) -> Result<bool, StoreError> {
        let Some(number) = self.known.get(kind) else { return Ok(true) };
        let mut all = true;
        for key in kind.keys() {
            all &= self.write(key, &Item::Number(CounterCopy::new(kind, number)))?;
        }
        Ok(all)
    }

    /// Whether what is known of a kind is there under both names.
    fn has_counter(&mut self, kind: CounterKind) -> Result<bool, StoreError> {
        let Some(number) = self.known.get(kind) else { return Ok(true) };
        let mut all = true;
        for key in kind.keys() {
            all &= self.fetch(key)? == Some(CounterCopy::new(kind, number).bytes());
        }
        Ok(all)
    }

    /// The largest numbers of all copies in the flash, old ones included, wherever they are: what cannot be read as
    /// records any more still says how far the numbers went.
    pub(super) fn read_counters(&mut self) -> Result<ScanResult, StoreError> {
        let range = self.map.flash_range();
        let found = self.map.flash().scan(range).map_err(|_| StoreError)?;
        CounterKind::PROTECTED.into_iter().for_each(|kind| self.known.raise(kind, found.value(kind)));
        Ok(found)
    }

    /// Begins a ledger where there is none: with nothing spent if the flash is blank, and else with all of it.
    pub(super) fn create_ledger(&mut self) -> Result<u64, StoreError> {
        let (_, last, _) = self.page_bounds()?;
        let length = MAX_LEN.next_multiple_of(F::WRITE_SIZE) as u32;
        // Whole places, up to the mark of a page that is full.
        let (mut place, end) = (
            last.saturating_add(Self::raw_copy_offset(CounterKind::Spent)?),
            self.map.flash_range().end.saturating_sub(F::WRITE_SIZE as u32),
        );
        let (range, flash) = (self.map.flash_range(), self.map.flash());
        let begun = CounterCopy::new(CounterKind::Spent, 0);
        let blank =
            flash.is_blank_except(range, place..end, length, begun.bytes()).map_err(|_| StoreError)?;
        if !blank {
            self.known.raise(CounterKind::Spent, Some(ALL_SPENT));
            return Ok(ALL_SPENT);
        }
        self.known.raise(CounterKind::Spent, Some(0));
        // Before anything else: should the power go, what is there of it is known for what it is, and the next start takes
        // the next place. An erasure that the power interrupts can leave anything, and that would be all of it.
        while place.saturating_add(length) <= end {
            let next = place.saturating_add(length);
            if self.map.flash().scan(place..next).map_err(|_| StoreError)?.is_blank {
                self.write_raw_copy(place, &begun)?;
                return Ok(0);
            }
            place = next;
        }
        self.preserve_counters_in(last)?;
        Ok(0)
    }

    /// Before anything is written: an erasure that the power interrupted may have left the only copy of a number in the middle of
    /// a page that looks erased, where the next record would go.
    pub(super) fn repair_once(&mut self) -> Result<(), StoreError> {
        if !self.repaired {
            self.complete_erase_once()?;
            self.read_counters()?;
            self.repair()?;
        }
        Ok(())
    }

    /// Puts what is known where it belongs, and then erases what an erasure that the power interrupted has left.
    pub(super) fn repair(&mut self) -> Result<(), StoreError> {
        if self.is_endangered()? {
            self.erase_all_but_counters()?;
        }
        let mut any = false;
        for kind in CounterKind::PROTECTED {
            any |= self.known.get(kind).is_some();
            // What is found, but not where it belongs, would go with its page.
            if !self.has_counter(kind)? && !self.write_counter(kind)? {
                self.erase_all_but_counters()?;
            }
        }
        if any {
            self.erase_half_erased()?;
        }
        self.repaired = true;
        Ok(())
    }

    /// Whether the only copy of a number is in a page that looks erased, where what is written next would spoil it: before
    /// its middle. No erasure of ours that is interrupted leaves that; flash that somebody else has written may.
    fn is_endangered(&mut self) -> Result<bool, StoreError> {
        let end = self.map.flash_range().end;
        let (mut first, _, page) = self.page_bounds()?;
        while first < end {
            let next = first.saturating_add(page);
            let flash = self.map.flash();
            if flash.is_half_erased(first..next).map_err(|_| StoreError)? {
                let (copies, _) = flash.only_copies(first, next).map_err(|_| StoreError)?;
                for (kind, copy) in CounterKind::PROTECTED.into_iter().zip(copies) {
                    let kept = Self::raw_copy_offset(kind)?.saturating_add(kind.length() as u32);
                    if copy.is_some_and(|end| end < kept) {
                        return Ok(true);
                    }
                }
            }
            first = next;
        }
        Ok(false)
    }

    /// Erases everything but the numbers, as far as they are known or can still be read. Whenever the power goes, a copy
    /// of each is in one page or another.
    pub(super) fn erase_all_but_counters(&mut self) -> Result<(), StoreError> {
        self.erased = self.erased.saturating_add(1);
        let found = self.read_counters()?;
        if self.known.get(CounterKind::Spent).is_none() {
            // There may have been one, and blank pages would be those of a new device.
            self.known.raise(CounterKind::Spent, Some(ALL_SPENT));
        }
        let (first, last, page) = self.page_bounds()?;
        let spare = self.spare_page(&found)?;
        if spare != last {
            self.preserve_counters_in(spare)?;
        }
        self.preserve_counters_in(last)?;
        self.map.flash().flash.erase(first, last).map_err(|_| StoreError)?;
        // Into the first page.
        for kind in CounterKind::PROTECTED {
            if !self.write_counter(kind)? {
                return Err(StoreError);
            }
        }
        self.map.flash().flash.erase(last, last.saturating_add(page)).map_err(|_| StoreError)
    }

    /// The page that is missed least: a blank one, or one without the last copy of a number. If there is none, that of the
    /// ledger: flash in which it is lost reads as spent, and the number of handshakes would fall. The last of them.
    fn spare_page(&mut self, found: &ScanResult) -> Result<u32, StoreError> {
        let Range { start, end } = self.map.flash_range();
        let (mut first, _, page) = self.page_bounds()?;
        let mut best = (u8::MAX, first);
        while first < end {
            let next = first.saturating_add(page);
            let blank = self.map.flash().scan(first..next).map_err(|_| StoreError)?.is_blank;
            let inside = first.saturating_sub(start)..next.saturating_sub(start);
            // Bytes are counted up to the end of a copy.
            let holds = |kind| inside.contains(&found.end(kind).saturating_sub(1)) && found.end(kind) > 0;
            let missed = match (holds(CounterKind::Handshakes), holds(CounterKind::Spent)) {
                _ if blank => 0,
                (false, false) => 1,
                (false, true) => 2,
                (true, _) => 3,
            };
            if missed <= best.0 {
                best = (missed, first);
            }
            first = next;
        }
        Ok(best.1)
    }

    /// Erases pages that are taken for erased, and are not.
    fn erase_half_erased(&mut self) -> Result<(), StoreError> {
        let end = self.map.flash_range().end;
        let (mut first, _, page) = self.page_bounds()?;
        let flash = self.map.flash();
        while first < end {
            let next = first.saturating_add(page);
            if flash.is_half_erased(first..next).map_err(|_| StoreError)? {
                flash.erase_logged(first).map_err(|_| StoreError)?;
            }
            first = next;
        }
        Ok(())
    }

    /// Erases the page at `first`, if need be, and leaves the numbers in the middle of it, where no page has its marks.
    fn preserve_counters_in(&mut self, first: u32) -> Result<(), StoreError> {
        let (_, _, page) = self.page_bounds()?;
        let next = first.saturating_add(page);
        let flash = self.map.flash();
        if !flash.scan(first..next).map_err(|_| StoreError)?.is_blank {
            flash.flash.erase(first, next).map_err(|_| StoreError)?;
        }
        for kind in CounterKind::PROTECTED {
            let Some(number) = self.known.get(kind) else { continue };
            let place = first.saturating_add(Self::raw_copy_offset(kind)?);
            self.write_raw_copy(place, &CounterCopy::new(kind, number))?;
        }
        Ok(())
    }

    /// Writes a copy of a number outside of the library's items.
    fn write_raw_copy(&mut self, place: u32, copy: &CounterCopy) -> Result<(), StoreError> {
        let length = copy.bytes().len().next_multiple_of(F::WRITE_SIZE);
        let bytes = self.buffer.0.get_mut(..length).ok_or(StoreError)?;
        bytes.fill(0xFF);
        bytes.iter_mut().zip(copy.bytes()).for_each(|(place, byte)| *place = *byte);
        self.map.flash().flash.write(place, bytes).map_err(|_| StoreError)
    }

    /// Where in a page a number is kept.
    fn raw_copy_offset(kind: CounterKind) -> Result<u32, StoreError> {
        let middle = F::ERASE_SIZE / 2 / F::WRITE_SIZE * F::WRITE_SIZE;
        let behind = match kind {
            CounterKind::Handshakes | CounterKind::Erasures => 0,
            CounterKind::Spent => MAX_LEN.next_multiple_of(F::WRITE_SIZE),
        };
        u32::try_from(middle.saturating_add(behind)).map_err(|_| StoreError)
    }

    /// The first page, the last one, and the length of a page.
    fn page_bounds(&self) -> Result<(u32, u32, u32), StoreError> {
        let Range { start, end } = self.map.flash_range();
        let page = u32::try_from(F::ERASE_SIZE).map_err(|_| StoreError)?;
        Ok((start, end.saturating_sub(page), page))
    }
}
