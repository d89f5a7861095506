//! Tests of command `init`: scenarios for data files of every kind, and error messages for files that it cannot
//! understand.

use std::fmt::Write as _;
use std::path::Path;

use crate::common::{
    assert_contains_all, empty_directory, exit_code, random_numbers, run_program, stderr_text, stdout_text,
    write_npz,
};
use fedspan_sim_core::propose::{Answers, ProposeError, propose};
use fedspan_sim_core::scenario::Scenario;
use proptest::prelude::*;
use serde_json::Value;

/// Table of eight people with twelve rows each, two features and three classes.
fn people() -> String {
    let numbers = random_numbers(200, 7);
    let mut text = "subject,steps,pulse,note,activity\n".to_owned();
    for row in 0..96 {
        let (class, person) = (row % 3, row / 12);
        let (a, b) = (numbers[2 * row] + class as f64, numbers[2 * row + 1] - class as f64);
        writeln!(text, "p{person},{a},{b},day {row},{}", ["walk", "run", "rest"][class]).unwrap();
    }
    text
}

#[test]
fn table_gets_a_scenario_that_runs() {
    let folder = empty_directory("init-table");
    std::fs::write(folder.join("people.csv"), people()).unwrap();
    let output = run_program(&folder, &["init", "people.csv"]);
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    assert_contains_all(
        &stderr_text(&output),
        &[
            "96 rows",
            "subject, 8 of them",
            "activity, 3 classes",
            "2: steps, pulse",
            "note: text, \"day 0\" in line 2",
        ],
    );
    assert_contains_all(&stdout_text(&output), &["wrote people.toml", "fedspan-sim run people.toml"]);
    let run = run_program(&folder, &["run", "people.toml", "--set", "algorithm.rounds=5"]);
    assert_eq!(exit_code(&run), 0, "{}", stderr_text(&run));
    assert!(stdout_text(&run).contains("accuracy_new_clients"));
    let all = ["compare", "people.toml", "--algorithms", "all", "--set", "algorithm.rounds=2"];
    assert_eq!(exit_code(&run_program(&folder, &all)), 0);
}

#[test]
fn nothing_is_overwritten_and_paths_lead_to_the_data() {
    let folder = empty_directory("init-paths");
    std::fs::create_dir(folder.join("data")).unwrap();
    std::fs::create_dir(folder.join("scenarios")).unwrap();
    std::fs::write(folder.join("data/people.csv"), people()).unwrap();
    for out in ["people.toml", "scenarios/mine.toml"] {
        let arguments = ["init", "data/people.csv", "--out", out];
        assert_eq!(exit_code(&run_program(&folder, &arguments)), 0);
        let output = run_program(&folder, &arguments);
        assert_eq!(exit_code(&output), 2);
        assert_contains_all(&stderr_text(&output), &[out, "exists already", "--out"]);
        let run = run_program(&folder, &["run", out, "--set", "algorithm.rounds=1"]);
        assert_eq!(exit_code(&run), 0, "{}", stderr_text(&run));
    }
    let shown = run_program(&folder, &["init", "data/people.csv", "--out", "-"]);
    assert!(stdout_text(&shown).starts_with("# Proposed by") && !stdout_text(&shown).contains("wrote"));
}

#[test]
fn answers_go_before_guesses() {
    let folder = empty_directory("init-answers");
    std::fs::write(folder.join("people.csv"), people()).unwrap();
    let arguments = [
        "init",
        "people.csv",
        "--no-client",
        "--target",
        "pulse",
        "--task",
        "regression",
        "--out",
        "pulse.toml",
    ];
    assert_eq!(exit_code(&run_program(&folder, &arguments)), 0);
    let text = std::fs::read_to_string(folder.join("pulse.toml")).unwrap();
    assert_contains_all(
        &text,
        &["target = \"pulse\"", "kind = \"iid\"", "task = \"regression\"", "by = \"random\""],
    );
    assert!(!text.contains("client = "));
    let network = run_program(&folder, &["init", "people.csv", "--model", "mlp", "--out", "network.toml"]);
    assert_eq!(exit_code(&network), 0);
    let text = std::fs::read_to_string(folder.join("network.toml")).unwrap();
    assert_contains_all(&text, &["hidden = [32]", "name = \"learned-prior\"", "second_moments = true"]);
}

#[test]
fn archive_of_arrays_gets_a_scenario() {
    let folder = empty_directory("init-npz");
    let x = random_numbers(8 * 12 * 3, 3);
    let y: Vec<f64> = (0..96).map(|row| f64::from(row % 4)).collect();
    let subject: Vec<f64> = (0..96).map(|row| f64::from(row / 12)).collect();
    write_npz(
        &folder.join("flat.npz"),
        &[("X", &[96, 3], &x), ("labels", &[96], &y), ("subject", &[96], &subject)],
    );
    write_npz(&folder.join("blocks.npz"), &[("x", &[8, 12, 3], &x), ("y", &[8, 12], &x[..96])]);
    write_npz(&folder.join("bare.npz"), &[("x", &[96, 3], &x), ("y", &[96], &y)]);
    write_npz(
        &folder.join("parts.npz"),
        &[
            ("x_train", &[96, 3], &x),
            ("y_train", &[96], &y),
            ("client_train", &[96], &subject),
            ("x_test", &[96, 3], &x),
            ("y_test", &[96], &y),
            ("client_test", &[96], &subject),
        ],
    );
    for (name, parts) in [
        (
            "flat",
            &[
                "x = \"X\"",
                "y = \"labels\"",
                "client = \"subject\"",
                "task = \"classes\"",
                "holdout_users = 1",
            ][..],
        ),
        ("blocks", &["task = \"regression\"", "new_samples"]),
        ("bare", &["[data.partition]", "kind = \"iid\""]),
        ("parts", &["x_test = \"x_test\"", "client_test = \"client_test\"", "by = \"files\""]),
    ] {
        let output = run_program(&folder, &["init", &format!("{name}.npz")]);
        assert_eq!(exit_code(&output), 0, "{name}: {}", stderr_text(&output));
        assert_contains_all(&std::fs::read_to_string(folder.join(format!("{name}.toml"))).unwrap(), parts);
        let run = run_program(&folder, &["run", &format!("{name}.toml"), "--set", "algorithm.rounds=1"]);
        assert_eq!(exit_code(&run), 0, "{name}: {}", stderr_text(&run));
    }
}

#[test]
fn images_and_users_get_a_scenario() {
    let folder = empty_directory("init-images");
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("core/data");
    for part in ["images-idx3", "labels-idx1"] {
        std::fs::copy(data.join(format!("digits-{part}-ubyte.gz")), folder.join(format!("{part}.gz")))
            .unwrap();
    }
    for file in ["images-idx3.gz", "labels-idx1.gz"] {
        let output = run_program(&folder, &["init", file, "--out", &format!("{file}.toml")]);
        assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
        let run = run_program(&folder, &["run", &format!("{file}.toml"), "--set", "algorithm.rounds=1"]);
        assert_eq!(exit_code(&run), 0, "{}", stderr_text(&run));
    }
    std::fs::rename(folder.join("labels-idx1.gz"), folder.join("digits.gz")).unwrap();
    let output = run_program(&folder, &["init", "images-idx3.gz", "--out", "named.toml"]);
    assert_eq!(exit_code(&output), 2);
    assert!(stderr_text(&output).contains("--labels"), "{}", stderr_text(&output));
    let output =
        run_program(&folder, &["init", "images-idx3.gz", "--labels", "digits.gz", "--out", "named.toml"]);
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    let run = run_program(&folder, &["run", "named.toml", "--set", "algorithm.rounds=1"]);
    assert_eq!(exit_code(&run), 0, "{}", stderr_text(&run));
    let user =
        |name: &str| format!("{name:?}: {{\"x\": [[1, 2], [3, 1], [0, 2], [1, 1]], \"y\": [0, 1, 0, 1]}}");
    let users = ["a", "b"].map(user).join(", ");
    let text = format!("{{\"users\": [\"a\", \"b\"], \"num_samples\": [4, 4], \"user_data\": {{{users}}}}}");
    std::fs::create_dir(folder.join("train")).unwrap();
    std::fs::create_dir(folder.join("test")).unwrap();
    std::fs::write(folder.join("train/all.json"), &text).unwrap();
    std::fs::write(folder.join("test/all.json"), &text).unwrap();
    let output = run_program(&folder, &["init", "train"]);
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    let written = std::fs::read_to_string(folder.join("train.toml")).unwrap();
    assert_contains_all(&written, &["kind = \"leaf\"", "test_path = \"test\"", "by = \"files\""]);
    let run = run_program(&folder, &["run", "train.toml", "--set", "algorithm.rounds=1"]);
    assert_eq!(exit_code(&run), 0, "{}", stderr_text(&run));
}

/// A message names the file, the place and the reason, and no file is written.
#[test]
fn file_that_is_not_understood_is_an_error_with_the_reason() {
    let folder = empty_directory("init-errors");
    let x = random_numbers(30, 3);
    write_npz(&folder.join("recording.npz"), &[("samples", &[10, 3], &x), ("subject", &[30], &x)]);
    std::fs::write(folder.join("images.idx"), [0, 0, 8, 3, 0, 0, 0, 1]).unwrap();
    let tables = [
        ("twice.csv", "a,a,y\n1,2,3\n", "found column \"a\" twice"),
        ("short.csv", "a,y\n1,2\n1\n", "line 3: found 1 columns, expected 2"),
        ("gap.csv", "user,a,y\n1,2,3\n1,3,\n2,2,2\n2,1,4\n", "target \"y\": 1 cells are empty"),
        ("texts.csv", "a,y\nu,1.5\nv,2.5\nw,0.5\n", "\"a\" (text, \"u\" in line 2)"),
        ("one.csv", "y\n1\n2\n", "there is no other column"),
        ("header.csv", "a,y\n", "no rows"),
        ("sheet.csv", "PK\u{3}\u{4}rest", "workbook"),
        ("object.json", "{\"a\": 1}", "missing field"),
    ];
    for (name, text, _) in tables {
        std::fs::write(folder.join(name), text).unwrap();
    }
    let others = [
        ("recording.npz", "no array of targets"),
        ("images.idx", "expected its labels beside it"),
        ("no.csv", "no.csv"),
    ];
    let before = std::fs::read_dir(&folder).unwrap().count();
    for (name, message) in tables.map(|(name, _, message)| (name, message)).into_iter().chain(others) {
        let output = run_program(&folder, &["init", name]);
        assert_eq!(exit_code(&output), 2, "{name}: {}", stderr_text(&output));
        assert_contains_all(&stderr_text(&output), &[name, message]);
        assert_eq!(stderr_text(&output).lines().count(), 1, "{}", stderr_text(&output));
    }
    std::fs::write(folder.join("numbers.csv"), "a,y\n1,1.5\n2,2.5\n3,0.5\n").unwrap();
    let before = before + 1;
    for (arguments, message) in [
        (["init", "numbers.csv", "--target", "z"], "no column \"z\", allowed: a, y"),
        (["init", "numbers.csv", "--client", "who"], "no column \"who\", allowed: a, y"),
        (["init", "numbers.csv", "--model", "mlp"], "a network predicts classes"),
    ] {
        let output = run_program(&folder, &arguments);
        assert_eq!(exit_code(&output), 2);
        assert_contains_all(&stderr_text(&output), &["numbers.csv", message]);
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), before, "files were written");
}

/// The example for images names the bundled files, as `init` writes it for files in another folder.
#[test]
fn example_of_images_is_what_init_writes() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let folder = empty_directory("init-idx-example");
    let data = "../core/data/digits-images-idx3-ubyte.gz";
    let output = run_program(&examples, &["init", data, "--out", "-"]);
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    let example = std::fs::read_to_string(examples.join("digits-idx.toml")).unwrap();
    assert_eq!(stdout_text(&output), example);
    let path = examples.join("digits-idx.toml");
    let run = run_program(&folder, &["run", path.to_str().unwrap(), "--set", "algorithm.rounds=5"]);
    assert_eq!(exit_code(&run), 0, "{}", stderr_text(&run));
    let board = examples.join("pumps-board.toml");
    let run = run_program(&folder, &["run", board.to_str().unwrap(), "--format", "json"]);
    let summary: Value = serde_json::from_slice(&run.stdout).unwrap();
    let error = summary["final"]["test_mse"].as_f64().unwrap();
    assert!(error < 0.03, "{error}");
}

/// The example scenarios are those that `init` writes for the example files, and they run; the table and the archive have the
/// same content.
#[test]
fn examples_are_what_init_writes() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let folder = empty_directory("init-examples");
    let mut accuracies = Vec::new();
    for kind in ["csv", "npz", "json"] {
        let data = format!("gestures.{kind}");
        std::fs::copy(examples.join(&data), folder.join(&data)).unwrap();
        let out = format!("gestures-{kind}.toml");
        let output = run_program(&folder, &["init", &data, "--out", &out]);
        assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
        let written = std::fs::read_to_string(folder.join(&out)).unwrap();
        assert!(
            written == std::fs::read_to_string(examples.join(&out)).unwrap(),
            "{out} is not what init writes:\n{written}"
        );
        let run = run_program(&folder, &["run", &out, "--set", "algorithm.rounds=20", "--format", "json"]);
        assert_eq!(exit_code(&run), 0, "{}", stderr_text(&run));
        let summary: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
        accuracies.push(summary["final"]["accuracy"].as_f64().unwrap());
    }
    assert_eq!(accuracies[0], accuracies[1]);
    assert!(accuracies.iter().all(|accuracy| *accuracy > 0.8), "{accuracies:?}");
}

/// Rows are cut in the order of time only if they are in it, and a copy of the target is no feature.
#[test]
fn order_and_copies_are_verified() {
    let folder = empty_directory("init-relations");
    let table = |reversed: bool| {
        let mut text = "subject,time,steps,activity_code,activity\n".to_owned();
        for row in 0..60_usize {
            let time = if reversed { 60 - row } else { row };
            writeln!(
                text,
                "p{},{time},{}.5,{},{}",
                row / 10,
                row * row % 37,
                row % 3 + 10,
                ["walk", "run", "rest"][row % 3]
            )
            .unwrap();
        }
        text
    };
    for (name, reversed) in [("ordered", false), ("reversed", true)] {
        std::fs::write(folder.join(format!("{name}.csv")), table(reversed)).unwrap();
        let output = run_program(&folder, &["init", &format!("{name}.csv")]);
        assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
        let written = std::fs::read_to_string(folder.join(format!("{name}.toml"))).unwrap();
        assert_eq!(written.contains("by = \"time\""), !reversed, "{written}");
        assert_eq!(stderr_text(&output).contains("not in the order of time"), reversed);
        assert!(
            written.contains("\"!activity_code\"") && written.contains("stands for one class"),
            "{written}"
        );
    }
}

/// Names of classes with line ends neither end a comment nor add keys.
#[test]
fn line_ends_in_names_stay_in_comments() {
    let folder = empty_directory("init-lines");
    let mut text = "user,a,y\n".to_owned();
    for row in 0..60 {
        let class = ["\"a\nconstant = false\"", "\"b\u{1b}[31m\"", "c"][row % 3];
        writeln!(text, "u{},{},{class}", row / 12, row * row % 31).unwrap();
    }
    std::fs::write(folder.join("lines.csv"), text).unwrap();
    let output = run_program(&folder, &["init", "lines.csv"]);
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    assert!(!stderr_text(&output).contains('\u{1b}'));
    let written = std::fs::read_to_string(folder.join("lines.toml")).unwrap();
    assert!(written.lines().all(|line| !line.starts_with("constant")), "{written}");
    Scenario::parse("lines.toml", &written, &[]).unwrap();
}

/// Text of a cell or a column name that could be taken for syntax of CSV or TOML.
fn word() -> impl Strategy<Value = String> {
    let known = [
        "user", "label", "y", "time", "id", "*", "!a", "a..b", "x", "# c", "\"q\"", "k = 1", "[s]", "\\",
        "é", "NA", "1", "1.0", "true", "2,5", "",
    ];
    prop_oneof![
        prop::sample::select(known.to_vec()).prop_map(str::to_owned),
        "[ -~]{0,6}",
        "-?[0-9]{1,3}(\\.[0-9]{1,2})?"
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// For tables of any content: either there is a reason that names the file, or the proposed scenario is valid and
    /// its data can be read.
    #[test]
    fn every_proposal_can_be_read(
        header in prop::collection::vec(word(), 1..6),
        cells in prop::collection::vec(word(), 1..60),
        repeats in 1..5_usize,
        network in any::<bool>(),
    ) {
        let folder = empty_directory("init-any");
        let path = folder.join("any.csv");
        let mut writer = csv::WriterBuilder::new().flexible(true).from_path(&path).unwrap();
        writer.write_record(&header).unwrap();
        for row in cells.chunks_exact(header.len()).flat_map(|row| std::iter::repeat_n(row, repeats)) {
            writer.write_record(row).unwrap();
        }
        writer.flush().unwrap();
        let scenario = folder.join("any.toml").display().to_string();
        let answers = Answers { network: Some(network), ..Answers::default() };
        match propose(&scenario, path.to_str().unwrap(), &answers) {
            Ok(proposal) => {
                let parsed = Scenario::parse(&scenario, &proposal.text, &[]).map_err(|problem| problem.to_string()).unwrap();
                parsed.dataset(2).unwrap();
            }
            Err(ProposeError::Data(error)) => prop_assert!(error.file.contains("any.csv"), "{}", error),
            Err(error @ ProposeError::Refused(_)) => panic!("{error}\n{header:?}"),
        }
    }
}
