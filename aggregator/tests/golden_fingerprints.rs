//! Configurations of every shape, and the text that servers of store format 5 wrote of each at first (`tests/golden/fingerprints`).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::path::PathBuf;

use common::golden::directory;
use fedspan_aggregator::config::{
    Fleet, Source, read_aggregation, read_algorithm, read_model, read_participation,
};

/// A configuration as servers and simulations make one: simulations have methods that no device has.
fn fleet(text: &str) -> Fleet {
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
    let participation = read_participation(&section("participation"), None).unwrap();
    let mut fleet = Fleet { model, algorithm, rule, participation, ..Fleet::parse("base", base).unwrap() };
    let data = section("data");
    fleet.shape.outputs = data.size("outputs", None, 1..=99).unwrap();
    assert_eq!(data.size("d", None, 1..=99).unwrap(), fleet.shape.features);
    fleet
}

/// Every configuration, and where its text is.
fn all() -> Vec<(String, PathBuf)> {
    let files = std::fs::read_dir(directory("fingerprints")).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|path| path.extension().unwrap() == "toml").collect();
    files.sort();
    files.into_iter().map(|path| (std::fs::read_to_string(&path).unwrap(), path)).collect()
}

/// With FEDSPAN_REGENERATE_VECTORS=1 they are written anew.
#[test]
fn texts_are_as_they_were() {
    let all = all();
    assert_eq!(all.len(), 38);
    for (text, path) in all {
        let (text, path) = (fleet(&text).fingerprint(), path.with_extension("txt"));
        if std::env::var_os("FEDSPAN_REGENERATE_VECTORS").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        assert_eq!(text, std::fs::read_to_string(&path).unwrap(), "{}", path.display());
    }
}
