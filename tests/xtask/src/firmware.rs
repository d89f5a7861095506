//! Command `cargo xtask firmware`: builds the firmware of the boards of real hardware and measures flash and
//! static RAM.

use std::fmt::Write;
use std::time::Instant;

use clap::Args;

use crate::boards::{Boards, level_options};
use crate::elf::{self, Sizes};
use crate::process::{Context, Failure, test_profile};
use crate::setup::{self, FOLDER, Setup, Toolchain};

/// Arguments of `cargo xtask firmware`.
#[derive(Args, Clone, Debug, Default)]
#[command(
    after_help = "Builds null and client for every board of real hardware (or those named), runs on the host the tests
of what they share, and prints flash and static RAM in bytes. Then links the whole client without
any board, which works only if no panic can be reached:

  \"s\"    everything at \"s\" (as the boards' Cargo.toml has it), for three shapes (d, k)
  \"3\"    everything at opt-level 3, for the same shapes
  \"3+s\"  the firmware at 3, client and protocol crates at \"s\"

Boards and variants are those of edge-client/boards/boards.toml. All figures go to
target/boards/sizes.jsonl. Fails if a firmware does not build, or if a figure has grown by more than
2 % over tests/budgets.toml (all boards only). FEDSPAN_REGENERATE_BUDGETS=1 writes new budgets and
the table of edge-client/FOOTPRINT.md. Nothing is flashed.

exit: 0 all well · 1 something failed · 2 wrong arguments · 3 something is missing (tests/setup says
what)"
)]
pub struct Firmware {
    /// Boards, by their names in the table.
    #[arg(value_name = "BOARD")]
    pub boards: Vec<String>,
}

/// One program to build.
struct Build<'a> {
    folder: &'a str,
    program: &'a str,
    target: &'a str,
    level: &'a str,
    label: &'a str,
    features: &'a [String],
}

/// Runs the command.
///
/// # Errors
/// Exit code 2 if a board is unknown, 3 if a tool is missing, 1 if a build fails or a value exceeds its
/// budget.
pub fn run(context: &Context, arguments: &Firmware) -> Result<(), Failure> {
    let boards = Boards::read(&context.root).map_err(Failure::new)?;
    if let Some(unknown) =
        arguments.boards.iter().find(|name| !boards.hardware.iter().any(|board| board.name == **name))
    {
        let names: Vec<_> = boards.hardware.iter().map(|board| board.name.as_str()).collect();
        return Err(Failure::with_code(
            2,
            format!("firmware: found board {unknown:?}, allowed: {}", names.join(", ")),
        ));
    }
    let toolchain = setup::run(context, Setup { targets_only: true, ..Setup::default() })?;
    let mut failed = false;
    let mut sizes = String::new();
    let mut measure = |build: Build<'_>| {
        let start = Instant::now();
        let sizes_of_build = measure(context, &toolchain, &build);
        let (flash, ram) = sizes_of_build
            .as_ref()
            .map_or_else(|_| Default::default(), |s| (s.flash.to_string(), s.ram.to_string()));
        let Build { folder, program, target, level, label, .. } = build;
        if let Ok(Sizes { flash, ram }) = sizes_of_build {
            let _ = writeln!(
                sizes,
                "{{\"program\":\"{folder}/{program}\",\"target\":\"{target}\",\"opt_level\":\"{level}\",\"shape\":\"{label}\",\
                 \"flash\":{flash},\"ram\":{ram}}}"
            );
        }
        let core = target.split('-').next().unwrap_or(target);
        let result = sizes_of_build.as_ref().map_or("FAILED", |_| "ok");
        println!(
            "firmware {folder:<16} {program:<6} {core:<10} {level:<4} {label:<6} flash {flash:>6}  static RAM {ram:>6} {:4} s  {result}",
            start.elapsed().as_secs()
        );
        if let Err(Failure { message, .. }) = sizes_of_build
            && !message.is_empty()
        {
            eprintln!("firmware: {message}");
        }
        failed |= result != "ok";
        context.is_interrupted()
    };
    let start = Instant::now();
    let mut shared_tests = context.cargo(&["test", "--quiet", "--locked"]);
    shared_tests
        .current_dir(context.root.join("edge-client/boards/firmware"))
        .env("CARGO_TARGET_DIR", context.root.join(FOLDER));
    let shared_tests_pass = context.succeeds(&mut shared_tests);
    println!("firmware on the host {} s", start.elapsed().as_secs());
    for board in &boards.hardware {
        if !arguments.boards.is_empty() && !arguments.boards.contains(&board.name) {
            continue;
        }
        for program in ["null", "client"] {
            let build = Build {
                folder: &board.name,
                program,
                target: &board.target,
                level: "s",
                label: "",
                features: &[],
            };
            if measure(build) {
                return Err(Failure::with_code(130, "firmware: interrupted"));
            }
        }
    }
    for (linked, core) in boards.links() {
        let build = Build {
            folder: "least",
            program: &linked.program,
            target: &core.target,
            level: &linked.level,
            label: &linked.label,
            features: &linked.features,
        };
        if measure(build) {
            return Err(Failure::with_code(130, "firmware: interrupted"));
        }
    }
    crate::process::write_whole(&context.root.join(FOLDER).join("sizes.jsonl"), &sizes)?;
    if failed || !shared_tests_pass {
        return Err(Failure::printed());
    }
    // The lists of budgets contain all boards, so they are checked only after a run of all boards.
    if arguments.boards.is_empty() && !check_budgets(context, &["flash::"], false) {
        return Err(Failure::printed());
    }
    Ok(())
}

/// Builds one program and measures it.
fn measure(context: &Context, toolchain: &Toolchain, build: &Build<'_>) -> Result<Sizes, Failure> {
    let level =
        level_options(build.level).ok_or_else(|| Failure::new(format!("no level {}", build.level)))?;
    let mut cargo = toolchain.cargo(context)?;
    cargo.args(["build", "--quiet", "--release", "--locked"]).args(toolchain.firmware_options());
    cargo.args(["--target", build.target, "--bin", build.program]);
    if !build.features.is_empty() {
        cargo.args(["--features", &build.features.join(",")]);
    }
    let folder = context.root.join(FOLDER);
    cargo.args(level).env("CARGO_TARGET_DIR", &folder);
    cargo.current_dir(context.root.join("edge-client/boards").join(build.folder));
    if !context.status(&mut cargo)?.success() {
        return Err(Failure::printed());
    }
    let file = folder.join(build.target).join("release").join(build.program);
    let bytes = std::fs::read(&file).map_err(|error| Failure::new(format!("{}: {error}", file.display())))?;
    elf::sizes(&bytes).map_err(|fault| Failure::new(format!("{}: {fault}", file.display())))
}

/// Runs the tests that compare the measurements with `tests/budgets.toml`; returns whether they pass.
pub fn check_budgets(context: &Context, filters: &[&str], as_built: bool) -> bool {
    let profile = test_profile();
    // The option -p would build the dependencies once more, with other features.
    let words = ["test", "--quiet", "--workspace", "--locked", "--features", "fedspan-tests/emulation"];
    let mut cargo = context.cargo(&words);
    cargo.args(["--test", "emulation", "--profile", &profile, "--"]).args(filters);
    if as_built {
        cargo.env("FEDSPAN_AS_BUILT", "1");
    }
    context.succeeds(cargo.env_remove("CARGO_TARGET_DIR"))
}
