//! Program `kills N [SEED]` that kills a real server N times with SIGKILL while 50 real device sessions load
//! it.

use std::process::ExitCode;

use fedspan_tests::kills::{Report, run};

const USAGE: &str = "usage: kills N [SEED]

Starts fedspan-aggregator, which must be next to this program, connects 50 devices over TCP, and kills the server N times, each
1 to 59 ms after it listens. Then compares every acknowledgement with the server's state, and replays the journal.
exit: 0 nothing was lost or counted twice, 1 something was, 2 wrong arguments";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (kills, seed) = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["-h" | "--help"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        [kills] => (kills.parse(), Ok(1)),
        [kills, seed] => (kills.parse(), seed.parse()),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    let (Ok(kills), Ok(seed)) = (kills, seed) else {
        eprintln!("kills: N and SEED must be numbers\n{USAGE}");
        return ExitCode::from(2);
    };
    let server = match std::env::current_exe() {
        Ok(program) => program.with_file_name("fedspan-aggregator"),
        Err(error) => {
            eprintln!("kills: {error}");
            return ExitCode::FAILURE;
        }
    };
    let result = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(run(&server, kills, seed)),
        Err(error) => Err(error.to_string()),
    };
    match result {
        Ok(Report { kills, mid_round, rounds, counted, acknowledged, recovery: [median, longest] }) => {
            println!(
                "{kills} kills, {mid_round} of them in the middle of a round: {rounds} rounds, {counted} updates counted, \
                 {acknowledged} acknowledgements received; 0 lost, 0 counted twice, every round decided the same again; \
                 listening after {median} ms (longest {longest} ms)"
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("kills: {error}");
            ExitCode::FAILURE
        }
    }
}
