//! Command `cargo xtask run`: runs the tests of the workspace, the bare-metal builds and the emulated boards.

mod times;

use std::time::Instant;

use clap::Args;

use crate::bare_metal;
use crate::process::{Context, Failure, is_ci, variable};
use crate::setup::{self, Setup, Toolchain};
use times::Times;

/// Arguments of `cargo xtask run`.
#[derive(Args, Clone, Copy, Debug)]
#[command(
    after_help = "Runs every check this machine can run, and prints which ones it could not. First it prints what it will
run and skip, and about how long that takes: as long as the last time here, or else as long as on two
cores of a 2020s server.

FEDSPAN_TEST_PROFILE=dev builds the tests with that cargo profile (default: release, with --quick dev).
PROPTEST_RNG_SEED=N draws other random cases (default: 7, the same in every run).
exit: 0 what ran has passed · 1 a check failed, or with CI=true was not run · 2 wrong arguments"
)]
pub struct Suite {
    /// Fetch missing targets and emulators first (see tests/setup --help).
    #[arg(long, conflicts_with = "quick")]
    pub install: bool,
    /// Run unit, property and model tests only, without boards and long tests: for every change.
    #[arg(long)]
    pub quick: bool,
}

impl Suite {
    /// Returns arguments that run every check and first fetch missing tools.
    #[must_use]
    pub fn of_ci() -> Self {
        Self { install: true, quick: false }
    }
}

/// Tests of the workspace that take long: filters of test names, and what the tests cover.
const LONG: [(&str, &str); 4] = [
    ("audit::", "statistical audit of the client's noise"),
    ("discrete_gaussian::", "distribution of the client's noise"),
    ("attack_", "attacks on the client's noise"),
    ("entropy::good_sources_are_rarely_rejected", "long runs of the test of random sources"),
];

/// One check of the test command.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    /// Name of the check in the file of times.
    key: &'static str,
    label: &'static str,
    /// Usual time in seconds with a warm build on two cores of a 2020s server.
    usual: u64,
    action: Action,
}

/// Work of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    /// Runs cargo with these arguments.
    Cargo(Vec<String>),
    /// Runs a script of the repository.
    Script(&'static str),
    /// Calls [`bare_metal::build`].
    BareMetal,
}

/// Checks that run, checks that are skipped on purpose, and checks for which a tool is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Plan {
    steps: Vec<Step>,
    skipped: Vec<&'static str>,
    not_run: Vec<&'static str>,
}

/// Runs the command.
///
/// # Errors
/// A check failed, or in CI was not run.
pub fn run(context: &Context, arguments: &Suite) -> Result<(), Failure> {
    let (toolchain, plan) = if arguments.quick {
        (Toolchain::default(), Plan::quick(&test_profile_or("dev")))
    } else {
        let setup = Setup { install: arguments.install, targets_only: false };
        let toolchain = setup::find(context, setup)?;
        if let Some(missing) = toolchain.missing(setup) {
            // A missing tool is no reason to skip the other checks.
            eprintln!("{missing}");
        }
        let plan =
            Plan::full(&test_profile_or("release"), toolchain.compiler.is_some(), toolchain.can_emulate());
        (toolchain, plan)
    };
    let mut times = Times::read(context);
    plan.announce(&times);
    // Every run uses the same random cases; PROPTEST_RNG_SEED=$RANDOM tests/run draws others.
    let seed = variable("PROPTEST_RNG_SEED").unwrap_or_else(|| "7".to_owned());
    let start = Instant::now();
    let mut failed = Vec::new();
    for step in &plan.steps {
        let step_start = Instant::now();
        // The encoder's tests run a program that only their own build has.
        let _lock = match step.key {
            "encoder" => Some(context.lock_programs()?),
            "bare-metal" | "emulated" => Some(context.lock_firmware()?),
            _ => None,
        };
        let mut program = match &step.action {
            Action::BareMetal => None,
            Action::Cargo(arguments) => {
                let mut cargo = context.cargo(&[]);
                cargo.args(arguments);
                Some(cargo)
            }
            Action::Script(script) => Some(context.words(script)),
        };
        let succeeds = match &mut program {
            None => bare_metal::build(context, &toolchain).is_ok(),
            // A test that builds firmware must use the same tool chain.
            Some(program) => {
                context.succeeds(program.env("PROPTEST_RNG_SEED", &seed).envs(toolchain.variables()))
            }
        };
        if context.is_interrupted() {
            return Err(Failure::with_code(130, "tests/run: interrupted"));
        }
        if succeeds {
            times.record(step.key, step_start.elapsed().as_secs());
        } else {
            failed.push(step.label);
        }
    }
    times.write(context)?;
    plan.report_missing();
    for label in &failed {
        println!("tests/run: FAILED: {label}");
    }
    println!(
        "tests/run: {} of {} checks passed in {} s",
        plan.steps.len() - failed.len(),
        plan.steps.len(),
        start.elapsed().as_secs()
    );
    if failed.is_empty() && (plan.not_run.is_empty() || !is_ci()) { Ok(()) } else { Err(Failure::printed()) }
}

/// Returns the cargo profile of the tests.
fn test_profile_or(default: &str) -> String {
    variable("FEDSPAN_TEST_PROFILE").unwrap_or_else(|| default.to_owned())
}

const WORKSPACE: &str = "all tests of the workspace";
const THREADS: &str = "every order of the operations that threads share";
const ENCODER: &str = "tests of the encoder, which is not built by default";
const BARE_METAL: &str = "bare-metal builds";
const EMULATED: &str = "fleets of emulated boards";

impl Plan {
    /// Returns the plan with every check that the tool chain allows.
    fn full(profile: &str, has_targets: bool, can_emulate: bool) -> Self {
        let cargo = |words: &[&str]| Action::Cargo(words.iter().map(|word| (*word).to_owned()).collect());
        // The option --no-fail-fast makes one run show all failures.
        let workspace = cargo(&["test", "--workspace", "--locked", "--no-fail-fast", "--profile", profile]);
        // The option --workspace instead of -p keeps the features of the dependencies, which would all be
        // rebuilt otherwise.
        let encoder = [
            "test",
            "--workspace",
            "--locked",
            "--features",
            "fedspan-sim/encoder",
            "--test",
            "encoder",
            "--profile",
            profile,
        ];
        let mut plan = Self {
            steps: vec![
                Step { key: "workspace", label: WORKSPACE, usual: 300, action: workspace },
                Step {
                    key: "threads",
                    label: THREADS,
                    usual: 60,
                    action: Action::Script("tests/threads/run"),
                },
                Step { key: "encoder", label: ENCODER, usual: 60, action: cargo(&encoder) },
            ],
            ..Self::default()
        };
        if has_targets {
            plan.steps.push(Step {
                key: "bare-metal",
                label: BARE_METAL,
                usual: 30,
                action: Action::BareMetal,
            });
        } else {
            plan.not_run.push("bare-metal builds (no Rust targets)");
        }
        if can_emulate {
            let emulated = [
                "test",
                "--workspace",
                "--locked",
                "--features",
                "fedspan-tests/emulation",
                "--test",
                "emulation",
                "--profile",
                profile,
                "--",
                "emulated::",
                "network_sizes::",
                "template::",
            ];
            plan.steps.push(Step { key: "emulated", label: EMULATED, usual: 90, action: cargo(&emulated) });
        } else {
            plan.not_run.push("fleets of emulated boards (no QEMU or no Rust targets)");
        }
        plan
    }

    /// Returns the plan with the checks for every change.
    fn quick(profile: &str) -> Self {
        let mut words =
            vec!["test", "--workspace", "--exclude", "fedspan-tests", "--exclude", "fedspan-hostile"];
        words.extend([
            "--lib",
            "--bins",
            "--tests",
            "--locked",
            "--no-fail-fast",
            "--profile",
            profile,
            "--",
        ]);
        let skipped = LONG.iter().flat_map(|(filter, _)| ["--skip", filter]);
        let action = Action::Cargo(words.into_iter().chain(skipped).map(str::to_owned).collect());
        let label = "unit, property and model tests of the workspace";
        let mut plan =
            Self { steps: vec![Step { key: "quick", label, usual: 150, action }], ..Self::default() };
        plan.skipped = vec![
            "tests across crates, of load and of faults (fedspan-tests), hostile bytes (fedspan-hostile)",
        ];
        plan.skipped.extend(LONG.iter().map(|(_, covers)| covers));
        plan.skipped.extend(["examples in documentation", THREADS, ENCODER, BARE_METAL, EMULATED]);
        plan
    }

    /// Prints the checks that will run or be skipped, and about how long the run takes.
    fn announce(&self, times: &Times) {
        println!("tests/run: will run, with a warm build");
        let mut total = 0;
        for step in &self.steps {
            let seconds = times.seconds_of(step.key).unwrap_or(step.usual);
            total += seconds;
            println!("  about {:>7}  {}", format_duration(seconds), step.label);
        }
        if self.steps.len() > 1 {
            println!("  about {:>7}  in all", format_duration(total));
        }
        if !self.skipped.is_empty() {
            println!("tests/run: skips (tests/run without --quick runs them)");
            for label in &self.skipped {
                println!("  {label}");
            }
        }
        for label in &self.not_run {
            println!("tests/run: cannot run {label}");
        }
    }

    /// Prints the checks for which a tool is missing.
    fn report_missing(&self) {
        if self.not_run.is_empty() {
            return;
        }
        println!("tests/run: checks NOT run: {} (tests/setup says what they need)", self.not_run.len());
        for (index, label) in self.not_run.iter().enumerate() {
            println!("  {}. {label}", index + 1);
        }
        if is_ci() {
            println!("tests/run: in CI a check that was not run has failed");
        }
    }
}

/// Formats seconds as text, in whole minutes from two minutes on.
fn format_duration(seconds: u64) -> String {
    if seconds < 120 { format!("{seconds} s") } else { format!("{} min", (seconds + 30) / 60) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_is_run_or_named_as_not_run() {
        for (has_targets, can_emulate, missing) in [(true, true, 0), (true, false, 1), (false, false, 2)] {
            let plan = Plan::full("release", has_targets, can_emulate);
            assert_eq!(plan.not_run.len(), missing);
            assert_eq!(plan.steps.len() + plan.not_run.len(), 5);
        }
    }

    #[test]
    fn quick_run_names_every_check_that_it_skips() {
        let plan = Plan::quick("dev");
        assert_eq!(plan.steps.len(), 1);
        for step in Plan::full("release", true, true).steps {
            // The quick plan runs a part of the workspace's tests, so it does not name them as skipped.
            assert!(step.label == WORKSPACE || plan.skipped.contains(&step.label), "{}", step.label);
        }
        for (filter, _) in LONG {
            let Action::Cargo(words) = &plan.steps[0].action else { continue };
            assert!(words.iter().any(|word| word == filter));
        }
    }

    #[test]
    fn times_are_printed_in_seconds_or_minutes() {
        assert_eq!(
            [0, 119, 120, 149, 150, 600].map(format_duration),
            ["0 s", "119 s", "2 min", "2 min", "3 min", "10 min"]
        );
    }
}
