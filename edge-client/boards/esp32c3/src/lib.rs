//! Board support of the Espressif ESP32-C3: flash layout, device number, entropy and
//! watchdog.

#![no_std]

use core::cell::RefCell;

use esp_hal::efuse;
use esp_hal::peripherals::{ADC1, RNG, TIMG0};
use esp_hal::rng::{Trng, TrngSource};
use esp_hal::system::{self, software_reset};
use esp_hal::time::Duration;
use esp_hal::timer::timg::{MwdtStage, Wdt};
use fedspan_firmware::client::FlashLayout;
use fedspan_firmware::reset::{self, ResetReason};
use fedspan_firmware::unique::{SEED, fold};
use fedspan_firmware::watchdog::TIMEOUT;

// Application descriptor required by the second-stage boot loader.
esp_bootloader_esp_idf::esp_app_desc!();

/// Returns the device number, a hash of the chip's factory-programmed MAC address.
#[must_use]
pub fn device() -> u64 {
    fold(efuse::base_mac_address().as_bytes().iter().copied())
}

/// Returns a seed from the chip's random number generator. The generator is truly random only while the radio
/// is on or ADC noise is fed into it. This firmware never uses the radio and feeds in ADC noise during this
/// call, so numbers drawn later would be pseudo-random.
///
/// Returns `None` if the generator has no noise source, which cannot happen in this function.
#[must_use]
pub fn seed(generator: RNG<'_>, converter: ADC1<'_>) -> Option<[u8; SEED]> {
    let _noise = TrngSource::new(generator, converter);
    let mut seed = [0; SEED];
    Trng::try_new().ok()?.read(&mut seed);
    Some(seed)
}

/// Returns the flash addresses of the records, which are those in partitions.csv.
#[must_use]
pub fn flash_layout() -> FlashLayout {
    FlashLayout { provision: 0x3f_d000, record: 0x3f_e000..0x40_0000 }
}

/// Starts the watchdog of a timer group and returns the function that feeds it.
pub fn watchdog(mut watchdog: Wdt<TIMG0<'static>>) -> impl Fn() {
    watchdog.set_timeout(MwdtStage::Stage0, Duration::from_millis(TIMEOUT.as_millis()));
    watchdog.enable();
    let watchdog = RefCell::new(watchdog);
    move || watchdog.borrow_mut().feed()
}

/// Returns the reason of the last reset without panics.
fn chip_reset_reason() -> ResetReason {
    // A code that the driver does not know is not known to the table either.
    reset::esp32c3(system::reset_reason().map_or(0, |code| code as u32))
}

fedspan_firmware::reset_on_panic!(reset: software_reset, reason: chip_reset_reason());
