//! NOR flash over any storage of bytes: erasing sets a page to ones, writing only clears bits, and unaligned
//! access is refused. Nothing is buffered: when a call returns, its change is stored.

use core::fmt;
use core::ops::Range;

use embedded_storage::nor_flash::{ErrorType, NorFlash, NorFlashErrorKind, ReadNorFlash};

/// Erase size in bytes.
pub const PAGE: usize = 4096;
/// Write size in bytes.
pub const WORD: usize = 4;
/// Size of the flash in bytes: two pages, the least number with which a store works.
pub const SIZE: usize = 2 * PAGE;
/// Number of bytes per access to the medium.
const BLOCK: usize = 64;

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
    },
}

impl fmt::Display for NorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken => f.write_str("the file cannot be read or written"),
            Self::Size { got } => write!(f, "the file has {got} bytes, the flash has {SIZE}"),
        }
    }
}

impl core::error::Error for NorError {}

/// NOR flash over a medium.
#[derive(Debug)]
pub struct Nor<M> {
    medium: M,
}

impl<M: Medium> Nor<M> {
    /// Creates a flash with the current content of `medium`.
    ///
    /// # Errors
    /// [`NorError::Size`] if the medium's size differs from [`SIZE`]; [`NorError::Broken`] if its size is unknown.
    pub fn new(mut medium: M) -> Result<Self, NorError> {
        match medium.length() {
            Ok(got) if got == SIZE as u64 => Ok(Self { medium }),
            Ok(got) => Err(NorError::Size { got }),
            Err(Broken) => Err(NorError::Broken),
        }
    }

    /// Returns true if the whole flash is erased.
    ///
    /// # Errors
    /// [`NorError::Broken`] if the medium cannot be read.
    pub fn is_blank(&mut self) -> Result<bool, NorError> {
        let mut block = [0; BLOCK];
        for offset in (0..SIZE).step_by(BLOCK) {
            self.medium.read(offset, &mut block).map_err(|Broken| NorError::Broken)?;
            if block.iter().any(|&byte| byte != 0xff) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Returns `from..to` as indices, if the range is inside the flash and both bounds are multiples of `step`.
fn checked_range(from: u32, to: u32, step: usize) -> Result<Range<usize>, NorFlashErrorKind> {
    let index = |offset: u32| usize::try_from(offset).map_err(|_| NorFlashErrorKind::OutOfBounds);
    let (from, to) = (index(from)?, index(to)?);
    if from > to || to > SIZE {
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

impl<M> ErrorType for Nor<M> {
    type Error = NorFlashErrorKind;
}

impl<M: Medium> ReadNorFlash for Nor<M> {
    const READ_SIZE: usize = 1;

    fn read(&mut self, offset: u32, bytes: &mut [u8]) -> Result<(), NorFlashErrorKind> {
        let range = checked_range(offset, end_offset(offset, bytes.len())?, 1)?;
        self.medium.read(range.start, bytes).map_err(failed)
    }

    fn capacity(&self) -> usize {
        SIZE
    }
}

impl<M: Medium> NorFlash for Nor<M> {
    const WRITE_SIZE: usize = WORD;
    const ERASE_SIZE: usize = PAGE;

    fn erase(&mut self, from: u32, to: u32) -> Result<(), NorFlashErrorKind> {
        for offset in checked_range(from, to, PAGE)?.step_by(BLOCK) {
            self.medium.write(offset, &[0xff; BLOCK]).map_err(failed)?;
        }
        Ok(())
    }

    fn write(&mut self, offset: u32, bytes: &[u8]) -> Result<(), NorFlashErrorKind> {
        let range = checked_range(offset, end_offset(offset, bytes.len())?, WORD)?;
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
