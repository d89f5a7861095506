//! The numbers that only grow in the pages of a [`FlashStore`]: what erasing must leave, and where it is meanwhile.

use core::ops::Range;

use embedded_storage::nor_flash::NorFlash;

use super::copies::{Found, Kind, LONGEST, NumberCopy};
use super::flash::{FlashStore, Item};
use super::{SPENT, StoreError};

impl<F: NorFlash, const N: usize> FlashStore<F, N> {
    /// Writes a number, or a larger one that is known.
    pub(super) fn save_number(&mut self, kind: Kind, number: u64) -> Result<(), StoreError> {
        if number > kind.most() {
            return Err(StoreError);
        }
        self.settle_once()?;
        self.known.learn(kind, Some(number));
        if self.write_number(kind)? { Ok(()) } else { self.erase() }
    }

    /// Writes what is known of a kind under both names.
    fn write_number(&mut self, kind: Kind) -> Result<bool, StoreError> {
        let Some(number) = self.known.of(kind) else { return Ok(true) };
        let mut all = true;
        for name in kind.names() {
            all &= self.write(name, &Item::Number(NumberCopy::new(kind, number)))?;
        }
        Ok(all)
    }

    /// Whether what is known of a kind is there under both names.
    fn has_number(&mut self, kind: Kind) -> Result<bool, StoreError> {
        let Some(number) = self.known.of(kind) else { return Ok(true) };
        let mut all = true;
        for name in kind.names() {
            all &= self.fetch(name)? == Some(NumberCopy::new(kind, number).bytes());
        }
        Ok(all)
    }

    /// The largest numbers of all copies in the flash, old ones included, wherever they are: what cannot be read as
    /// records any more still says how far the numbers went.
    pub(super) fn read_numbers(&mut self) -> Result<Found, StoreError> {
        let range = self.map.flash_range();
        let found = self.map.flash().search(range).map_err(|_| StoreError)?;
        Kind::ALL.into_iter().for_each(|kind| self.known.learn(kind, found.number(kind)));
        Ok(found)
    }

    /// Begins a ledger where there is none: with nothing spent if the flash is blank, and else with all of it.
    pub(super) fn begin_ledger(&mut self) -> Result<u64, StoreError> {
        let (_, last, _) = self.pages()?;
        let length = LONGEST.next_multiple_of(F::WRITE_SIZE) as u32;
        // Whole places, up to the mark of a page that is full.
        let (mut place, end) = (
            last.saturating_add(Self::place(Kind::Spent)?),
            self.map.flash_range().end.saturating_sub(F::WRITE_SIZE as u32),
        );
        let (range, flash) = (self.map.flash_range(), self.map.flash());
        let begun = NumberCopy::new(Kind::Spent, 0);
        let blank = flash.is_blank_but(range, place..end, length, begun.bytes()).map_err(|_| StoreError)?;
        if !blank {
            self.known.learn(Kind::Spent, Some(SPENT));
            return Ok(SPENT);
        }
        self.known.learn(Kind::Spent, Some(0));
        // Before anything else: should the power go, what is there of it is known for what it is, and the next start takes
        // the next place. An erasure that the power interrupts can leave anything, and that would be all of it.
        while place.saturating_add(length) <= end {
            let next = place.saturating_add(length);
            if self.map.flash().search(place..next).map_err(|_| StoreError)?.is_blank {
                self.put(place, &begun)?;
                return Ok(0);
            }
            place = next;
        }
        self.keep(last)?;
        Ok(0)
    }

    /// Before anything is written: an erasure that the power interrupted may have left the only copy of a number in the middle of
    /// a page that looks erased, where the next record would go.
    pub(super) fn settle_once(&mut self) -> Result<(), StoreError> {
        if !self.settled {
            self.finish_once()?;
            self.read_numbers()?;
            self.settle()?;
        }
        Ok(())
    }

    /// Puts what is known where it belongs, and then erases what an erasure that the power interrupted has left.
    pub(super) fn settle(&mut self) -> Result<(), StoreError> {
        if self.is_endangered()? {
            self.erase()?;
        }
        let mut any = false;
        for kind in Kind::ALL {
            any |= self.known.of(kind).is_some();
            // What is found, but not where it belongs, would go with its page.
            if !self.has_number(kind)? && !self.write_number(kind)? {
                self.erase()?;
            }
        }
        if any {
            self.tidy()?;
        }
        self.settled = true;
        Ok(())
    }

    /// Whether the only copy of a number is in a page that looks erased, where what is written next would spoil it: before
    /// its middle. No erasure of ours that is interrupted leaves that; flash that somebody else has written may.
    fn is_endangered(&mut self) -> Result<bool, StoreError> {
        let end = self.map.flash_range().end;
        let (mut first, _, page) = self.pages()?;
        while first < end {
            let next = first.saturating_add(page);
            let flash = self.map.flash();
            if flash.is_half_erased(first..next).map_err(|_| StoreError)? {
                let (copies, _) = flash.only_copies(first, next).map_err(|_| StoreError)?;
                for (kind, copy) in Kind::ALL.into_iter().zip(copies) {
                    let kept = Self::place(kind)?.saturating_add(kind.length() as u32);
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
    pub(super) fn erase(&mut self) -> Result<(), StoreError> {
        self.erased = self.erased.saturating_add(1);
        let found = self.read_numbers()?;
        if self.known.of(Kind::Spent).is_none() {
            // There may have been one, and blank pages would be those of a new device.
            self.known.learn(Kind::Spent, Some(SPENT));
        }
        let (first, last, page) = self.pages()?;
        let spare = self.spare_page(&found)?;
        if spare != last {
            self.keep(spare)?;
        }
        self.keep(last)?;
        self.map.flash().flash.erase(first, last).map_err(|_| StoreError)?;
        // Into the first page.
        for kind in Kind::ALL {
            if !self.write_number(kind)? {
                return Err(StoreError);
            }
        }
        self.map.flash().flash.erase(last, last.saturating_add(page)).map_err(|_| StoreError)
    }

    /// The page that is missed least: a blank one, or one without the last copy of a number. If there is none, that of the
    /// ledger: flash in which it is lost reads as spent, and the number of handshakes would fall. The last of them.
    fn spare_page(&mut self, found: &Found) -> Result<u32, StoreError> {
        let Range { start, end } = self.map.flash_range();
        let (mut first, _, page) = self.pages()?;
        let mut best = (u8::MAX, first);
        while first < end {
            let next = first.saturating_add(page);
            let blank = self.map.flash().search(first..next).map_err(|_| StoreError)?.is_blank;
            let inside = first.saturating_sub(start)..next.saturating_sub(start);
            // Bytes are counted up to the end of a copy.
            let holds = |kind| inside.contains(&found.end(kind).saturating_sub(1)) && found.end(kind) > 0;
            let missed = match (holds(Kind::Handshakes), holds(Kind::Spent)) {
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
    fn tidy(&mut self) -> Result<(), StoreError> {
        let end = self.map.flash_range().end;
        let (mut first, _, page) = self.pages()?;
        let flash = self.map.flash();
        while first < end {
            let next = first.saturating_add(page);
            if flash.is_half_erased(first..next).map_err(|_| StoreError)? {
                flash.erase_noted(first).map_err(|_| StoreError)?;
            }
            first = next;
        }
        Ok(())
    }

    /// Erases the page at `first`, if need be, and leaves the numbers in the middle of it, where no page has its marks.
    fn keep(&mut self, first: u32) -> Result<(), StoreError> {
        let (_, _, page) = self.pages()?;
        let next = first.saturating_add(page);
        let flash = self.map.flash();
        if !flash.search(first..next).map_err(|_| StoreError)?.is_blank {
            flash.flash.erase(first, next).map_err(|_| StoreError)?;
        }
        for kind in Kind::ALL {
            let Some(number) = self.known.of(kind) else { continue };
            let place = first.saturating_add(Self::place(kind)?);
            self.put(place, &NumberCopy::new(kind, number))?;
        }
        Ok(())
    }

    /// Writes a copy of a number outside of the library's items.
    fn put(&mut self, place: u32, copy: &NumberCopy) -> Result<(), StoreError> {
        let length = copy.bytes().len().next_multiple_of(F::WRITE_SIZE);
        let bytes = self.buffer.0.get_mut(..length).ok_or(StoreError)?;
        bytes.fill(0xFF);
        bytes.iter_mut().zip(copy.bytes()).for_each(|(place, byte)| *place = *byte);
        self.map.flash().flash.write(place, bytes).map_err(|_| StoreError)
    }

    /// Where in a page a number is kept.
    fn place(kind: Kind) -> Result<u32, StoreError> {
        let middle = F::ERASE_SIZE / 2 / F::WRITE_SIZE * F::WRITE_SIZE;
        let behind = match kind {
            Kind::Handshakes | Kind::Erasures => 0,
            Kind::Spent => LONGEST.next_multiple_of(F::WRITE_SIZE),
        };
        u32::try_from(middle.saturating_add(behind)).map_err(|_| StoreError)
    }

    /// The first page, the last one, and the length of a page.
    fn pages(&self) -> Result<(u32, u32, u32), StoreError> {
        let Range { start, end } = self.map.flash_range();
        let page = u32::try_from(F::ERASE_SIZE).map_err(|_| StoreError)?;
        Ok((start, end.saturating_sub(page), page))
    }
}
