//! QEMU's RISC-V board `virt`, used as an RV32IMC microcontroller: memory map, clock, serial line.

#![no_std]

mod uart;

use core::ops::Range;

use fedspan_client::Millis;
use fedspan_emulated::board::{Board, Meter};
use fedspan_emulated::fault;
use fedspan_emulated::register::Register;
use riscv::register::{mcause, mepc, mie, minstret};

pub use uart::Uart;

// Registers of the core's 10 MHz timer: its two halves, and the time of its next interrupt.
// SAFETY: registers of the CLINT; they do not affect memory.
const TIME_LOW: Register<u32> = unsafe { Register::at(0x0200_bff8) };
// SAFETY: as above.
const TIME_HIGH: Register<u32> = unsafe { Register::at(0x0200_bffc) };
// SAFETY: as above.
const WAKE_LOW: Register<u32> = unsafe { Register::at(0x0200_4000) };
// SAFETY: as above.
const WAKE_HIGH: Register<u32> = unsafe { Register::at(0x0200_4004) };

// Register that ends or restarts the machine.
// SAFETY: a register of QEMU's test device; it does not affect memory.
const POWER: Register<u32> = unsafe { Register::at(0x0010_0000) };
/// Value of `POWER` for a reset, which preserves RAM.
const RESET: u32 = 0x7777;

/// Timer ticks per millisecond.
const PER_MILLISECOND: u64 = 10_000;
/// Longest sleep.
const SLEEP: Millis = Millis::new(10);

/// The board.
#[derive(Clone, Copy, Debug)]
pub struct Virt(());

impl Virt {
    /// Starts the serial line. Interrupts end a sleep, but no handler runs.
    #[must_use]
    pub fn with_serial() -> Self {
        uart::start();
        // SAFETY: interrupts stay masked in mstatus, so no handler runs.
        unsafe {
            mie::set_mtimer();
            mie::set_mext();
        }
        Self(())
    }

    /// The board without serial line, for measurements.
    #[must_use]
    pub fn with_counter() -> Self {
        Self(())
    }
}

fn timer() -> u64 {
    loop {
        let high = TIME_HIGH.read();
        let low = TIME_LOW.read();
        if TIME_HIGH.read() == high {
            return u64::from(high) << 32 | u64::from(low);
        }
    }
}

#[allow(clippy::cast_possible_truncation, reason = "halves")]
fn wake_at(time: u64) {
    // Between the two writes the time is later than either value, so the timer does not fire too early.
    WAKE_HIGH.write(u32::MAX);
    WAKE_LOW.write(time as u32);
    WAKE_HIGH.write((time >> 32) as u32);
}

impl Board for Virt {
    const NAME: &'static str = "qemu-riscv";
    const CORE: &'static str = "rv32imc";
    type Serial = Uart;

    fn serial(&self) -> Uart {
        Uart
    }

    fn now(&self) -> Millis {
        Millis::new(timer() / PER_MILLISECOND)
    }

    fn wait(&self, until: Millis) {
        let now = self.now();
        if uart::has_byte() || now >= until {
            return;
        }
        wake_at(until.min(now + SLEEP).as_u64() * PER_MILLISECOND);
        riscv::asm::wfi();
        uart::acknowledge();
    }

    fn lost(&self) -> u32 {
        0
    }

    fn recording(&self) -> &'static [u8] {
        let start = &raw const _recording_start;
        let size = (&raw const _recording_size).addr();
        // SAFETY: memory.x reserves this memory, and the program never writes to it.
        unsafe { core::slice::from_raw_parts(start, size) }
    }

    fn reset(&self) -> ! {
        POWER.write(RESET);
        // The reset should take effect before the next instruction.
        loop {
            riscv::asm::nop();
        }
    }

    fn ram() -> Range<usize> {
        (&raw const _ram_start).addr()..(&raw const _ram_end).addr()
    }

    fn stack_limit() -> usize {
        (&raw const __sheap).addr()
    }
}

impl Meter for Virt {
    const INSTRUCTIONS_PER_TICK: (u64, u64) = (1, 1);
    const MASK: u32 = u32::MAX;

    #[allow(clippy::cast_possible_truncation, reason = "it wraps")]
    fn ticks(&self) -> u32 {
        minstret::read() as u32
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

#[unsafe(export_name = "ExceptionHandler")]
fn exception(_: &riscv_rt::TrapFrame) -> ! {
    let cause = mcause::read().bits();
    fault::exit(fault::FAULT, &format_args!("exception {cause} at {:#010x}", mepc::read()))
}
