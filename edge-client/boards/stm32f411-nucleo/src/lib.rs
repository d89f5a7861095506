//! ST's Nucleo-F411RE: memory map, clock, serial line, noise.

#![no_std]

use core::panic::PanicInfo;

use cortex_m::peripheral::SCB;
use cortex_m_rt as _;
use embassy_stm32::adc::{Adc, SampleTime};
use embassy_stm32::peripherals::{ADC1, USART2};
use embassy_stm32::rcc::{APBPrescaler, Pll, PllMul, PllPDiv, PllPreDiv, PllSource, Sysclk};
use embassy_stm32::{Config, Peri, Peripherals, bind_interrupts, uid, usart};
use fedspan_firmware::client::Places;
use fedspan_firmware::unique::{SEED, condense, fold};

bind_interrupts!(
    /// The serial line's interrupt.
    pub struct Interrupts {
        USART2 => usart::BufferedInterruptHandler<USART2>;
    }
);

/// Starts the chip at 96 MHz, from its own oscillator of 16 MHz, which is exact enough (1 %) for a serial line.
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
    // At most 50 MHz.
    config.rcc.apb1_pre = APBPrescaler::DIV2;
    embassy_stm32::init(config)
}

/// 115200 baud, 8N1: what the ST-Link offers the host as a serial port.
#[must_use]
pub fn line() -> usart::Config {
    let mut config = usart::Config::default();
    config.baudrate = 115_200;
    config
}

/// The number that ST gave the chip: lot, wafer, place on the wafer.
#[must_use]
pub fn device() -> u64 {
    fold(uid::uid())
}

/// From the noise of the converter on its two inner channels and the chip's number. **This chip has no random
/// number generator.** These seeds differ from chip to chip and mostly from start to start: enough to spread
/// reconnects in time, and for nothing else, privacy noise and keys least of all.
#[must_use]
pub fn seed(converter: Peri<'_, ADC1>) -> [u8; SEED] {
    let mut converter = Adc::new(converter);
    let (mut reference, mut temperature) = (converter.enable_vrefint(), converter.enable_temperature());
    let mut chip = uid::uid().into_iter().cycle();
    condense(|| {
        // The shortest sampling is the noisiest; only the lowest bits move at all.
        let a = converter.blocking_read(&mut reference, SampleTime::CYCLES3);
        let b = converter.blocking_read(&mut temperature, SampleTime::CYCLES3);
        let [low, high] = (a ^ b.rotate_left(4)).to_le_bytes();
        low ^ high ^ chip.next().unwrap_or_default()
    })
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
