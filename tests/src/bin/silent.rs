//! Program `silent` that measures the rounds a second of a fleet with a device that never answers, and with a
//! thief that reconnects without end.

use std::process::ExitCode;
use std::time::Duration;

use fedspan_tests::silent::{DEADLINE, Disturbance, measure};

const USAGE: &str = "usage: silent [SECONDS]

Starts fedspan-aggregator, which must be next to this program, six times with 3 devices, policy \"full\" and a deadline of 5 s: alone,
beside a device that never answers, and beside a thief that has the key of device 1 and reconnects without end, each without patience
and with patience = 3. Prints the rounds a second in the second half of SECONDS (default 40).
exit: 0 measured, 1 an error, 2 wrong arguments";

/// Number of devices that answer.
const DEVICES: usize = 3;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seconds = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["-h" | "--help"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        [] => Some(40),
        [seconds] => seconds.parse().ok().filter(|seconds| *seconds > 0),
        _ => None,
    };
    let Some(seconds) = seconds.map(Duration::from_secs) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let server = match std::env::current_exe() {
        Ok(program) => program.with_file_name("fedspan-aggregator"),
        Err(error) => {
            eprintln!("silent: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!(
        "{DEVICES} devices, deadline = {DEADLINE} s; rounds a second (connections of the thief a second)"
    );
    println!("patience   alone   silent device   thief");
    for patience in [0, 3] {
        let mut line = format!("{patience:8}");
        for disturbance in [Disturbance::None, Disturbance::Silent, Disturbance::Thief] {
            match measure(&server, DEVICES, patience, disturbance, seconds).await {
                Ok(rate) if disturbance == Disturbance::Thief => {
                    line += &format!("  {:8.1} ({:.0})", rate.rounds, rate.reconnections);
                }
                Ok(rate) => line += &format!("  {:8.1}", rate.rounds),
                Err(error) => {
                    eprintln!("silent: {error}");
                    return ExitCode::FAILURE;
                }
            }
        }
        println!("{line}");
    }
    ExitCode::SUCCESS
}
