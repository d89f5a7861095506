//! The firmware on emulated cores as real clients of the real server: fleets learn what the simulator learns,
//! bit for bit. Needs QEMU and the boards' targets; `tests/run` says so where they are missing.
#![cfg(feature = "emulation")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::path::Path;

use fedspan_aggregator::linalg::{Matrix, orthonormal};
use fedspan_aggregator::store;
use fedspan_sim::emulate::{CORES, Link, Plan, Watch, run as emulate};
use fedspan_sim::run::{Unwatched, run};
use fedspan_sim::scenario::Scenario;

struct Silent;

impl Watch for Silent {
    fn say(&mut self, _what: &str) {}
    fn status(&mut self, _status: &serde_json::Value) {}
}

/// Boards of one core, some rounds of the watch scenario. With a board for each of the eight wearers the
/// result is the simulator's: representation and accuracies.
async fn fleet(core: &str, boards: usize, link: Link, rounds: u32) {
    let text = Scenario::built_in("demo").expect("a scenario");
    let scenario = Scenario::parse("demo", text, &[format!("algorithm.rounds={rounds}")]).expect("scenario");
    let scratch = tempfile::tempdir().expect("a directory");
    let plan = Plan {
        scenario: &scenario,
        boards,
        core: CORES.into_iter().find(|known| known.word == core).expect("a core"),
        link,
        root: Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository"),
        firmware: None,
        scratch: scratch.path(),
    };
    let emulated = emulate(&plan, std::future::pending(), &mut Silent).await.expect("a fleet");
    assert_eq!((emulated.status.phase.as_str(), emulated.status.round), ("finished", rounds), "{core}");
    assert_eq!(emulated.status.updates.rejected(), 0, "{:?}", emulated.status);
    assert_eq!(emulated.boards.len(), boards);
    for board in &emulated.boards {
        assert_eq!(board.line["counted"], rounds + 1, "{}", board.line);
        assert_eq!(board.line["lost"], 0, "{}", board.line);
        assert_eq!(board.line["representation"], emulated.boards[0].line["representation"]);
    }
    if boards == 8 {
        let simulated = run(&scenario, scenario.seed, &mut Unwatched).expect("simulation");
        for (board, client) in emulated.boards.iter().zip(&simulated.clients) {
            let (right, tested) =
                (board.line["right"].as_f64().unwrap(), board.line["tested"].as_f64().unwrap());
            assert_eq!(Some(right / tested), client.accuracy, "{}", board.line);
        }
        let committed = store::read(&scratch.path().join("state")).expect("readable").expect("committed");
        let served = Matrix::from_column_slice(58, 24, &committed.state[..58 * 24]);
        let bits = |matrix: &Matrix| matrix.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        let served = orthonormal(&served).expect("full rank");
        assert_eq!(bits(&served), bits(simulated.representation.as_ref().expect("there is one")));
    }
}

/// One test: a core's firmware is built where another core's was.
#[tokio::test(flavor = "multi_thread")]
async fn emulated_fleets_learn_what_the_simulator_learns() {
    fleet("m4", 8, Link::Pipes, 20).await;
    // The same through the driver of the serial line.
    fleet("m4", 8, Link::Uart, 3).await;
    fleet("m3", 2, Link::Pipes, 3).await;
    fleet("m7", 2, Link::Pipes, 3).await;
    fleet("m33", 2, Link::Pipes, 3).await;
    fleet("rv32imc", 2, Link::Pipes, 3).await;
}
