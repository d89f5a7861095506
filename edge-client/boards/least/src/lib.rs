//! Minimal board for measurements of code size: a serial line, a clock register, and samples in flash. The
//! panic handler calls a function that does not exist, so a program of this crate links only if no panic is
//! reachable.

#![no_std]

use core::cell::UnsafeCell;
use core::convert::Infallible;
use core::panic::PanicInfo;
#[cfg(feature = "privacy")]
use core::slice::from_mut;

use embedded_io::{ErrorType, Read, ReadReady, Write, WriteReady};
#[cfg(feature = "flash")]
use embedded_storage::nor_flash::{NorFlash, NorFlashErrorKind, ReadNorFlash};
use fedspan_client::Millis;
#[cfg(feature = "privacy")]
use fedspan_client::privacy::EntropySource;
#[cfg(feature = "encryption")]
use fedspan_client::secure::Key;
use fedspan_client::session::Protection;
use rand_core::TryRng;

/// Numbers of features and of columns of the representation.
const SHAPE: (usize, usize) = if cfg!(feature = "shape-20-2") {
    (20, 2)
} else if cfg!(feature = "shape-128-8") {
    (128, 8)
} else {
    (64, 4)
};
/// Number of features, d.
pub const D: usize = SHAPE.0;
/// Width of the representation, k.
pub const K: usize = SHAPE.1;
/// Number of samples.
const M: usize = 32;

/// Address of the samples, followed by their targets.
const SAMPLES: usize = 0x0008_0000;
/// Address of the samples' classes.
const CLASSES: usize = 0x000a_0000;
/// Address of the device's key.
#[cfg(feature = "encryption")]
const KEY: usize = 0x000c_0000;
/// Address of the registers. They are, in this order: data, status, predictions, and milliseconds since the
/// start.
const REGISTERS: usize = 0x4000_4000;

/// Linear congruential generator for random reconnect delays.
#[derive(Debug)]
pub struct Lcg(pub u32);

impl TryRng for Lcg {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        self.0 = self.0.wrapping_mul(747_796_405).wrapping_add(1);
        Ok(self.0)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(u64::from(self.try_next_u32()?) << 32 | u64::from(self.try_next_u32()?))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        for byte in bytes {
            *byte = self.try_next_u32()?.to_le_bytes()[3];
        }
        Ok(())
    }
}

/// Reads a register. `offset` is in bytes.
fn read_register(offset: usize) -> u32 {
    // SAFETY: a device register; reading it does not affect memory.
    unsafe { core::ptr::with_exposed_provenance::<u32>(REGISTERS + offset).read_volatile() }
}

fn write_register(offset: usize, value: u32) {
    // SAFETY: a device register; writing it does not affect memory.
    unsafe { core::ptr::with_exposed_provenance_mut::<u32>(REGISTERS + offset).write_volatile(value) }
}

/// Returns the milliseconds since the start, modulo 2^32.
#[must_use]
pub fn milliseconds() -> u32 {
    read_register(12)
}

/// Returns the milliseconds since the start.
#[must_use]
pub fn clock() -> Millis {
    milliseconds().into()
}

/// Writes a prediction to its register.
pub fn report(prediction: f32) {
    write_register(8, prediction.to_bits());
}

/// Returns the samples (M x D, row-major) and their targets.
#[must_use]
pub fn samples() -> (&'static [f32], &'static [f32]) {
    let start = core::ptr::with_exposed_provenance::<f32>(SAMPLES);
    // SAFETY: the flash at these addresses is reserved for the samples.
    unsafe { (core::slice::from_raw_parts(start, M * D), core::slice::from_raw_parts(start.add(M * D), M)) }
}

/// Returns the classes of the samples.
#[must_use]
pub fn classes() -> &'static [u8] {
    // SAFETY: the flash at this address is reserved for the classes.
    unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance::<u8>(CLASSES), M) }
}

/// Returns the bytes of the device's key.
#[cfg(feature = "encryption")]
#[must_use]
pub fn key_bytes() -> [u8; 32] {
    // SAFETY: the flash at this address is reserved for the key.
    unsafe { core::ptr::with_exposed_provenance::<[u8; 32]>(KEY).read() }
}

/// Returns the device's key, or plaintext without the feature `encryption`.
#[must_use]
pub fn protection() -> Protection {
    #[cfg(feature = "encryption")]
    return Protection::Key(Key::new(0, key_bytes()));
    #[cfg(not(feature = "encryption"))]
    Protection::Plaintext
}

/// Two pages of flash that are written by words.
#[cfg(feature = "flash")]
#[derive(Debug)]
pub struct Flash;

#[cfg(feature = "flash")]
impl Flash {
    /// Size of the flash in bytes.
    pub const SIZE: u32 = 8192;
    /// Address of the flash.
    const START: usize = 0x000d_0000;
    /// Offset of the register that erases the page whose address is written to it.
    const ERASE: usize = 16;

    /// Returns the address of `length` bytes from `offset` on.
    fn address(offset: u32, length: usize) -> Result<usize, NorFlashErrorKind> {
        let offset = offset as usize;
        match offset.checked_add(length) {
            Some(end) if end <= Self::SIZE as usize => Ok(Self::START + offset),
            _ => Err(NorFlashErrorKind::OutOfBounds),
        }
    }
}

#[cfg(feature = "flash")]
impl embedded_storage::nor_flash::ErrorType for Flash {
    type Error = NorFlashErrorKind;
}

#[cfg(feature = "flash")]
impl ReadNorFlash for Flash {
    const READ_SIZE: usize = 1;

    fn read(&mut self, offset: u32, bytes: &mut [u8]) -> Result<(), NorFlashErrorKind> {
        let address = Self::address(offset, bytes.len())?;
        for (index, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: the address is in the flash, which is always readable.
            *byte = unsafe { core::ptr::with_exposed_provenance::<u8>(address + index).read_volatile() };
        }
        Ok(())
    }

    fn capacity(&self) -> usize {
        Self::SIZE as usize
    }
}

#[cfg(feature = "flash")]
impl NorFlash for Flash {
    const WRITE_SIZE: usize = 4;
    const ERASE_SIZE: usize = 4096;

    fn erase(&mut self, from: u32, to: u32) -> Result<(), NorFlashErrorKind> {
        for page in (from..to).step_by(Self::ERASE_SIZE) {
            let address = Self::address(page, Self::ERASE_SIZE)?;
            write_register(Self::ERASE, u32::try_from(address).unwrap_or(0));
        }
        Ok(())
    }

    fn write(&mut self, offset: u32, bytes: &[u8]) -> Result<(), NorFlashErrorKind> {
        let address = Self::address(offset, bytes.len())?;
        for (index, word) in bytes.as_chunks::<4>().0.iter().enumerate() {
            // SAFETY: the address is in the flash, which the controller writes by words.
            unsafe {
                core::ptr::with_exposed_provenance_mut::<u32>(address + 4 * index)
                    .write_volatile(u32::from_le_bytes(*word));
            }
        }
        Ok(())
    }
}

/// Serial line used by polling.
#[derive(Clone, Copy, Debug)]
pub struct Line;

impl ErrorType for Line {
    type Error = Infallible;
}

impl Read for Line {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Infallible> {
        let mut n = 0;
        for target in buffer {
            if read_register(4) & 2 == 0 && n > 0 {
                break;
            }
            *target = read_register(0).to_le_bytes()[0];
            n += 1;
        }
        Ok(n)
    }
}

impl WriteReady for Line {
    /// Always returns true: a transmitter without flow control accepts a byte within a byte's time.
    fn write_ready(&mut self) -> Result<bool, Infallible> {
        Ok(true)
    }
}

impl ReadReady for Line {
    fn read_ready(&mut self) -> Result<bool, Infallible> {
        Ok(read_register(4) & 2 != 0)
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Infallible> {
        for &byte in bytes {
            while read_register(4) & 1 != 0 {}
            write_register(0, byte.into());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

/// Entropy source that reads from the serial line.
#[cfg(feature = "privacy")]
#[derive(Clone, Copy, Debug)]
pub struct Entropy;

#[cfg(feature = "privacy")]
impl EntropySource for Entropy {
    type Error = Infallible;

    // Inlined like a function of the program itself: otherwise a program grows by up to a hundred bytes.
    #[inline]
    fn read(&mut self, samples: &mut [u8]) -> Result<(), Infallible> {
        for sample in samples {
            let Ok(_) = Line.read(from_mut(sample));
        }
        Ok(())
    }
}

/// Static memory that a program takes once. The calls are not counted, so that the measured sizes include
/// only the client.
#[derive(Debug)]
pub struct Once<T>(UnsafeCell<T>);

// SAFETY: `take` is called once, so the value has one owner.
unsafe impl<T> Sync for Once<T> {}

impl<T> Once<T> {
    /// Creates the memory with this content.
    pub const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// Returns the value.
    ///
    /// # Safety
    /// Only one call may be made.
    #[allow(clippy::mut_from_ref, reason = "there is only one call")]
    pub unsafe fn take(&'static self) -> &'static mut T {
        // SAFETY: the caller guarantees that this is the only reference.
        unsafe { &mut *self.0.get() }
    }
}

#[cfg(feature = "vsqrt")]
fedspan_c_math::vsqrt!();

#[panic_handler]
fn panic(_: &PanicInfo) -> ! {
    unsafe extern "C" {
        fn a_panic_can_be_reached() -> !;
    }
    // SAFETY: the function does not exist, so a program that could call it does not link.
    unsafe { a_panic_can_be_reached() }
}
