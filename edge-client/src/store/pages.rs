//! Pages of NOR flash: reading in blocks, scanning for counters, and writing with verification. This file is compiled twice, as
//! `flash_log.rs` is.

use core::ops::Range;

use super::{NorFlash, either};
use crate::store::StoreError;
use crate::store::counters::{ScanResult, Scanner};

/// Number of bytes per read.
const BLOCK: usize = 64;

/// Word-aligned buffer, from which some flash controllers copy.
#[repr(align(8))]
pub struct Aligned<const N: usize>(pub [u8; N]);

/// Pages of a flash. All addresses are those of the flash.
pub struct Pages<F> {
    /// Flash driver.
    pub flash: F,
    /// Range of the pages.
    range: Range<u32>,
}

#[either]
impl<F: NorFlash> Pages<F> {
    /// Size of a page in bytes.
    pub const PAGE: u32 = F::ERASE_SIZE as u32;

    /// Creates the pages of `range`, which the caller has checked.
    pub fn new(flash: F, range: Range<u32>) -> Self {
        Self { flash, range }
    }

    /// Returns the range of all pages.
    pub fn all(&self) -> Range<u32> {
        self.range.clone()
    }

    /// Returns the addresses of the pages.
    pub fn addresses(&self) -> impl Iterator<Item = u32> + use<F> {
        self.range.clone().step_by(F::ERASE_SIZE)
    }

    /// Returns the range of the page at `address`.
    pub fn page(address: u32) -> Range<u32> {
        address..address.saturating_add(Self::PAGE)
    }

    /// Returns the address of the page after the one at `address`, after the last page that of the first.
    pub fn after(&self, address: u32) -> u32 {
        let next = address.saturating_add(Self::PAGE);
        if next < self.range.end { next } else { self.range.start }
    }

    /// Returns a number of bytes, rounded up to whole words.
    pub fn words(bytes: usize) -> usize {
        bytes.next_multiple_of(F::WRITE_SIZE)
    }

    /// Scans `range` for counters.
    #[inline(never)]
    pub async fn scan(&mut self, range: Range<u32>) -> Result<ScanResult, StoreError> {
        let mut scanner = Scanner::new();
        self.for_each_byte(range, &mut |byte| scanner.push(byte)).await?;
        Ok(scanner.result)
    }

    /// Returns true if `range` is blank, except for the remains of interrupted writes of `bytes` at the start of `inside` and at
    /// every further `stride` bytes.
    pub async fn is_blank_except(
        &mut self,
        range: Range<u32>,
        inside: Range<u32>,
        stride: u32,
        bytes: &[u8],
    ) -> Result<bool, StoreError> {
        let (mut address, mut is_blank) = (range.start, true);
        let mut index = 0;
        self.for_each_byte(range, &mut |byte| {
            let is_inside = inside.contains(&address);
            let written = bytes.get(index).filter(|_| is_inside).copied().unwrap_or(0xFF);
            index = if is_inside && index + 1 < stride as usize { index + 1 } else { 0 };
            is_blank &= byte & written == written;
            address = address.saturating_add(1);
        })
        .await?;
        Ok(is_blank)
    }

    /// Calls `take` with each byte of `range` in order.
    // Not generic or inlined, because it is called in many places.
    #[inline(never)]
    async fn for_each_byte(
        &mut self,
        mut range: Range<u32>,
        take: &mut dyn FnMut(u8),
    ) -> Result<(), StoreError> {
        let mut block = Aligned([0; BLOCK]);
        let block_length = BLOCK - BLOCK % F::READ_SIZE.clamp(1, BLOCK);
        while !range.is_empty() {
            let bytes = block.0.get_mut(..block_length.min(range.len())).unwrap_or_default();
            self.read(range.start, bytes).await?;
            bytes.iter().for_each(|byte| take(*byte));
            range.start = range.start.saturating_add(bytes.len() as u32);
        }
        Ok(())
    }

    /// Reads bytes from `address` on.
    pub async fn read(&mut self, address: u32, bytes: &mut [u8]) -> Result<(), StoreError> {
        self.flash.read(address, bytes).await.map_err(|_| StoreError)
    }

    /// Writes whole words and reads them back, because a write over bytes that were not erased is corrupted. Returns false if
    /// it was.
    #[inline(never)]
    pub async fn write(&mut self, address: u32, bytes: &[u8]) -> Result<bool, StoreError> {
        self.flash.write(address, bytes).await.map_err(|_| StoreError)?;
        let (mut written, mut same) = (bytes.iter(), true);
        let range = address..address.saturating_add(bytes.len() as u32);
        self.for_each_byte(range, &mut |byte| same &= written.next() == Some(&byte)).await?;
        Ok(same)
    }

    /// Erases the page at `address`.
    pub async fn erase(&mut self, address: u32) -> Result<(), StoreError> {
        self.flash.erase(address, address.saturating_add(Self::PAGE)).await.map_err(|_| StoreError)
    }
}
