//! Board support of the Raspberry Pi Pico: flash, device number, serial port over USB, entropy and
//! watchdog.

#![no_std]

mod usb;

use core::cell::RefCell;

use cortex_m::peripheral::SCB;
use cortex_m_rt as _;
use embassy_rp::clocks::RoscRng;
use embassy_rp::flash::{Blocking, Error, Flash};
use embassy_rp::peripherals::{FLASH, USB, WATCHDOG};
use embassy_rp::watchdog::Watchdog;
use embassy_rp::{Peri, bind_interrupts, pac, usb as driver};
use fedspan_firmware::reset::{self, ResetReason};
use fedspan_firmware::unique::{SEED, condense, fold};
use fedspan_firmware::watchdog::TIMEOUT;

pub use usb::{Buffers, Serial, open};

bind_interrupts!(
    /// Interrupt of the USB controller.
    pub struct Interrupts {
        USBCTRL_IRQ => driver::InterruptHandler<USB>;
    }
);

/// Driver of the board's whole flash of 2 MiB.
pub type BoardFlash<'d> = Flash<'d, FLASH, Blocking, { 2 * 1024 * 1024 }>;

/// Returns the device number, a hash of the flash chip's unique number, because the RP2040 has no unique
/// number.
///
/// # Errors
/// The flash driver's error if the number cannot be read.
pub fn device(flash: &mut BoardFlash<'_>) -> Result<u64, Error> {
    let mut unique = [0; 8];
    flash.blocking_unique_id(&mut unique)?;
    Ok(fold(unique))
}

/// Returns a seed from the jitter of the ring oscillator. The oscillator's bits are biased and correlated, so
/// 32 bits are condensed into one. The seed is good enough to spread reconnects, but not for keys or privacy
/// noise.
#[must_use]
pub fn seed() -> [u8; SEED] {
    condense(RoscRng::next_u8)
}

/// Starts the watchdog, which pauses while a debugger halts the core, and returns the function that feeds it.
pub fn watchdog(chip: Peri<'static, WATCHDOG>) -> impl Fn() {
    let mut watchdog = Watchdog::new(chip);
    watchdog.pause_on_debug(true);
    watchdog.start(TIMEOUT);
    let watchdog = RefCell::new(watchdog);
    move || watchdog.borrow_mut().feed(TIMEOUT)
}

/// Returns the reason of the last reset without panics. The chip clears its bits itself.
fn chip_reset_reason() -> ResetReason {
    reset::rp2040(pac::WATCHDOG.reason().read().0, pac::VREG_AND_CHIP_RESET.chip_reset().read().0)
}

fedspan_firmware::reset_on_panic!(reset: SCB::sys_reset, reason: chip_reset_reason());
