//! What threads of the aggregator share, in every order that they can run in.
//!
//! The modules below are the aggregator's own files, compiled with [`sync`]'s locks and atomics in place of the
//! standard library's. A check is a small program of two or three threads and what must be true whatever their order;
//! loom runs it once for each order that makes a difference, and for each value that an atomic may have then.

use std::process::{Command, ExitCode};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Once};

mod host;
mod keys;

/// What `aggregator/src/sync.rs` has, of the checker.
mod sync {
    pub(crate) use loom::sync::atomic::AtomicBool;
    pub(crate) use loom::sync::{Mutex, MutexGuard, RwLock};
}

// The aggregator's files take one type of `fedspan-engine`; its other dependencies need not be built here.
extern crate self as fedspan_engine;

/// The identity of a device on the server.
type DeviceId = u64;

/// What must be true.
struct Check {
    name: &'static str,
    program: fn(),
}

/// What stands in the table beside a check that does not hold.
const WRONG: &str = "WRONG";

fn main() -> ExitCode {
    let mut checks = [host::checks::ALL, keys::checks::ALL, keys::desk::ALL].into_iter().flatten();
    match std::env::args().nth(1) {
        None => all(checks),
        Some(name) => match checks.find(|check| check.name == name) {
            Some(check) => one(check),
            None => {
                eprintln!("unknown check '{name}'");
                ExitCode::from(2)
            }
        },
    }
}

/// Each in a process of its own: where threads wait for each other for ever, their data cannot be dropped in good order
/// either, and the process aborts.
fn all<'a>(checks: impl Iterator<Item = &'a Check>) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    println!("{:<64} {:>9}", "what must be true", "orders");
    for Check { name, .. } in checks {
        let ran = std::env::current_exe().and_then(|program| Command::new(program).arg(name).output());
        let said = match ran {
            Ok(ran) => {
                let said = String::from_utf8_lossy(&ran.stdout).into_owned();
                let explained = ran.status.success() || said.contains(WRONG);
                if explained { said } else { format!("{:>9}  {WRONG}: {}", '?', ran.status) }
            }
            Err(error) => format!("{:>9}  {WRONG}: {error}", '?'),
        };
        println!("{name:<64} {}", said.trim_end());
        if said.contains(WRONG) {
            code = ExitCode::FAILURE;
        }
    }
    code
}

fn one(check: &Check) -> ExitCode {
    let orders = Arc::new(AtomicUsize::new(0));
    let (counted, program) = (Arc::clone(&orders), check.program);
    let first = Once::new();
    let wrong_in = Arc::clone(&orders);
    std::panic::set_hook(Box::new(move |panic| {
        let order = wrong_in.load(Relaxed);
        // What comes after it is a consequence.
        first.call_once(|| {
            let why = panic.to_string().replace('\n', " ");
            println!("{order:>9}  {WRONG} in the last: {why}");
        });
    }));
    loom::model::Builder::new().check(move || {
        counted.fetch_add(1, Relaxed);
        program();
    });
    println!("{:>9}", orders.load(Relaxed));
    ExitCode::SUCCESS
}
