//! NOR flash in memory: counts operations, can lose its power, and can wear out.

use std::cell::RefCell;
use std::rc::Rc;

use embedded_storage::nor_flash::{ErrorType, NorFlash, NorFlashErrorKind, ReadNorFlash};

/// Size of a page in bytes, the unit of erasure.
pub const PAGE: usize = 512;
/// Size of a word in bytes, the unit of writes.
pub const WORD: usize = 4;

/// Contents and state of a chip.
#[derive(Debug, Default)]
pub struct State {
    pub bytes: Vec<u8>,
    /// Number of reads, writes and erasures.
    pub operations: u64,
    /// Number of words that can still be written or erased before the power fails.
    pub power: usize,
    /// True if the flash cannot be erased any more.
    pub is_worn: bool,
}

/// Handle of a chip. The chip outlives the store that uses it.
#[derive(Clone, Debug)]
pub struct Chip(pub Rc<RefCell<State>>);

impl Chip {
    /// Creates a chip with the given contents and unlimited power.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Rc::new(RefCell::new(State { bytes, operations: 0, power: usize::MAX, is_worn: false })))
    }

    /// Creates a chip with the same contents and unlimited power.
    pub fn copy(&self) -> Self {
        Self::new(self.0.borrow().bytes.clone())
    }

    /// Returns true if no write or erase fails.
    pub fn is_sound(&self) -> bool {
        let state = self.0.borrow();
        state.power == usize::MAX && !state.is_worn
    }

    /// Makes all further writes and erases succeed.
    pub fn mend(&self) {
        let mut state = self.0.borrow_mut();
        (state.power, state.is_worn) = (usize::MAX, false);
    }

    /// Returns the number of operations so far.
    pub fn operations(&self) -> u64 {
        self.0.borrow().operations
    }
}

impl State {
    fn range(&mut self, offset: u32, length: usize) -> Result<&mut [u8], NorFlashErrorKind> {
        let first = offset as usize;
        self.bytes.get_mut(first..first + length).ok_or(NorFlashErrorKind::OutOfBounds)
    }

    fn spend(&mut self) -> Result<(), NorFlashErrorKind> {
        self.power = self.power.checked_sub(1).ok_or(NorFlashErrorKind::Other)?;
        Ok(())
    }
}

impl ErrorType for Chip {
    type Error = NorFlashErrorKind;
}

impl ReadNorFlash for Chip {
    const READ_SIZE: usize = 1;

    fn read(&mut self, offset: u32, bytes: &mut [u8]) -> Result<(), Self::Error> {
        let mut state = self.0.borrow_mut();
        state.operations += 1;
        bytes.copy_from_slice(state.range(offset, bytes.len())?);
        Ok(())
    }

    fn capacity(&self) -> usize {
        self.0.borrow().bytes.len()
    }
}

impl NorFlash for Chip {
    const WRITE_SIZE: usize = WORD;
    const ERASE_SIZE: usize = PAGE;

    fn erase(&mut self, from: u32, to: u32) -> Result<(), Self::Error> {
        let mut state = self.0.borrow_mut();
        state.operations += 1;
        assert!((from as usize).is_multiple_of(PAGE) && (to as usize).is_multiple_of(PAGE) && from <= to);
        if state.is_worn {
            return Err(NorFlashErrorKind::Other);
        }
        for word in (from..to).step_by(WORD) {
            state.spend()?;
            state.range(word, WORD)?.fill(0xFF);
        }
        Ok(())
    }

    fn write(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Self::Error> {
        let mut state = self.0.borrow_mut();
        state.operations += 1;
        assert!((offset as usize).is_multiple_of(WORD) && bytes.len().is_multiple_of(WORD));
        for (word, values) in (offset..).step_by(WORD).zip(bytes.chunks(WORD)) {
            state.spend()?;
            for (stored, value) in state.range(word, WORD)?.iter_mut().zip(values) {
                *stored &= value;
            }
        }
        Ok(())
    }
}
