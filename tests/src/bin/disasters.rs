//! Program `disasters N [FIRST]` that simulates N worlds with faults in virtual time, each with its own seed.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use fedspan_engine::Millis;
use fedspan_tests::disasters::{Kind, NoWatcher, Report, Watcher, run};
use peak_alloc::PeakAlloc;

const USAGE: &str = "usage: disasters N [FIRST]
       disasters --trace SEED
       disasters --day [DEVICES]

Simulates the worlds of N seeds, from FIRST (default 1) on, in virtual time: the real server code and real devices, with disks
and flash that lose or tear writes, links that lose, repeat, damage and delay frames, crashes, full disks, clock jumps and key
revocations. --trace prints every event of one world to standard error. --day simulates one day of many devices (default 1000):
every device loses its link ten times and its power twice, the server its power 24 times in the first six hours; memory must not
grow after that.
exit: 0 no violation, 1 a violation (with the seed that repeats it), 2 wrong arguments";

/// Observer that prints every event to standard error.
struct Trace;

impl Watcher for Trace {
    fn event(&mut self, now: Millis, event: &str) {
        eprintln!("{now:>9} {event}");
    }

    fn wants_events(&self) -> bool {
        true
    }
}

/// Allocator that counts the memory in use.
#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Hour at which memory use should have reached its final size: the last restart is long past, and the hourly
/// export has filled the database's page cache.
const WARM_HOUR: usize = 20;

/// Largest allowed relative growth of memory after hour [`WARM_HOUR`]. A leak for every connection or closed
/// round exceeds it.
const GROWTH: f64 = 0.02;

/// Observer that prints memory use every hour.
struct Hours {
    start: Instant,
    memory: Vec<usize>,
}

impl Hours {
    fn new() -> Self {
        Self { start: Instant::now(), memory: Vec::new() }
    }

    /// Relative growth from the hour [`WARM_HOUR`] to the largest later hour.
    #[allow(clippy::cast_precision_loss, reason = "a ratio")]
    fn growth(&self) -> Option<f64> {
        let (warm, later) = self.memory.get(WARM_HOUR - 1..)?.split_first()?;
        Some(*later.iter().max()? as f64 / *warm as f64 - 1.0)
    }
}

impl Watcher for Hours {
    #[allow(clippy::cast_precision_loss, reason = "printed only")]
    fn hour(&mut self, hour: u64, rounds: usize, disk: u64) {
        let memory = MEMORY.current_usage().saturating_sub(usize::try_from(disk).unwrap_or(0));
        self.memory.push(memory);
        println!(
            "hour {hour:>2}: {rounds} rounds, {:.3} MB of memory in use without the simulated disk; {:.1} s",
            memory as f64 / 1e6,
            self.start.elapsed().as_secs_f64()
        );
    }
}

/// Simulates one day and checks the growth of memory.
fn simulate_day(devices: u64) -> ExitCode {
    let mut hours = Hours::new();
    let code = simulate_one(1, Kind::Day { devices }, &mut hours);
    match hours.growth() {
        Some(growth) if growth <= GROWTH => {
            println!("memory has grown by {:.1} % since hour {WARM_HOUR}", growth * 100.0);
            code
        }
        growth => {
            eprintln!("disasters: memory has grown by {growth:?} since hour {WARM_HOUR}, allowed: {GROWTH}");
            ExitCode::FAILURE
        }
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
        ["--day"] => return simulate_day(1000),
        [option @ ("--day" | "--trace"), text] => match (number(text), *option) {
            (Some(devices), "--day") => return simulate_day(devices),
            (Some(seed), _) => return simulate_one(seed, Kind::Hectic, &mut Trace),
            (None, _) => (None, None),
        },
        [seeds] => (Some(1), number(seeds)),
        [seeds, first] => (number(first), number(seeds)),
        _ => (None, None),
    };
    let (Some(first), Some(seeds)) = (first, seeds) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    simulate_many(first, seeds)
}

/// Simulates one world and prints its report.
fn simulate_one(seed: u64, kind: Kind, watcher: &mut dyn Watcher) -> ExitCode {
    let start = Instant::now();
    match run(seed, kind, watcher) {
        Ok(report) => {
            println!(
                "{} rounds, {} updates counted, {} events; {:.0} hours in {:.1} s\n{}",
                report.rounds,
                report.counted,
                report.events,
                report.time.as_u64() as f64 / 3.6e6,
                start.elapsed().as_secs_f64(),
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

/// Simulates the worlds of many seeds on all cores and prints their totals.
fn simulate_many(first_seed: u64, count: u64) -> ExitCode {
    let start = Instant::now();
    let next = AtomicU64::new(first_seed);
    let total = Mutex::new((Report::default(), 0u64));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first_seed.saturating_add(count) {
                        return;
                    }
                    let result = std::panic::catch_unwind(|| run(seed, Kind::Hectic, &mut NoWatcher));
                    let result = result.map_or_else(
                        |_| Err("a panic".to_owned()),
                        |result| result.map_err(|v| v.to_string()),
                    );
                    let mut total = total.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    match result {
                        Ok(report) => total.0.add(&report),
                        Err(violation) => {
                            total.1 += 1;
                            eprintln!("seed {seed}: {violation}\n  repeat with: disasters --trace {seed}");
                        }
                    }
                }
            });
        }
    });
    let (report, violations) = total.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let seconds = start.elapsed().as_secs_f64();
    #[allow(clippy::cast_precision_loss, reason = "printed only")]
    let (rate, speed_up) = (count as f64 / seconds, report.time.as_u64() as f64 / 1000.0 / seconds);
    println!(
        "{count} worlds, {violations} violations: {} rounds, {} updates counted, {} events; {seconds:.1} s, {rate:.1} worlds a \
         second, {speed_up:.0} times real time\n{}",
        report.rounds, report.counted, report.events, report.faults
    );
    if violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
