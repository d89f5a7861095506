//! The Raspberry Pi Pico: memory map, serial port over USB, entropy.

#![no_std]

mod usb;

use core::panic::PanicInfo;

use cortex_m::peripheral::SCB;
use cortex_m_rt as _;
use embassy_rp::clocks::RoscRng;
use embassy_rp::flash::{Blocking, Error, Flash};
use embassy_rp::peripherals::{FLASH, USB};
use embassy_rp::{bind_interrupts, usb as driver};
use fedspan_firmware::client::Places;
use fedspan_firmware::unique::{SEED, condense, fold};

pub use usb::{Buffers, Serial, open};

bind_interrupts!(
    /// The USB controller's interrupt.
    pub struct Interrupts {
        USBCTRL_IRQ => driver::InterruptHandler<USB>;
    }
);

/// All of the board's flash.
pub type BoardFlash<'d> = Flash<'d, FLASH, Blocking, { 2 * 1024 * 1024 }>;

/// The number of the flash chip: the RP2040 itself has none.
///
/// # Errors
/// The driver's.
pub fn device(flash: &mut BoardFlash<'_>) -> Result<u64, Error> {
    let mut unique = [0; 8];
    flash.blocking_unique_id(&mut unique)?;
    Ok(fold(unique))
}

/// From the jitter of the ring oscillator. Its bits are biased and correlated, so 32 are condensed into one;
/// that spreads reconnects in time and is no foundation for keys or privacy noise.
#[must_use]
pub fn seed() -> [u8; SEED] {
    condense(RoscRng::next_u8)
}

/// The sectors of the records, counted from the start of flash; see memory.x.
#[must_use]
#[allow(clippy::cast_possible_truncation, reason = "addresses have 32 bits here")]
pub fn places() -> Places {
    Places {
        provision: (&raw const _provision_start).addr() as u32,
        record: (&raw const _record_start).addr() as u32..(&raw const _record_end).addr() as u32,
    }
}

// Their addresses are what the linker says; nothing is read from them.
unsafe extern "C" {
    static _provision_start: u8;
    static _record_start: u8;
    static _record_end: u8;
}

/// Starts anew: nobody is there to look at a device that has stopped, and what a round has left is in flash.
/// To look at a panic, set a breakpoint here.
#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    SCB::sys_reset()
}
