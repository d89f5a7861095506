//! The commands `live` and `replay`: what they print, what they keep, their exit codes. Nothing is said about durations.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use common::{code, directory, errors, program, text};

const SMALL: [&str; 8] = [
    "--set",
    "data.clients=8",
    "--set",
    "algorithm.rounds=6",
    "--set",
    "participation={ policy = \"doubling\", n0 = 2, schedule = \"fixed\", stage_rounds = 2 }",
    "--seed",
    "5",
];

#[test]
fn what_a_server_decides_is_kept_and_decided_again() {
    let here = directory("live");
    let live = ["live", "stragglers", "stragglers,model.init=random", "--unit-ms", "2", "--out", "kept"];
    let output = program(&here, &[&live[..], &["--target", "1"], &SMALL].concat());
    assert_eq!(code(&output), 0, "{}", errors(&output));
    let table = text(&output);
    for row in ["rounds", "seconds to 1 ", "times the first's", "distance", "answers late", "decided again"] {
        assert!(table.contains(row), "{row}: {table}");
    }
    assert_eq!(table.matches("equal").count(), 2, "{table}");
    let summary = std::fs::read_to_string(here.join("kept/summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    let runs = summary["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2);
    for run in runs {
        assert_eq!((run["rounds"].as_u64(), run["clients"].as_u64()), (Some(6), Some(8)));
        // Every distance is at most 1: the first is that of the start, at which the clock begins.
        assert_eq!(run["target_seconds"].as_f64(), Some(0.0));
        assert_eq!(run["curve"].as_array().unwrap().len(), 7);
    }
    let kept = "kept/stragglers/arrivals.jsonl";
    let replayed = program(&here, &[&["replay", "stragglers", kept][..], &SMALL].concat());
    assert_eq!(code(&replayed), 0, "{}", errors(&replayed));
    assert!(text(&replayed).ends_with("rounds: every decision equal\n"));

    // One decision changed: both sides are shown.
    let journal = std::fs::read_to_string(here.join(kept)).unwrap();
    let changed = journal.replacen("\"target\":4,", "\"target\":5,", 1);
    assert_ne!(changed, journal);
    std::fs::write(here.join("changed.jsonl"), changed).unwrap();
    let output = program(&here, &[&["replay", "stragglers", "changed.jsonl"][..], &SMALL].concat());
    assert_eq!(code(&output), 1);
    let said = errors(&output);
    assert!(said.contains("waits for 5 of") && said.contains("waits for 4 of"), "{said}");

    // A server has no attackers to decide about again.
    let output =
        program(&here, &[&["replay", "stragglers", kept, "--set", "attack.kind=mimic"][..], &SMALL].concat());
    assert_eq!(code(&output), 2);
    assert!(errors(&output).contains("set attack.kind = \"none\""), "{}", errors(&output));

    // Another scenario, and no journal at all.
    let output = program(&here, &["replay", "stragglers", kept]);
    assert_eq!(code(&output), 2);
    assert!(errors(&output).contains("another campaign than stragglers"), "{}", errors(&output));
    std::fs::write(here.join("garbage.jsonl"), format!("{journal}garbage\n")).unwrap();
    let output = program(&here, &[&["replay", "stragglers", "garbage.jsonl"][..], &SMALL].concat());
    assert_eq!(code(&output), 2);
    let line = format!("garbage.jsonl: line {}: ", journal.lines().count() + 1);
    assert!(errors(&output).contains(&line), "{}", errors(&output));
}

/// A server with devices that hide their gradients, and a start that they hide, too.
#[test]
fn devices_with_noise_are_served() {
    let here = directory("noisy");
    let small =
        ["--set", "data.clients=6", "--set", "algorithm.rounds=3", "--set", "model.power_iterations=2"];
    let output = program(&here, &[&["live", "fedrep-private", "--unit-ms", "1"][..], &small].concat());
    assert_eq!(code(&output), 0, "{}", errors(&output));
    let table = text(&output);
    assert!(table.contains("rounds") && table.contains("equal"), "{table}");
}

#[test]
fn what_cannot_be_served_is_exit_2() {
    let here = directory("unserved");
    std::fs::write(here.join("file"), "").unwrap();
    for arguments in [
        vec!["live"],
        vec!["live", "stragglerz"],
        vec!["live", "stragglers", "--unit-ms", "-1"],
        vec!["live", "stragglers", "--target", "2"],
        vec!["live", "stragglers", "--out", "file"],
        vec!["live", "digits", "--target", "0.1"],
        vec!["live", "linear", "--set", "model.init=truth-sine:0.5"],
        vec!["live", "linear", "--set", "algorithm.name=pooled"],
        vec!["replay", "stragglers"],
        vec!["replay", "stragglers", "nowhere.jsonl"],
    ] {
        let output = program(&here, &arguments);
        assert_eq!(code(&output), 2, "{arguments:?}: {}", errors(&output));
    }
    assert_eq!(std::fs::read_dir(&here).unwrap().count(), 1, "nothing is written");
}
