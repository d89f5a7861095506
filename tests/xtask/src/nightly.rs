//! Command `cargo xtask nightly`: runs the checks and measurements that take hours, at night or before a
//! release.

use std::fs::File;
use std::process::Stdio;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use clap::Args;

use crate::process::{Context, Failure, NOT_RUN};

/// Arguments of `cargo xtask nightly`.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Runs the parts (or those that are named), one after the other, each with its output in
target/nightly/PART.log, and prints a table of results. Goes on after a failure; Ctrl-C ends it and
shows what was done.

exit: 0 all parts are well · 1 one failed, or Ctrl-C ended it · 2 wrong arguments"
)]
pub struct Nightly {
    /// Print the parts and their commands, and run nothing.
    #[arg(long)]
    pub list: bool,
    /// Parts, by their names in the list.
    #[arg(value_name = "PART")]
    pub parts: Vec<String>,
}

/// One part of the command: name, purpose, command line.
struct Part {
    name: &'static str,
    purpose: &'static str,
    command: &'static str,
}

/// All parts, in the order of a run.
const PARTS: [Part; 20] = [
    Part {
        name: "tables",
        purpose: "every table of the documents, nightly ones too, against the output of its command",
        command: "tests/tables --check --all",
    },
    Part {
        name: "attacks",
        purpose: "tests of client and protocol that are too long for CI, the attacks on privacy among them",
        command: "cargo test --release --locked -p fedspan-protocol -p fedspan-client --all-features --no-fail-fast -- \
                  --ignored",
    },
    Part {
        name: "power",
        purpose: "whole devices of FedPower against their Gram matrices at the size of the paper",
        command: "cargo test --release --locked -p fedspan-sim --test all -- fedpower:: --ignored",
    },
    Part {
        name: "commands",
        purpose: "the shell blocks of the pages, those that take minutes too, as they are printed",
        command: "tests/commands --all",
    },
    Part {
        name: "resume",
        purpose: "whether the larger simulations continue with the same bits",
        command: "cargo test --release --locked -p fedspan-sim-core --test all -- resume:: --ignored",
    },
    Part {
        name: "cuts",
        purpose: "power cuts at every step of a round",
        command: "cargo test --release --locked -p fedspan-tests --test all -- cuts:: --ignored",
    },
    Part {
        name: "worlds",
        purpose: "the bound of the verified schedule in a hundred thousand worlds",
        command: "env FEDSPAN_WORLDS=100000 cargo test --release --locked -p fedspan-engine --test all -- verified:: \
                  --nocapture",
    },
    Part {
        name: "kills",
        purpose: "a server under load, killed a thousand times",
        command: "cargo run --release --locked -p fedspan-tests --bin kills -- 1000",
    },
    Part {
        name: "strangers",
        purpose: "how long clients of the HTTP server wait during floods of connections",
        command: "cargo run --release --locked -p fedspan-tests --bin strangers",
    },
    Part {
        name: "recipes",
        purpose: "the Python blocks of sim/RESULTS.md and the examples that use a model, with NumPy and pandas",
        command: "tests/scripts/recipes",
    },
    Part {
        name: "benchmarks",
        purpose: "whether the figures are as fast, compared with their rivals, as they were recorded on this processor",
        command: "cargo run --release --locked -p fedspan-tests --bin benchmarks",
    },
    Part {
        name: "damage",
        purpose: "a thousand flipped bits in a stored exchange of adapters",
        command: "cargo test --release --locked -p fedspan-adapters --test all -- http_damage:: --ignored",
    },
    Part {
        name: "recovery",
        purpose: "the time that a server takes to restart",
        command: "cargo run --release --locked -p fedspan-tests --bin recovery",
    },
    Part {
        name: "disasters",
        purpose: "ten thousand campaigns with faults of every kind",
        command: "cargo run --release --locked -p fedspan-tests --bin disasters -- 10000",
    },
    Part {
        name: "day",
        purpose: "a thousand devices for a day of faults",
        command: "cargo run --release --locked -p fedspan-tests --bin disasters -- --day 1000",
    },
    Part {
        name: "mutants",
        purpose: "whether the disasters notice seeded bugs",
        command: "tests/mutants/run 300",
    },
    Part {
        name: "boards",
        purpose: "what an update costs on every emulated board, at every optimisation level",
        command: "tests/boards",
    },
    Part {
        name: "fuzz",
        purpose: "two minutes of hostile bytes for each target",
        command: "tests/fuzz/run 120",
    },
    Part {
        name: "threads",
        purpose: "every order of the operations that threads share, with seeded bugs",
        command: "tests/threads/run --bugs",
    },
    Part {
        name: "screenshots",
        purpose: "the report of a comparison in a browser, on wide and narrow screens",
        command: "tests/scripts/screenshots",
    },
];

/// Runs the command.
///
/// # Errors
/// Exit code 2 if a part is unknown, 1 if a part failed or the run was interrupted.
pub fn run(context: &Context, arguments: &Nightly) -> Result<(), Failure> {
    let known = |name: &String| PARTS.iter().find(|part| part.name == name);
    if let Some(unknown) = arguments.parts.iter().find(|name| known(name).is_none()) {
        let names: Vec<_> = PARTS.iter().map(|part| part.name).collect();
        return Err(Failure::with_code(
            2,
            format!("nightly: found part {unknown:?}, allowed: {}", names.join(", ")),
        ));
    }
    let parts: Vec<&Part> = match arguments.parts.as_slice() {
        [] => PARTS.iter().collect(),
        named => named.iter().filter_map(known).collect(),
    };
    if arguments.list {
        for part in parts {
            println!("{:<10} {}\n{:<10} {}", part.name, part.purpose, "", part.command);
        }
        return Ok(());
    }
    let folder = context.root.join("target/nightly");
    std::fs::create_dir_all(&folder)?;
    // `kills` and `recovery` start the server program from their own folder, so it is built first.
    let mut failed = !context.succeeds(&mut context.cargo(&[
        "build",
        "--release",
        "--locked",
        "-p",
        "fedspan-aggregator",
    ]));
    let mut table = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        if context.is_interrupted() {
            break;
        }
        let (name, command) = (part.name, part.command);
        println!(
            "== {} of {}, {name}: {command} (since {} UTC; see target/nightly/{name}.log)",
            index + 1,
            parts.len(),
            format_time()
        );
        let start = Instant::now();
        let file = folder.join(format!("{name}.log"));
        let log = File::create(&file)?;
        let mut program = context.words(command);
        program.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let code = match context.status(&mut program) {
            Ok(status) => status.code(),
            Err(failure) => {
                eprintln!("nightly: {}", failure.message);
                None
            }
        };
        let result = result_of(code, context.is_interrupted());
        failed |= !matches!(result, "ok" | "not run");
        let output = String::from_utf8_lossy(&std::fs::read(&file)?).into_owned();
        let last: String = output.lines().last().unwrap_or_default().chars().take(140).collect();
        let row = format!("{name:<10} {:8}  {result:<12} {last}", start.elapsed().as_secs());
        println!("{row}");
        table.push(row);
    }
    println!("\n{:<10} {:>8}  {:<12} last line of its output", "part", "seconds", "result");
    for row in table {
        println!("{row}");
    }
    if failed || context.is_interrupted() { Err(Failure::printed()) } else { Ok(()) }
}

fn result_of(code: Option<i32>, interrupted: bool) -> &'static str {
    match code {
        _ if interrupted => "interrupted",
        Some(0) => "ok",
        Some(code) if code == i32::from(NOT_RUN) => "not run",
        _ => "FAILED",
    }
}

/// Returns hours and minutes of the day, UTC.
fn format_time() -> String {
    let minutes = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() / 60);
    format!("{:02}:{:02}", minutes / 60 % 24, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_that_cannot_be_run_has_not_failed() {
        assert_eq!(result_of(Some(77), false), "not run");
        assert_eq!(result_of(Some(1), false), "FAILED");
        assert_eq!(result_of(None, false), "FAILED");
        assert_eq!(result_of(Some(0), true), "interrupted");
    }
}
