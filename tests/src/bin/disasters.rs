//! `disasters N [FIRST]`: so many worlds, each with a seed of its own, in virtual time.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use fedspan_tests::disasters::{Report, run};

const USAGE: &str = "usage: disasters N [FIRST]
       disasters --trace SEED

Runs the worlds of N seeds, from FIRST (default 1) on: real server code, real devices, disks and flash that lose and tear, links
that lose, repeat, damage and delay, crashes, full disks, clocks that jump, keys that are revoked; all of it in virtual time.
--trace tells on standard error what happens in one of them.
exit: 0 nothing went wrong, 1 something did (with the seed that repeats it), 2 wrong arguments";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |text: &str| text.parse::<u64>().ok();
    let (first, seeds, trace) = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["-h" | "--help"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        ["--trace", seed] => (number(seed), Some(1), true),
        [seeds] => (Some(1), number(seeds), false),
        [seeds, first] => (number(first), number(seeds), false),
        _ => (None, None, false),
    };
    let (Some(first), Some(seeds)) = (first, seeds) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let began = Instant::now();
    let next = AtomicU64::new(first);
    let total = Mutex::new((Report::default(), 0u64));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first.saturating_add(seeds) {
                        return;
                    }
                    let done = std::panic::catch_unwind(|| run(seed, None, trace));
                    let done = done
                        .map_or_else(|_| Err("a panic".to_owned()), |done| done.map_err(|v| v.to_string()));
                    let mut total = total.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    match done {
                        Ok(report) => total.0.add(&report),
                        Err(violation) => {
                            total.1 += 1;
                            eprintln!("seed {seed}: {violation}\n  again: disasters --trace {seed}");
                        }
                    }
                }
            });
        }
    });
    let (report, violations) = total.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let seconds = began.elapsed().as_secs_f64();
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    let (rate, faster) = (seeds as f64 / seconds, report.time as f64 / 1000.0 / seconds);
    println!(
        "{seeds} worlds, {violations} violations: {} disasters, {} crashes of the server, {} of devices, {} calls for an \
         operator; {} rounds, {} updates \
         counted, {} events; {seconds:.1} s, {rate:.1} worlds a second, {faster:.0} times real time",
        report.faults.disasters,
        report.faults.crashes,
        report.faults.cuts,
        report.faults.operator,
        report.rounds,
        report.counted,
        report.events,
    );
    if violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
