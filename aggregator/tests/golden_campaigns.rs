//! Campaigns of every kind that earlier versions left in the middle of a round: this version goes on with each, and decides what that
//! version decided, bit for bit.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use common::Scratch;
use common::golden::{RESUMED, Underway, configuration, copy, directory, make};
use fedspan_aggregator::config::Fleet;
use fedspan_aggregator::engine::Phase;
use fedspan_aggregator::inspect::inspect;

/// Directories of `tests/golden`, each with the round that was open, and how many had answered.
const CAMPAIGNS: [(&str, (Phase, usize)); 5] = [
    ("store-5-network", (Phase::Train(2), 2)),
    ("store-5-fedpower", (Phase::Train(2), 3)),
    ("store-5-doubling-adaptive", (Phase::Train(2), 3)),
    ("store-5-doubling-fixed", (Phase::Train(3), 2)),
    ("store-5-start", (Phase::Start(2), 2)),
];

/// With FEDSPAN_REGENERATE_VECTORS=1 they are written anew.
#[test]
fn this_version_goes_on_with_each_and_decides_the_same() {
    for (name, middle) in CAMPAIGNS {
        let scratch = Scratch::new();
        let state = scratch.path().join("state");
        if std::env::var_os("FEDSPAN_REGENERATE_VECTORS").is_some() {
            make(name, middle, &state);
        }
        copy(name, &state);
        let text = configuration(name, &state);
        let found = inspect(&Fleet::parse("fleet.toml", &text).unwrap()).unwrap().expect("a campaign");
        assert!(found.faults.is_empty(), "{name}: {found:?}");
        let counted = format!("with {} updates", middle.1);
        assert!(found.seen.iter().any(|line| line.contains(&counted)), "{name}: {found:?}");
        let campaign = Underway::new(&text);
        let engine = campaign.coordinator.engine();
        assert_eq!((campaign.coordinator.campaign(), engine.phase()), (7, middle.0), "{name}");
        assert_eq!(engine.open_round().unwrap().participants.len(), middle.1, "{name}");
        let expected = std::fs::read_to_string(directory(name).join(RESUMED)).unwrap();
        assert_eq!(campaign.joined().finished(), expected, "{name}");
    }
}
