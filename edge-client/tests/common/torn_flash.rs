//! Test helpers for power cuts: NOR flash in memory whose power fails in a chosen write or erase, with a
//! chosen result of the interrupted operation.

use std::cell::RefCell;
use std::rc::Rc;

use embedded_storage::nor_flash::{ErrorType, NorFlash, NorFlashErrorKind, ReadNorFlash};

/// Size of a page in bytes.
pub const PAGE: usize = 512;
/// Size of a word in bytes, unless a test chooses another one.
pub const WORD: usize = 4;

/// Content that an interrupted operation leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tear {
    /// The old content: nothing is changed.
    Untouched,
    /// The new content, although the operation reports an error.
    Complete,
    /// The new content in the first part, of the given number of quarters; the old content in the rest.
    First(usize),
    /// The new content in the last part, of the given number of quarters; the old content in the rest.
    Last(usize),
    /// Each bit that the operation changes has its new value with a probability of the given number of
    /// eighths.
    Mixed { eighths: u64, seed: u64 },
    /// Random content, which an interrupted erase can leave.
    Noise { seed: u64 },
    /// Zeros, which an erase leaves that programs the page before it erases.
    Zeros,
}

/// Returns the possible results of an interrupted write.
pub fn torn_writes(seed: u64) -> Vec<Tear> {
    let mixed = |eighths| Tear::Mixed { eighths, seed };
    vec![
        Tear::Untouched,
        Tear::Complete,
        Tear::First(1),
        Tear::First(2),
        Tear::First(3),
        Tear::Last(2),
        mixed(1),
        mixed(4),
        mixed(7),
    ]
}

/// Returns the possible results of an interrupted erase.
pub fn torn_erasures(seed: u64) -> Vec<Tear> {
    let noise = (0..8).map(|n| Tear::Noise { seed: seed.wrapping_mul(31).wrapping_add(n) });
    torn_writes(seed).into_iter().chain([Tear::Last(1), Tear::Last(3), Tear::Zeros]).chain(noise).collect()
}

/// Content of the flash, a log of its operations, and the operation in which the power fails.
#[derive(Clone, Debug)]
pub struct Chip {
    pub bytes: Vec<u8>,
    /// Operations in order, including the interrupted one: true for the erase of a page, false for a write.
    pub done: Vec<bool>,
    /// Index of the operation in which the power fails, and the content that this operation leaves.
    pub cut: Option<(usize, Tear)>,
    /// True after the power has failed.
    pub dead: bool,
}

/// Handle to a chip with words of `W` bytes. The chip survives when the store that uses it is dropped.
#[derive(Clone, Debug)]
pub struct Torn<const W: usize = WORD>(pub Rc<RefCell<Chip>>);

/// Hashes a seed with SplitMix64.
fn scramble(seed: u64) -> u64 {
    let mut z = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl<const W: usize> Torn<W> {
    /// Creates an erased flash.
    pub fn new(pages: usize) -> Self {
        Self::with(vec![0xFF; pages * PAGE])
    }

    /// Creates a flash with this content, whose power does not fail.
    pub fn with(bytes: Vec<u8>) -> Self {
        Self(Rc::new(RefCell::new(Chip { bytes, done: Vec::new(), cut: None, dead: false })))
    }

    /// Creates a flash with this content whose power fails in operation number `operation`.
    pub fn cut(bytes: &[u8], operation: usize, tear: Tear) -> Self {
        let torn = Self::with(bytes.to_vec());
        torn.0.borrow_mut().cut = Some((operation, tear));
        torn
    }

    /// Returns a copy of the content.
    pub fn image(&self) -> Vec<u8> {
        self.0.borrow().bytes.clone()
    }

    /// Returns true if the power has failed.
    pub fn is_dead(&self) -> bool {
        self.0.borrow().dead
    }

    /// Returns the number of erased pages.
    pub fn erased(&self) -> usize {
        self.0.borrow().done.iter().filter(|erases| **erases).count()
    }

    /// Returns the operations in order, including the interrupted one: true for the erase of a page, false
    /// for a write.
    pub fn done(&self) -> Vec<bool> {
        self.0.borrow().done.clone()
    }
}

impl Chip {
    /// Changes the bytes from `address` on to `new_bytes`, unless the power fails.
    fn change(&mut self, address: usize, new_bytes: &[u8], erases: bool) -> Result<(), NorFlashErrorKind> {
        if self.dead {
            return Err(NorFlashErrorKind::Other);
        }
        let tear = self.cut.filter(|(cut, _)| *cut == self.done.len()).map(|(_, tear)| tear);
        self.done.push(erases);
        let length = new_bytes.len();
        for (index, (stored, new_byte)) in
            self.bytes[address..address + length].iter_mut().zip(new_bytes).enumerate()
        {
            let random = |seed: u64| scramble(seed ^ ((address + index) as u64) << 32);
            let changed_bits = |eighths: u64, seed: u64| {
                let bit = |bit: u64| u8::from(random(seed ^ bit << 56) % 8 < eighths) << bit;
                (0..8).map(bit).sum::<u8>()
            };
            let is_written = match tear {
                None | Some(Tear::Complete) => true,
                Some(Tear::First(quarters)) => index * 4 < length * quarters,
                Some(Tear::Last(quarters)) => index * 4 >= length * (4 - quarters),
                Some(_) => false,
            };
            *stored = match tear {
                Some(Tear::Mixed { eighths, seed }) => {
                    *stored ^ ((*stored ^ new_byte) & changed_bits(eighths, seed))
                }
                Some(Tear::Noise { seed }) => random(seed) as u8,
                Some(Tear::Zeros) => 0,
                _ if is_written => *new_byte,
                _ => *stored,
            };
        }
        self.dead = tear.is_some();
        if self.dead { Err(NorFlashErrorKind::Other) } else { Ok(()) }
    }
}

impl<const W: usize> ErrorType for Torn<W> {
    type Error = NorFlashErrorKind;
}

impl<const W: usize> ReadNorFlash for Torn<W> {
    const READ_SIZE: usize = 1;

    fn read(&mut self, offset: u32, bytes: &mut [u8]) -> Result<(), Self::Error> {
        let chip = self.0.borrow();
        let stored = chip.bytes.get(offset as usize..offset as usize + bytes.len());
        bytes.copy_from_slice(stored.filter(|_| !chip.dead).ok_or(NorFlashErrorKind::OutOfBounds)?);
        Ok(())
    }

    fn capacity(&self) -> usize {
        self.0.borrow().bytes.len()
    }
}

impl<const W: usize> NorFlash for Torn<W> {
    const WRITE_SIZE: usize = W;
    const ERASE_SIZE: usize = PAGE;

    fn erase(&mut self, from: u32, to: u32) -> Result<(), Self::Error> {
        let (from, to) = (from as usize, to as usize);
        assert!(from.is_multiple_of(PAGE) && to.is_multiple_of(PAGE));
        (from..to).step_by(PAGE).try_for_each(|page| self.0.borrow_mut().change(page, &[0xFF; PAGE], true))
    }

    fn write(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Self::Error> {
        let address = offset as usize;
        assert!(address.is_multiple_of(W) && bytes.len().is_multiple_of(W));
        let chip = &mut *self.0.borrow_mut();
        let new_bytes: Vec<u8> = chip.bytes[address..address + bytes.len()]
            .iter()
            .zip(bytes)
            .map(|(old, new)| old & new)
            .collect();
        chip.change(address, &new_bytes, false)
    }
}
