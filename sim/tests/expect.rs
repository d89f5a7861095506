//! Tests of the section `[expect]`: exit codes, the table and the JUnit report.

use crate::common::{assert_contains_all, empty_directory, exit_code, run_program, stderr_text, stdout_text};
use fedspan_sim_core::scenario::{EXPECTED, Scenario};
use serde_json::Value;

const RUN: [&str; 6] = ["run", "linear", "--set", "algorithm.rounds=10", "--seeds", "2"];

#[test]
fn bounds_decide_the_exit_code() {
    let folder = empty_directory("expect-codes");
    let run = |expect: &str, more: &[&str]| {
        let set = format!("expect={{ {expect} }}");
        run_program(&folder, &[&RUN[..], &["--set", &set], more].concat())
    };
    let met = run("distance = \"<= 1\", rounds = \">= 10\", rejected = \"<= 0\"", &["--junit", "met.xml"]);
    assert_eq!(exit_code(&met), 0, "{}", stderr_text(&met));
    assert!(stdout_text(&met).contains("expectations: 3 of 3 met"));
    let missed =
        run("distance = \"<= 1\", rounds = \"<= 9\", accuracy = \">= 0.5\"", &["--junit", "missed.xml"]);
    assert_eq!(exit_code(&missed), 3, "{}", stderr_text(&missed));
    assert_contains_all(
        &stdout_text(&missed),
        &["1 of 3 met", "rounds <= 9", "MISSED: found 10, missed by 1", "MISSED: the run has no such figure"],
    );
    assert!(stderr_text(&missed).contains("2 expectations are missed"));
    let report = std::fs::read_to_string(folder.join("missed.xml")).unwrap();
    assert_contains_all(&report, &["tests=\"3\" failures=\"2\"", "rounds &lt;= 9", "found 10, missed by 1"]);
    assert_eq!((report.matches("<testcase").count(), report.matches("<failure").count()), (3, 2));
    let report = std::fs::read_to_string(folder.join("met.xml")).unwrap();
    assert!(report.contains("failures=\"0\"") && !report.contains("<failure"));
    // The table does not disturb JSON on standard output.
    let json = run("rounds = \"<= 9\"", &["--format", "json"]);
    assert_eq!(exit_code(&json), 3);
    assert!(serde_json::from_slice::<Value>(&json.stdout).is_ok() && stderr_text(&json).contains("MISSED"));
}

/// Accuracies are fractions, so that `">= 99"` could never be met.
#[test]
fn bound_on_an_accuracy_that_is_no_fraction_is_refused() {
    let folder = empty_directory("expect-fraction");
    for bound in [">= 99", "<= 1.5", ">= -0.1"] {
        let set = format!("expect.accuracy=\"{bound}\"");
        let output = run_program(&folder, &["run", "digits", "--set", &set]);
        assert_eq!(exit_code(&output), 2, "{bound}");
        assert_contains_all(&stderr_text(&output), &["expect.accuracy", bound, "between 0 and 1"]);
    }
}

/// With several seeds the mean counts, and a run that failed misses all bounds.
#[test]
fn mean_counts_and_failed_runs_meet_nothing() {
    let folder = empty_directory("expect-mean");
    let json = run_program(&folder, &[&RUN[..], &["--format", "json"]].concat());
    let summary: Value = serde_json::from_slice(&json.stdout).unwrap();
    let mean = summary["final"]["distance"]["mean"].as_f64().unwrap();
    for (bound, code) in [(mean * 1.0001, 0), (mean * 0.9999, 3)] {
        let set = format!("expect.distance=\"<= {bound}\"");
        assert_eq!(exit_code(&run_program(&folder, &[&RUN[..], &["--set", &set]].concat())), code);
    }
    let diverging =
        "linear,algorithm.name=gd-gd,algorithm.step_size=1e6,algorithm.rounds=20,expect.distance=\"<= 1\"";
    let output = run_program(
        &folder,
        &["compare", "linear,expect.distance=\"<= 1\"", diverging, "--junit", "both.xml"],
    );
    assert_eq!(exit_code(&output), 1, "{}", stderr_text(&output));
    assert!(stdout_text(&output).contains("1 of 2 met"), "{}", stdout_text(&output));
    let report = std::fs::read_to_string(folder.join("both.xml")).unwrap();
    assert_eq!((report.matches("<testcase").count(), report.matches("<failure").count()), (2, 1), "{report}");
}

#[test]
fn bounds_that_are_none_are_refused() {
    let text = Scenario::built_in("linear").unwrap();
    for bound in ["0.9", "> 0.9", "== 1", ">= ", ">= nan", "<= inf", "<= 1 2", ""] {
        let error =
            Scenario::parse("linear", text, &[format!("expect.loss=\"{bound}\"")]).unwrap_err().to_string();
        assert_contains_all(&error, &["expect.loss", &format!("{bound:?}"), "\">= 0.9\" or \"<= 0.01\""]);
    }
    for figure in EXPECTED {
        let other = if figure.starts_with("accuracy") { "<=  7.5e-1 " } else { "<=  -1.5e3 " };
        for bound in [">=0", other] {
            let scenario =
                Scenario::parse("linear", text, &[format!("expect.{figure}=\"{bound}\"")]).unwrap();
            assert_eq!(scenario.expect[0].figure, figure);
        }
    }
    assert!(
        Scenario::parse("linear", text, &["expect.wall_s=\"<= 1\"".to_owned()]).is_err(),
        "wall time is the machine's"
    );
}

/// Each figure that can be expected is found in a run that has it.
#[test]
fn all_figures_can_be_verified() {
    let folder = empty_directory("expect-all");
    for (scenario, absent) in [
        (
            "demo",
            &[
                "accuracy_global",
                "accuracy_last_10",
                "accuracy_tuned",
                "accuracy_worst_decile",
                "test_mse",
                "distance",
            ][..],
        ),
        ("new-clients", &["accuracy"]),
        ("watch-network", &["test_mse", "distance", "accuracy_global", "ram"]),
    ] {
        let mut arguments =
            vec!["run".to_owned(), scenario.to_owned(), "--set".to_owned(), "algorithm.rounds=1".to_owned()];
        let expected =
            EXPECTED.into_iter().filter(|figure| !absent.iter().any(|name| figure.starts_with(name)));
        let expected: Vec<&str> =
            expected.filter(|figure| scenario == "new-clients" || !figure.starts_with("test_mse")).collect();
        for figure in &expected {
            arguments.extend(["--set".to_owned(), format!("expect.{figure}=\">= 0\"")]);
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = run_program(&folder, &arguments);
        let printed = stdout_text(&output);
        let lacking: Vec<&str> = printed.lines().filter(|line| line.contains("no such figure")).collect();
        assert_eq!(lacking, [""; 0], "{scenario}");
        assert!(printed.contains(&format!("of {} met", expected.len())), "{printed}");
    }
}
