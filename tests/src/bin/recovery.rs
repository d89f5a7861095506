//! Program `recovery [DEVICES [ROUNDS]]` that measures how long a server needs to recover, and what an export
//! costs.

use std::process::ExitCode;

use fedspan_tests::recovery::{Export, Report, measure};

const USAGE: &str = "usage: recovery [DEVICES [ROUNDS]]

Creates the state of a campaign with DEVICES (default 10000) and a (64, 4) model: ROUNDS (default 10) complete rounds, and one
in which a single answer is missing. Then starts fedspan-aggregator, which must be next to this program, on this state 11 times,
and prints the time until it has sent the open round to the missing device. Finally prints the cost of an export while it runs.
exit: 0 measured, 1 an error, 2 wrong arguments";

/// Number of starts to measure.
const TIMES: usize = 11;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (devices, rounds) = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["-h" | "--help"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        [] => (Some(10_000), Some(10)),
        [devices] => (devices.parse().ok(), Some(10)),
        [devices, rounds] => (devices.parse().ok(), rounds.parse().ok()),
        _ => (None, None),
    };
    let (Some(devices), Some(rounds)) = (devices.filter(|devices| *devices > 0), rounds) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let server = match std::env::current_exe() {
        Ok(program) => program.with_file_name("fedspan-aggregator"),
        Err(error) => {
            eprintln!("recovery: {error}");
            return ExitCode::FAILURE;
        }
    };
    match measure(&server, devices, rounds, TIMES) {
        Ok(Report { lines, bytes, times, export }) => {
            let milliseconds = |index: usize| times.get(index).map_or(0, |time| time.as_millis());
            println!(
                "{devices} devices, {} updates in the middle of a round, {lines} journal entries, {:.1} MB: recovered after {} ms \
                 (longest of {TIMES}: {} ms)",
                devices - 1,
                bytes as f64 / 1e6,
                milliseconds(TIMES / 2),
                milliseconds(TIMES - 1)
            );
            let Export { took, client, server, bytes } = export;
            let [client, server, bytes] = [client, server, bytes].map(|bytes| bytes as f64 / 1e6);
            println!(
                "export from the running server: {bytes:.1} MB in {} ms; memory: {client:.1} MB of the command, {server:.1} MB more of the server",
                took.as_millis()
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("recovery: {error}");
            ExitCode::FAILURE
        }
    }
}
