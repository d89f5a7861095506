//! Interface of an emulated board: clock, sleep, reset, serial line and instruction counter.

use fedspan_client::Millis;

use crate::serial::Uart;

/// A running emulated board.
pub trait Board: Sized {
    /// Name of the board's folder, printed with its results.
    const NAME: &'static str;
    /// Name of the processor core, printed with the board's results.
    const CORE: &'static str;
    /// Driver of the serial line.
    type Uart: Uart;

    /// Starts the clock and the serial line. Returns `None` if the board was started before.
    #[must_use]
    fn with_serial() -> Option<Self>;

    /// Starts the instruction counter, without interrupts, for measurements. Returns `None` if the board was
    /// started before.
    #[must_use]
    fn with_counter() -> Option<Self>;

    /// Returns the milliseconds since the start, never decreasing.
    fn now(&self) -> Millis;

    /// Sleeps until the given time or the next byte on the serial line, but for at most a few milliseconds.
    fn wait(&self, until: Millis);

    /// Restarts the program and keeps the content of RAM, like a reset without a loss of power.
    fn reset(&self) -> !;
}

/// A counter that advances with every instruction under QEMU's `-icount shift=0`.
pub trait Meter {
    /// Instructions per tick, as numerator and denominator. An instruction takes one nanosecond, so a 25 MHz
    /// timer has 40 / 1.
    const INSTRUCTIONS_PER_TICK: (u64, u64);
    /// Mask of the counter's bits; the counter wraps after this value.
    const MASK: u32;

    /// Returns the current value of the counter, which counts up.
    fn ticks(&self) -> u32;
}
