//! Program `fedspan-sim` that simulates fleets of devices. `fedspan-sim --help` lists its commands.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
