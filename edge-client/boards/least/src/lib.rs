//! What a board gives its client, at the least: a serial line that is three registers, a clock that is a fourth,
//! samples in flash. And a panic handler that does not exist: a program of this crate links only if no panic can be
//! reached.

#![no_std]

use core::convert::Infallible;
use core::panic::PanicInfo;

use embedded_io::{ErrorType, Read, ReadReady, Write};
use fedspan_client::Millis;
use fedspan_client::secure::Key;
use rand_core::TryRng;

/// Features and width.
const SHAPE: (usize, usize) = if cfg!(feature = "shape-20-2") {
    (20, 2)
} else if cfg!(feature = "shape-128-8") {
    (128, 8)
} else {
    (64, 4)
};
/// Features.
pub const D: usize = SHAPE.0;
/// Width.
pub const K: usize = SHAPE.1;
/// Samples.
const M: usize = 32;

/// Where samples and targets are, one after the other.
const SAMPLES: usize = 0x0008_0000;
/// Where their classes are.
const CLASSES: usize = 0x000a_0000;
/// Where the device's key is.
const KEY: usize = 0x000c_0000;
/// Registers: data, state, where predictions go, milliseconds since the start.
const REGISTERS: usize = 0x4000_4000;

/// Numbers for reconnect delays.
#[derive(Debug)]
pub struct Steps(pub u32);

impl TryRng for Steps {
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

/// A register.
fn read(offset: usize) -> u32 {
    // SAFETY: a register, which does nothing to memory.
    unsafe { core::ptr::with_exposed_provenance::<u32>(REGISTERS + offset).read_volatile() }
}

fn write(offset: usize, value: u32) {
    // SAFETY: as above.
    unsafe { core::ptr::with_exposed_provenance_mut::<u32>(REGISTERS + offset).write_volatile(value) }
}

/// Milliseconds since the start.
#[must_use]
pub fn clock() -> Millis {
    read(12).into()
}

/// Says what was predicted.
pub fn tell(prediction: f32) {
    write(8, prediction.to_bits());
}

/// Samples (M x D) and their targets.
#[must_use]
pub fn samples() -> (&'static [f32], &'static [f32]) {
    let start = core::ptr::with_exposed_provenance::<f32>(SAMPLES);
    // SAFETY: flash that is set aside for this.
    unsafe { (core::slice::from_raw_parts(start, M * D), core::slice::from_raw_parts(start.add(M * D), M)) }
}

/// Classes of the samples.
#[must_use]
pub fn classes() -> &'static [u8] {
    // SAFETY: as above, behind them.
    unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance::<u8>(CLASSES), M) }
}

/// The device's key.
#[must_use]
pub fn key() -> Key {
    // SAFETY: flash that is set aside for this.
    Key::new(0, unsafe { core::ptr::with_exposed_provenance::<[u8; 32]>(KEY).read() })
}

/// A serial line without interrupts.
#[derive(Clone, Copy, Debug)]
pub struct Line;

impl ErrorType for Line {
    type Error = Infallible;
}

impl Read for Line {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Infallible> {
        let mut n = 0;
        for place in buffer {
            if read(4) & 2 == 0 && n > 0 {
                break;
            }
            *place = read(0).to_le_bytes()[0];
            n += 1;
        }
        Ok(n)
    }
}

impl ReadReady for Line {
    fn read_ready(&mut self) -> Result<bool, Infallible> {
        Ok(read(4) & 2 != 0)
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Infallible> {
        for &byte in bytes {
            while read(4) & 1 != 0 {}
            write(0, byte.into());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

#[panic_handler]
fn panic(_: &PanicInfo) -> ! {
    unsafe extern "C" {
        fn a_panic_can_be_reached() -> !;
    }
    // SAFETY: it does not exist, so a program that could call it does not link.
    unsafe { a_panic_can_be_reached() }
}
