//! Program `exponential` that measures the error of this build's softmax, and the accuracies of networks
//! trained with it.

use std::process::ExitCode;

use fedspan_tests::exponential::{Errors, NAME, accuracy};

const USAGE: &str = "usage: exponential

Prints the errors of softmax and cross-entropy against f64, and accuracies after training on the bundled digits. A build has
one exponential; compare two builds:
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
    println!("softmax, {rows} rows: largest error of a probability {softmax:.1e}");
    println!("cross-entropy: largest error {cross_entropy:.1e}");
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
