//! Espressif's ESP32-C3: flash map, serial port over USB, entropy.

#![no_std]

use core::panic::PanicInfo;

use esp_hal::efuse;
use esp_hal::peripherals::{ADC1, RNG};
use esp_hal::rng::{Trng, TrngSource};
use esp_hal::system::software_reset;
use fedspan_firmware::client::Places;
use fedspan_firmware::unique::{SEED, fold};

// What the second stage of the boot loader looks for.
esp_bootloader_esp_idf::esp_app_desc!();

/// The address that Espressif gave the chip, the one of its radio.
#[must_use]
pub fn device() -> u64 {
    fold(efuse::base_mac_address().as_bytes().iter().copied())
}

/// From the chip's generator. Its numbers are random only while the radio is on, which it never is here, or
/// while noise of the converter is fed into it, as it is for as long as this takes; later ones would be
/// pseudo-random.
///
/// `None` cannot happen: it is what the generator says without a source of noise.
#[must_use]
pub fn seed(generator: RNG<'_>, converter: ADC1<'_>) -> Option<[u8; SEED]> {
    let _noise = TrngSource::new(generator, converter);
    let mut seed = [0; SEED];
    Trng::try_new().ok()?.read(&mut seed);
    Some(seed)
}

/// The sectors of the records, see partitions.csv.
#[must_use]
pub fn places() -> Places {
    Places { provision: 0x3f_d000, record: 0x3f_e000..0x40_0000 }
}

/// Starts anew: nobody is there to look at a device that has stopped, and what a round has left is in flash.
/// To look at a panic, set a breakpoint here.
#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    software_reset()
}
