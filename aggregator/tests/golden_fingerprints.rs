//! Configurations of every shape, and the text that servers of store format 5 wrote of each at first (`tests/golden/fingerprints`).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use common::shapes::{all, fleet};
use fedspan_aggregator::config::difference;

/// Texts that are written now and texts that were written then mean the same.
#[test]
fn texts_of_then_mean_the_same() {
    let all = all();
    assert_eq!(all.len(), 38);
    for (text, path) in all {
        let fleet = fleet(&text);
        let then = std::fs::read_to_string(path.with_extension("txt")).unwrap();
        assert_eq!(difference(&then, &fleet.fingerprint()), "", "{}", path.display());
        let resumed = fleet.resumed(&then).unwrap();
        assert_eq!((&resumed.fleet, resumed.kept.len()), (&fleet, 0), "{}", path.display());
    }
}
