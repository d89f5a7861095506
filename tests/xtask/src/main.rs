//! Program `cargo xtask`: parses the command line and runs the command.

use std::io::BufRead;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use fedspan_xtask::dependencies::{advisories, licences, msrv, package};
use fedspan_xtask::{
    Context, Failure, bare_metal, ci, commands, cycles, emulation, firmware, fuzz, nightly, prose, seeded,
    setup, suite,
};

/// Checks and chores of the FedSpan repository.
#[derive(Parser, Debug)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the tests: the workspace's, the bare-metal builds, fleets of emulated boards.
    Run(suite::Suite),
    /// Run the stages of continuous integration.
    Ci(ci::Ci),
    /// Run tests of protocol and client under Miri, where it is installed.
    Miri,
    /// Find, or fetch, what bare-metal builds and emulated boards need.
    Setup(setup::Setup),
    /// Build the device's crate for bare-metal targets in target/boards.
    BareMetal,
    /// Build the firmware of real boards; measure flash and static RAM.
    Firmware(firmware::Firmware),
    /// Run the firmware of emulated boards; measure what an update costs.
    Boards(emulation::Emulation),
    /// Estimate cycles from a log of `qemu -d in_asm,exec,nochain` on standard input.
    Cycles {
        /// Core, one of m0, m3, m4, rv32imc.
        core: String,
    },
    /// Put seeded bugs into a copy of the sources; count the simulated disasters that detect each.
    Mutants(seeded::Mutants),
    /// Run the checks of the data that threads share, in every order of their steps.
    Threads(seeded::Threads),
    /// Fuzz every target for some seconds.
    Fuzz(fuzz::Fuzz),
    /// Run the shell blocks of the documentation as they are printed.
    Commands(commands::Commands),
    /// Run the checks that take hours.
    Nightly(nightly::Nightly),
    /// Check the licences and sources of all dependencies against deny.toml.
    Licences,
    /// Check all dependencies against a copy of the RustSec database.
    Advisories(advisories::Advisories),
    /// Check the oldest version of Rust that the manifests promise.
    Msrv(msrv::Msrv),
    /// Pack every crate that is meant to be published.
    Package(package::Pack),
    /// Count comments, log lines, error texts and names of tests that break the rules for words.
    Prose(prose::Prose),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match Context::new(root()).map_err(Failure::from).and_then(|context| run(&context, &arguments.command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                eprintln!("{}", failure.message);
            }
            ExitCode::from(failure.code)
        }
    }
}

/// Runs a command.
fn run(context: &Context, command: &Command) -> Result<(), Failure> {
    match command {
        Command::Run(arguments) => suite::run(context, arguments),
        Command::Ci(arguments) => ci::run(context, arguments),
        Command::Miri => ci::miri(context),
        Command::Setup(arguments) => setup::run(context, *arguments).map(|_| ()),
        Command::BareMetal => bare_metal::run(context),
        Command::Firmware(arguments) => firmware::run(context, arguments),
        Command::Boards(arguments) => emulation::run(context, arguments),
        Command::Cycles { core } => print_cycles(core, std::io::stdin().lock()),
        Command::Mutants(arguments) => seeded::mutants(context, arguments),
        Command::Threads(arguments) => seeded::threads(context, *arguments),
        Command::Fuzz(arguments) => fuzz::run(context, arguments),
        Command::Commands(arguments) => commands::run(context, arguments),
        Command::Nightly(arguments) => nightly::run(context, arguments),
        Command::Licences => licences::run(context),
        Command::Advisories(arguments) => advisories::run(context, arguments),
        Command::Msrv(arguments) => msrv::run(context, *arguments),
        Command::Package(arguments) => package::run(context, *arguments),
        Command::Prose(arguments) => prose::run(&context.root, arguments),
    }
}

fn print_cycles(core: &str, log: impl BufRead) -> Result<(), Failure> {
    let core = cycles::Core::named(core).ok_or_else(|| {
        Failure::with_code(2, format!("cycles: found core {core:?}, allowed: m0, m3, m4, rv32imc"))
    })?;
    println!("{}", cycles::estimate(core, log).map_err(|fault| Failure::new(format!("cycles: {fault}")))?);
    Ok(())
}

/// Returns the root of the repository: two folders above this package, whose folder `cargo run` provides in a
/// variable.
fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package.ancestors().nth(2).map_or_else(|| PathBuf::from("."), PathBuf::from)
}
