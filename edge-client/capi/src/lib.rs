#![doc = include_str!("../README.md")]
#![cfg_attr(target_os = "none", no_std)]

mod client;
mod config;
#[cfg_attr(not(feature = "pauses"), path = "no_pause.rs")]
mod pause;
mod platform;
mod size;

#[doc(hidden)]
pub use client::model;
pub use client::{
    fedspan_client, fedspan_counters, fedspan_end, fedspan_get_counters, fedspan_get_representation,
    fedspan_head_version, fedspan_is_fitted, fedspan_last_round, fedspan_predict, fedspan_refusal,
    fedspan_set_representation, fedspan_start, fedspan_state, fedspan_step,
};
pub use config::{fedspan_cipher, fedspan_config, fedspan_status, fedspan_timers};
pub use platform::{fedspan_item, fedspan_platform, fedspan_samples};
pub use size::{FEDSPAN_CLIENT_SIZE, fedspan_memory_size};

/// A panic cannot be reached: the library is linked into a program that has no handler for it. Loops, so that a watchdog would end it.
#[cfg(all(target_os = "none", feature = "panic-handler"))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
