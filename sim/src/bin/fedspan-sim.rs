//! The simulator's program; see `fedspan-sim --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    fedspan_sim::cli::main()
}
