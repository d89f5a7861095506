//! Tests of the result files with predictions, classes and clients: they agree with each other and with the data.

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::{empty_directory, exit_code, random_numbers, run_program, stderr_text};
use serde_json::Value;

/// Rows of a CSV file, by column.
fn rows(path: &Path) -> Vec<BTreeMap<String, String>> {
    let mut reader = csv::Reader::from_path(path).unwrap();
    let header = reader.headers().unwrap().clone();
    let row = |record: csv::StringRecord| {
        header.iter().map(str::to_owned).zip(record.iter().map(str::to_owned)).collect()
    };
    reader.records().map(|record| row(record.unwrap())).collect()
}

/// Writes a table of ten people with twelve rows each, in an order in which people alternate, and returns the cells
/// `who`, `kind` and `value` of each row.
fn write_table(folder: &Path) -> Vec<[String; 3]> {
    let numbers = random_numbers(120 * 3, 11);
    let mut text = "who,a,b,kind,value\n".to_owned();
    let mut cells = Vec::new();
    for (row, x) in numbers.chunks_exact(3).enumerate() {
        let (class, who) = (row / 10 % 3, format!("p,{}", row % 10));
        let kind = ["walk", "run", "a \"rest\""][class];
        let (a, b) = (x[0] + class as f64, x[1] - class as f64);
        let value = a - 2.0 * b + x[2];
        text += &format!("\"{who}\",{a},{b},\"{}\",{value}\n", kind.replace('"', "\"\""));
        cells.push([who, kind.to_owned(), value.to_string()]);
    }
    std::fs::write(folder.join("t.csv"), text).unwrap();
    cells
}

const CLASSES: &str = "[data]\nkind = \"csv\"\npath = \"t.csv\"\nclient = \"who\"\ntarget = \"kind\"\nfeatures = [\"a\", \"b\"]\ntask = \"classes\"\n\
                       [split]\nby = \"stratified\"\ntest = 0.3\nholdout_users = 2\n";

/// Runs a scenario into the directory `out`.
fn run(folder: &Path, scenario: &str) -> Value {
    std::fs::write(folder.join("my.toml"), scenario).unwrap();
    let output = run_program(folder, &["run", "my.toml", "--out", "out", "--overwrite"]);
    assert_eq!(exit_code(&output), 0, "{scenario}\n{}", stderr_text(&output));
    serde_json::from_slice(&std::fs::read(folder.join("out/summary.json")).unwrap()).unwrap()
}

#[test]
fn predictions_agree_with_accuracies_and_with_the_data() {
    let folder = empty_directory("predictions");
    let cells = write_table(&folder);
    for model in [
        "[model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 5\nstep_size = 0.5\n",
        "[model]\nk = 2\n[algorithm]\nname = \"fedavg\"\nrounds = 5\nstep_size = 0.1\n",
        "[model]\nk = 2\n[algorithm]\nname = \"local-only\"\n",
        "[model]\nk = 2\n[algorithm]\nname = \"pooled\"\n",
        "[model]\nkind = \"mlp\"\nhidden = [4]\n[algorithm]\nname = \"fedper\"\nrounds = 5\n",
        "[model]\nkind = \"mlp\"\nhidden = [4]\n[algorithm]\nname = \"ditto+ft\"\nrounds = 3\n",
    ] {
        let summary = run(&folder, &format!("{CLASSES}{model}"));
        let out = folder.join("out");
        let predictions = rows(&out.join("predictions.csv"));
        let clients = rows(&out.join("clients.csv"));
        assert_eq!(clients.len(), 10, "{model}");
        for client in &clients {
            let of_client: Vec<_> =
                predictions.iter().filter(|row| row["client"] == client["client"]).collect();
            assert!(!of_client.is_empty());
            for row in &of_client {
                let [who, kind, _] = &cells[row["row"].parse::<usize>().unwrap()];
                assert_eq!((who, kind), (&client["name"], &row["true"]), "{model}");
                let score: f64 = row["score"].parse().unwrap();
                assert!(score.is_finite());
                assert!(
                    !model.contains("mlp") || (1.0 / 3.0 - 1e-6..=1.0).contains(&score),
                    "{score} is no probability"
                );
            }
            let correct = of_client.iter().filter(|row| row["true"] == row["predicted"]).count();
            let accuracy: f64 = client["accuracy"].parse().unwrap();
            assert_eq!(accuracy, correct as f64 / of_client.len() as f64, "{model}");
        }
        let mut rows_seen: Vec<&str> = predictions.iter().map(|row| row["row"].as_str()).collect();
        rows_seen.sort_unstable();
        rows_seen.dedup();
        assert_eq!(rows_seen.len(), predictions.len(), "a row is predicted twice");

        let confusion = rows(&out.join("confusion.csv"));
        let classes = rows(&out.join("classes.csv"));
        let f1: Vec<f64> = ["before", "after"]
            .map(|came| {
                let of = |rows: &[BTreeMap<String, String>]| -> Vec<BTreeMap<String, String>> {
                    rows.iter().filter(|row| row["came"] == came).cloned().collect()
                };
                let numbers: Vec<&String> = clients
                    .iter()
                    .filter(|client| client["came"] == came)
                    .map(|client| &client["client"])
                    .collect();
                let of_these: Vec<_> =
                    predictions.iter().filter(|row| numbers.contains(&&row["client"])).collect();
                for cell in of(&confusion) {
                    let count = of_these
                        .iter()
                        .filter(|row| row["true"] == cell["true"] && row["predicted"] == cell["predicted"])
                        .count();
                    assert_eq!(cell["samples"], count.to_string());
                }
                let total: usize =
                    of(&confusion).iter().map(|cell| cell["samples"].parse::<usize>().unwrap()).sum();
                assert_eq!(total, of_these.len());
                let scores = of(&classes);
                assert_eq!(scores.len(), 3);
                scores.iter().map(|class| class["f1"].parse::<f64>().unwrap()).sum::<f64>() / 3.0
            })
            .to_vec();
        assert!((summary["f1"]["trained"].as_f64().unwrap() - f1[0]).abs() < 1e-12);
        assert!((summary["f1"]["new_clients"].as_f64().unwrap() - f1[1]).abs() < 1e-12);
        let has_heads = !model.contains("pooled");
        assert_eq!(out.join("model/heads.npy").exists(), has_heads, "{model}");
        assert!(out.join("model/new-heads.npy").exists(), "{model}");
        let file = &summary["data"][0];
        let bytes = std::fs::read(folder.join("t.csv")).unwrap();
        assert_eq!(
            (file["file"].as_str(), file["bytes"].as_u64()),
            (Some("t.csv"), Some(bytes.len() as u64))
        );
        let sum = file["sha256"].as_str().unwrap();
        // The scenario accepts the checksum, so it is that of the file.
        run(
            &folder,
            &format!("{}{model}", CLASSES.replace("[split]", &format!("sha256 = [\"{sum}\"]\n[split]"))),
        );
    }
}

#[test]
fn predicted_values_agree_with_the_error() {
    let folder = empty_directory("predicted-values");
    let cells = write_table(&folder);
    let scenario = CLASSES
        .replace("target = \"kind\"", "target = \"value\"")
        .replace("task = \"classes\"\n", "")
        .replace("stratified", "random")
        .replace("holdout_users = 2\n", "holdout_users = 2\nnew_samples = 5\n");
    run(
        &folder,
        &format!("{scenario}[model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 5\nstep_size = 0.1\n"),
    );
    let out = folder.join("out");
    let predictions = rows(&out.join("predictions.csv"));
    for client in rows(&out.join("clients.csv")) {
        let errors: Vec<f64> = predictions
            .iter()
            .filter(|row| row["client"] == client["client"])
            .map(|row| {
                let [who, _, value] = &cells[row["row"].parse::<usize>().unwrap()];
                let (truth, predicted): (f32, f32) =
                    (row["true"].parse().unwrap(), row["predicted"].parse().unwrap());
                assert_eq!((who, &row["output"]), (&client["name"], &"0".to_owned()));
                assert_eq!(truth, value.parse::<f64>().unwrap() as f32);
                f64::from(predicted - truth).powi(2)
            })
            .collect();
        let mse: f64 = client["test_mse"].parse().unwrap();
        assert_eq!(mse, errors.iter().sum::<f64>() / errors.len() as f64);
    }
    assert!(!out.join("confusion.csv").exists() && !out.join("classes.csv").exists());
}

/// The numbers and names of clients are those in the data, also if attackers between them are left out.
#[test]
fn clients_keep_their_numbers_when_attackers_are_left_out() {
    let folder = empty_directory("honest-numbers");
    let cells = write_table(&folder);
    let attack = "[attack]\nkind = \"samples\"\nfraction = 0.4\n";
    run(
        &folder,
        &format!(
            "{CLASSES}[model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 2\nstep_size = 0.5\n{attack}"
        ),
    );
    let clients = rows(&folder.join("out/clients.csv"));
    // Three of the eight clients that train attack.
    assert_eq!(clients.len(), 5 + 2);
    let numbers: Vec<usize> = clients.iter().map(|client| client["client"].parse().unwrap()).collect();
    assert!(numbers.is_sorted() && numbers[5..] == [8, 9]);
    assert_ne!(numbers[..5], [0, 1, 2, 3, 4]);
    for row in rows(&folder.join("out/predictions.csv")) {
        let client = clients.iter().find(|client| client["client"] == row["client"]).unwrap();
        assert_eq!(cells[row["row"].parse::<usize>().unwrap()][0], client["name"]);
    }
}

/// A run can be repeated from the scenario in its directory, also if that scenario was in another directory than its data.
#[test]
fn scenario_in_the_results_repeats_the_run() {
    let folder = empty_directory("repeats");
    std::fs::create_dir_all(folder.join("scenarios")).unwrap();
    write_table(&folder.join("scenarios"));
    let text = format!(
        "{CLASSES}[model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 5\nstep_size = \"auto\"\n"
    );
    std::fs::write(folder.join("scenarios/my.toml"), text).unwrap();
    let first =
        ["run", "scenarios/my.toml", "--seed", "5", "--set", "model.k=1", "--seeds", "2", "--out", "first"];
    assert_eq!(exit_code(&run_program(&folder, &first)), 0);
    let again = ["run", "first/seed-6/scenario.toml", "--out", "again"];
    let output = run_program(&folder, &again);
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    for file in [
        "predictions.csv",
        "clients.csv",
        "rounds.jsonl",
        "scenario.toml",
        "model/heads.npy",
        "model/new-heads.npy",
    ] {
        let read = |directory: &str| std::fs::read(folder.join(directory).join(file)).unwrap();
        assert!(read("first/seed-6") == read("again"), "{file}");
    }
}
