//! Test helpers: the configurations of every kind in `tests/golden/fingerprints`.

use std::path::PathBuf;

use fedspan_aggregator::config::Fleet;
use fedspan_engine::config::{Source, read_aggregation, read_algorithm, read_model};
use fedspan_engine::participation::Policy;

use super::golden::golden_directory;

/// Parses a configuration of a server, or of a simulation, which has methods that the firmware does not
/// support.
pub fn parse_fleet(text: &str) -> Fleet {
    let base = "[listen]\nplaintext = true\n[devices]\nexpected = 8\n[data]\nd = 12\n[model]\nk = 3\n[algorithm]\nname = \"fedrep\"\n\
                rounds = 5\nstep_size = 0.3\n";
    if let Ok(fleet) = Fleet::parse("fleet.toml", text) {
        return fleet;
    }
    let source = Source::parse("fleet.toml", text, &[]).unwrap();
    let root = source.root();
    let section = |name: &str| root.section(name).unwrap();
    let model = read_model(&section("model")).unwrap();
    let algorithm = read_algorithm(&section("algorithm"), &model).unwrap();
    let rule = read_aggregation(&section("aggregation")).unwrap();
    let participation = Policy::read(&section("participation"), None).unwrap();
    let given_keys = source.given_keys();
    let mut fleet = Fleet {
        model,
        algorithm,
        rule,
        participation,
        given: given_keys,
        ..Fleet::parse("base", base).unwrap()
    };
    let data = section("data");
    fleet.shape.outputs = data.size("outputs", None, 1..=99).unwrap();
    assert_eq!(data.size("d", None, 1..=99).unwrap(), fleet.shape.features);
    fleet
}

/// Returns the text and the path of every configuration.
pub fn read_configurations() -> Vec<(String, PathBuf)> {
    let files = std::fs::read_dir(golden_directory("fingerprints")).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|path| path.extension().unwrap() == "toml").collect();
    files.sort();
    files.into_iter().map(|path| (std::fs::read_to_string(&path).unwrap(), path)).collect()
}
