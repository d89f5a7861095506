//! Tests of golden fingerprints. The golden files are configurations of every kind
//! (`tests/golden/fingerprints/*.toml`), for each configuration the legacy text that the first servers of
//! store format 5 wrote (`*.txt`), and the text that later servers write (`tests/golden/settings.txt`). These
//! files are never changed.

use crate::common::golden::golden_directory;
use crate::common::shapes::{parse_fleet, read_configurations};
use fedspan_aggregator::config::difference;

/// Returns each configuration with its legacy text and its current text.
fn golden_texts() -> Vec<(String, String, String)> {
    let settings = std::fs::read_to_string(golden_directory("settings.txt")).unwrap();
    let settings: Vec<&str> = settings.split("\n\n").collect();
    let configurations = read_configurations();
    assert_eq!((configurations.len(), settings.len()), (38, 38));
    let triples = configurations.into_iter().zip(settings).map(|((configuration, path), settings)| {
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(settings.starts_with(&format!("# {name}\n")), "{name}: {settings}");
        (configuration, std::fs::read_to_string(path.with_extension("txt")).unwrap(), settings.to_owned())
    });
    triples.collect()
}

#[test]
fn both_texts_are_equal() {
    for (_, legacy_text, current_text) in golden_texts() {
        assert_ne!(legacy_text, current_text);
        assert_eq!(difference(&legacy_text, &current_text), "");
    }
}

/// Configurations resume with both texts, even if defaults have changed.
#[test]
fn configuration_resumes_under_both() {
    for (configuration, legacy_text, current_text) in golden_texts() {
        let fleet = parse_fleet(&configuration);
        for stored in [legacy_text, current_text] {
            let resumed =
                fleet.resumed(&stored).unwrap_or_else(|mismatch| panic!("{configuration}{mismatch}"));
            assert_eq!(difference(&stored, &resumed.fleet.fingerprint()), "", "{configuration}");
            for stored_setting in resumed.kept {
                assert!(
                    !fleet.given.contains(stored_setting.split_once(" = ").unwrap().0),
                    "{stored_setting} of {configuration}"
                );
            }
        }
    }
}
