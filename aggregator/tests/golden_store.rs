//! Tests of golden state directories, one per store format. Later versions must open them or refuse them with
//! a clear message. A version that changes the format keeps these directories, adds a directory for the new
//! format, and extends these tests.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::Scratch;
use crate::common::campaign::honest_update;
use crate::common::stored_campaign::{configuration, durable_engine};
use fedspan_aggregator::check::check;
use fedspan_aggregator::config::Fleet;
use fedspan_aggregator::store::{Store, StoreError};
use fedspan_engine::{Action, DeviceId, Event, Millis, Phase};
use fedspan_protocol::frame::crc32c;
use getrandom::SysRng;

/// CRC-32C of the representations after rounds 2 and 3, as in the journal.
const DIGESTS: [&str; 2] = ["832be009", "de987d3e"];

const FILES: [&str; 3] = ["campaign.redb", "round.key", "arrivals.jsonl"];

/// Returns the directory of a format.
fn format_directory(format: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/store-{format}"))
}

fn copy_format(format: u32, state: &Path) {
    std::fs::create_dir_all(state).unwrap();
    for name in FILES {
        std::fs::copy(format_directory(format).join(name), state.join(name)).unwrap();
    }
}

/// Returns the CRC-32C of a representation, as in the journal.
fn journal_digest(values: impl Iterator<Item = f64>) -> String {
    let bytes: Vec<u8> = values.flat_map(f64::to_le_bytes).collect();
    format!("{:08x}", crc32c(&bytes))
}

/// A directory of the current format is resumed. Its settings are in the legacy text, which the program no
/// longer writes, so the directory must not be regenerated.
#[test]
fn current_format_is_resumed() {
    let scratch = Scratch::new();
    let state = scratch.path().join("state");
    copy_format(5, &state);
    let fleet = Fleet::parse("fleet.toml", &configuration(&state)).unwrap();
    let report = check(&fleet).unwrap().expect("the directory has no campaign");
    assert!(report.faults.is_empty(), "{report:?}");
    assert!(report.facts.iter().any(|line| line.contains("with 2 updates")), "{report:?}");

    let mut durable_engine = durable_engine(&state);
    let (phase, representation) =
        (durable_engine.engine().phase(), durable_engine.engine().representation().iter().copied());
    assert_eq!((durable_engine.campaign(), phase), (7, Phase::Train(3)));
    assert_eq!(journal_digest(representation), DIGESTS[0]);
    let round = durable_engine.engine().open_round().unwrap();
    assert_eq!((round.broadcast.id.round, round.participants.as_slice()), (3, &[0, 1].map(DeviceId)[..]));
    let opening = Arc::clone(&round.broadcast);
    // The other devices answer as they would have without the restart.
    for device in 2..5 {
        durable_engine.handle(Millis::new(5), Event::Joined(DeviceId(device)));
        durable_engine.handle(
            Millis::new(5),
            Event::Update(DeviceId(device), honest_update(DeviceId(device), &opening)),
        );
    }
    let actions = durable_engine.flush().unwrap().actions;
    let committed = actions.iter().find_map(|action| match action {
        Action::Commit(record) => Some(record.participants.clone()),
        _ => None,
    });
    assert_eq!(committed.expect("the round was not committed"), [0, 1, 2, 3, 4].map(DeviceId));
    assert_eq!(journal_digest(durable_engine.engine().representation().iter().copied()), DIGESTS[1]);
}

/// Directories of formats 3 and 4, which were never released, are refused and not changed. Format 3 did not
/// store rounds, and format 4 did not store the clock.
#[test]
fn earlier_formats_are_refused_unchanged() {
    for format in [3, 4] {
        assert_format_refused(format);
    }
}

/// Asserts that every command refuses a state directory of this format and does not change it.
fn assert_format_refused(format: u32) {
    let scratch = Scratch::new();
    let state = scratch.path().join("state");
    copy_format(format, &state);
    let assert_names_format = |error: StoreError| {
        let expected = format!("format {format}, this version reads format 5");
        assert!(error.to_string().contains(&expected), "{error}");
    };
    let fleet = Fleet::parse("fleet.toml", &configuration(&state)).unwrap();
    assert_names_format(check(&fleet).unwrap_err());
    for name in FILES {
        assert!(
            std::fs::read(state.join(name)).unwrap()
                == std::fs::read(format_directory(format).join(name)).unwrap()
        );
    }
    assert_names_format(Store::open(&state, SysRng).unwrap_err());
    for name in ["round.key", "arrivals.jsonl"] {
        assert!(
            std::fs::read(state.join(name)).unwrap()
                == std::fs::read(format_directory(format).join(name)).unwrap()
        );
    }
}
