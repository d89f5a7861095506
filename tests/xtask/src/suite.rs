//! `cargo xtask run`: the one test command.

use std::time::Instant;

use clap::Args;

use crate::bare_metal;
use crate::process::{Context, Failure, is_ci, test_profile, variable};
use crate::setup::{self, Setup};

/// Arguments of `cargo xtask run`.
#[derive(Args, Clone, Copy, Debug)]
#[command(after_help = "Runs every check this machine can run, and prints which ones it could not.

FEDSPAN_TEST_PROFILE=dev builds the tests with that cargo profile (default: release).
PROPTEST_RNG_SEED=N draws other random cases (default: 7, the same in every run).
exit: 0 what ran has passed · 1 a check failed, or with CI=true was not run · 2 wrong arguments")]
pub struct Suite {
    /// Fetch missing targets and emulators first (see tests/setup --help).
    #[arg(long)]
    pub install: bool,
}

/// Runs the command.
///
/// # Errors
/// A check failed, or in CI was not run.
pub fn run(context: &Context, arguments: &Suite) -> Result<(), Failure> {
    let setup = Setup { install: arguments.install, targets_only: false };
    let toolchain = setup::find(context, setup)?;
    if let Some(missing) = toolchain.missing(setup) {
        // No reason to skip the rest.
        eprintln!("{missing}");
    }
    let start = Instant::now();
    let profile = test_profile();
    // The same random cases in every run: PROPTEST_RNG_SEED=$RANDOM tests/run draws others.
    let seed = variable("PROPTEST_RNG_SEED").unwrap_or_else(|| "7".to_owned());
    let succeeds = |words: &[&str]| {
        let mut program = match words {
            ["cargo", arguments @ ..] => context.cargo(arguments),
            [script, arguments @ ..] => {
                let mut program = context.command(context.root.join(script));
                program.args(arguments);
                program
            }
            [] => return true,
        };
        // A test that builds firmware uses the same tool chain.
        context.succeeds(program.env("PROPTEST_RNG_SEED", &seed).envs(toolchain.variables()))
    };
    let mut failed = false;
    // --no-fail-fast: one run shows everything that is broken.
    failed |=
        !succeeds(&["cargo", "test", "--workspace", "--locked", "--no-fail-fast", "--profile", &profile]);
    failed |= !succeeds(&["tests/threads/run"]);
    // Not built by default.
    let encoder = ["--features", "encoder", "--test", "encoder", "--profile", &profile];
    failed |= !succeeds(&[&["cargo", "test", "-p", "fedspan-sim", "--locked"][..], &encoder].concat());
    let mut not_run = Vec::new();
    if toolchain.compiler.is_some() {
        failed |= bare_metal::build(context, &toolchain).is_err();
    } else {
        not_run.push("bare-metal builds (no Rust targets)");
    }
    if toolchain.can_emulate() {
        let emulated =
            ["--features", "emulation", "--test", "emulation", "--profile", &profile, "--", "emulated::"];
        failed |= !succeeds(&[&["cargo", "test", "-p", "fedspan-tests", "--locked"][..], &emulated].concat());
    } else {
        not_run.push("fleets of emulated boards (no QEMU or no Rust targets)");
    }
    if !not_run.is_empty() {
        println!("tests/run: checks NOT run: {} (tests/setup says what they need)", not_run.len());
        for (index, check) in not_run.iter().enumerate() {
            println!("  {}. {check}", index + 1);
        }
        if is_ci() {
            println!("tests/run: in CI a check that was not run has failed");
            failed = true;
        }
    }
    println!("tests/run: {} s", start.elapsed().as_secs());
    if context.is_interrupted() {
        return Err(Failure::with_code(130, "tests/run: interrupted"));
    }
    if failed { Err(Failure::printed()) } else { Ok(()) }
}
