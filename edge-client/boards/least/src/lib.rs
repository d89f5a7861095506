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
use fedspan_client::Millis;
#[cfg(feature = "privacy")]
use fedspan_client::privacy::EntropySource;
use fedspan_client::secure::Key;
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

/// Returns the milliseconds since the start.
#[must_use]
pub fn clock() -> Millis {
    read_register(12).into()
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

/// Returns the device's key.
#[must_use]
pub fn key() -> Key {
    // SAFETY: the flash at this address is reserved for the key.
    Key::new(0, unsafe { core::ptr::with_exposed_provenance::<[u8; 32]>(KEY).read() })
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

#[panic_handler]
fn panic(_: &PanicInfo) -> ! {
    unsafe extern "C" {
        fn a_panic_can_be_reached() -> !;
    }
    // SAFETY: the function does not exist, so a program that could call it does not link.
    unsafe { a_panic_can_be_reached() }
}
