//! Tests of golden fingerprints. The golden files are configurations of every kind
//! (`tests/golden/fingerprints/*.toml`), for each configuration the legacy text that the first servers of
//! store format 5 wrote (`*.txt`), and the text that later servers write (`tests/golden/settings.txt`). These
//! files are never changed.

use crate::common::golden::directory;
use crate::common::shapes::{all, fleet};
use fedspan_aggregator::config::difference;

/// Returns each configuration with its legacy text and its current text.
fn texts() -> Vec<(String, String, String)> {
    let settings = std::fs::read_to_string(directory("settings.txt")).unwrap();
    let settings: Vec<&str> = settings.split("\n\n").collect();
    let all = all();
    assert_eq!((all.len(), settings.len()), (38, 38));
    let triples = all.into_iter().zip(settings).map(|((text, path), settings)| {
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(settings.starts_with(&format!("# {name}\n")), "{name}: {settings}");
        (text, std::fs::read_to_string(path.with_extension("txt")).unwrap(), settings.to_owned())
    });
    triples.collect()
}

#[test]
fn both_texts_are_equal() {
    for (_, first, since) in texts() {
        assert_ne!(first, since);
        assert_eq!(difference(&first, &since), "");
    }
}

/// Configurations resume with both texts, even if defaults have changed.
#[test]
fn configuration_resumes_under_both() {
    for (text, first, since) in texts() {
        let given = fleet(&text);
        for stored in [first, since] {
            let resumed = given.resumed(&stored).unwrap_or_else(|mismatch| panic!("{text}{mismatch}"));
            assert_eq!(difference(&stored, &resumed.fleet.fingerprint()), "", "{text}");
            for kept in resumed.kept {
                assert!(!given.given.contains(kept.split_once(" = ").unwrap().0), "{kept} of {text}");
            }
        }
    }
}
