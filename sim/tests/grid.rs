//! Tests of command `grid`: the choice does not use test samples, an interrupted grid continues, and impossible
//! combinations do not end the others.

use std::path::Path;

use crate::common::{
    assert_contains_all, empty_directory, exit_code, random_numbers, run_program, stderr_text, stdout_text,
};
use serde_json::Value;

/// Writes a table of six people with twenty rows each in the order of time, and a scenario. If `spoiled`, the classes of the
/// last fifth of each person's rows, which test, are all the same.
fn write_data(folder: &Path, spoiled: bool) {
    let numbers = random_numbers(6 * 20 * 3, 5);
    let mut text = "who,a,b,c,kind\n".to_owned();
    for (row, x) in numbers.chunks_exact(3).enumerate() {
        let (person, time) = (row / 20, row % 20);
        let class = if spoiled && time >= 16 { 0 } else { usize::from(x[0] + 0.5 * x[1] > 0.0) + person % 2 };
        text += &format!("p{person},{},{},{},k{class}\n", x[0], x[1], x[2]);
    }
    std::fs::write(folder.join("t.csv"), text).unwrap();
    let scenario = "[data]\nkind = \"csv\"\npath = \"t.csv\"\nclient = \"who\"\ntarget = \"kind\"\nfeatures = [\"*\"]\ntask = \"classes\"\n\
                    [split]\nby = \"time\"\ntest = 0.2\n[model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 20\nstep_size = 0.5\n";
    std::fs::write(folder.join("my.toml"), scenario).unwrap();
}

const GRID: [&str; 6] =
    ["grid", "my.toml", "--over", "model.k=1,2,3", "--over", "algorithm.step_size=0.01,1"];

fn summary(folder: &Path, out: &str) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join(out).join("summary.json")).unwrap()).unwrap()
}

/// The combinations and their order are the same if the test samples are replaced; only the final score differs.
#[test]
fn choice_does_not_use_test_samples() {
    let folder = empty_directory("grid-choice");
    let mut found = Vec::new();
    for spoiled in [false, true] {
        write_data(&folder, spoiled);
        let out = if spoiled { "spoiled" } else { "clean" };
        let output = run_program(&folder, &[&GRID[..], &["--out", out]].concat());
        assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
        assert_contains_all(
            &stdout_text(&output),
            &["chosen by accuracy", "no test sample was used", "chosen: "],
        );
        found.push(summary(&folder, out));
    }
    assert_eq!(found[0]["combinations"].as_array().unwrap().len(), 6);
    assert_eq!(found[0]["combinations"], found[1]["combinations"]);
    assert_eq!(found[0]["chosen"], found[1]["chosen"]);
    assert_ne!(found[0]["final"], found[1]["final"]);
    // The final score is that of a run with the chosen settings.
    let chosen = found[1]["chosen"].as_object().unwrap();
    let mut arguments = vec!["run".to_owned(), "my.toml".to_owned()];
    for (key, value) in chosen {
        arguments.extend(["--set".to_owned(), format!("{key}={}", value.as_str().unwrap())]);
    }
    let arguments: Vec<&str> =
        arguments.iter().map(String::as_str).chain(["--seeds", "3", "--format", "json"]).collect();
    let run: Value = serde_json::from_slice(&run_program(&folder, &arguments).stdout).unwrap();
    assert_eq!(run["final"]["accuracy"], found[1]["final"]["accuracy"]);
}

/// A grid that was interrupted at any line continues, and gives the same files for any number of parallel runs.
#[test]
fn interrupted_grid_continues() {
    let folder = empty_directory("grid-continues");
    write_data(&folder, false);
    let run = |out: &str, parallel: &str| {
        let output = run_program(&folder, &[&GRID[..], &["--out", out, "--parallel", parallel]].concat());
        assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
        stderr_text(&output)
    };
    run("whole", "1");
    run("both", "2");
    let files = |out: &str| {
        ["summary.json", "results.csv"].map(|file| std::fs::read(folder.join(out).join(file)).unwrap())
    };
    assert!(files("whole") == files("both"));
    let text = std::fs::read(folder.join("whole/grid.jsonl")).unwrap();
    let rest = text.len() / 2;
    std::fs::write(folder.join("both/grid.jsonl"), &text[..rest]).unwrap();
    std::fs::remove_file(folder.join("both/chosen.jsonl")).unwrap();
    let complete = text[..rest].iter().filter(|byte| **byte == b'\n').count() - 1;
    assert!(run("both", "2").contains(&format!("18 runs, {complete} of them finished")));
    assert!(files("whole") == files("both"));
    assert!(!run("both", "2").contains("runs, "), "finished runs were repeated");
    // Results of another grid are neither mixed in nor overwritten.
    let other = run_program(&folder, &["grid", "my.toml", "--over", "model.k=1", "--out", "both"]);
    assert_eq!(exit_code(&other), 2);
    assert_contains_all(&stderr_text(&other), &["grid.jsonl", "another --out"]);
}

#[test]
fn impossible_combinations_do_not_end_the_others() {
    let folder = empty_directory("grid-impossible");
    write_data(&folder, false);
    let arguments = [
        "grid",
        "my.toml",
        "--over",
        "model.k=2,99",
        "--over",
        "algorithm.name=fedrep,gd-gd",
        "--seeds",
        "2",
    ];
    let output = run_program(&folder, &arguments);
    assert_eq!(exit_code(&output), 1, "{}", stderr_text(&output));
    let printed = stdout_text(&output);
    assert_contains_all(&printed, &["model.k=99 algorithm.name=gd-gd: failed: model.k is 99", "chosen: "]);
    let table = std::fs::read_to_string(folder.join("my-grid/results.csv")).unwrap();
    assert_eq!(table.lines().count(), 9);
    assert_eq!(table.lines().filter(|line| line.contains("model.k is 99")).count(), 4);
    let none = run_program(&folder, &["grid", "my.toml", "--over", "model.k=98,99", "--out", "none"]);
    assert_eq!(exit_code(&none), 1);
    assert!(stderr_text(&none).contains("no combination has finished"));
}

/// A run of the chosen combination that fails on test data is reported, and results of other commands are kept.
#[test]
fn final_failures_and_foreign_results_are_reported() {
    let folder = empty_directory("grid-final");
    // Without a validation part there is no validation fold.
    let arguments =
        ["grid", "watch-network", "--set", "split.validation_fold=1", "--set", "split.validation=0.3"];
    let more = ["--over", "algorithm.rounds=1,2", "--seeds", "1"];
    let output = run_program(&folder, &[&arguments[..], &more].concat());
    assert_eq!(exit_code(&output), 1, "{}", stderr_text(&output));
    assert!(
        stderr_text(&output).contains("1 runs of the chosen combination failed"),
        "{}",
        stderr_text(&output)
    );
    assert!(stdout_text(&output).contains("seed 1: failed: "), "{}", stdout_text(&output));

    write_data(&folder, false);
    assert_eq!(exit_code(&run_program(&folder, &["run", "my.toml", "--out", "run"])), 0);
    let before = std::fs::read(folder.join("run/summary.json")).unwrap();
    let output = run_program(&folder, &[&GRID[..], &["--out", "run"]].concat());
    assert_eq!(exit_code(&output), 2, "{}", stderr_text(&output));
    assert!(before == std::fs::read(folder.join("run/summary.json")).unwrap());
}

#[test]
fn wrong_options_are_named() {
    let folder = empty_directory("grid-options");
    write_data(&folder, false);
    for (arguments, message) in [
        (&["grid", "my.toml"][..], "--over"),
        (&["grid", "my.toml", "--over", "model.k"], "KEY=VALUE"),
        (&["grid", "my.toml", "--over", "model.k=1,"], "KEY=VALUE"),
        (&["grid", "my.toml", "--over", "model.k=1", "--over", "model.k=2"], "given twice"),
        (&["grid", "my.toml", "--over", "split.validation=0.1,0.2"], "--validation"),
        (&["grid", "my.toml", "--over", "split.fold=0,1"], "no setting"),
        (&["grid", "my.toml", "--over", "model.k=1", "--validation", "0"], "above 0"),
        (&["grid", "my.toml", "--over", "model.k=1", "--metric", "accuracy_new_clients"], "accuracy"),
        (&["grid", "nowhere.toml", "--over", "model.k=1"], "nowhere.toml"),
    ] {
        let output = run_program(&folder, arguments);
        assert_eq!(exit_code(&output), 2, "{arguments:?}: {}", stderr_text(&output));
        assert!(stderr_text(&output).contains(message), "{arguments:?}: {}", stderr_text(&output));
    }
    assert!(!folder.join("my-grid").exists(), "a refused grid has written files");
}

/// Generated data have no validation part: the final score is on data of other seeds.
#[test]
fn generated_data_are_chosen_on_other_seeds() {
    let folder = empty_directory("grid-generated");
    let arguments = ["grid", "linear", "--over", "algorithm.rounds=1,20", "--seeds", "2", "--seed", "5"];
    let output = run_program(&folder, &arguments);
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    let printed = stdout_text(&output);
    assert!(
        printed.contains("algorithm.rounds: the best value, 20, is the largest of those tried"),
        "{printed}"
    );
    let summary = summary(&folder, "linear-grid");
    assert_eq!(summary["chosen"]["algorithm.rounds"], "20");
    let run = run_program(
        &folder,
        &["run", "linear", "--set", "algorithm.rounds=20", "--seed", "7", "--seeds", "2", "--format", "json"],
    );
    let run: Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(run["final"]["distance"], summary["final"]["distance"]);
}
