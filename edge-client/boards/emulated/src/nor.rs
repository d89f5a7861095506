//! NOR flash as it is soldered onto boards, over anything that keeps bytes: a page is erased to ones, writing
//! only clears bits, and what is not aligned is refused. Nothing is held back: a call that has returned is
//! in the flash, whatever happens next.

use core::fmt;
use core::ops::Range;

use embedded_storage::nor_flash::{ErrorType, NorFlash, NorFlashErrorKind, ReadNorFlash};

/// Bytes that are erased at once.
pub const PAGE: usize = 4096;
/// Bytes that are written at once.
pub const WORD: usize = 4;
/// Bytes of the flash: two pages, the least that a record takes.
pub const SIZE: usize = 2 * PAGE;
/// Bytes that are read or written with one call of the medium.
const BLOCK: usize = 64;

/// The medium failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// What keeps the bytes.
pub trait Medium {
    /// How many there are.
    ///
    /// # Errors
    /// [`Broken`].
    fn length(&mut self) -> Result<u64, Broken>;

    /// Reads bytes from `at` on.
    ///
    /// # Errors
    /// [`Broken`]; also if there are not that many.
    fn read(&mut self, at: usize, bytes: &mut [u8]) -> Result<(), Broken>;

    /// Writes bytes from `at` on.
    ///
    /// # Errors
    /// [`Broken`]; some may have been written then.
    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), Broken>;
}

/// Why a medium is no flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NorError {
    /// It does not work.
    Broken,
    /// It has another size.
    Size {
        /// Bytes that there are.
        got: u64,
    },
}

impl fmt::Display for NorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken => f.write_str("it cannot be read or written"),
            Self::Size { got } => write!(f, "it has {got} bytes, the flash has {SIZE}"),
        }
    }
}

impl core::error::Error for NorError {}

/// The flash.
#[derive(Debug)]
pub struct Nor<M> {
    medium: M,
}

impl<M: Medium> Nor<M> {
    /// With what is in the medium.
    ///
    /// # Errors
    /// [`NorError`].
    pub fn new(mut medium: M) -> Result<Self, NorError> {
        match medium.length() {
            Ok(got) if got == SIZE as u64 => Ok(Self { medium }),
            Ok(got) => Err(NorError::Size { got }),
            Err(Broken) => Err(NorError::Broken),
        }
    }

    /// Whether nothing was ever written, or all of it was erased.
    ///
    /// # Errors
    /// [`NorError::Broken`].
    pub fn is_blank(&mut self) -> Result<bool, NorError> {
        let mut block = [0; BLOCK];
        for at in (0..SIZE).step_by(BLOCK) {
            self.medium.read(at, &mut block).map_err(|Broken| NorError::Broken)?;
            if block.iter().any(|&byte| byte != 0xff) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// `from..to` as indices, if it is in the flash and begins and ends at multiples of `step`.
fn within(from: u32, to: u32, step: usize) -> Result<Range<usize>, NorFlashErrorKind> {
    let index = |at: u32| usize::try_from(at).map_err(|_| NorFlashErrorKind::OutOfBounds);
    let (from, to) = (index(from)?, index(to)?);
    if from > to || to > SIZE {
        return Err(NorFlashErrorKind::OutOfBounds);
    }
    if !from.is_multiple_of(step) || !to.is_multiple_of(step) {
        return Err(NorFlashErrorKind::NotAligned);
    }
    Ok(from..to)
}

/// The end of so many bytes from `offset` on.
fn end(offset: u32, bytes: usize) -> Result<u32, NorFlashErrorKind> {
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
        let range = within(offset, end(offset, bytes.len())?, 1)?;
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
        for at in within(from, to, PAGE)?.step_by(BLOCK) {
            self.medium.write(at, &[0xff; BLOCK]).map_err(failed)?;
        }
        Ok(())
    }

    fn write(&mut self, offset: u32, bytes: &[u8]) -> Result<(), NorFlashErrorKind> {
        let range = within(offset, end(offset, bytes.len())?, WORD)?;
        let mut block = [0; BLOCK];
        for (at, part) in range.step_by(BLOCK).zip(bytes.chunks(BLOCK)) {
            let there = block.get_mut(..part.len()).unwrap_or_default();
            self.medium.read(at, there).map_err(failed)?;
            for (place, byte) in there.iter_mut().zip(part) {
                *place &= byte;
            }
            self.medium.write(at, there).map_err(failed)?;
        }
        Ok(())
    }
}
