//! Program `hostile` that runs every fuzz target until it has refused millions of frames, and prints the
//! cost. See [`USAGE`].

#![forbid(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use fedspan_hostile::TARGETS;
use fedspan_hostile::bulk::{Broken, Plan, Totals, resident, run};

const USAGE: &str = "usage: hostile [--frames N] [--threads N] [--seed N] [--target NAME]
       hostile --seeds FOLDER
       hostile --run NAME FILE...

Feeds damaged frames, messages and scripts to every target until N of them were refused (default 1e6, two threads). Prints
totals for each target, the slowest input, and the memory in use before and after.
  --target NAME    only this target
  --seeds FOLDER   writes the initial inputs, one folder for each target, and exits
  --run NAME FILE  runs these inputs once
exit: 0 all invariants hold, 1 one is broken (its input is in target/hostile-NAME.bin), an input takes more than 10 ms,
or memory grows by more than 4 MiB, 2 wrong arguments";

/// Largest allowed time of one input.
const SLOWEST_ALLOWED: Duration = Duration::from_millis(10);
/// Largest allowed growth of the resident memory, in KiB; the allocator may keep some pages.
const MEMORY_ALLOWED: u64 = 4096;

fn main() -> ExitCode {
    let mut plan = Plan { refused: 1_000_000, threads: 2, seed: 1 };
    let mut only_target = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "-h" || argument == "--help" {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        let value = arguments.next();
        let parsed = match (argument.as_str(), value) {
            ("--frames", Some(value)) => parse_number(&value).map(|n| plan.refused = n),
            ("--threads", Some(value)) => parse_number(&value).map(|n| plan.threads = n),
            ("--seed", Some(value)) => parse_number(&value).map(|n| plan.seed = n),
            ("--target", Some(value)) if TARGETS.iter().any(|target| target.name == value) => {
                only_target = Some(value);
                Some(())
            }
            ("--seeds", Some(folder)) => return write_seeds(Path::new(&folder)),
            ("--run", Some(name)) => return replay(&name, arguments),
            _ => None,
        };
        if parsed.is_none() {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    }
    run_plan(plan, only_target.as_deref())
}

/// Parses a whole number; `1e8` is allowed.
fn parse_number(text: &str) -> Option<u64> {
    let (digits, zeros) = text.split_once('e').unwrap_or((text, "0"));
    let power = 10u64.checked_pow(zeros.parse().ok()?)?;
    digits.parse::<u64>().ok()?.checked_mul(power)
}

/// Runs the plan after a warm-up run, and reports totals and memory.
fn run_plan(plan: Plan, only: Option<&str>) -> ExitCode {
    // The warm-up run creates static data and lets the allocator get its pages.
    let warm_up = Plan { refused: (plan.refused / 20).min(200_000), ..plan };
    let started = Instant::now();
    let result = run(warm_up, only).and_then(|_| {
        let memory_before = resident();
        run(plan, only).map(|results| (memory_before, results))
    });
    match result {
        Ok((memory_before, results)) => report(memory_before, &results, started.elapsed()),
        Err(broken) => report_broken(&broken),
    }
}

/// Prints an input that breaks an invariant, and writes it to a file.
fn report_broken(Broken { target, input }: &Broken) -> ExitCode {
    let file = format!("target/hostile-{target}.bin");
    let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
    eprintln!("hostile: {target} broke an invariant on {} bytes: {hex}", input.len());
    match std::fs::write(&file, input) {
        Ok(()) => eprintln!("repeat with: hostile --run {target} {file}"),
        Err(error) => eprintln!("{file}: {error}"),
    }
    ExitCode::FAILURE
}

/// Prints the totals. Fails if an input was too slow or memory has grown.
fn report(memory_before: Option<u64>, results: &[Totals], duration: Duration) -> ExitCode {
    println!(
        "{:<17} {:>11} {:>12} {:>12} {:>10} {:>11} {:>10}",
        "target", "inputs", "frames", "refused", "per s", "most steps", "slowest us"
    );
    let (mut refused, mut slowest) = (0, Duration::ZERO);
    for totals in results {
        let rate = totals.work.refused as f64 / totals.spent.as_secs_f64().max(1e-9);
        println!(
            "{:<17} {:>11} {:>12} {:>12} {:>10.0} {:>11} {:>10}",
            totals.target,
            totals.inputs,
            totals.work.frames,
            totals.work.refused,
            rate,
            totals.most_steps,
            totals.slowest.as_micros()
        );
        if !matches!(totals.target, "flash_image" | "provision" | "key_lines") {
            refused += totals.work.refused;
        }
        slowest = slowest.max(totals.slowest);
    }
    println!("{refused} frames refused, none of them with a panic, in {:.1} s", duration.as_secs_f64());
    let mut failed = false;
    if slowest > SLOWEST_ALLOWED {
        println!(
            "the slowest input takes {} us, allowed: {} us",
            slowest.as_micros(),
            SLOWEST_ALLOWED.as_micros()
        );
        for totals in results.iter().filter(|totals| totals.slowest > SLOWEST_ALLOWED) {
            let _ = report_broken(&Broken { target: totals.target, input: totals.slowest_input.clone() });
        }
        failed = true;
    }
    match (memory_before, resident()) {
        (Some(memory_before), Some(after)) => {
            println!("memory: {memory_before} KiB before, {after} KiB after");
            failed |= after > memory_before + MEMORY_ALLOWED;
        }
        _ => println!("memory: unknown on this system"),
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Writes the seeds of every target, in one folder for each target.
fn write_seeds(folder: &Path) -> ExitCode {
    for target in TARGETS {
        if let Err(error) = target.write_seeds(&folder.join(target.name)) {
            eprintln!("hostile: {}: {error}", folder.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Runs the inputs in files with one target.
fn replay(name: &str, files: impl Iterator<Item = String>) -> ExitCode {
    let Some(target) = TARGETS.iter().find(|target| target.name == name) else {
        eprintln!("hostile: unknown target {name}\n{USAGE}");
        return ExitCode::from(2);
    };
    for file in files {
        match std::fs::read(&file) {
            Ok(input) => println!("{file}: {:?}", (target.run)(&input)),
            Err(error) => {
                eprintln!("hostile: {file}: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
