//! Arm's MPS2 boards as QEMU emulates them: memory map, clock, serial line.

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

/// Cycles of SysTick in a second.
const HERTZ: u32 = if cfg!(feature = "m33") { 20_000_000 } else { 25_000_000 };

/// The board, with its clock or its counter running.
#[derive(Clone, Copy, Debug)]
pub struct Mps2(());

impl Mps2 {
    /// Starts clock and serial line, for a firmware that talks.
    ///
    /// `None` the second time.
    #[must_use]
    pub fn talking() -> Option<Self> {
        let mut peripherals = Peripherals::take()?;
        systick::start_clock(&mut peripherals.SYST, HERTZ);
        uart::start();
        // SAFETY: nothing here relies on being free of this interrupt but `wait`, which masks it itself.
        unsafe { NVIC::unmask(uart::Interrupt) };
        Some(Self(()))
    }

    /// Starts a counter of instructions and no interrupt, for a firmware that measures.
    ///
    /// `None` the second time.
    #[must_use]
    pub fn counting() -> Option<Self> {
        let mut peripherals = Peripherals::take()?;
        systick::start_counter(&mut peripherals.SYST);
        Some(Self(()))
    }
}

impl Board for Mps2 {
    const NAME: &'static str = "qemu-mps2";
    const CORE: &'static str = if cfg!(feature = "m0") {
        "m0"
    } else if cfg!(feature = "m3") {
        "m3"
    } else if cfg!(feature = "m7") {
        "m7"
    } else if cfg!(feature = "m33") {
        "m33"
    } else {
        "m4"
    };
    type Serial = Uart;

    fn serial(&self) -> Uart {
        Uart
    }

    fn now(&self) -> Millis {
        systick::now(HERTZ)
    }

    fn wait(&self, until: Millis) {
        // An interrupt that comes between the question and the sleep still ends the sleep.
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
        // SAFETY: memory.x sets this memory aside, and nothing writes to it while the program runs.
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

impl Meter for Mps2 {
    const INSTRUCTIONS_PER_TICK: (u64, u64) = (1_000_000_000 / HERTZ as u64, 1);
    const MASK: u32 = systick::MASK;

    fn ticks(&self) -> u32 {
        systick::ticks()
    }
}

// Their addresses are what the linker says; nothing is read from them.
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
        fault::exit(fault::FAULT, &format_args!("interrupt {number}, which nobody enabled"));
    }
}

#[exception]
unsafe fn HardFault(frame: &ExceptionFrame) -> ! {
    fault::exit(fault::FAULT, &format_args!("hard fault at {:#010x}", frame.pc()))
}
