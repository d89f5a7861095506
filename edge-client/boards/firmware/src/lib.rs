//! Firmware shared by the boards with real hardware. The crate of each board has its memory map, serial line,
//! flash, unique number, entropy source and reset; this crate has everything else.
//!
//! | file | purpose |
//! | --- | --- |
//! | [`sensor`] | synthetic sensor, **the file to replace with your own**; shape of the model |
//! | [`identity`] | identity of the device: the provisioning record in flash, with its key |
//! | [`client`] | takes part in campaigns over a serial line, connection after connection |
//! | [`line`](mod@line) | serial line that tolerates transmission errors |
//! | [`unique`] | device number from a chip's unique number, seed from raw noise |
//! | [`watchdog`] | feeds the chip's watchdog while the program makes progress |
//! | [`reset_on_panic`] | panic handler |
//!
//! The modules do not depend on a chip; `cargo test` tests them on the host.

#![cfg_attr(not(test), no_std)]

pub mod client;
pub mod identity;
pub mod line;
pub mod sensor;
pub mod unique;
pub mod watchdog;

/// Defines the panic handler of a board, which calls the given function to reset the chip: the device is
/// unattended, and the state of its rounds is in flash. To examine a panic, set a breakpoint at that
/// function.
#[macro_export]
macro_rules! reset_on_panic {
    ($reset:path) => {
        #[panic_handler]
        fn panic(_: &::core::panic::PanicInfo<'_>) -> ! {
            $reset()
        }
    };
}
