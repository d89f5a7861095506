//! Tests of command `reproduce`: verdicts on the figures that take seconds. The others are repeated at night.

use crate::common::{assert_contains_all, empty_directory, exit_code, run_program, stderr_text, stdout_text};
use fedspan_experiments::reproduce::ALL;
use serde_json::Value;

/// Findings of a figure, with its verdict.
fn reproduce(name: &str, arguments: &[&str]) -> (Vec<bool>, String) {
    let folder = empty_directory(&format!("reproduce-{name}"));
    let output = run_program(&folder, &[&["reproduce", name, "--out", "out"][..], arguments].concat());
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    let summary = std::fs::read_to_string(folder.join("out/summary.json")).unwrap();
    let summary: Value = serde_json::from_str(&summary).unwrap();
    let findings = summary["findings"].as_array().unwrap();
    let holds = findings.iter().map(|finding| finding["holds"].as_bool().unwrap()).collect();
    let report = std::fs::read_to_string(folder.join("out/report.html")).unwrap();
    let verdict = summary["verdict"].as_str().unwrap().to_owned();
    assert_contains_all(&report, &[&format!("Verdict: {verdict}"), "<svg"]);
    assert_contains_all(&stdout_text(&output), &["Claim: ", "Here: ", &format!("Verdict: {verdict}")]);
    (holds, verdict)
}

/// With 20 clients the best head and ten gradient steps on it do not differ for certain. Two sets of seeds: the verdict is none
/// of luck.
#[test]
fn distance_falls_with_clients_for_all_methods() {
    for seed in ["1", "500"] {
        let (holds, verdict) = reproduce("fedrep-figure-3", &["--seed", seed]);
        assert_eq!((holds, verdict.as_str()), (vec![true, false, true, true], "holds in part"), "{seed}");
    }
}

#[test]
fn new_clients_need_one_sample_more_than_their_head_has_numbers() {
    for seed in ["1", "500"] {
        let (holds, verdict) = reproduce("fedrep-figure-4", &["--seed", seed]);
        assert_eq!((holds, verdict.as_str()), (vec![false, true, true, true], "holds in part"), "{seed}");
    }
}

#[test]
fn alternating_factors_learn_what_a_frozen_factor_cannot() {
    let (holds, verdict) = reproduce("rolora-linear", &["--seeds", "10", "--seed", "77"]);
    assert_eq!((holds, verdict.as_str()), (vec![true; 3], "holds"));
}

#[test]
fn fewer_machines_cost_more_than_the_paper_says() {
    let (holds, verdict) = reproduce("fedpower-model-1", &["--seeds", "5"]);
    assert_eq!((holds, verdict.as_str()), (vec![true, true, false], "holds in part"));
}

#[test]
fn list_and_errors_name_all_figures() {
    let folder = empty_directory("reproduce-list");
    let listed = run_program(&folder, &["reproduce", "--list"]);
    assert_eq!(stdout_text(&listed).lines().count(), ALL.len());
    let names: Vec<&str> = ALL.iter().map(|figure| figure.name).collect();
    assert_contains_all(&stdout_text(&listed), &names);
    let unknown = run_program(&folder, &["reproduce", "fedrep-figure-9"]);
    assert_eq!(exit_code(&unknown), 2);
    assert_contains_all(&stderr_text(&unknown), &names);
    let missing = run_program(&folder, &["reproduce"]);
    assert_eq!(exit_code(&missing), 2);
    std::fs::create_dir(folder.join("out")).unwrap();
    std::fs::write(folder.join("out/report.html"), "mine").unwrap();
    let refused = run_program(&folder, &["reproduce", "rolora-linear", "--out", "out"]);
    assert_eq!(exit_code(&refused), 2);
    assert_contains_all(&stderr_text(&refused), &["out/report.html", "--overwrite"]);
    assert_eq!(std::fs::read_to_string(folder.join("out/report.html")).unwrap(), "mine");
}
