//! Board support of QEMU's RISC-V board `virt`, used as an RV32IMC microcontroller: clock, instruction
//! counter, serial line.

#![no_std]

mod uart;

use fedspan_client::Millis;
use fedspan_emulated::board::{Board, Meter};
use fedspan_emulated::fault;
use fedspan_emulated::once::Once;
use fedspan_emulated::register::Register;
use fedspan_emulated::serial::Uart;
use riscv::register::{mcause, mepc, mie, minstret};

use uart::Ns16550;

// Registers of the core's 10 MHz timer: the two halves of the time, and the two halves of the time of the
// next interrupt.
// SAFETY: the addresses are registers of the CLINT, which do not affect memory.
const TIME_LOW: Register<u32> = unsafe { Register::at(0x0200_bff8) };
// SAFETY: as above.
const TIME_HIGH: Register<u32> = unsafe { Register::at(0x0200_bffc) };
// SAFETY: as above.
const WAKE_LOW: Register<u32> = unsafe { Register::at(0x0200_4000) };
// SAFETY: as above.
const WAKE_HIGH: Register<u32> = unsafe { Register::at(0x0200_4004) };

// Register that ends or restarts the machine.
// SAFETY: the address is a register of QEMU's test device, which does not affect memory.
const POWER: Register<u32> = unsafe { Register::at(0x0010_0000) };
/// Value of `POWER` for a reset, which preserves RAM.
const RESET: u32 = 0x7777;

/// Timer ticks per millisecond.
const PER_MILLISECOND: u64 = 10_000;
/// Longest sleep in milliseconds.
const SLEEP: Millis = Millis::new(10);

/// Handle to the running board.
#[derive(Clone, Copy, Debug)]
pub struct Virt(());

/// Token that is taken when the board starts, so that it can be started only once.
static START: Once<()> = Once::new(());

/// Returns the value of the timer in ticks.
fn timer_ticks() -> u64 {
    loop {
        let high = TIME_HIGH.read();
        let low = TIME_LOW.read();
        if TIME_HIGH.read() == high {
            return u64::from(high) << 32 | u64::from(low);
        }
    }
}

/// Sets the time of the next timer interrupt in ticks.
#[allow(clippy::cast_possible_truncation, reason = "halves")]
fn wake_at(time: u64) {
    // Between the writes the interrupt time is later than the old and the new value, so the timer does not
    // fire too early.
    WAKE_HIGH.write(u32::MAX);
    WAKE_LOW.write(time as u32);
    WAKE_HIGH.write((time >> 32) as u32);
}

impl Board for Virt {
    const NAME: &'static str = "qemu-riscv";
    const CORE: &'static str = "rv32imc";
    type Uart = Ns16550;

    /// Enables the interrupts that end a sleep. They stay masked, so no handler runs.
    fn with_serial() -> Option<Self> {
        START.take()?;
        uart::start();
        // SAFETY: interrupts stay masked in mstatus, so no handler runs.
        unsafe {
            mie::set_mtimer();
            mie::set_mext();
        }
        Some(Self(()))
    }

    /// Starts no timer, because the core counts instructions from its reset on.
    fn with_counter() -> Option<Self> {
        START.take().map(|()| Self(()))
    }

    fn now(&self) -> Millis {
        Millis::new(timer_ticks() / PER_MILLISECOND)
    }

    fn wait(&self, until: Millis) {
        let now = self.now();
        if Ns16550::has_byte() || now >= until {
            return;
        }
        wake_at(until.min(now + SLEEP).as_u64() * PER_MILLISECOND);
        riscv::asm::wfi();
        uart::acknowledge();
    }

    fn reset(&self) -> ! {
        POWER.write(RESET);
        // The reset takes effect before the next instruction or a few instructions later.
        loop {
            riscv::asm::nop();
        }
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

#[unsafe(export_name = "ExceptionHandler")]
fn exception(_: &riscv_rt::TrapFrame) -> ! {
    let cause = mcause::read().bits();
    fault::exit(fault::FAULT, &format_args!("exception {cause} at {:#010x}", mepc::read()))
}
