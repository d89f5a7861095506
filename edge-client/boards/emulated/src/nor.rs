//! NOR flash over any storage of bytes: erasing sets a page to ones, writing only clears bits, and unaligned
//! access is refused. Nothing is buffered: when a call returns, its change is stored.

use core::fmt;
use core::ops::Range;

use embedded_storage::nor_flash::{ErrorType, NorFlash, NorFlashErrorKind, ReadNorFlash};

/// Erase size of a flash for small records, in bytes.
pub const PAGE: usize = 4096;
/// Write size in bytes.
pub const WORD: usize = 4;
/// Size of a flash for small records in bytes.
pub const SIZE: usize = flash_size(PAGE);
/// Number of bytes per access to the medium.
const BLOCK: usize = 64;

/// Returns the size of a flash with pages of `page` bytes: two pages, the least number with which a store works.
#[must_use]
pub const fn flash_size(page: usize) -> usize {
    2 * page
}

/// Failure of a medium to read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// Storage for the bytes of a flash.
pub trait Medium {
    /// Returns the length of the storage in bytes.
    ///
    /// # Errors
    /// [`Broken`] if the length is unknown.
    fn length(&mut self) -> Result<u64, Broken>;

    /// Reads bytes starting at `offset`.
    ///
    /// # Errors
    /// [`Broken`] if reading fails or fewer bytes are available.
    fn read(&mut self, offset: usize, bytes: &mut [u8]) -> Result<(), Broken>;

    /// Writes bytes starting at `offset`.
    ///
    /// # Errors
    /// [`Broken`] if writing fails; some bytes may have been written.
    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Broken>;
}

/// Reason why a medium cannot be used as flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NorError {
    /// The medium cannot be read or written.
    Broken,
    /// The size of the medium differs from that of the flash.
    Size {
        /// Size of the medium in bytes.
        got: u64,
        /// Size of the flash in bytes.
        needed: usize,
    },
}

impl fmt::Display for NorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken => f.write_str("the file cannot be read or written"),
            Self::Size { got, needed } => write!(f, "the file has {got} bytes, the flash has {needed}"),
        }
    }
}

impl core::error::Error for NorError {}

/// NOR flash of two pages of `P` bytes over a medium.
#[derive(Debug)]
pub struct Nor<M, const P: usize = PAGE> {
    medium: M,
}

impl<M, const P: usize> Nor<M, P> {
    /// Size of the flash in bytes.
    const SIZE: usize = flash_size(P);
}

impl<M: Medium, const P: usize> Nor<M, P> {
    /// Creates a flash with the current content of `medium`.
    ///
    /// # Errors
    /// [`NorError::Size`] if the medium's size differs from [`flash_size`]; [`NorError::Broken`] if its size is unknown.
    pub fn new(mut medium: M) -> Result<Self, NorError> {
        match medium.length() {
            Ok(got) if got == Self::SIZE as u64 => Ok(Self { medium }),
            Ok(got) => Err(NorError::Size { got, needed: Self::SIZE }),
            Err(Broken) => Err(NorError::Broken),
        }
    }

    /// Returns true if the whole flash is erased.
    ///
    /// # Errors
    /// [`NorError::Broken`] if the medium cannot be read.
    pub fn is_blank(&mut self) -> Result<bool, NorError> {
        let mut block = [0; BLOCK];
        for offset in (0..Self::SIZE).step_by(BLOCK) {
            self.medium.read(offset, &mut block).map_err(|Broken| NorError::Broken)?;
            if block.iter().any(|&byte| byte != 0xff) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Returns `from..to` as indices, if the range is inside a flash of `size` bytes and both bounds are multiples of
/// `step`.
fn checked_range(size: usize, from: u32, to: u32, step: usize) -> Result<Range<usize>, NorFlashErrorKind> {
    let index = |offset: u32| usize::try_from(offset).map_err(|_| NorFlashErrorKind::OutOfBounds);
    let (from, to) = (index(from)?, index(to)?);
    if from > to || to > size {
        return Err(NorFlashErrorKind::OutOfBounds);
    }
    if !from.is_multiple_of(step) || !to.is_multiple_of(step) {
        return Err(NorFlashErrorKind::NotAligned);
    }
    Ok(from..to)
}

/// Returns the end address of `bytes` bytes at `offset`.
fn end_offset(offset: u32, bytes: usize) -> Result<u32, NorFlashErrorKind> {
    let length = u32::try_from(bytes).map_err(|_| NorFlashErrorKind::OutOfBounds)?;
    offset.checked_add(length).ok_or(NorFlashErrorKind::OutOfBounds)
}

fn failed(_: Broken) -> NorFlashErrorKind {
    NorFlashErrorKind::Other
}

impl<M, const P: usize> ErrorType for Nor<M, P> {
    type Error = NorFlashErrorKind;
}

impl<M: Medium, const P: usize> ReadNorFlash for Nor<M, P> {
    const READ_SIZE: usize = 1;

    fn read(&mut self, offset: u32, bytes: &mut [u8]) -> Result<(), NorFlashErrorKind> {
        let range = checked_range(Self::SIZE, offset, end_offset(offset, bytes.len())?, 1)?;
        self.medium.read(range.start, bytes).map_err(failed)
    }

    fn capacity(&self) -> usize {
        Self::SIZE
    }
}

impl<M: Medium, const P: usize> NorFlash for Nor<M, P> {
    const WRITE_SIZE: usize = WORD;
    const ERASE_SIZE: usize = P;

    fn erase(&mut self, from: u32, to: u32) -> Result<(), NorFlashErrorKind> {
        for offset in checked_range(Self::SIZE, from, to, P)?.step_by(BLOCK) {
            self.medium.write(offset, &[0xff; BLOCK]).map_err(failed)?;
        }
        Ok(())
    }

    fn write(&mut self, offset: u32, bytes: &[u8]) -> Result<(), NorFlashErrorKind> {
        let range = checked_range(Self::SIZE, offset, end_offset(offset, bytes.len())?, WORD)?;
        let mut block = [0; BLOCK];
        for (offset, chunk) in range.step_by(BLOCK).zip(bytes.chunks(BLOCK)) {
            let stored = block.get_mut(..chunk.len()).unwrap_or_default();
            self.medium.read(offset, stored).map_err(failed)?;
            for (stored_byte, byte) in stored.iter_mut().zip(chunk) {
                *stored_byte &= byte;
            }
            self.medium.write(offset, stored).map_err(failed)?;
        }
        Ok(())
    }
}
