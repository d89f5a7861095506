//! Board support of the ST Nucleo-F411RE: clock, serial line, device number, noise and watchdog.

#![no_std]

use core::cell::RefCell;

use cortex_m::peripheral::SCB;
use cortex_m_rt as _;
use embassy_stm32::adc::{Adc, SampleTime};
use embassy_stm32::peripherals::{ADC1, IWDG, USART2};
use embassy_stm32::rcc::{APBPrescaler, Pll, PllMul, PllPDiv, PllPreDiv, PllSource, Sysclk};
use embassy_stm32::wdg::IndependentWatchdog;
use embassy_stm32::{Config, Peri, Peripherals, bind_interrupts, pac, uid, usart};
use fedspan_firmware::reset::{self, ResetReason};
use fedspan_firmware::unique::{SEED, condense, fold};
use fedspan_firmware::watchdog::TIMEOUT;

bind_interrupts!(
    /// Interrupt of the serial line.
    pub struct Interrupts {
        USART2 => usart::BufferedInterruptHandler<USART2>;
    }
);

/// Starts the chip at 96 MHz from its internal 16 MHz oscillator, whose 1 % accuracy is enough for a serial
/// line.
#[must_use]
pub fn start() -> Peripherals {
    let mut config = Config::default();
    config.rcc.pll_src = PllSource::HSI;
    config.rcc.pll = Some(Pll {
        prediv: PllPreDiv::DIV8,
        mul: PllMul::MUL96,
        divp: Some(PllPDiv::DIV2),
        divq: None,
        divr: None,
    });
    config.rcc.sys = Sysclk::PLL1_P;
    // APB1 runs at 50 MHz at most.
    config.rcc.apb1_pre = APBPrescaler::DIV2;
    embassy_stm32::init(config)
}

/// Returns the serial settings: 115200 baud, 8N1, as the ST-Link presents the line to the host.
#[must_use]
pub fn serial_config() -> usart::Config {
    let mut config = usart::Config::default();
    config.baudrate = 115_200;
    config
}

/// Returns the device number, a hash of the chip's factory-programmed number (lot, wafer, position on the
/// wafer).
#[must_use]
pub fn device() -> u64 {
    fold(uid::uid())
}

/// Returns a seed from the noise of the ADC's two internal channels and the chip's number. **This chip has no
/// random number generator.** The seeds differ from chip to chip, and mostly from start to start. They are
/// good enough to spread reconnects, but not for keys or privacy noise.
#[must_use]
pub fn seed(converter: Peri<'_, ADC1>) -> [u8; SEED] {
    let mut converter = Adc::new(converter);
    let (mut reference, mut temperature) = (converter.enable_vrefint(), converter.enable_temperature());
    let mut chip = uid::uid().into_iter().cycle();
    condense(|| {
        // The shortest sampling time has the most noise; only the lowest bits vary.
        let a = converter.blocking_read(&mut reference, SampleTime::CYCLES3);
        let b = converter.blocking_read(&mut temperature, SampleTime::CYCLES3);
        let [low, high] = (a ^ b.rotate_left(4)).to_le_bytes();
        low ^ high ^ chip.next().unwrap_or_default()
    })
}

/// Starts the watchdog and returns the function that feeds it. Its oscillator of 32 kHz runs at 17 to 47 kHz, so its timeout is
/// 5.4 to 15 s. It does not pause while a debugger halts the core.
pub fn watchdog(chip: Peri<'static, IWDG>) -> impl Fn() {
    const MICROSECONDS: u32 = TIMEOUT.as_micros() as u32;
    let mut watchdog = IndependentWatchdog::new(chip, MICROSECONDS);
    watchdog.unleash();
    let watchdog = RefCell::new(watchdog);
    move || watchdog.borrow_mut().pet()
}

/// Returns the reason of the last reset without panics, and clears its bits.
fn chip_reset_reason() -> ResetReason {
    let reasons = pac::RCC.csr().read();
    pac::RCC.csr().modify(|csr| csr.set_rmvf(true));
    reset::stm32f411(reasons.0)
}

fedspan_firmware::reset_on_panic!(reset: SCB::sys_reset, reason: chip_reset_reason());

// Square roots by the instruction of the core.
fedspan_c_math::vsqrt!();
