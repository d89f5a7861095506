//! Tests of clients without training or test samples, and of users with test samples only.

use std::path::Path;

use crate::common::{assert_contains_all, empty_directory, exit_code, run_program, stderr_text, stdout_text};
use serde_json::{Value, json};

/// Writes a table with `rows` rows for each client.
fn write_table(folder: &Path, clients: &[(&str, usize)]) {
    let mut table = String::from("who,a,b,label\n");
    for (name, rows) in clients {
        for row in 0..*rows {
            let side = if row % 2 == 0 { 1 } else { -1 };
            table += &format!("{name},{side},{},{}\n", row % 3, if side > 0 { "walk" } else { "run" });
        }
    }
    std::fs::write(folder.join("table.csv"), table).unwrap();
}

/// Data section of a scenario that reads the table.
const TABLE: &str = "[data]\nkind = \"csv\"\npath = \"table.csv\"\nclient = \"who\"\ntarget = \"label\"\n\
                     features = [\"a\", \"b\"]\ntask = \"classes\"\n";

/// Runs a scenario and returns its summary, with standard error in field `reported`, or the error message.
fn run_scenario(folder: &Path, scenario: &str) -> Result<Value, String> {
    std::fs::write(folder.join("my.toml"), scenario).unwrap();
    let output = run_program(folder, &["run", "my.toml", "--format", "json", "--out", "out", "--overwrite"]);
    if exit_code(&output) != 0 {
        return Err(stderr_text(&output));
    }
    let mut summary: Value = serde_json::from_str(&stdout_text(&output)).unwrap();
    summary["reported"] = json!(stderr_text(&output));
    Ok(summary)
}

/// Lines of `clients.csv` without the header.
fn client_lines(folder: &Path) -> Vec<String> {
    let clients = std::fs::read_to_string(folder.join("out/clients.csv")).unwrap();
    clients.lines().skip(1).map(str::to_owned).collect()
}

/// Clients whose training part is shorter than the gap are omitted.
#[test]
fn clients_without_training_samples_are_left_out() {
    let folder = empty_directory("nothing-to-train");
    write_table(&folder, &[("p", 5), ("q", 30), ("r", 4), ("s", 30)]);
    let split = "[split]\ntest = 0.4\ngap = 3\n";
    for method in [
        "[model]\nk = 2\n[algorithm]\nname = \"local-only\"\nfinal_ridge = 0.01\n",
        "[model]\nk = 2\n[algorithm]\nname = \"pooled\"\n",
        "[model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 300\nstep_size = 1.0\n",
        "[model]\nkind = \"mlp\"\nhidden = [4]\n[algorithm]\nname = \"fedper\"\nrounds = 60\n",
    ] {
        let summary = run_scenario(&folder, &format!("{TABLE}{split}{method}")).unwrap();
        assert_eq!(
            (summary["clients"].as_u64(), summary["users_left_out"].as_u64()),
            (Some(2), Some(2)),
            "{method}"
        );
        assert!(summary["final"]["accuracy"].as_f64().unwrap() > 0.9, "{method}: {summary}");
        assert_eq!(client_lines(&folder).len(), 2, "{method}");
    }
    let reported = run_scenario(
        &folder,
        &format!(
            "{TABLE}[split]\ntest = 0.4\ngap = 50\n[model]\nk = 2\n[algorithm]\nname = \"local-only\"\n"
        ),
    );
    assert_contains_all(&reported.unwrap_err(), &["no client is left to train", "4 have no sample"]);
}

/// The summary over seeds contains the number of omitted users and the warnings of single runs.
#[test]
fn summary_over_seeds_keeps_users_left_out_and_warnings() {
    let folder = empty_directory("nothing-over-seeds");
    write_leaf(&folder.join("train.json"), &["u", "v", "w"], |row| json!(row % 2));
    write_leaf(&folder.join("some.json"), &["v", "x", "y"], |row| json!(row % 2));
    std::fs::write(folder.join("s.toml"), leaf("train.json", "some.json")).unwrap();
    let output = run_program(&folder, &["run", "s.toml", "--seeds", "2", "--out", "out"]);
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    let written = std::fs::read_to_string(folder.join("out/summary.json")).unwrap();
    let summary: Value = serde_json::from_str(&written).unwrap();
    assert_eq!((summary["seeds"].as_array().unwrap().len(), &summary["users_left_out"]), (2, &json!(2)));
    let warnings = summary["warnings"].as_array().unwrap();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert_contains_all(warnings[0].as_str().unwrap(), &["some.json: 2 of 3 users"]);
}

/// With a test fraction of one fifth, a client with two rows has no test samples.
#[test]
fn clients_without_test_samples_have_empty_fields() {
    let folder = empty_directory("nothing-to-test");
    write_table(&folder, &[("p", 2), ("q", 30), ("s", 30)]);
    for method in
        ["name = \"local-only\"\nfinal_ridge = 0.01\n", "name = \"fedrep\"\nrounds = 300\nstep_size = 1.0\n"]
    {
        let summary =
            run_scenario(&folder, &format!("{TABLE}[model]\nk = 2\n[algorithm]\n{method}")).unwrap();
        assert_eq!((&summary["users_left_out"], &summary["clients"]), (&Value::Null, &json!(3)));
        let lines = client_lines(&folder);
        assert!(lines[0].split(',').nth(2) == Some(""), "{lines:?}");
        assert!(lines[1].split(',').nth(2) != Some(""), "{lines:?}");
    }
}

/// User of a LEAF file with `rows` samples.
fn user(rows: usize, label: impl Fn(usize) -> Value) -> Value {
    let x: Vec<Value> = (0..rows).map(|row| json!([row % 2, row % 3, 1 - row % 2])).collect();
    json!({ "x": x, "y": (0..rows).map(label).collect::<Vec<_>>() })
}

/// Writes a LEAF file with six samples for each user.
fn write_leaf(path: &Path, users: &[&str], label: impl Fn(usize) -> Value + Copy) {
    let data: serde_json::Map<String, Value> =
        users.iter().map(|name| ((*name).to_owned(), user(6, label))).collect();
    let counts = vec![6; users.len()];
    let file = json!({ "users": users, "num_samples": counts, "user_data": data });
    std::fs::write(path, file.to_string()).unwrap();
}

/// Model and algorithm of the scenarios with user files.
const LEAF: &str = "[model]\nk = 2\n[algorithm]\nname = \"local-only\"\nfinal_ridge = 0.01\n";

/// Scenario that reads LEAF files; without a test file if `test_path` is empty.
fn leaf(path: &str, test_path: &str) -> String {
    let test = if test_path.is_empty() { String::new() } else { format!("test_path = \"{test_path}\"\n") };
    format!("[data]\nkind = \"leaf\"\npath = \"{path}\"\n{test}{LEAF}")
}

/// Whole numbers are accepted as labels in any notation. Other values are refused with a message that
/// contains the value.
#[test]
fn labels_are_whole_numbers_however_they_are_written() {
    let folder = empty_directory("nothing-labels");
    write_leaf(&folder.join("whole.json"), &["u", "v"], |row| json!(row % 2));
    write_leaf(&folder.join("points.json"), &["u", "v"], |row| json!((row % 2) as f64));
    let mut results = Vec::new();
    for path in ["whole.json", "points.json"] {
        results.push(run_scenario(&folder, &leaf(path, path)).unwrap()["final"].clone());
    }
    assert_eq!(results[0], results[1]);
    for (invalid_label, expected_part) in
        [(json!(1.5), "1.5"), (json!(-1), "-1"), (json!(256), "256"), (json!(1e9), "1000000000")]
    {
        write_leaf(&folder.join("wrong.json"), &["u"], |_| invalid_label.clone());
        assert_contains_all(
            &run_scenario(&folder, &leaf("wrong.json", "")).unwrap_err(),
            &["wrong.json", expected_part, "255", "line 1"],
        );
    }
    write_leaf(&folder.join("wrong.json"), &["u"], |_| json!("walk"));
    assert_contains_all(
        &run_scenario(&folder, &leaf("wrong.json", "")).unwrap_err(),
        &["wrong.json", "walk", "a whole number from 0 to 255"],
    );
}

#[test]
fn test_part_of_other_users_is_reported() {
    let folder = empty_directory("nothing-users");
    let label = |row: usize| json!(row % 2);
    write_leaf(&folder.join("train.json"), &["u", "v", "w"], label);
    write_leaf(&folder.join("other.json"), &["x", "y"], label);
    write_leaf(&folder.join("some.json"), &["v", "x", "y"], label);
    assert_contains_all(
        &run_scenario(&folder, &leaf("train.json", "other.json")).unwrap_err(),
        &["other.json", "train.json", "none of its 2 users", "\"x\"", "split.holdout_clients"],
    );
    let summary = run_scenario(&folder, &leaf("train.json", "some.json")).unwrap();
    assert_eq!((&summary["clients"], &summary["users_left_out"]), (&json!(3), &json!(2)));
    assert_contains_all(
        summary["reported"].as_str().unwrap(),
        &["warning", "some.json: 2 of 3 users", "\"x\"", "train.json"],
    );
    assert_contains_all(summary["warnings"][0].as_str().unwrap(), &["some.json: 2 of 3 users"]);
    // If the split is not that of the files, the users of both files are clients.
    let all_users = run_scenario(
        &folder,
        &leaf("train.json", "other.json").replace("[model]", "[split]\nby = \"stratified\"\n[model]"),
    );
    assert_eq!(all_users.unwrap()["clients"], 5);
}

/// A user that occurs in two files of a directory is refused: the files may be a training and a test part,
/// and the model would be trained on test samples.
#[test]
fn user_in_two_files_is_an_error() {
    let folder = empty_directory("nothing-directory");
    let label = |row: usize| json!(row % 2);
    std::fs::create_dir(folder.join("all")).unwrap();
    write_leaf(&folder.join("all/test.json"), &["u", "v"], label);
    write_leaf(&folder.join("all/train.json"), &["v", "w"], label);
    assert_contains_all(
        &run_scenario(&folder, &leaf("all", "")).unwrap_err(),
        &["\"v\"", "test.json", "train.json", "data.test_path"],
    );
    write_leaf(&folder.join("all/train.json"), &["w"], label);
    assert_eq!(run_scenario(&folder, &leaf("all", "")).unwrap()["clients"], 3);
}
