//! Tests of the program `benchmarks`: wrong arguments, missing rivals and rivals that fail.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

fn run_benchmarks(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_benchmarks")).args(arguments).output().expect("benchmarks starts")
}

fn utf8(output: &[u8]) -> String {
    String::from_utf8(output.to_vec()).unwrap()
}

#[test]
fn wrong_arguments_are_refused_with_the_allowed_ones() {
    for (arguments, message) in [
        (&["speed"][..], "benchmarks: found figure \"speed\", allowed: updates-20-2-20, "),
        (&["--pairs", "0"], "benchmarks: found --pairs 0, allowed: 1 to 10000"),
    ] {
        let output = run_benchmarks(arguments);
        assert_eq!(output.status.code(), Some(2));
        assert!(utf8(&output.stderr).starts_with(message), "{}", utf8(&output.stderr));
    }
    let listed = utf8(&run_benchmarks(&["--list"]).stdout);
    assert!(listed.contains("network-lenet5") && listed.contains("rival: torch channels last"), "{listed}");
}

#[test]
fn missing_rival_is_left_out() {
    let output = run_benchmarks(&["network-lenet5", "--pairs", "1", "--python", "no-such-python"]);
    let text = utf8(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("left out  torch: no-such-python: "), "{text}");
}

#[test]
fn rival_that_fails_or_does_other_work_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let facts = r#"{"program":"p","form":"f","dtype":"f32","n":"one image"}"#;
    for (script, message) in [
        ("echo hello", "FAILED    numpy: printed \"hello\", allowed: its facts as JSON"),
        ("echo out of memory >&2; exit 3", "FAILED    numpy: ended with exit status: 3: out of memory"),
        (
            &format!("echo '{facts}'"),
            "FAILED    numpy: computes one image, allowed: mlp of 109386 weights, 80 images",
        ),
    ] {
        let python = directory.path().join("python");
        write_program(&python, script);
        let output = run_benchmarks(&["network-mlp", "--pairs", "1", "--python", python.to_str().unwrap()]);
        let text = utf8(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(message), "{text}");
    }
}

/// Writes a shell script that can be run.
fn write_program(path: &Path, script: &str) {
    fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}
