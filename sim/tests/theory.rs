//! Tests of command `theory srpfl`: tables, JSON, report, and refused options.

use crate::common::{empty_directory, exit_code, run_program, stderr_text, stdout_text};

#[test]
fn table_has_every_fleet_and_the_trend() {
    let folder = empty_directory("theory-table");
    let output = run_program(&folder, &["theory", "srpfl", "--communication", "0,10"]);
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    let text = stdout_text(&output);
    for part in ["Communication 0:", "Communication 10:", "65536", "slope", "R^2", "By the contraction"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "files were written without --out");
}

#[test]
fn json_equals_the_table() {
    let folder = empty_directory("theory-json");
    let output = run_program(&folder, &["theory", "srpfl", "--communication", "1", "--format", "json"]);
    let figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let cells = figures["parts"][0]["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 13);
    for cell in cells {
        let value_of = |name: &str| cell[name].as_f64().unwrap();
        assert!((value_of("full") / value_of("optimal") - value_of("full_over_optimal")).abs() < 1e-12);
    }
    assert!(figures["parts"][0]["optimal_trend"]["slope"].as_f64().unwrap() > 0.1);
}

/// The table in `STRAGGLERS.md` and the slopes in its text equal the output of the command.
#[test]
fn stragglers_page_equals_the_command_output() {
    let folder = empty_directory("theory-page");
    let output = run_program(&folder, &["theory", "srpfl", "--format", "json"]);
    let figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let page = include_str!("../STRAGGLERS.md");
    for part in figures["parts"].as_array().unwrap() {
        let cell = |ratio: u64, key: &str| {
            let cells = part["cells"].as_array().unwrap();
            let cell = cells.iter().find(|cell| cell["ratio"] == ratio).unwrap();
            format!("{:.2}", cell[key].as_f64().unwrap())
        };
        let fleets = [16, 1024, 65536];
        let optimal = fleets.map(|ratio| cell(ratio, "full_over_optimal")).join(" | ");
        let theorem = fleets.map(|ratio| cell(ratio, "full_over_theorem")).join(" | ");
        let slope = part["optimal_trend"]["slope"].as_f64().unwrap();
        let communication = part["communication"].as_f64().unwrap();
        let line = format!("| C = {communication}: full/optimal | {optimal} | {slope:.3} |");
        assert!(page.contains(&line), "{line}");
        let line = format!("| C = {communication}: full/theorem | {theorem} |");
        assert!(page.contains(&line), "{line}");
    }
}

#[test]
fn report_draws_recursion_and_simulated_runs() {
    let folder = empty_directory("theory-report");
    let small_run = ["--seeds", "2", "--set", "data.clients=16", "--set", "algorithm.rounds=40"];
    let output = run_program(&folder, &[&["theory", "srpfl", "--out", "out"][..], &small_run].concat());
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    let page = std::fs::read_to_string(folder.join("out/report.html")).unwrap();
    for label in ["recursion, full", "recursion, optimal", "recursion, theorem", "simulated, full"] {
        assert!(page.contains(&format!("</span>{label}</li>")), "{label}");
    }
    assert!(page.contains("simulated, adaptive") && page.contains("<svg"));
    assert!(!page.contains("bytes sent"), "the page has an axis of bytes");
    let time = page.find(">simulated time</label>").unwrap();
    assert!(time < page.find(">rounds</label>").unwrap(), "time is not the first axis");
}

#[test]
fn help_shows_examples() {
    let folder = empty_directory("theory-help");
    for command in [&["theory", "srpfl", "--help"][..], &["speedup", "--help"]] {
        let output = run_program(&folder, command);
        assert_eq!(exit_code(&output), 0, "{command:?}");
        assert!(stdout_text(&output).contains("Examples:") && stdout_text(&output).contains("STRAGGLERS.md"));
    }
}

#[test]
fn impossible_options_exit_with_2() {
    let folder = empty_directory("theory-wrong");
    for (arguments, message) in [
        (vec!["theory"], "srpfl"),
        (vec!["theory", "srpfl", "--contraction", "0.3"], "0.25"),
        (vec!["theory", "srpfl", "--factor", "1.5"], "sqrt 2"),
        (vec!["theory", "srpfl", "--start", "0.1"], "target"),
        (vec!["theory", "srpfl", "--communication", "-1"], "unexpected argument"),
        (vec!["theory", "srpfl", "--set", "data.clients=16"], "--out"),
        (vec!["theory", "srpfl", "--out", "out", "--scenario", "linear"], "doubling"),
        (vec!["speedup", "--clients", "20"], "--measure-target"),
        (vec!["speedup", "--schedules", "never"], "adaptive"),
        (vec!["speedup", "--speeds", "fast"], "dynamic-rate"),
        (vec!["speedup", "--factor", "1"], "above 1"),
    ] {
        let output = run_program(&folder, &arguments);
        assert_eq!(exit_code(&output), 2, "{arguments:?}: {}", stderr_text(&output));
        assert!(stderr_text(&output).contains(message), "{arguments:?}: {}", stderr_text(&output));
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "files were written");
}

#[test]
fn speedup_writes_table_and_figures() {
    let folder = empty_directory("speedup-files");
    let few_settings = ["--clients", "16", "--speeds", "fixed", "--communication", "0", "--seeds", "5"];
    let output = run_program(&folder, &[&["speedup", "--out", "out"][..], &few_settings].concat());
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    assert_eq!(stdout_text(&output), std::fs::read_to_string(folder.join("out/table.md")).unwrap());
    let figures = std::fs::read_to_string(folder.join("out/figures.json")).unwrap();
    let figures: serde_json::Value = serde_json::from_str(&figures).unwrap();
    assert_eq!(figures["rows"].as_array().unwrap().len(), 1);
    assert_eq!(figures["rows"][0]["policies"].as_array().unwrap().last().unwrap()["name"], "verified");
}
