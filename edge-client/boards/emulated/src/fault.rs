//! The ends of a firmware that has failed: it says why, and QEMU exits with a code.

use core::fmt::Display;
use core::panic::PanicInfo;

use semihosting::{eprintln, process};

/// Exit code for a mistake in the settings or the recording.
pub const WRONG: i32 = 2;
/// Exit code where the settings let the power go.
pub const POWER_GONE: i32 = 3;
/// Exit code after a panic.
pub const PANICKED: i32 = 101;
/// Exit code after a processor fault.
pub const FAULT: i32 = 102;

/// Says what is wrong and exits.
pub fn exit(code: i32, problem: &dyn Display) -> ! {
    eprintln!("{problem}");
    process::exit(code)
}

#[panic_handler]
fn panicked(info: &PanicInfo<'_>) -> ! {
    exit(PANICKED, info)
}
