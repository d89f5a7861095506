//! Exits of a firmware after a failure: prints the reason and ends QEMU with an exit code.

use core::fmt::Display;
use core::panic::PanicInfo;

use semihosting::{eprintln, process};

/// Exit code for wrong settings or an unusable recording.
pub const WRONG: i32 = 2;
/// Exit code for a power cut requested by the settings.
pub const POWER_GONE: i32 = 3;
/// Exit code for a panic.
pub const PANICKED: i32 = 101;
/// Exit code for a processor fault.
pub const FAULT: i32 = 102;

/// Prints the reason to standard error and exits.
pub fn exit(code: i32, problem: &dyn Display) -> ! {
    eprintln!("{problem}");
    process::exit(code)
}

#[panic_handler]
fn panicked(info: &PanicInfo<'_>) -> ! {
    exit(PANICKED, info)
}
