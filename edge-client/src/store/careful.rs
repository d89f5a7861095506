//! Blocking flash as a library of records sees it: awaited, and never without the number of handshakes.

use core::ops::Range;
use core::pin::pin;
use core::task::{Context, Poll, Waker};

use embedded_storage::nor_flash::{ErrorType, NorFlash, NorFlashError, NorFlashErrorKind};
use embedded_storage_async::nor_flash as waiting;

use super::copies::Search;

/// Bytes that are read at once when the whole flash is.
const BLOCK: usize = 64;

/// Some flash controllers copy whole words from RAM.
#[repr(align(8))]
pub struct Aligned<const N: usize>(pub [u8; N]);

/// Flash whose pages are not erased as long as they hold the only copy of the largest number of handshakes: a library
/// that repairs what it finds damaged does not know what it throws away.
pub struct Careful<F> {
    pub flash: F,
    range: Range<u32>,
    refused: bool,
}

impl<F: NorFlash> Careful<F> {
    pub fn new(flash: F, range: Range<u32>) -> Self {
        Self { flash, range, refused: false }
    }

    /// Whether an erasure was refused since this was asked last.
    pub fn has_refused(&mut self) -> bool {
        core::mem::take(&mut self.refused)
    }

    /// The largest number of all copies in `range`, old ones included, and where the last copy of it ends; zeros where
    /// there is none.
    pub fn newest(&mut self, range: Range<u32>) -> Result<(u64, u32), NorFlashErrorKind> {
        let (mut search, start) = (Search::default(), range.start);
        self.each(range, |byte| search.take(byte))?;
        Ok(search.largest.map_or((0, 0), |(number, end)| (number, start.saturating_add(end))))
    }

    fn each(&mut self, mut range: Range<u32>, mut take: impl FnMut(u8)) -> Result<(), NorFlashErrorKind> {
        let mut block = Aligned([0; BLOCK]);
        let most = BLOCK - BLOCK % F::READ_SIZE.clamp(1, BLOCK);
        while !range.is_empty() {
            let bytes = block.0.get_mut(..most.min(range.len())).unwrap_or_default();
            self.flash.read(range.start, bytes).map_err(|error| error.kind())?;
            bytes.iter().for_each(|byte| take(*byte));
            range.start = range.start.saturating_add(bytes.len() as u32);
        }
        Ok(())
    }

    /// Whether a page begins as if it were erased (a library marks those in use there), and is not.
    pub fn is_half_erased(&mut self, page: Range<u32>) -> Result<bool, NorFlashErrorKind> {
        let (mut read, mut begins, mut dirty) = (0, true, false);
        self.each(page, |byte| {
            begins &= byte == 0xFF || read >= F::WRITE_SIZE;
            dirty |= byte != 0xFF;
            read += 1;
        })?;
        Ok(begins && dirty)
    }

    fn erase_unless_newest(&mut self, from: u32, to: u32) -> Result<(), NorFlashErrorKind> {
        let Range { start, end } = self.range;
        let (inside, _) = self.newest(from..to)?;
        let (before, _) = self.newest(start..from)?;
        let (behind, _) = self.newest(to..end)?;
        if inside > before.max(behind) {
            self.refused = true;
            return Err(NorFlashErrorKind::Other);
        }
        self.flash.erase(from, to).map_err(|error| error.kind())
    }
}

/// Runs a future of [`Careful`] flash: every one is ready at once.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
    }
}

impl<F: ErrorType> waiting::ErrorType for Careful<F> {
    type Error = Kind;
}

/// What went wrong in the flash, whatever the driver.
#[derive(Debug)]
pub struct Kind(NorFlashErrorKind);

impl waiting::NorFlashError for Kind {
    fn kind(&self) -> waiting::NorFlashErrorKind {
        self.0
    }
}

impl<F: NorFlash> waiting::ReadNorFlash for Careful<F> {
    const READ_SIZE: usize = F::READ_SIZE;

    async fn read(&mut self, offset: u32, bytes: &mut [u8]) -> Result<(), Kind> {
        self.flash.read(offset, bytes).map_err(|error| Kind(error.kind()))
    }

    fn capacity(&self) -> usize {
        self.flash.capacity()
    }
}

impl<F: NorFlash> waiting::NorFlash for Careful<F> {
    const WRITE_SIZE: usize = F::WRITE_SIZE;
    const ERASE_SIZE: usize = F::ERASE_SIZE;

    async fn erase(&mut self, from: u32, to: u32) -> Result<(), Kind> {
        self.erase_unless_newest(from, to).map_err(Kind)
    }

    async fn write(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Kind> {
        self.flash.write(offset, bytes).map_err(|error| Kind(error.kind()))
    }
}
