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

#[cfg(test)]
mod tests {
    use fedspan_client::store::{FlashStore, Record, Store, record_len};

    use super::*;

    /// Memory as a medium; it fails where it ends.
    struct Bytes<'a>(&'a mut Vec<u8>);

    impl Medium for Bytes<'_> {
        fn length(&mut self) -> Result<u64, Broken> {
            Ok(self.0.len() as u64)
        }

        fn read(&mut self, at: usize, bytes: &mut [u8]) -> Result<(), Broken> {
            bytes.copy_from_slice(self.0.get(at..at + bytes.len()).ok_or(Broken)?);
            Ok(())
        }

        fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), Broken> {
            self.0.get_mut(at..at + bytes.len()).ok_or(Broken)?.copy_from_slice(bytes);
            Ok(())
        }
    }

    #[test]
    fn writing_clears_bits_and_erasing_sets_them() -> Result<(), NorFlashErrorKind> {
        let mut bytes = vec![0xff; SIZE];
        let mut nor = Nor::new(Bytes(&mut bytes)).map_err(|_| NorFlashErrorKind::Other)?;
        assert_eq!(nor.is_blank(), Ok(true));
        // More than a block, across the border of a page.
        let first: Vec<u8> = (0..200).map(|i| i as u8 | 0x0f).collect();
        nor.write(PAGE as u32 - 100, &first)?;
        nor.write(PAGE as u32 - 100, &[0xf0; 200])?;
        let mut read = [0; 204];
        nor.read(PAGE as u32 - 102, &mut read)?;
        let expected: Vec<u8> = first.iter().map(|byte| byte & 0xf0).collect();
        assert_eq!(
            (&read[..2], &read[2..202], &read[202..]),
            (&[0xff; 2][..], &expected[..], &[0xff; 2][..])
        );
        assert_eq!(nor.is_blank(), Ok(false));
        nor.erase(PAGE as u32, SIZE as u32)?;
        nor.read(PAGE as u32 - 4, &mut read[..8])?;
        assert_eq!(read[..8], [&expected[96..100], &[0xff; 4][..]].concat());
        nor.erase(0, PAGE as u32)?;
        assert_eq!(nor.is_blank(), Ok(true));
        Ok(())
    }

    #[test]
    fn what_flash_cannot_do_is_refused_and_changes_nothing() {
        use NorFlashErrorKind::{NotAligned, OutOfBounds};
        let (page, size) = (PAGE as u32, SIZE as u32);
        let mut bytes = vec![0xff; SIZE];
        let mut nor = Nor::new(Bytes(&mut bytes)).expect("the right size");
        assert_eq!(nor.write(2, &[0; 4]), Err(NotAligned));
        assert_eq!(nor.write(0, &[0; 6]), Err(NotAligned));
        assert_eq!(nor.write(size, &[0; 4]), Err(OutOfBounds));
        assert_eq!(nor.write(u32::MAX - 3, &[0; 8]), Err(OutOfBounds));
        assert_eq!(nor.erase(0, page - 4), Err(NotAligned));
        assert_eq!(nor.erase(4, page), Err(NotAligned));
        assert_eq!(nor.erase(0, size + page), Err(OutOfBounds));
        assert_eq!(nor.erase(page, 0), Err(OutOfBounds));
        assert_eq!(nor.read(size - 1, &mut [0; 2]), Err(OutOfBounds));
        assert_eq!((nor.is_blank(), nor.capacity()), (Ok(true), SIZE));
        for length in [0, SIZE - 1, SIZE + 1] {
            let found = Nor::new(Bytes(&mut vec![0xff; length])).map(|_| ());
            assert_eq!(found, Err(NorError::Size { got: length as u64 }));
        }
        assert_eq!(NorError::Size { got: 7 }.to_string(), "it has 7 bytes, the flash has 8192");
    }

    #[test]
    fn a_record_outlives_the_program_that_wrote_it() {
        const RECORD: usize = record_len(24, 7).next_multiple_of(WORD);
        let mut bytes = vec![0xff; SIZE];
        for round in 1..40u32 {
            let head = [round as f32; 24 * 7];
            let record = Record { campaign: 3, round, representation: 9, head: &head };
            let nor = Nor::new(Bytes(&mut bytes)).expect("the right size");
            let mut store: FlashStore<_, RECORD> = FlashStore::new(nor, 0..SIZE as u32).expect("pages");
            store.save(&record).expect("it works");
            let nor = Nor::new(Bytes(&mut bytes)).expect("the right size");
            let mut store: FlashStore<_, RECORD> = FlashStore::new(nor, 0..SIZE as u32).expect("pages");
            let mut found = [0.0; 24 * 7];
            let loaded = store.load(&mut found).expect("it works");
            assert_eq!((loaded.map(|loaded| loaded.round), found, store.erased()), (Some(round), head, 0));
        }
    }
}
