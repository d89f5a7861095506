//! Test helpers for stores: NOR flash in memory whose erased bytes are 0xFF, whose writes only clear bits,
//! and whose power can fail at any byte.

use std::cell::RefCell;
use std::rc::Rc;

use embedded_storage::nor_flash::{ErrorType, NorFlash, NorFlashErrorKind, ReadNorFlash};

/// Size of a page in bytes.
pub const PAGE: usize = 512;
/// Size of a word in bytes.
pub const WORD: usize = 4;

/// Content of the flash and counts of its use.
#[derive(Debug)]
pub struct Chip {
    pub bytes: Vec<u8>,
    /// Number of erases per page.
    pub erased: Vec<usize>,
    /// Number of bytes written.
    pub written: usize,
    /// Number of bytes that can still be written or erased before the power fails.
    pub power: usize,
}

/// Handle to a chip. The chip survives when the store that uses it is dropped.
#[derive(Clone, Debug)]
pub struct Nor(pub Rc<RefCell<Chip>>);

impl Nor {
    /// Creates an erased flash.
    pub fn new(pages: usize) -> Self {
        Self::with(vec![0xFF; pages * PAGE])
    }

    /// Creates a flash with this content.
    pub fn with(bytes: Vec<u8>) -> Self {
        let erased = vec![0; bytes.len() / PAGE];
        Self(Rc::new(RefCell::new(Chip { bytes, erased, written: 0, power: usize::MAX })))
    }

    /// Returns a copy of the content.
    #[allow(dead_code, reason = "not every test looks at it")]
    pub fn image(&self) -> Vec<u8> {
        self.0.borrow().bytes.clone()
    }
}

impl ErrorType for Nor {
    type Error = NorFlashErrorKind;
}

impl ReadNorFlash for Nor {
    const READ_SIZE: usize = 1;

    fn read(&mut self, offset: u32, bytes: &mut [u8]) -> Result<(), Self::Error> {
        let chip = self.0.borrow();
        let stored = chip.bytes.get(offset as usize..offset as usize + bytes.len());
        bytes.copy_from_slice(stored.ok_or(NorFlashErrorKind::OutOfBounds)?);
        Ok(())
    }

    fn capacity(&self) -> usize {
        self.0.borrow().bytes.len()
    }
}

impl NorFlash for Nor {
    const WRITE_SIZE: usize = WORD;
    const ERASE_SIZE: usize = PAGE;

    fn erase(&mut self, from: u32, to: u32) -> Result<(), Self::Error> {
        let mut chip = self.0.borrow_mut();
        let (from, to) = (from as usize, to as usize);
        assert!(from.is_multiple_of(PAGE) && to.is_multiple_of(PAGE));
        for page in from / PAGE..to / PAGE {
            chip.erased[page] += 1;
            for address in page * PAGE..(page + 1) * PAGE {
                chip.power = chip.power.checked_sub(1).ok_or(NorFlashErrorKind::Other)?;
                chip.bytes[address] = 0xFF;
            }
        }
        Ok(())
    }

    fn write(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Self::Error> {
        let mut chip = self.0.borrow_mut();
        assert!((offset as usize).is_multiple_of(WORD) && bytes.len().is_multiple_of(WORD));
        for (address, byte) in (offset as usize..).zip(bytes) {
            chip.power = chip.power.checked_sub(1).ok_or(NorFlashErrorKind::Other)?;
            chip.bytes[address] &= byte;
            chip.written += 1;
        }
        Ok(())
    }
}
