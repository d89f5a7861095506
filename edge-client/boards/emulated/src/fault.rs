//! Exits of firmware that has failed: prints the reason, and QEMU exits with a code.

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

/// Prints the reason and exits.
pub fn exit(code: i32, problem: &dyn Display) -> ! {
    eprintln!("{problem}");
    process::exit(code)
}

#[panic_handler]
fn panicked(info: &PanicInfo<'_>) -> ! {
    exit(PANICKED, info)
}
