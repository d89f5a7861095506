//! Raspberry Pi Pico: memory map, serial port over USB, entropy.

#![no_std]

mod usb;

use cortex_m::peripheral::SCB;
use cortex_m_rt as _;
use embassy_rp::clocks::RoscRng;
use embassy_rp::flash::{Blocking, Error, Flash};
use embassy_rp::peripherals::{FLASH, USB};
use embassy_rp::{bind_interrupts, usb as driver};
use fedspan_firmware::unique::{SEED, condense, fold};

pub use usb::{Buffers, Serial, open};

bind_interrupts!(
    /// Interrupt of the USB controller.
    pub struct Interrupts {
        USBCTRL_IRQ => driver::InterruptHandler<USB>;
    }
);

/// The board's whole flash.
pub type BoardFlash<'d> = Flash<'d, FLASH, Blocking, { 2 * 1024 * 1024 }>;

/// Device number, from the flash chip's unique number: the RP2040 itself has none.
///
/// # Errors
/// The flash driver's error if the number cannot be read.
pub fn device(flash: &mut BoardFlash<'_>) -> Result<u64, Error> {
    let mut unique = [0; 8];
    flash.blocking_unique_id(&mut unique)?;
    Ok(fold(unique))
}

/// Seed from the jitter of the ring oscillator. Its bits are biased and correlated, so 32 are condensed into
/// one. Good enough to spread reconnects, not for keys or privacy noise.
#[must_use]
pub fn seed() -> [u8; SEED] {
    condense(RoscRng::next_u8)
}

fedspan_firmware::reset_on_panic!(SCB::sys_reset);
