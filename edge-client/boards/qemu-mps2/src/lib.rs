//! Arm MPS2 boards as emulated by QEMU: memory map, clock, serial line.

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
const HERTZ: u32 = if cfg!(feature = "m33") { 20_000_000 } else { 25_000_000 };

/// The board, with its clock or its instruction counter running.
#[derive(Clone, Copy, Debug)]
pub struct Mps2(());

impl Mps2 {
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

impl Meter for Mps2 {
    const INSTRUCTIONS_PER_TICK: (u64, u64) = (1_000_000_000 / HERTZ as u64, 1);
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
