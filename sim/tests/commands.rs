//! The command line: what each command prints, and its exit codes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::io::Read;
use std::process::{Command, Stdio};

use common::{code, directory, errors, program, text};
use fedspan_sim::scenario::{BUILT_IN, Scenario};

#[test]
fn every_scenario_is_listed_shown_and_valid() {
    let here = directory("listed");
    let list = text(&program(&here, &["list"]));
    assert_eq!(list.lines().count(), BUILT_IN.len());
    for (name, _, file) in BUILT_IN {
        assert!(list.contains(name));
        assert_eq!(text(&program(&here, &["show", name])), file);
        Scenario::parse(name, file, &[]).unwrap();
    }
    let algorithms = text(&program(&here, &["list", "--algorithms"]));
    assert!(algorithms.contains("fedrep ") && algorithms.contains("local-only "));
}

#[test]
fn unknown_words_are_told_the_nearest_known_one() {
    let here = directory("unknown");
    for arguments in [vec!["run", "lineer"], vec!["show", "lineer"], vec!["compare", "demo", "lineer"]] {
        let output = program(&here, &arguments);
        assert_eq!(code(&output), 2, "{arguments:?}");
        assert!(errors(&output).contains("did you mean \"linear\""), "{}", errors(&output));
        assert!(errors(&output).contains("new-clients"), "the names are listed");
    }
    assert_eq!(std::fs::read_dir(&here).unwrap().count(), 0, "nothing is written");
}

#[test]
fn a_wrong_command_line_is_exit_2() {
    let here = directory("wrong");
    std::fs::write(here.join("file"), "").unwrap();
    for arguments in [
        vec!["frobnicate"],
        vec!["run"],
        vec!["run", "linear", "--seeds", "0"],
        vec!["run", "linear", "--seed", "-1"],
        vec!["run", "linear", "--threads", "0"],
        vec!["run", "linear", "--format", "xml"],
        vec!["run", "linear", "--out", "file"],
        vec!["compare"],
        vec!["--frobnicate"],
    ] {
        assert_eq!(code(&program(&here, &arguments)), 2, "{arguments:?}");
    }
}

#[test]
fn help_is_exit_0_and_shows_examples() {
    let here = directory("help");
    for command in ["list", "show", "run", "compare", "device"] {
        let output = program(&here, &[command, "--help"]);
        assert_eq!(code(&output), 0, "{command}");
        assert!(text(&output).contains("Example"), "{command}");
    }
}

#[test]
fn json_is_all_that_standard_output_gets() {
    let here = directory("json");
    let output = program(&here, &["run", "linear", "--set", "algorithm.rounds=5", "--format", "json"]);
    assert_eq!(code(&output), 0);
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["rounds"], 5);
    assert_eq!(std::fs::read_dir(&here).unwrap().count(), 0, "no files without --out");
}

#[test]
fn progress_is_a_few_plain_lines_without_a_terminal() {
    let here = directory("progress");
    let output = program(&here, &["run", "linear", "--set", "algorithm.rounds=95"]);
    let lines = errors(&output).lines().filter(|line| line.contains("round ")).count();
    assert!((5..=11).contains(&lines), "{lines}");
    assert!(!errors(&output).contains('\u{1b}'), "no escapes");
    assert!(text(&output).contains("distance"));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_fedspan-sim"))
        .args(["show", "demo"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(said, "");
}
