//! Nordic's nRF52840 DK: memory map, clocks, serial line, entropy.

#![no_std]

use core::panic::PanicInfo;

use cortex_m::peripheral::SCB;
use cortex_m_rt as _;
use embassy_nrf::config::{Config, HfclkSource, LfclkSource};
use embassy_nrf::mode::Blocking;
use embassy_nrf::rng::Rng;
use embassy_nrf::{Peripherals, bind_interrupts, buffered_uarte, pac, peripherals, uarte};
use fedspan_firmware::client::Places;
use fedspan_firmware::unique::{SEED, fold};

bind_interrupts!(
    /// The serial line's interrupt.
    pub struct Interrupts {
        UARTE0 => buffered_uarte::InterruptHandler<peripherals::UARTE0>;
    }
);

/// Starts the chip on the board's two crystals: the inner oscillator drifts too far for a serial line.
#[must_use]
pub fn start() -> Peripherals {
    let mut config = Config::default();
    config.hfclk_source = HfclkSource::ExternalXtal;
    config.lfclk_source = LfclkSource::ExternalXtal;
    embassy_nrf::init(config)
}

/// 115200 baud, 8N1: what the interface chip offers the host as a serial port.
#[must_use]
pub fn line() -> uarte::Config {
    let mut config = uarte::Config::default();
    config.baudrate = uarte::Baudrate::Baud115200;
    config
}

/// The number that Nordic gave the chip.
#[must_use]
pub fn device() -> u64 {
    fold((0..2).flat_map(|word| pac::FICR.deviceid(word).read().to_le_bytes()))
}

/// From the chip's generator, which measures thermal noise; with its bias corrected.
pub fn seed(mut generator: Rng<'_, Blocking>) -> [u8; SEED] {
    generator.set_bias_correction(true);
    let mut seed = [0; SEED];
    generator.blocking_fill_bytes(&mut seed);
    seed
}

/// The pages of the records, see memory.x.
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
