//! Interface of a board.

use fedspan_client::Millis;

use crate::serial::Uart;

/// An emulated board, started.
pub trait Board: Sized {
    /// Name of the board's folder.
    const NAME: &'static str;
    /// Name of the processor core.
    const CORE: &'static str;
    /// Driver of the serial line.
    type Uart: Uart;

    /// Starts the clock and the serial line. `None` if the board was started before.
    #[must_use]
    fn with_serial() -> Option<Self>;

    /// Starts the instruction counter, without interrupts, for measurements. `None` if the board was started before.
    #[must_use]
    fn with_counter() -> Option<Self>;

    /// Milliseconds since the start, never decreasing.
    fn now(&self) -> Millis;

    /// Sleeps until the given time, a byte on the serial line, or a few milliseconds, whichever comes first.
    fn wait(&self, until: Millis);

    /// Restarts the program as a reset does, with RAM preserved.
    fn reset(&self) -> !;
}

/// A counter that advances with every instruction under QEMU's `-icount shift=0`.
pub trait Meter {
    /// Instructions per tick, as a fraction. An instruction takes one nanosecond; on a 25 MHz timer this is
    /// 40 / 1.
    const INSTRUCTIONS_PER_TICK: (u64, u64);
    /// Mask of the counter's bits; it wraps.
    const MASK: u32;

    /// Current value of the counter, counting up.
    fn ticks(&self) -> u32;
}
