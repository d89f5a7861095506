//! Firmware shared by the boards with real hardware. The crate of each board has its memory map, serial line,
//! flash, unique number, entropy source and reset; this crate has everything else.
//!
//! | file | purpose |
//! | --- | --- |
//! | [`sensor`] | synthetic sensor, **the file to replace with your own**; shape of the model |
//! | [`identity`] | identity of the device: the provisioning record in flash, with its key |
//! | [`client`] | takes part in campaigns over a serial line, connection after connection |
//! | [`line`](mod@line) | serial line that tolerates transmission errors |
//! | [`reset`] | reason of the last reset, from the registers of each chip |
//! | [`unique`] | device number from a chip's unique number, seed from raw noise |
//! | [`watchdog`] | feeds the chip's watchdog while the program makes progress |
//! | [`reset_on_panic`] | panic handler, and the board's `reset_reason` |
//!
//! The modules do not depend on a chip; `cargo test` tests them on the host.

#![cfg_attr(not(test), no_std)]

pub mod client;
pub mod identity;
pub mod line;
pub mod reset;
pub mod sensor;
pub mod unique;
pub mod watchdog;

/// Defines the panic handler of a board, which calls the function `reset` to reset the chip: the device is unattended, and the
/// state of its rounds is in flash. To examine a panic, set a breakpoint at that function.
///
/// Also defines the board's function `reset_reason`, for the device's reports, from the reason that the expression after
/// `reason` reads from the chip.
#[macro_export]
macro_rules! reset_on_panic {
    (reset: $reset:path, reason: $reason:expr) => {
        #[unsafe(link_section = ".uninit.panicked")]
        static PANICKED: $crate::reset::PanicMark = $crate::reset::PanicMark::new();

        #[panic_handler]
        fn panic(_: &::core::panic::PanicInfo<'_>) -> ! {
            PANICKED.set();
            $reset()
        }

        /// Returns the reason of the last reset, and clears the chip's notes of it. Call it once.
        #[must_use]
        pub fn reset_reason() -> $crate::reset::ResetReason {
            PANICKED.explain($reason)
        }
    };
}
