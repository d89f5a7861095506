//! `cycles CORE < LOG`: estimates cycles from a log of QEMU.

use std::process::ExitCode;

use fedspan_tests::cycles::{Core, estimate};

const USAGE: &str = "usage: cycles CORE < LOG

Estimates the cycles of a program from the log of `qemu -d in_asm,exec,nochain` and the tables of the core's manual.
CORE is m0, m3, m4 or rv32imc. exit: 0 a number is printed, 1 the log cannot be parsed, 2 wrong arguments";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (Some(name), None) = (arguments.next(), arguments.next()) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if name == "-h" || name == "--help" {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let Some(core) = Core::named(&name) else {
        eprintln!("cycles: unknown core {name}\n{USAGE}");
        return ExitCode::from(2);
    };
    match estimate(core, std::io::stdin().lock()) {
        Ok(cycles) => {
            println!("{cycles}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("cycles: {error}");
            ExitCode::FAILURE
        }
    }
}
