//! `exponential`: what the softmax is off by in this build, and the accuracies of networks that it has trained.

use std::process::ExitCode;

use fedspan_tests::exponential::{Errors, NAME, accuracy};

const USAGE: &str = "usage: exponential

Prints what softmax and cross-entropy are off by against f64, and accuracies after training on the bundled digits. A build has
one exponential, so two builds make a comparison:
  cargo run --release -p fedspan-tests --bin exponential
  cargo run --release -p fedspan-tests --features micromath --bin exponential
exit: 0 done, 1 a run failed, 2 wrong arguments";

const SCENARIO: &str = "digits-network";
const ALGORITHMS: [&str; 3] = ["fedrep", "fedavg", "local-only"];
const SEEDS: [u64; 3] = [1, 2, 3];

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        None => {}
        Some("-h" | "--help") => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Some(_) => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    }
    let Errors { rows, softmax, cross_entropy } = Errors::measure();
    println!("exponential: {NAME}");
    println!("softmax, {rows} rows: a probability is off by {softmax:.1e} at most");
    println!("cross-entropy: off by {cross_entropy:.1e} at most");
    for algorithm in ALGORITHMS {
        print!("{SCENARIO}, {algorithm}:");
        for seed in SEEDS {
            match accuracy(SCENARIO, algorithm, seed) {
                Ok(accuracy) => print!(" {accuracy:.4}"),
                Err(error) => {
                    eprintln!("exponential: seed {seed}: {error}");
                    return ExitCode::FAILURE;
                }
            }
        }
        println!(" (seeds 1 to 3)");
    }
    ExitCode::SUCCESS
}
