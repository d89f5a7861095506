//! Binary `fedspan-sim`; see `fedspan-sim --help`.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
