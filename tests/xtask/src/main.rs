//! Checks and chores of the repository, started by `cargo xtask`.

mod prose;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Checks and chores of the FedSpan repository.
#[derive(Parser, Debug)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Count comments, log lines, error texts and names of tests that break the rules for words.
    Prose(prose::Prose),
}

/// A command has failed: the message for standard error, and the exit code.
#[derive(Debug)]
pub struct Failure {
    message: String,
    code: u8,
}

impl Failure {
    /// Failure with exit code 1.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: 1 }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(error.to_string())
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match &arguments.command {
        Command::Prose(prose) => prose::run(&root(), prose),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{}", failure.message);
            ExitCode::from(failure.code)
        }
    }
}

/// Root of the repository: two folders above this package, as cargo says when it runs it.
fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package.ancestors().nth(2).map_or_else(|| PathBuf::from("."), PathBuf::from)
}
