//! Interface of a board.

use core::ops::Range;

use embedded_io::{ErrorKind, Read, ReadReady, Write};
use fedspan_client::Millis;

/// An emulated board with its clock and serial line running.
pub trait Board {
    /// Name of the board's folder.
    const NAME: &'static str;
    /// Name of the processor core.
    const CORE: &'static str;
    /// Type of the serial line.
    type Serial: Read<Error = ErrorKind> + Write<Error = ErrorKind> + ReadReady<Error = ErrorKind>;

    /// The serial line. All handles share one line.
    fn serial(&self) -> Self::Serial;

    /// Milliseconds since the start, never decreasing.
    fn now(&self) -> Millis;

    /// Sleeps until the given time, a byte on the serial line, or a few milliseconds, whichever comes first.
    fn wait(&self, until: Millis);

    /// Number of bytes that arrived while the receive buffer was full.
    fn lost(&self) -> u32;

    /// Partition that may hold a recording or a table of samples.
    fn recording(&self) -> &'static [u8];

    /// Restarts the program as a reset does, with RAM preserved.
    fn reset(&self) -> !;

    /// Address range of the RAM. The stack starts at its end and grows down.
    fn ram() -> Range<usize>;

    /// Lowest address of the stack: the end of the static memory, which starts where the RAM starts.
    fn stack_limit() -> usize;
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
