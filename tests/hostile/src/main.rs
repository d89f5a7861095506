//! `hostile`: refused frames by the million, and what they cost. See [`USAGE`].

#![forbid(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use fedspan_hostile::TARGETS;
use fedspan_hostile::bulk::{Broken, Plan, Tally, resident, run};

const USAGE: &str = "usage: hostile [--frames N] [--threads N] [--seed N] [--target NAME]
       hostile --seeds FOLDER
       hostile --run NAME FILE...

Hands damaged frames, messages and scripts to every part that reads foreign bytes, until N of them were refused
(default 1e6, two threads), and prints how many there were, the slowest input and the memory held before and after.
  --target NAME    this part only
  --seeds FOLDER   writes the inputs that it starts from, one folder a part, and ends
  --run NAME FILE  runs these inputs once
exit: 0 all laws hold, 1 one is broken (its input is in target/hostile-NAME.bin), an input takes more than 10 ms
or more than 4 MiB of memory are lost, 2 wrong arguments";

/// An input that takes longer hangs.
const HANG: Duration = Duration::from_millis(10);
/// Memory, in KiB, that an allocator may keep for itself.
const KEPT: u64 = 4096;

fn main() -> ExitCode {
    let mut plan = Plan { refused: 1_000_000, threads: 2, seed: 1 };
    let mut only = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "-h" || argument == "--help" {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        let value = arguments.next();
        let known = match (argument.as_str(), value) {
            ("--frames", Some(value)) => number(&value).map(|n| plan.refused = n),
            ("--threads", Some(value)) => number(&value).map(|n| plan.threads = n),
            ("--seed", Some(value)) => number(&value).map(|n| plan.seed = n),
            ("--target", Some(value)) if TARGETS.iter().any(|target| target.name == value) => {
                only = Some(value);
                Some(())
            }
            ("--seeds", Some(folder)) => return write_seeds(Path::new(&folder)),
            ("--run", Some(name)) => return replay(&name, arguments),
            _ => None,
        };
        if known.is_none() {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    }
    bulk(plan, only.as_deref())
}

/// A whole number, also as 1e8.
fn number(text: &str) -> Option<u64> {
    let (digits, zeros) = text.split_once('e').unwrap_or((text, "0"));
    let power = 10u64.checked_pow(zeros.parse().ok()?)?;
    digits.parse::<u64>().ok()?.checked_mul(power)
}

fn bulk(plan: Plan, only: Option<&str>) -> ExitCode {
    // Everything that is made once is made, and the allocator has its pages.
    let warm = Plan { refused: (plan.refused / 20).min(200_000), ..plan };
    let started = Instant::now();
    let result = run(warm, only).and_then(|_| {
        let before = resident();
        run(plan, only).map(|tallies| (before, tallies))
    });
    match result {
        Ok((before, tallies)) => report(before, &tallies, started.elapsed()),
        Err(broken) => broke(&broken),
    }
}

fn broke(Broken { target, input }: &Broken) -> ExitCode {
    let file = format!("target/hostile-{target}.bin");
    let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
    eprintln!("hostile: {target} broke a law on {} bytes: {hex}", input.len());
    match std::fs::write(&file, input) {
        Ok(()) => eprintln!("again: hostile --run {target} {file}"),
        Err(error) => eprintln!("{file}: {error}"),
    }
    ExitCode::FAILURE
}

fn report(before: Option<u64>, tallies: &[Tally], took: Duration) -> ExitCode {
    println!(
        "{:<16} {:>11} {:>12} {:>12} {:>10} {:>11} {:>10}",
        "target", "inputs", "frames", "refused", "per s", "most steps", "slowest us"
    );
    let (mut refused, mut slowest) = (0, Duration::ZERO);
    for tally in tallies {
        let rate = tally.work.refused as f64 / tally.spent.as_secs_f64().max(1e-9);
        println!(
            "{:<16} {:>11} {:>12} {:>12} {:>10.0} {:>11} {:>10}",
            tally.target,
            tally.inputs,
            tally.work.frames,
            tally.work.refused,
            rate,
            tally.most_steps,
            tally.slowest.as_micros()
        );
        if !matches!(tally.target, "flash_image" | "provision" | "key_lines") {
            refused += tally.work.refused;
        }
        slowest = slowest.max(tally.slowest);
    }
    println!("{refused} frames refused, none of them with a panic, in {:.1} s", took.as_secs_f64());
    let mut failed = false;
    if slowest > HANG {
        println!("the slowest input takes {} us, {} are allowed", slowest.as_micros(), HANG.as_micros());
        for tally in tallies.iter().filter(|tally| tally.slowest > HANG) {
            let _ = broke(&Broken { target: tally.target, input: tally.slowest_input.clone() });
        }
        failed = true;
    }
    match (before, resident()) {
        (Some(before), Some(after)) => {
            println!("memory: {before} KiB before, {after} KiB after");
            failed |= after > before + KEPT;
        }
        _ => println!("memory: this system does not say"),
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn write_seeds(folder: &Path) -> ExitCode {
    for target in TARGETS {
        if let Err(error) = target.write_seeds(&folder.join(target.name)) {
            eprintln!("hostile: {}: {error}", folder.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn replay(name: &str, files: impl Iterator<Item = String>) -> ExitCode {
    let Some(target) = TARGETS.iter().find(|target| target.name == name) else {
        eprintln!("hostile: no part is called {name}\n{USAGE}");
        return ExitCode::from(2);
    };
    for file in files {
        match std::fs::read(&file) {
            Ok(input) => println!("{file}: {:?}", (target.body)(&input)),
            Err(error) => {
                eprintln!("hostile: {file}: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
