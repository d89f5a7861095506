//! Monotonic counters in the pages of a [`FlashStore`]: their recovery after a power cut, and their
//! preservation while pages are erased.

use core::ops::Range;

use embedded_storage::nor_flash::NorFlash;

use super::counter_copy::{CounterCopy, CounterKind, MAX_LEN, ScanResult};
use super::flash::{FlashStore, Item};
use super::{ALL_SPENT, StoreError};

impl<F: NorFlash, const N: usize> FlashStore<F, N> {
    /// Writes a counter. If a larger value is already known, writes that value.
    pub(super) fn save_counter(&mut self, kind: CounterKind, value: u64) -> Result<(), StoreError> {
        if value > kind.max_value() {
            return Err(StoreError);
        }
        self.repair_once()?;
        self.known.raise(kind, Some(value));
        if self.write_counter(kind)? { Ok(()) } else { self.erase_all_but_counters() }
    }

    /// Writes the known value of a counter under both of its keys. Returns false if a write was corrupted.
    fn write_counter(&mut self, kind: CounterKind) -> Result<bool, StoreError> {
        let Some(value) = self.known.get(kind) else { return Ok(true) };
        let mut all_written = true;
        for key in kind.keys() {
            all_written &= self.write(key, &Item::Counter(CounterCopy::new(kind, value)))?;
        }
        Ok(all_written)
    }

    /// Returns true if the known value of a counter is stored under both of its keys.
    fn has_counter(&mut self, kind: CounterKind) -> Result<bool, StoreError> {
        let Some(value) = self.known.get(kind) else { return Ok(true) };
        let mut all_present = true;
        for key in kind.keys() {
            all_present &= self.fetch(key)? == Some(CounterCopy::new(kind, value).bytes());
        }
        Ok(all_present)
    }

    /// Scans the whole flash for counters, including old copies: the counters are found even in content that
    /// is not readable as items.
    pub(super) fn read_counters(&mut self) -> Result<ScanResult, StoreError> {
        let range = self.map.flash_range();
        let scan = self.map.flash().scan(range).map_err(|_| StoreError)?;
        CounterKind::PROTECTED.into_iter().for_each(|kind| self.known.raise(kind, scan.value(kind)));
        Ok(scan)
    }

    /// Creates a ledger if there is none: with a spent budget of zero if the flash is blank, else with the
    /// whole budget spent.
    pub(super) fn create_ledger(&mut self) -> Result<u64, StoreError> {
        let (_, last, _) = self.page_bounds()?;
        let length = MAX_LEN.next_multiple_of(F::WRITE_SIZE) as u32;
        // Places for whole copies, up to the end mark of the page.
        let (mut address, end) = (
            last.saturating_add(Self::raw_copy_offset(CounterKind::Spent)?),
            self.map.flash_range().end.saturating_sub(F::WRITE_SIZE as u32),
        );
        let (range, flash) = (self.map.flash_range(), self.map.flash());
        let initial = CounterCopy::new(CounterKind::Spent, 0);
        let blank =
            flash.is_blank_except(range, address..end, length, initial.bytes()).map_err(|_| StoreError)?;
        if !blank {
            self.known.raise(CounterKind::Spent, Some(ALL_SPENT));
            return Ok(ALL_SPENT);
        }
        self.known.raise(CounterKind::Spent, Some(0));
        // Written before any other content: after a power cut the next start recognises the remains of this
        // write and uses the next place. An interrupted erase could leave arbitrary content instead, and the
        // whole budget would count as spent.
        while address.saturating_add(length) <= end {
            let next = address.saturating_add(length);
            if self.map.flash().scan(address..next).map_err(|_| StoreError)?.is_blank {
                self.write_raw_copy(address, &initial)?;
                return Ok(0);
            }
            address = next;
        }
        self.preserve_counters_in(last)?;
        Ok(0)
    }

    /// Repairs the content before the first write: an interrupted erase may have left the only copy of a
    /// counter in a page that looks erased, into which the next record would be written.
    pub(super) fn repair_once(&mut self) -> Result<(), StoreError> {
        if !self.repaired {
            self.complete_erase_once()?;
            self.read_counters()?;
            self.repair()?;
        }
        Ok(())
    }

    /// Stores the known counters under their keys, then erases the remains of an interrupted erase.
    pub(super) fn repair(&mut self) -> Result<(), StoreError> {
        if self.is_endangered()? {
            self.erase_all_but_counters()?;
        }
        let mut any = false;
        for kind in CounterKind::PROTECTED {
            any |= self.known.get(kind).is_some();
            // A copy that is found but not stored under its keys would be lost with its page.
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

    /// Returns true if the only copy of a counter is in the first half of a page that looks erased, where the
    /// next write would overwrite it. Interrupted erases of this module do not cause this state; other
    /// software may.
    fn is_endangered(&mut self) -> Result<bool, StoreError> {
        let end = self.map.flash_range().end;
        let (mut first, _, page) = self.page_bounds()?;
        while first < end {
            let next = first.saturating_add(page);
            let flash = self.map.flash();
            if flash.is_half_erased(first..next).map_err(|_| StoreError)? {
                let (copies, _) = flash.only_copies(first, next).map_err(|_| StoreError)?;
                for (kind, copy) in CounterKind::PROTECTED.into_iter().zip(copies) {
                    let preserved_end = Self::raw_copy_offset(kind)?.saturating_add(kind.length() as u32);
                    if copy.is_some_and(|end| end < preserved_end) {
                        return Ok(true);
                    }
                }
            }
            first = next;
        }
        Ok(false)
    }

    /// Erases everything except the counters that are known or readable. At every moment at least one page
    /// holds a copy of each counter, so that a power cut loses no counter.
    pub(super) fn erase_all_but_counters(&mut self) -> Result<(), StoreError> {
        self.erased = self.erased.saturating_add(1);
        let scan = self.read_counters()?;
        if self.known.get(CounterKind::Spent).is_none() {
            // There may have been a ledger, and blank pages would mean a new device.
            self.known.raise(CounterKind::Spent, Some(ALL_SPENT));
        }
        let (first, last, page) = self.page_bounds()?;
        let spare = self.spare_page(&scan)?;
        if spare != last {
            self.preserve_counters_in(spare)?;
        }
        self.preserve_counters_in(last)?;
        self.map.flash().flash.erase(first, last).map_err(|_| StoreError)?;
        // The counters are written to the first page.
        for kind in CounterKind::PROTECTED {
            if !self.write_counter(kind)? {
                return Err(StoreError);
            }
        }
        self.map.flash().flash.erase(last, last.saturating_add(page)).map_err(|_| StoreError)
    }

    /// Returns the page to erase first: the last of the blank pages; else the last page without the newest
    /// copy of a counter; else the page of the ledger. Without a ledger the whole budget counts as spent,
    /// whereas a lost handshake counter would start again.
    fn spare_page(&mut self, scan: &ScanResult) -> Result<u32, StoreError> {
        let Range { start, end } = self.map.flash_range();
        let (mut first, _, page) = self.page_bounds()?;
        let mut spare = (u8::MAX, first);
        while first < end {
            let next = first.saturating_add(page);
            let blank = self.map.flash().scan(first..next).map_err(|_| StoreError)?.is_blank;
            let inside = first.saturating_sub(start)..next.saturating_sub(start);
            // `end` is the distance from the start of the flash to the end of a copy.
            let holds = |kind| inside.contains(&scan.end(kind).saturating_sub(1)) && scan.end(kind) > 0;
            let missed = match (holds(CounterKind::Handshakes), holds(CounterKind::Spent)) {
                _ if blank => 0,
                (false, false) => 1,
                (false, true) => 2,
                (true, _) => 3,
            };
            if missed <= spare.0 {
                spare = (missed, first);
            }
            first = next;
        }
        Ok(spare.1)
    }

    /// Erases pages that look erased but are not.
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

    /// Erases the page at `first` if it is not blank, and writes the counters to its middle, away from the
    /// marks of the page.
    fn preserve_counters_in(&mut self, first: u32) -> Result<(), StoreError> {
        let (_, _, page) = self.page_bounds()?;
        let next = first.saturating_add(page);
        let flash = self.map.flash();
        if !flash.scan(first..next).map_err(|_| StoreError)?.is_blank {
            flash.flash.erase(first, next).map_err(|_| StoreError)?;
        }
        for kind in CounterKind::PROTECTED {
            let Some(value) = self.known.get(kind) else { continue };
            let address = first.saturating_add(Self::raw_copy_offset(kind)?);
            self.write_raw_copy(address, &CounterCopy::new(kind, value))?;
        }
        Ok(())
    }

    /// Writes a copy of a counter to an address, outside the items of the storage library.
    fn write_raw_copy(&mut self, address: u32, copy: &CounterCopy) -> Result<(), StoreError> {
        let length = copy.bytes().len().next_multiple_of(F::WRITE_SIZE);
        let bytes = self.buffer.0.get_mut(..length).ok_or(StoreError)?;
        bytes.fill(0xFF);
        bytes.iter_mut().zip(copy.bytes()).for_each(|(target, byte)| *target = *byte);
        self.map.flash().flash.write(address, bytes).map_err(|_| StoreError)
    }

    /// Returns the offset of a raw copy of a counter in its page.
    fn raw_copy_offset(kind: CounterKind) -> Result<u32, StoreError> {
        let middle = F::ERASE_SIZE / 2 / F::WRITE_SIZE * F::WRITE_SIZE;
        let behind = match kind {
            CounterKind::Handshakes | CounterKind::Erasures => 0,
            CounterKind::Spent => MAX_LEN.next_multiple_of(F::WRITE_SIZE),
        };
        u32::try_from(middle.saturating_add(behind)).map_err(|_| StoreError)
    }

    /// Returns the addresses of the first and the last page, and the page size.
    fn page_bounds(&self) -> Result<(u32, u32, u32), StoreError> {
        let Range { start, end } = self.map.flash_range();
        let page = u32::try_from(F::ERASE_SIZE).map_err(|_| StoreError)?;
        Ok((start, end.saturating_sub(page), page))
    }
}
