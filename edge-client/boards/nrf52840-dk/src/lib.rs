//! Board support of the Nordic nRF52840 DK: clocks, serial line, device number, entropy
//! and watchdog.

#![no_std]

use core::cell::RefCell;

use cortex_m::peripheral::SCB;
use cortex_m_rt as _;
use embassy_nrf::config::{Config, HfclkSource, LfclkSource};
use embassy_nrf::mode::Blocking;
use embassy_nrf::rng::Rng;
use embassy_nrf::wdt::{self, Watchdog};
use embassy_nrf::{Peri, Peripherals, bind_interrupts, buffered_uarte, pac, peripherals, uarte};
use fedspan_firmware::reset::{self, ResetReason};
use fedspan_firmware::unique::{SEED, fold};
use fedspan_firmware::watchdog::TIMEOUT;

/// Frequency of the watchdog's clock in Hz.
const WATCHDOG_CLOCK: u64 = 32_768;

bind_interrupts!(
    /// Interrupt of the serial line.
    pub struct Interrupts {
        UARTE0 => buffered_uarte::InterruptHandler<peripherals::UARTE0>;
    }
);

/// Starts the chip with the board's two crystals as clocks; the internal oscillator drifts too far for a
/// serial line.
#[must_use]
pub fn start() -> Peripherals {
    let mut config = Config::default();
    config.hfclk_source = HfclkSource::ExternalXtal;
    config.lfclk_source = LfclkSource::ExternalXtal;
    embassy_nrf::init(config)
}

/// Returns the serial settings: 115200 baud, 8N1, as the interface chip presents the line to the host.
#[must_use]
pub fn serial_config() -> uarte::Config {
    let mut config = uarte::Config::default();
    config.baudrate = uarte::Baudrate::Baud115200;
    config
}

/// Returns the device number, a hash of the chip's factory-programmed number.
#[must_use]
pub fn device() -> u64 {
    fold((0..2).flat_map(|word| pac::FICR.deviceid(word).read().to_le_bytes()))
}

/// Returns a seed from the chip's random number generator, which measures thermal noise, with bias
/// correction.
pub fn seed(mut generator: Rng<'_, Blocking>) -> [u8; SEED] {
    generator.set_bias_correction(true);
    let mut seed = [0; SEED];
    generator.blocking_fill_bytes(&mut seed);
    seed
}

/// Starts the watchdog, which pauses while a debugger halts the core, and returns the function that feeds it. A reset by
/// software does not stop it.
///
/// Returns `None` if it runs with other settings already, for example those of a boot loader.
#[must_use]
pub fn watchdog(chip: Peri<'static, peripherals::WDT>) -> Option<impl Fn()> {
    let mut config = wdt::Config::default();
    config.timeout_ticks = u32::try_from(TIMEOUT.as_millis() * WATCHDOG_CLOCK / 1_000).ok()?;
    config.action_during_debug_halt = wdt::HaltConfig::Pause;
    let (_, [handle]) = Watchdog::try_new(chip, config).ok()?;
    let handle = RefCell::new(handle);
    Some(move || handle.borrow_mut().pet())
}

/// Returns the reason of the last reset without panics, and clears its bits.
fn chip_reset_reason() -> ResetReason {
    let reasons = pac::POWER.resetreas().read();
    pac::POWER.resetreas().write_value(reasons);
    reset::nrf52840(reasons.0)
}

fedspan_firmware::reset_on_panic!(reset: SCB::sys_reset, reason: chip_reset_reason());

// Square roots by the instruction of the core.
fedspan_c_math::vsqrt!();
