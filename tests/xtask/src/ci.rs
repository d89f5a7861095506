//! Command `cargo xtask ci`: runs the stages of continuous integration. Every stage runs, even after a
//! failure, so that one run shows all failures. A run of all stages uses two parallel processes.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;

use crate::dependencies::{advisories, licences, msrv, package};
use crate::process::{Context, FailedTests, Failure, NOT_RUN};
use crate::{bare_metal, commands, emulation, firmware, prose, setup, suite};

/// Arguments of `cargo xtask ci`.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Runs all stages (or those that are named) and prints a table with the seconds of each, and its share of
CI's time: more is worth a warning. All stages run in two parallel processes; the output of the
second one is in target/ci/second.log, and printed at the end.

exit: 0 no stage failed (some may not have been run, as the table shows) · 1 one failed · 2 wrong
arguments"
)]
pub struct Ci {
    /// Print the stages and their steps, and run nothing.
    #[arg(long)]
    list: bool,
    /// Stages, by their names in the list.
    #[arg(value_name = "STAGE")]
    stages: Vec<String>,
}

/// One stage of CI.
#[derive(Clone, Copy)]
struct Stage {
    name: &'static str,
    /// Share of CI's time in minutes, measured while the other process runs its stages.
    minutes: u64,
    lane: Lane,
    steps: &'static [Step],
}

/// Place of a stage in a run of all stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    /// The stage runs before all others.
    Before,
    /// The stage runs in the first process, in the order of the table.
    First,
    /// The stage runs in the second process, in parallel with the first.
    Second,
}

/// Longest time of a run. Programs that still run then are killed, and the table is printed.
const LIMIT: Duration = Duration::from_secs(80 * 60);

/// Disk space in megabytes that a run of all stages takes in a clean checkout, with what its tools fetch.
const DISK: u64 = 13_500;

/// One step of a stage. The next step runs even if this step fails.
#[derive(Clone, Copy)]
enum Step {
    /// A program and its arguments, run at the root of the repository.
    Program(&'static str),
    /// A program and its arguments, with additional environment variables.
    With(&'static [(&'static str, &'static str)], &'static str),
    /// A command of xtask: its name, and the function that runs it.
    Xtask(&'static str, fn(&Context) -> Result<(), Failure>),
}

/// Builds the programs of the workspace with the features that its tests use. With `-p`, cargo would choose
/// other features of the dependencies and build everything once more.
const BUILD: Step =
    Step::Xtask("with exclusive programs: cargo test --workspace --release --no-run", |context| {
        let _exclusive = context.lock_programs()?;
        let mut cargo =
            context.cargo(&["test", "--workspace", "--release", "--locked", "--quiet", "--no-run"]);
        if context.succeeds(&mut cargo) { Ok(()) } else { Err(Failure::printed()) }
    });

/// All stages, in the order of the table.
const STAGES: [Stage; 16] = [
    Stage {
        name: "setup",
        minutes: 3,
        lane: Lane::Before,
        steps: &[Step::Xtask("setup --install", |context| {
            setup::run(context, setup::Setup { install: true, ..setup::Setup::default() }).map(|_| ())
        })],
    },
    Stage {
        name: "tests",
        minutes: 28,
        lane: Lane::First,
        steps: &[Step::Xtask("run --install", |context| suite::run(context, &suite::Suite::of_ci()))],
    },
    Stage {
        name: "lint",
        minutes: 8,
        lane: Lane::Second,
        steps: &[
            Step::Program("cargo fmt --all --check"),
            Step::Xtask("prose --check", |context| prose::run(&context.root, &prose::Prose::check())),
            Step::Program("cargo clippy --workspace --all-targets --locked -- -D warnings"),
            Step::Program(
                "cargo clippy --workspace --features fedspan-sim/encoder --all-targets --locked -- -D warnings",
            ),
            Step::Program(
                "cargo clippy -p fedspan-client --no-default-features --all-targets --locked -- -D warnings",
            ),
            Step::Program("cargo test -p fedspan-client --no-default-features --test least --locked --quiet"),
            Step::Program("cargo fmt --manifest-path tests/threads/Cargo.toml --check"),
            Step::Program(
                "cargo clippy --manifest-path tests/threads/Cargo.toml --target-dir target/threads --release --locked -- -D \
                 warnings",
            ),
            Step::With(&[("RUSTDOCFLAGS", "-D warnings")], "cargo doc --workspace --no-deps --locked"),
        ],
    },
    Stage {
        name: "boards",
        minutes: 6,
        lane: Lane::Second,
        steps: &[Step::Xtask("with exclusive firmware: bare-metal, firmware", |context| {
            let _exclusive = context.lock_firmware()?;
            let built = bare_metal::run(context);
            firmware::run(context, &firmware::Firmware::default()).and(built)
        })],
    },
    Stage {
        name: "licences",
        minutes: 1,
        lane: Lane::Second,
        steps: &[Step::Xtask("licences", licences::run)],
    },
    Stage {
        name: "advisories",
        minutes: 1,
        lane: Lane::Second,
        steps: &[Step::Xtask("advisories", |context| {
            advisories::run(context, &advisories::Advisories::default())
        })],
    },
    Stage {
        name: "msrv",
        minutes: 4,
        lane: Lane::Second,
        steps: &[Step::Xtask("msrv", |context| msrv::run(context, msrv::Msrv::default()))],
    },
    Stage {
        name: "packages",
        minutes: 3,
        lane: Lane::Second,
        steps: &[Step::Xtask("package --no-verify", |context| package::run(context, package::Pack::of_ci()))],
    },
    Stage {
        name: "tables",
        minutes: 11,
        lane: Lane::Second,
        steps: &[
            BUILD,
            Step::Program("target/release/tables --check"),
            Step::Program("tests/scripts/python-environment numpy"),
            // Three pairs only warn of lower ratios.
            Step::Program("target/release/benchmarks --short"),
        ],
    },
    Stage {
        name: "screenshots",
        minutes: 4,
        lane: Lane::Second,
        steps: &[
            Step::Xtask("setup: a browser", setup::add_browser),
            BUILD,
            Step::Program(
                "target/release/fedspan-sim compare digits-network digits-network,data.partition.classes=5 --algorithms all \
                 --set algorithm.rounds=20 --out target/screenshots/results --overwrite --quiet",
            ),
            Step::Program("tests/scripts/screenshots target/screenshots/results"),
        ],
    },
    Stage {
        name: "emulation",
        minutes: 6,
        lane: Lane::First,
        steps: &[Step::Xtask("with exclusive firmware: boards --as-built", |context| {
            let _exclusive = context.lock_firmware()?;
            emulation::run(context, &emulation::Emulation::of_ci())
        })],
    },
    // One block runs emulated boards. The second process has built firmware long before.
    Stage {
        name: "commands",
        minutes: 6,
        lane: Lane::First,
        steps: &[Step::Xtask("commands", |context| commands::run(context, &commands::Commands::default()))],
    },
    Stage {
        name: "disasters",
        minutes: 4,
        lane: Lane::Second,
        steps: &[
            BUILD,
            Step::Program("target/release/kills 100"),
            Step::Program("target/release/disasters 200"),
        ],
    },
    Stage {
        name: "threads",
        minutes: 3,
        lane: Lane::Second,
        steps: &[Step::Program("tests/threads/run --bugs")],
    },
    Stage { name: "fuzz", minutes: 8, lane: Lane::Second, steps: &[Step::Program("tests/fuzz/run 10")] },
    Stage { name: "miri", minutes: 10, lane: Lane::Second, steps: &[Step::Xtask("miri", miri)] },
];

/// Runs the command.
///
/// # Errors
/// Exit code 2 if a stage is unknown, 1 if a stage failed.
pub fn run(context: &Context, arguments: &Ci) -> Result<(), Failure> {
    let known = |name: &String| STAGES.iter().find(|stage| stage.name == name);
    if let Some(unknown) = arguments.stages.iter().find(|name| known(name).is_none()) {
        let names = STAGES.map(|stage| stage.name).join(", ");
        return Err(Failure::with_code(2, format!("ci: found stage {unknown:?}, allowed: {names}")));
    }
    let named: Vec<&Stage> = arguments.stages.iter().filter_map(known).collect();
    if arguments.list {
        for stage in if named.is_empty() { STAGES.iter().collect() } else { named } {
            println!("{} ({} min)", stage.name, stage.minutes);
            for step in stage.steps {
                println!("    {}", step.shown());
            }
        }
        return Ok(());
    }
    let mut report = Report::default();
    let context = &context.ending_after(LIMIT);
    if named.is_empty() {
        let context = &context.recording_failed_tests();
        if let Some(free) = context.free_megabytes().filter(|free| *free < DISK) {
            println!("warning: {free} MB of disk are free, and a run in a clean checkout takes about {DISK}");
        }
        report.run(context, STAGES.iter().filter(|stage| stage.lane == Lane::Before));
        let second = SecondProcess::start(context)?;
        report.run(context, STAGES.iter().filter(|stage| stage.lane == Lane::First));
        let (succeeds, failed_in_second) = second.wait(context);
        report.print();
        if !succeeds {
            println!("stages of the second process: FAILED, or not run to their end; their table is above");
            report.failed = true;
        }
        // Repeated at the end, where they are easy to find.
        let failed_tests = context.failed_tests();
        for line in failed_tests.iter().chain(failed_in_second.lines()).filter(|_| report.failed) {
            println!("failed: {line}");
        }
    } else {
        report.run(context, named.into_iter());
        report.print();
    }
    if report.failed { Err(Failure::printed()) } else { Ok(()) }
}

/// Results of the stages.
#[derive(Clone, Debug, Default)]
struct Report {
    table: Vec<String>,
    late: Vec<String>,
    failed: bool,
}

impl Report {
    /// Runs stages and records their results.
    fn run<'a>(&mut self, context: &Context, stages: impl Iterator<Item = &'a Stage>) {
        for stage in stages {
            if context.is_interrupted() {
                self.failed = true;
                return;
            }
            let start = Instant::now();
            let result = stage.run(context);
            let (seconds, share) = (start.elapsed().as_secs(), stage.minutes * 60);
            self.failed |= result == Outcome::Failed || context.is_interrupted();
            let free = context.free_megabytes().map_or_else(|| "-".to_owned(), |free| free.to_string());
            self.table.push(format!(
                "{:<16} {seconds:7} {share:7} {free:>8}  {}",
                stage.name,
                result.shown()
            ));
            if seconds > share {
                let late =
                    format!("warning: stage '{}' took {seconds} s, its share is {share} s", stage.name);
                self.late.push(late);
            }
        }
    }

    fn print(&self) {
        println!("\n{:<16} {:>7} {:>7} {:>8}  result", "stage", "seconds", "share", "MB free");
        for line in self.table.iter().chain(&self.late) {
            println!("{line}");
        }
    }
}

/// Second process, for the stages with [`Lane::Second`]. Two processes are faster, because many stages use
/// only one core.
struct SecondProcess {
    process: Child,
    log: PathBuf,
}

impl SecondProcess {
    /// Starts the process with its output in a file.
    fn start(context: &Context) -> Result<Self, Failure> {
        let folder = context.root.join("target/ci");
        std::fs::create_dir_all(&folder)?;
        let log = folder.join("second.log");
        let file = File::create(&log)?;
        let stages = STAGES.iter().filter(|stage| stage.lane == Lane::Second);
        let mut command = context.command(std::env::current_exe()?);
        command.arg("ci").args(stages.map(|stage| stage.name));
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        println!("== in parallel, with its output in {}: {}", log.display(), shown(&command));
        Ok(Self { process: command.spawn()?, log })
    }

    /// Waits for the process and prints its output. Returns whether all stages succeeded, and the failed tests.
    fn wait(mut self, context: &Context) -> (bool, FailedTests) {
        // The second process has the same limit, and then prints its table.
        let status = context.wait(&mut self.process, LIMIT);
        println!("== output of the second process");
        let mut failed_tests = FailedTests::default();
        match std::fs::read(&self.log) {
            Ok(output) => {
                let output = String::from_utf8_lossy(&output);
                println!("{output}");
                output.lines().for_each(|line| failed_tests.read(line));
            }
            Err(error) => eprintln!("ci: {}: {error}", self.log.display()),
        }
        let succeeds = match status {
            Ok(status) => status.success(),
            Err(failure) => {
                eprintln!("ci: second process: {}", failure.message);
                false
            }
        };
        (succeeds, failed_tests)
    }
}

fn shown(command: &Command) -> String {
    let words = command.get_args().map(|word| word.to_string_lossy());
    format!("cargo xtask {}", words.collect::<Vec<_>>().join(" "))
}

/// Result of a step or of a stage. The result of a stage is the worst result of its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Passed,
    NotRun,
    Failed,
}

impl Outcome {
    fn from_code(code: Option<i32>) -> Self {
        match code {
            Some(0) => Self::Passed,
            Some(code) if code == i32::from(NOT_RUN) => Self::NotRun,
            _ => Self::Failed,
        }
    }

    fn shown(self) -> &'static str {
        match self {
            Self::Passed => "ok",
            Self::NotRun => "not run",
            Self::Failed => "FAILED",
        }
    }
}

impl Stage {
    /// Runs all steps; returns the worst result.
    fn run(&self, context: &Context) -> Outcome {
        let mut worst = Outcome::Passed;
        for step in self.steps {
            println!("== {}: {}", self.name, step.shown());
            worst = worst.max(step.run(context));
            if context.is_interrupted() {
                break;
            }
        }
        worst
    }
}

impl Step {
    fn shown(&self) -> String {
        match self {
            Self::Program(words) | Self::With(_, words) => {
                words.split_whitespace().collect::<Vec<_>>().join(" ")
            }
            Self::Xtask(words, _) => format!("cargo xtask {words}"),
        }
    }

    /// Runs the step; returns its result.
    fn run(&self, context: &Context) -> Outcome {
        let (variables, words) = match self {
            Self::Program(words) => (&[][..], *words),
            Self::With(variables, words) => (*variables, *words),
            Self::Xtask(_, run) => {
                return match run(context) {
                    Ok(()) => Outcome::Passed,
                    Err(Failure { message, code }) => {
                        if !message.is_empty() {
                            eprintln!("{message}");
                        }
                        Outcome::from_code(Some(i32::from(code)))
                    }
                };
            }
        };
        let mut command = context.words(words);
        match context.status(command.envs(variables.iter().copied())) {
            Ok(status) => Outcome::from_code(status.code()),
            Err(failure) => {
                eprintln!("{}", failure.message);
                Outcome::Failed
            }
        }
    }
}

/// Runs the tests of the device's crates and the corpus of the fuzz targets under Miri (command `cargo xtask
/// miri`). Miri checks the unsafe code of the dependencies; the crates themselves have none.
///
/// # Errors
/// Exit code 1 if Miri finds a fault or a test fails, 77 if Miri is not installed.
pub fn miri(context: &Context) -> Result<(), Failure> {
    // The query must not make rustup download a tool chain.
    let mut version = context.words("cargo +nightly miri --version");
    if !version.env("RUSTUP_AUTO_INSTALL", "0").output().is_ok_and(|output| output.status.success()) {
        let message =
            "miri: not run, since it is not here (rustup toolchain install nightly --component miri)";
        return Err(Failure::with_code(NOT_RUN, message));
    }
    let mut library = context.words("cargo +nightly miri test -p fedspan-protocol -p fedspan-client --lib");
    let mut corpus =
        context.words("cargo +nightly miri test -p fedspan-hostile --test targets seeds_and_corpus");
    library.env("PROPTEST_CASES", "4");
    let mut failed = false;
    for command in [&mut library, &mut corpus] {
        failed |= !context.succeeds(command.env("MIRIFLAGS", "-Zmiri-disable-isolation"));
    }
    if failed { Err(Failure::printed()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_ends_as_its_worst_step() {
        assert!(Outcome::Failed > Outcome::NotRun && Outcome::NotRun > Outcome::Passed);
        assert_eq!(
            [Some(0), Some(77), Some(1), None].map(Outcome::from_code),
            [Outcome::Passed, Outcome::NotRun, Outcome::Failed, Outcome::Failed]
        );
    }

    #[test]
    fn names_of_stages_are_unique() {
        let mut names = STAGES.map(|stage| stage.name).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), STAGES.len());
    }
}
