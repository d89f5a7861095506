//! BBC micro:bit as emulated by QEMU: memory map, clock, serial line. The emulated nRF51 has a SysTick,
//! unlike the real one, and no other clock is needed.

#![no_std]

mod uart;

use core::ops::Range;

use cortex_m::Peripherals;
use cortex_m::peripheral::{NVIC, SCB};
use cortex_m_rt::{ExceptionFrame, exception};
use fedspan_client::Millis;
use fedspan_emulated::board::{Board, Meter};
use fedspan_emulated::{fault, systick};

pub use uart::Uart;

/// SysTick cycles per second.
const HERTZ: u32 = 16_000_000;

/// The board, with its clock or its instruction counter running.
#[derive(Clone, Copy, Debug)]
pub struct Microbit(());

impl Microbit {
    /// Starts the clock and the serial line. `None` if called a second time.
    #[must_use]
    pub fn with_serial() -> Option<Self> {
        let mut peripherals = Peripherals::take()?;
        systick::start_clock(&mut peripherals.SYST, HERTZ);
        uart::start();
        // SAFETY: only `wait` needs to be free of this interrupt, and it masks interrupts itself.
        unsafe { NVIC::unmask(uart::Interrupt) };
        Some(Self(()))
    }

    /// Starts the instruction counter, without interrupts, for measurements. `None` if called a second time.
    #[must_use]
    pub fn with_counter() -> Option<Self> {
        let mut peripherals = Peripherals::take()?;
        systick::start_counter(&mut peripherals.SYST);
        Some(Self(()))
    }
}

impl Board for Microbit {
    const NAME: &'static str = "qemu-microbit";
    const CORE: &'static str = "m0";
    type Serial = Uart;

    fn serial(&self) -> Uart {
        Uart
    }

    fn now(&self) -> Millis {
        systick::now(HERTZ)
    }

    fn wait(&self, until: Millis) {
        // An interrupt between the check and the sleep still ends the sleep.
        cortex_m::interrupt::free(|_| {
            if uart::RECEIVED.is_empty() && self.now() < until {
                cortex_m::asm::wfi();
            }
        });
    }

    fn lost(&self) -> u32 {
        uart::RECEIVED.lost()
    }

    fn recording(&self) -> &'static [u8] {
        let start = &raw const _recording_start;
        let size = (&raw const _recording_size).addr();
        // SAFETY: memory.x reserves this memory, and the program never writes to it.
        unsafe { core::slice::from_raw_parts(start, size) }
    }

    fn reset(&self) -> ! {
        SCB::sys_reset()
    }

    fn ram() -> Range<usize> {
        (&raw const _ram_start).addr()..(&raw const _ram_end).addr()
    }

    fn stack_limit() -> usize {
        (&raw const __sheap).addr()
    }
}

impl Meter for Microbit {
    const INSTRUCTIONS_PER_TICK: (u64, u64) = (125, 2);
    const MASK: u32 = systick::MASK;

    fn ticks(&self) -> u32 {
        systick::ticks()
    }
}

// Linker symbols: only their addresses are used.
unsafe extern "C" {
    static _recording_start: u8;
    static _recording_size: u8;
    static _ram_start: u8;
    static _ram_end: u8;
    static __sheap: u8;
}

#[exception]
fn SysTick() {
    systick::on_interrupt();
}

#[exception]
unsafe fn DefaultHandler(number: i16) {
    if number == uart::INTERRUPT {
        uart::on_interrupt();
    } else {
        fault::exit(fault::FAULT, &format_args!("unexpected interrupt {number}"));
    }
}

#[exception]
unsafe fn HardFault(frame: &ExceptionFrame) -> ! {
    fault::exit(fault::FAULT, &format_args!("hard fault at {:#010x}", frame.pc()))
}
