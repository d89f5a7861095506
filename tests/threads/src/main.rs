//! Model checks of the data that threads of the aggregator share, in every order of their steps.
//!
//! The modules below contain source files of the aggregator, compiled with the locks and atomics of [`sync`]
//! instead of those of the standard library. A check is a small program of two or three threads with
//! assertions. The tool loom runs it in every order that can make a difference, and with every value that an
//! atomic load may return.

use std::process::{Command, ExitCode};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Once};

mod keys;
mod queue;

/// Replacement of `aggregator/src/sync.rs` with loom's types.
mod sync {
    pub(crate) use loom::sync::atomic::AtomicBool;
    pub(crate) use loom::sync::{Mutex, MutexGuard, RwLock};
}

// Replaces the engine crate, of which the aggregator's files need only the type `DeviceId`.
extern crate self as fedspan_engine;

#[path = "../../../aggregator/engine/src/device_id.rs"]
mod device_id;
use device_id::DeviceId;

/// A program that loom runs in every order. Its name is the property that it asserts.
struct Check {
    name: &'static str,
    program: fn(),
}

/// Mark of a failed check in the table.
const WRONG: &str = "WRONG";

fn main() -> ExitCode {
    let mut checks = [queue::checks::ALL, keys::checks::ALL, keys::store_checks::ALL].into_iter().flatten();
    match std::env::args().nth(1) {
        None => run_all(checks),
        Some(name) => match checks.find(|check| check.name == name) {
            Some(check) => run_one(check),
            None => {
                eprintln!("unknown check '{name}'");
                ExitCode::from(2)
            }
        },
    }
}

/// Runs each check in a separate process, because the process aborts if a check fails with a deadlock.
fn run_all<'a>(checks: impl Iterator<Item = &'a Check>) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    println!("{:<64} {:>9}", "property", "orders");
    for Check { name, .. } in checks {
        let result = std::env::current_exe().and_then(|program| Command::new(program).arg(name).output());
        let output = match result {
            Ok(process) => {
                let output = String::from_utf8_lossy(&process.stdout).into_owned();
                let is_explained = process.status.success() || output.contains(WRONG);
                if is_explained { output } else { format!("{:>9}  {WRONG}: {}", '?', process.status) }
            }
            Err(error) => format!("{:>9}  {WRONG}: {error}", '?'),
        };
        println!("{name:<64} {}", output.trim_end());
        if output.contains(WRONG) {
            code = ExitCode::FAILURE;
        }
    }
    code
}

/// Runs one check in this process and prints the number of orders, or the failing order.
fn run_one(check: &Check) -> ExitCode {
    let orders = Arc::new(AtomicUsize::new(0));
    let (counter, program) = (Arc::clone(&orders), check.program);
    let first = Once::new();
    let failing_order = Arc::clone(&orders);
    std::panic::set_hook(Box::new(move |panic| {
        let order = failing_order.load(Relaxed);
        // Further panics are consequences of the first one.
        first.call_once(|| {
            let message = panic.to_string().replace('\n', " ");
            println!("{order:>9}  {WRONG} in this order: {message}");
        });
    }));
    loom::model::Builder::new().check(move || {
        counter.fetch_add(1, Relaxed);
        program();
    });
    println!("{:>9}", orders.load(Relaxed));
    ExitCode::SUCCESS
}
