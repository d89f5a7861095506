//! Boards with a Cortex-M core: SysTick is their clock or instruction counter, and the UART receives by
//! interrupt.

use core::marker::PhantomData;

use cortex_m::Peripherals;
use cortex_m::interrupt::InterruptNumber;
use cortex_m::peripheral::{NVIC, SCB};
use cortex_m_rt::{ExceptionFrame, exception};
use fedspan_client::Millis;

use crate::board::{Board, Meter};
use crate::serial::{InterruptUart, Uart};
use crate::{fault, systick};

/// Properties of a machine with a Cortex-M core.
pub trait Machine {
    /// Name of the board's folder.
    const NAME: &'static str;
    /// Name of the processor core.
    const CORE: &'static str;
    /// SysTick cycles per second.
    const HERTZ: u32;
    /// Driver of the serial line.
    type Uart: InterruptUart;
}

/// Board of machine `M`, with SysTick running as clock or as instruction counter.
#[derive(Clone, Copy, Debug)]
pub struct CortexM<M>(PhantomData<M>);

impl<M: Machine> Board for CortexM<M> {
    const NAME: &'static str = M::NAME;
    const CORE: &'static str = M::CORE;
    type Uart = M::Uart;

    fn with_serial() -> Option<Self> {
        let mut peripherals = Peripherals::take()?;
        systick::start_clock(&mut peripherals.SYST, M::HERTZ);
        M::Uart::start();
        // SAFETY: only `wait` must not be interrupted, and `wait` masks interrupts itself.
        unsafe { NVIC::unmask(Interrupt(M::Uart::INTERRUPT)) };
        Some(Self(PhantomData))
    }

    fn with_counter() -> Option<Self> {
        let mut peripherals = Peripherals::take()?;
        systick::start_counter(&mut peripherals.SYST);
        Some(Self(PhantomData))
    }

    fn now(&self) -> Millis {
        systick::now(M::HERTZ)
    }

    fn wait(&self, until: Millis) {
        // Interrupts are masked here, so an interrupt between the check and the sleep stays pending and ends
        // the sleep.
        cortex_m::interrupt::free(|_| {
            if !M::Uart::has_byte() && self.now() < until {
                cortex_m::asm::wfi();
            }
        });
    }

    fn reset(&self) -> ! {
        SCB::sys_reset()
    }
}

impl<M: Machine> Meter for CortexM<M> {
    const INSTRUCTIONS_PER_TICK: (u64, u64) = (1_000_000_000, M::HERTZ as u64);
    const MASK: u32 = systick::MASK;

    fn ticks(&self) -> u32 {
        systick::ticks()
    }
}

/// The UART's interrupt, for the interrupt controller.
#[derive(Clone, Copy)]
struct Interrupt(u16);

// SAFETY: the number is a constant of the UART driver, and the machine has this interrupt.
unsafe impl InterruptNumber for Interrupt {
    fn number(self) -> u16 {
        self.0
    }
}

/// Handles the interrupts that have no handler: receives from the UART, and exits on any other. The board's
/// `DefaultHandler` calls this function.
pub fn on_interrupt<M: Machine>(number: i16) {
    if u16::try_from(number) == Ok(M::Uart::INTERRUPT) {
        M::Uart::on_interrupt();
    } else {
        fault::exit(fault::FAULT, &format_args!("unexpected interrupt {number}"));
    }
}

#[exception]
fn SysTick() {
    systick::on_interrupt();
}

#[exception]
unsafe fn HardFault(frame: &ExceptionFrame) -> ! {
    fault::exit(fault::FAULT, &format_args!("hard fault at {:#010x}", frame.pc()))
}

#[cfg(target_abi = "eabihf")]
fedspan_c_math::vsqrt!();
