//! `disasters N [FIRST]`: so many worlds, each with a seed of its own, in virtual time.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use fedspan_tests::disasters::{Kind, Report, Unwatched, Watcher, run};
use fedspan_tests::load::memory_of;

const USAGE: &str = "usage: disasters N [FIRST]
       disasters --trace SEED
       disasters --day [DEVICES]

Runs the worlds of N seeds, from FIRST (default 1) on: real server code, real devices, disks and flash that lose and tear, links
that lose, repeat, damage and delay, crashes, full disks, clocks that jump, keys that are revoked; all of it in virtual time.
--trace tells on standard error what happens in one of them. --day is one world of many devices (default 1000) for a day: rounds
one after the other, every device loses its link three times and its power twice, the server is restarted every hour.
exit: 0 nothing went wrong, 1 something did (with the seed that repeats it), 2 wrong arguments";

/// Says what happens.
struct Trace;

impl Watcher for Trace {
    fn event(&mut self, now: u64, event: &str) {
        eprintln!("{now:>9} {event}");
    }

    fn listens(&self) -> bool {
        true
    }
}

/// Says every hour how much memory there is.
struct Hours(Instant);

impl Watcher for Hours {
    fn hour(&mut self, hour: u64, rounds: usize, disk: u64) {
        let resident = memory_of(std::process::id()).map_or(0, |memory| memory.resident);
        println!(
            "hour {hour:>2}: {rounds} rounds, {:.1} MB of memory, and {:.1} MB for the simulated disk; {:.1} s",
            resident.saturating_sub(disk) as f64 / 1e6,
            disk as f64 / 1e6,
            self.0.elapsed().as_secs_f64()
        );
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |text: &str| text.parse::<u64>().ok();
    let (first, seeds) = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["-h" | "--help"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        ["--day"] => return one(1, Kind::Day { devices: 1000 }, &mut Hours(Instant::now())),
        ["--day", devices] if let Some(devices) = number(devices) => {
            return one(1, Kind::Day { devices }, &mut Hours(Instant::now()));
        }
        ["--trace", seed] if let Some(seed) = number(seed) => return one(seed, Kind::Hectic, &mut Trace),
        [seeds] => (Some(1), number(seeds)),
        [seeds, first] => (number(first), number(seeds)),
        _ => (None, None),
    };
    let (Some(first), Some(seeds)) = (first, seeds) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    many(first, seeds)
}

fn one(seed: u64, kind: Kind, watcher: &mut dyn Watcher) -> ExitCode {
    let began = Instant::now();
    match run(seed, kind, watcher) {
        Ok(report) => {
            println!(
                "{} rounds, {} updates counted, {} events; {:.0} hours in {:.1} s\n{}",
                report.rounds,
                report.counted,
                report.events,
                report.time as f64 / 3.6e6,
                began.elapsed().as_secs_f64(),
                report.faults
            );
            ExitCode::SUCCESS
        }
        Err(violation) => {
            eprintln!("disasters: seed {seed}: {violation}");
            ExitCode::FAILURE
        }
    }
}

fn many(first: u64, seeds: u64) -> ExitCode {
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
                    let done = std::panic::catch_unwind(|| run(seed, Kind::Hectic, &mut Unwatched));
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
        "{seeds} worlds, {violations} violations: {} rounds, {} updates counted, {} events; {seconds:.1} s, {rate:.1} worlds a \
         second, {faster:.0} times real time\n{}",
        report.rounds, report.counted, report.events, report.faults
    );
    if violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
