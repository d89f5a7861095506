//! Tests of command `resume`. That a continued run has the same bits is tested in `sim/core/tests`; here are the files, the
//! commands and their errors.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{self, assert_contains_all, empty_directory, exit_code, run_program, stderr_text};

/// Result files without times of the machine, with their content, sorted.
fn results(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(next) = directories.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() {
                directories.push(path);
            } else if !["summary.json", "finished.json", "command.json", "checkpoint.bin"].contains(&name) {
                found.push((path.strip_prefix(directory).unwrap().to_owned(), fs::read(&path).unwrap()));
            }
        }
    }
    found.sort();
    assert!(!found.is_empty());
    found
}

fn run(folder: &Path, arguments: &[&str]) {
    let output = run_program(folder, arguments);
    assert_eq!(exit_code(&output), 0, "{arguments:?}: {}", stderr_text(&output));
}

/// Runs a command that must fail, and returns its messages.
fn refused(folder: &Path, arguments: &[&str]) -> String {
    let output = run_program(folder, arguments);
    assert_eq!(exit_code(&output), 2, "{arguments:?}: {}", stderr_text(&output));
    stderr_text(&output)
}

/// Leaves of a run with this directory what a power cut would leave after the last state was written.
fn interrupt(directory: &Path) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap();
        } else if path.file_name().unwrap() != "checkpoint.bin" {
            fs::remove_file(path).unwrap();
        }
    }
}

const SHORT: [&str; 2] = ["--set", "algorithm.rounds=12"];

#[test]
fn interrupted_run_of_several_seeds_continues() {
    let folder = empty_directory("resume-seeds");
    let all = [&["run", "digits", "--seeds", "3", "--keep-states"][..], &SHORT].concat();
    run(&folder, &[&all[..], &["--out", "whole"]].concat());
    run(&folder, &[&all[..], &["--out", "cut"]].concat());
    // The first seed has finished, the second was interrupted, the third had not begun.
    let seeds: Vec<PathBuf> =
        fs::read_dir(folder.join("cut")).unwrap().map(|entry| entry.unwrap().path()).collect();
    let seeds: Vec<&PathBuf> = seeds.iter().filter(|path| path.is_dir()).collect();
    assert!(seeds.len() >= 2, "{seeds:?}");
    let seed = |path: &Path| {
        path.file_name().unwrap().to_str().unwrap().strip_prefix("seed-").unwrap().parse::<u64>().unwrap()
    };
    let first = seeds.iter().map(|path| seed(path)).min().unwrap();
    interrupt(&folder.join(format!("cut/seed-{}", first + 1)));
    let _ = fs::remove_dir_all(folder.join(format!("cut/seed-{}", first + 2)));
    fs::remove_file(folder.join("cut/report.html")).unwrap();
    let output = run_program(&folder, &["resume", "cut"]);
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    let messages = stderr_text(&output);
    assert_contains_all(
        &messages,
        &[&format!("seed {}: continues after round 12", first + 1), &format!("seed {}: begins", first + 2)],
    );
    assert!(!messages.contains(&format!("seed {first}:")), "{messages}");
    assert_eq!(results(&folder.join("whole")), results(&folder.join("cut")));
    // A finished command has nothing to do, and writes the same results again.
    run(&folder, &["resume", "cut", "--quiet"]);
    assert_eq!(results(&folder.join("whole")), results(&folder.join("cut")));
}

#[test]
fn interrupted_comparison_continues() {
    let folder = empty_directory("resume-compare");
    let all =
        ["compare", "digits", "--algorithms", "fedrep,fedavg,local-only", "--seeds", "2", "--keep-states"];
    let all = [&all[..], &SHORT].concat();
    run(&folder, &[&all[..], &["--out", "whole"]].concat());
    run(&folder, &[&all[..], &["--out", "cut"]].concat());
    let entry = fs::read_dir(folder.join("cut/digits-fedavg")).unwrap().map(|entry| entry.unwrap().path());
    entry.filter(|path| path.is_dir()).for_each(|seed| interrupt(&seed));
    fs::remove_dir_all(folder.join("cut/digits-local-only")).unwrap();
    fs::remove_file(folder.join("cut/summary.json")).unwrap();
    run(&folder, &["resume", "cut", "--threads", "1"]);
    assert_eq!(results(&folder.join("whole")), results(&folder.join("cut")));
}

#[test]
fn finished_run_is_extended_like_one_that_was_longer_from_the_beginning() {
    let folder = empty_directory("resume-extend");
    // Error feedback, whose residuals are saved.
    let upload = "algorithm.upload=i8-top-k";
    let run_rounds = |rounds: &str, out: &str| {
        let rounds = format!("algorithm.rounds={rounds}");
        let set = [
            "run",
            "digits",
            "--set",
            &rounds,
            "--set",
            upload,
            "--seeds",
            "2",
            "--out",
            out,
            "--keep-states",
        ];
        run(&folder, &set);
    };
    run_rounds("9", "a");
    run_rounds("21", "longer");
    run(&folder, &["resume", "a", "--rounds", "21"]);
    assert_eq!(results(&folder.join("longer")), results(&folder.join("a")));
    // The directory now is that of the longer run, and can be extended again.
    run(&folder, &["resume", "a"]);
    run_rounds("23", "longest");
    run(&folder, &["resume", "a", "--rounds", "23"]);
    assert_eq!(results(&folder.join("longest")), results(&folder.join("a")));
    let message = refused(&folder, &["resume", "a", "--rounds", "5"]);
    assert_contains_all(&message, &["found 5 rounds", "at least 23"]);
    assert_eq!(
        results(&folder.join("longest")),
        results(&folder.join("a")),
        "a refused extension changes nothing"
    );
}

#[test]
fn killed_extension_continues_to_the_same_number_of_rounds() {
    let folder = empty_directory("resume-killed");
    run(&folder, &["run", "linear", "--set", "algorithm.rounds=5", "--out", "out", "--keep-states"]);
    let mut extension = Command::new(env!("CARGO_BIN_EXE_fedspan-sim"))
        .args(["resume", "out", "--rounds", "10000000"])
        .current_dir(&folder)
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut messages = BufReader::new(extension.stderr.take().unwrap()).lines().map(Result::unwrap);
    let begins = messages.find(|line| line.contains("continues after round 5"));
    extension.kill().unwrap();
    extension.wait().unwrap();
    assert!(begins.is_some(), "the extension does not begin");
    let recorded = fs::read_to_string(folder.join("out/command.json")).unwrap();
    assert_contains_all(&recorded, &["algorithm.rounds=10000000"]);
}

#[test]
fn unusable_states_are_refused_with_the_reason() {
    let folder = empty_directory("resume-refused");
    assert_contains_all(&refused(&folder, &["resume", "nothing"]), &["nothing/command.json", "No such file"]);
    let scenario = common::REST.replace("rounds = 3", "rounds = 6");
    let data = "[data]\nkind = \"npz\"\npath = \"data.npz\"\n";
    fs::write(folder.join("my.toml"), format!("seed = 4\n{data}{scenario}")).unwrap();
    let write_data = |seed: u64| {
        let (x, y) = (common::random_numbers(5 * 20 * 4, seed), common::random_numbers(5 * 20, seed + 1));
        common::write_npz(&folder.join("data.npz"), &[("x", &[5, 20, 4], &x), ("y", &[5, 20], &y)]);
    };
    write_data(1);
    run(&folder, &["run", "my.toml", "--out", "out"]);
    let message = refused(&folder, &["resume", "out", "--rounds", "9"]);
    assert_contains_all(&message, &["cannot extend the run in out", "--keep-states"]);

    run(&folder, &["run", "my.toml", "--out", "out", "--overwrite", "--keep-states"]);
    let state = folder.join("out/checkpoint.bin");
    let content = fs::read(&state).unwrap();
    interrupt_but_the_command(&folder.join("out"));
    // One flipped bit, anywhere, and every length of a file that was cut.
    for position in (0..content.len()).step_by(97) {
        let mut flipped = content.clone();
        flipped[position] ^= 4;
        fs::write(&state, &flipped).unwrap();
        let message = refused(&folder, &["resume", "out"]);
        assert_contains_all(&message, &["cannot continue from out/checkpoint.bin", "remove the file"]);
    }
    for length in (0..content.len()).step_by(211) {
        fs::write(&state, &content[..length]).unwrap();
        refused(&folder, &["resume", "out"]);
    }
    fs::write(&state, &content).unwrap();
    write_data(2);
    assert_contains_all(
        &refused(&folder, &["resume", "out"]),
        &["data.npz has changed since the run was saved"],
    );
    write_data(1);
    fs::write(folder.join("my.toml"), format!("seed = 4\n{data}{}", scenario.replace("0.25", "0.5")))
        .unwrap();
    assert_contains_all(&refused(&folder, &["resume", "out"]), &["my.toml has changed since"]);
    fs::write(folder.join("my.toml"), format!("seed = 4\n{data}{scenario}")).unwrap();
    run(&folder, &["resume", "out"]);
    write_data(2);
    assert_contains_all(
        &refused(&folder, &["resume", "out"]),
        &["out/finished.json: data.npz has changed since the run was saved"],
    );
    fs::remove_file(folder.join("data.npz")).unwrap();
    assert_contains_all(&refused(&folder, &["resume", "out"]), &["data.npz"]);
    write_data(1);

    let elsewhere = empty_directory("resume-elsewhere");
    let message = refused(&elsewhere, &["resume", folder.join("out").to_str().unwrap()]);
    assert_contains_all(&message, &["my.toml", "start resume in the directory of the first command"]);

    fs::write(folder.join("out/command.json"), "{").unwrap();
    assert_contains_all(&refused(&folder, &["resume", "out"]), &["out/command.json: damaged"]);
    fs::write(folder.join("out/command.json"), "{\"program\":\"1\",\"arguments\":[\"list\"]}").unwrap();
    assert_contains_all(&refused(&folder, &["resume", "out"]), &["not of the command run or compare"]);
}

/// Leaves the state and the recorded command of a run.
fn interrupt_but_the_command(directory: &Path) {
    let command = fs::read(directory.join("command.json")).unwrap();
    interrupt(directory);
    fs::write(directory.join("command.json"), command).unwrap();
}

/// The noise of each round depends on the number of rounds, so a longer run has other noise from the beginning.
#[test]
fn private_runs_continue_but_are_not_extended() {
    let folder = empty_directory("resume-private");
    let command =
        ["run", "fedrep-private", "--set", "data.clients=5", "--set", "algorithm.rounds=4", "--keep-states"];
    run(&folder, &[&command[..], &["--out", "a"]].concat());
    run(&folder, &[&command[..], &["--out", "b"]].concat());
    interrupt_but_the_command(&folder.join("a"));
    run(&folder, &["resume", "a"]);
    assert_eq!(results(&folder.join("a")), results(&folder.join("b")));
    assert_contains_all(&refused(&folder, &["resume", "a", "--rounds", "9"]), &["[privacy]"]);
}

/// A command and its continuation never write at the same time.
#[test]
fn directory_in_use_is_refused() {
    let folder = empty_directory("resume-lock");
    let command = [&["run", "digits", "--out", "out"][..], &SHORT].concat();
    run(&folder, &command);
    let held = fs::File::open(folder.join("out")).unwrap();
    held.lock().unwrap();
    let message = refused(&folder, &["resume", "out"]);
    assert_contains_all(&message, &["out: another command is still writing to this directory"]);
    refused(&folder, &[&command[..], &["--overwrite"]].concat());
    refused(&folder, &["compare", "digits", "linear", "--out", "out", "--overwrite"]);
    assert!(folder.join("out/finished.json").exists(), "a result of the running command was removed");
    drop(held);
    run(&folder, &["resume", "out"]);
}
