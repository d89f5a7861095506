//! What a board has to provide.

use core::ops::Range;

use embedded_io::{ErrorKind, Read, ReadReady, Write};
use fedspan_client::Millis;

/// An emulated board with its clock and serial line running.
pub trait Board {
    /// The name of its folder.
    const NAME: &'static str;
    /// The core that it is built for.
    const CORE: &'static str;
    /// The serial line.
    type Serial: Read<Error = ErrorKind> + Write<Error = ErrorKind> + ReadReady<Error = ErrorKind>;

    /// The serial line; all of them are the same one.
    fn serial(&self) -> Self::Serial;

    /// Milliseconds since the start; never goes back.
    fn now(&self) -> Millis;

    /// Sleeps until the given time, a byte on the serial line, or a few milliseconds, whichever comes first.
    fn wait(&self, until: Millis);

    /// Bytes that came when the buffer behind the serial line was full.
    fn lost(&self) -> u32;

    /// The partition that may hold a recording, or a table of samples.
    fn recording(&self) -> &'static [u8];

    /// Starts the program anew, as a reset does: RAM is what it was.
    fn reset(&self) -> !;

    /// Addresses of the RAM. The stack begins at its end and grows down.
    fn ram() -> Range<usize>;

    /// Where the stack may grow to: the end of everything static, which begins where the RAM begins.
    fn stack_limit() -> usize;
}

/// A counter that advances with every instruction under QEMU's `-icount shift=0`.
pub trait Meter {
    /// Instructions per tick, as a fraction: of one nanosecond each, on a timer of 25 MHz, 40 / 1.
    const INSTRUCTIONS_PER_TICK: (u64, u64);
    /// Bits of the counter; it wraps.
    const MASK: u32;

    /// The counter, counting up.
    fn ticks(&self) -> u32;
}
