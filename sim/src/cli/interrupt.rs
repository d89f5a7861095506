//! Handling of Ctrl-C: the first Ctrl-C ends a run after the current round, the second ends the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::output::log_line;

/// Message after the first Ctrl-C of a run.
const RUN: &str = "ending after this round; Ctrl-C again ends at once, and loses what was trained since the last state of the run";

/// Starts a thread that waits for Ctrl-C in a run. The returned flag is set at the first Ctrl-C.
pub fn watch() -> Arc<AtomicBool> {
    watch_with(RUN)
}

/// Starts a thread that waits for Ctrl-C, and prints the message at the first one.
pub fn watch_with(message: &'static str) -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    let interrupted = Arc::clone(&flag);
    // If the thread cannot be started, Ctrl-C ends the program immediately, which is the default.
    let _ = std::thread::Builder::new().name("ctrl-c".to_owned()).spawn(move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else { return };
        runtime.block_on(async {
            while tokio::signal::ctrl_c().await.is_ok() {
                if interrupted.swap(true, Ordering::Relaxed) {
                    std::process::exit(1);
                }
                log_line(message);
            }
        });
    });
    flag
}
