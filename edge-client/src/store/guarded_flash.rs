//! Adapter of a blocking flash driver to the asynchronous traits of the storage library, which also protects
//! the monotonic counters.

use core::ops::Range;
use core::pin::pin;
use core::task::{Context, Poll, Waker};

use embedded_storage::nor_flash::{ErrorType, NorFlash, NorFlashError, NorFlashErrorKind};
use embedded_storage_async::nor_flash as asynchronous;

use super::counter_copy::{CounterKind, ScanResult, Scanner};

/// Number of bytes per read when a range is scanned.
pub const BLOCK: usize = 64;

/// Word-aligned buffer, from which some flash controllers copy.
#[repr(align(8))]
pub struct Aligned<const N: usize>(pub [u8; N]);

/// Smallest number of zero bits for which the mark of a page counts as set.
pub const MARK_ZEROS_MIN: u32 = u8::BITS / 2;

/// Flash that refuses to erase or overwrite the only copy of a counter's largest value, or the only content
/// of the flash. The storage library repairs damage without regard to what it discards, and blank flash would
/// mean a new device whose whole budget is unspent.
pub struct GuardedFlash<F> {
    /// Flash driver.
    pub flash: F,
    /// Pages that are guarded, in addresses of the flash.
    pub(super) range: Range<u32>,
    /// True if an erase or a write has been refused since the last query.
    refused: bool,
}

impl<F: NorFlash> GuardedFlash<F> {
    /// Guards the pages of `range`.
    pub fn new(flash: F, range: Range<u32>) -> Self {
        Self { flash, range, refused: false }
    }

    /// Returns true if an erase or a write has been refused since the last call.
    pub fn take_refused(&mut self) -> bool {
        core::mem::take(&mut self.refused)
    }

    /// Scans `range` for counters.
    #[inline(never)]
    pub fn scan(&mut self, range: Range<u32>) -> Result<ScanResult, NorFlashErrorKind> {
        let mut scanner = Scanner::new();
        self.for_each_byte(range, &mut |byte| scanner.push(byte))?;
        Ok(scanner.result)
    }

    /// Returns true if `range` is blank, except for the remains of interrupted writes of `bytes` at the start
    /// of `write_range` and at every further `stride` bytes.
    pub fn is_blank_except(
        &mut self,
        range: Range<u32>,
        write_range: Range<u32>,
        stride: u32,
        bytes: &[u8],
    ) -> Result<bool, NorFlashErrorKind> {
        let (mut address, mut is_blank) = (range.start, true);
        let mut index = 0;
        self.for_each_byte(range, &mut |byte| {
            let inside = write_range.contains(&address);
            let written = bytes.get(index).filter(|_| inside).copied().unwrap_or(0xFF);
            index = if inside && index + 1 < stride as usize { index + 1 } else { 0 };
            is_blank &= byte & written == written;
            address = address.saturating_add(1);
        })?;
        Ok(is_blank)
    }

    /// Calls `take` with each byte of `range` in order.
    // Not generic or inlined, because it is called in many places.
    #[inline(never)]
    pub(super) fn for_each_byte(
        &mut self,
        mut range: Range<u32>,
        take: &mut dyn FnMut(u8),
    ) -> Result<(), NorFlashErrorKind> {
        let mut block = Aligned([0; BLOCK]);
        let block_length = BLOCK - BLOCK % F::READ_SIZE.clamp(1, BLOCK);
        while !range.is_empty() {
            let bytes = block.0.get_mut(..block_length.min(range.len())).unwrap_or_default();
            self.flash.read(range.start, bytes).map_err(|error| error.kind())?;
            bytes.iter().for_each(|byte| take(*byte));
            range.start = range.start.saturating_add(bytes.len() as u32);
        }
        Ok(())
    }

    /// Returns true if `page` begins like an erased page but is not erased. The library marks pages in use in
    /// their first READ_SIZE bytes. The library ignores a mark with fewer than [`MARK_ZEROS_MIN`] zero bits,
    /// and would write its own mark over it.
    pub fn is_half_erased(&mut self, page: Range<u32>) -> Result<bool, NorFlashErrorKind> {
        let mut read = 0;
        let mut zeros = 0;
        let mut dirty = false;
        self.for_each_byte(page, &mut |byte| {
            if read < F::READ_SIZE {
                zeros += byte.count_zeros();
            }
            dirty |= byte != 0xFF && read >= F::WRITE_SIZE;
            read += 1;
        })?;
        Ok(zeros < MARK_ZEROS_MIN && dirty)
    }

    /// Returns the end of each copy of a largest value of which `from..to` holds the only copy, in bytes from
    /// the start of `from..to`; and whether `from..to` holds all content of the flash.
    pub fn only_copies(
        &mut self,
        from: u32,
        to: u32,
    ) -> Result<([Option<u32>; CounterKind::PROTECTED.len()], bool), NorFlashErrorKind> {
        let Range { start, end } = self.range;
        let (inside, before, behind) = (self.scan(from..to)?, self.scan(start..from)?, self.scan(to..end)?);
        let newest = |kind| inside.value(kind) > before.value(kind).max(behind.value(kind));
        let only_content = !inside.is_blank && before.is_blank && behind.is_blank;
        Ok((CounterKind::PROTECTED.map(|kind| newest(kind).then(|| inside.end(kind))), only_content))
    }

    /// Returns true if a write to `target` would overwrite the only copy of a largest value: in a damaged
    /// page the library may mistake used bytes for free ones. Erased bytes need no scan of the whole flash.
    fn would_overwrite_only_copy(&mut self, target: Range<u32>) -> Result<bool, NorFlashErrorKind> {
        if self.scan(target.clone())?.is_blank {
            return Ok(false);
        }
        let Range { start, end } = self.range;
        let scan = self.scan(start..end)?;
        for kind in CounterKind::PROTECTED {
            let last = start.saturating_add(scan.end(kind));
            let first = last.saturating_sub(kind.length() as u32);
            let overlaps = scan.value(kind).is_some() && first < target.end && target.start < last;
            if overlaps && self.scan(start..last.saturating_sub(1))?.value(kind) != scan.value(kind) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns true if `from..to` holds the only copy of a largest value, or all content of the flash.
    fn holds_only_copy(&mut self, from: u32, to: u32) -> Result<bool, NorFlashErrorKind> {
        let (copies, is_only_content) = self.only_copies(from, to)?;
        Ok(is_only_content || copies.iter().any(Option::is_some))
    }

    /// Erases a page, or refuses if the page holds the only copy of a largest value.
    fn erase_guarded(&mut self, from: u32, to: u32) -> Result<(), NorFlashErrorKind> {
        if self.holds_only_copy(from, to)? {
            self.refused = true;
            return Err(NorFlashErrorKind::Other);
        }
        self.erase_logged(from)
    }
}

/// Runs a future of [`GuardedFlash`] to completion. These futures are always ready at the first poll.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
    }
}

impl<F: ErrorType> asynchronous::ErrorType for GuardedFlash<F> {
    type Error = GuardedFlashError;
}

/// Error of the flash, independent of the driver.
#[derive(Debug)]
pub struct GuardedFlashError(NorFlashErrorKind);

impl asynchronous::NorFlashError for GuardedFlashError {
    fn kind(&self) -> asynchronous::NorFlashErrorKind {
        self.0
    }
}

impl<F: NorFlash> asynchronous::ReadNorFlash for GuardedFlash<F> {
    const READ_SIZE: usize = F::READ_SIZE;

    async fn read(&mut self, offset: u32, bytes: &mut [u8]) -> Result<(), GuardedFlashError> {
        self.flash.read(offset, bytes).map_err(|error| GuardedFlashError(error.kind()))
    }

    fn capacity(&self) -> usize {
        self.flash.capacity()
    }
}

impl<F: NorFlash> asynchronous::NorFlash for GuardedFlash<F> {
    const WRITE_SIZE: usize = F::WRITE_SIZE;
    const ERASE_SIZE: usize = F::ERASE_SIZE;

    async fn erase(&mut self, from: u32, to: u32) -> Result<(), GuardedFlashError> {
        self.erase_guarded(from, to).map_err(GuardedFlashError)
    }

    async fn write(&mut self, offset: u32, bytes: &[u8]) -> Result<(), GuardedFlashError> {
        let end = offset.saturating_add(bytes.len() as u32);
        if self.would_overwrite_only_copy(offset..end).map_err(GuardedFlashError)? {
            self.refused = true;
            return Err(GuardedFlashError(NorFlashErrorKind::Other));
        }
        self.flash.write(offset, bytes).map_err(|error| GuardedFlashError(error.kind()))
    }
}
