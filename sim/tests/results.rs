//! Tests of result files: their content, reading them again, and independence of the number of threads.

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::{empty_directory, exit_code, run_program, stderr_text, stdout_text};
use fedspan_sim_core::data::npz;
use serde_json::Value;

fn read_json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(!text.contains("null") && !text.contains("NaN"), "an absent metric is written: {text}");
    serde_json::from_str(&text).unwrap()
}

/// Contents of all files in a directory tree; JSON files without the field `timing`.
fn read_files(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut contents = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
                continue;
            }
            let mut bytes = std::fs::read(&path).unwrap();
            if path.ends_with("command.json") {
                // The arguments of the command differ where the results must not.
                bytes.clear();
            }
            if path.ends_with("summary.json") || path.ends_with("finished.json") {
                let text = String::from_utf8(bytes).unwrap();
                bytes = text.split("\"timing\"").next().unwrap().as_bytes().to_vec();
            }
            contents.insert(path.strip_prefix(root).unwrap().display().to_string(), bytes);
        }
    }
    contents
}

#[test]
fn run_writes_the_documented_files() {
    let folder = empty_directory("run");
    let output = run_program(
        &folder,
        &[
            "run",
            "linear",
            "--set",
            "algorithm.rounds=20",
            "--set",
            "fleet.speed=exponential",
            "--out",
            "out",
        ],
    );
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    let out = folder.join("out");
    assert_eq!(
        read_files(&out).into_keys().collect::<Vec<_>>(),
        [
            "clients.csv",
            "command.json",
            "finished.json",
            "model/heads.npy",
            "model/representation.npy",
            "report.html",
            "results.csv",
            "rounds.jsonl",
            "scenario.toml",
            "summary.json"
        ]
    );
    let summary = read_json(&out.join("summary.json"));
    for (field, value) in [("scenario", "linear"), ("algorithm", "fedrep"), ("version", "0.1.0")] {
        assert_eq!(summary[field], value);
    }
    assert_eq!((summary["seed"].as_u64(), summary["rounds"].as_u64()), (Some(7), Some(20)));
    assert_eq!(summary["stages"][0]["rounds"], 20);
    assert!(summary["final"]["accuracy"].is_null() && summary["final"]["distance"].is_f64());
    assert!(summary["timing"]["wall_s"].is_f64() && summary["timing"]["updates_per_s"].is_f64());

    let lines = std::fs::read_to_string(out.join("rounds.jsonl")).unwrap();
    let rounds: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rounds.len(), 21, "the rows are not those of the initial model and twenty rounds");
    let total = |field: &str| rounds.iter().map(|round| round[field].as_u64().unwrap()).sum::<u64>();
    assert_eq!(summary["bytes"]["up"], total("bytes_up"));
    assert_eq!(summary["bytes"]["down"], total("bytes_down"));
    // A tenth of the hundred clients participates in each training round, and all clients participate in each
    // round of the initialisation by moments.
    let counted: usize = rounds.iter().map(|round| round["participants"].as_array().unwrap().len()).sum();
    assert_eq!(counted, 200);
    let updates = summary["updates"].as_u64().unwrap();
    assert_eq!((updates - 200) % 100, 0);
    let per_update = (total("bytes_up") + total("bytes_down")) as f64 / updates as f64;
    assert_eq!(summary["bytes"]["per_update"], per_update, "a number changed when it was read back");
    let last = rounds.last().unwrap();
    assert_eq!(last["distance"], summary["final"]["distance"]);
    assert_eq!(last["time"], summary["time"]["simulated"]);
    let times: Vec<f64> = rounds.iter().map(|round| round["time"].as_f64().unwrap()).collect();
    assert!(times.is_sorted());

    let b = npz::read_matrix(out.join("model/representation.npy").to_str().unwrap(), 10).unwrap();
    assert!((b.transpose() * &b - nalgebra_identity(2)).norm() < 1e-12, "the columns are not orthonormal");
    let heads = npz::read_matrix(out.join("model/heads.npy").to_str().unwrap(), 100).unwrap();
    assert_eq!(heads.shape(), (100, 2));
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    for text in ["src=", "@import", "http://", "https://", "url("] {
        assert!(!page.contains(text), "the page refers to other files: {text}");
    }
    assert!(page.contains("head_norm = &quot;sqrt-k&quot;"), "the report lacks the scenario");
    assert!(
        page.contains("fleet") && page.contains("exponential"),
        "the report lacks the changes of the scenario"
    );
}

fn nalgebra_identity(k: usize) -> fedspan_engine::linalg::Matrix {
    fedspan_engine::linalg::Matrix::identity(k, k)
}

#[test]
fn results_do_not_depend_on_threads() {
    let folder = empty_directory("threads");
    for scenario in ["linear", "digits", "new-clients"] {
        let run = |threads: &str| {
            let out = format!("{scenario}-{threads}");
            let arguments = [
                "run",
                scenario,
                "--set",
                "algorithm.rounds=12",
                "--set",
                "data.clients=70",
                "--seeds",
                "2",
                "--threads",
                threads,
                "--out",
                &out,
            ];
            // In scenarios with images, the number of clients is a key of [data.partition].
            let arguments: Vec<&str> = if scenario == "digits" {
                arguments
                    .iter()
                    .map(|a| if *a == "data.clients=70" { "data.partition.clients=70" } else { a })
                    .collect()
            } else {
                arguments.to_vec()
            };
            let output = run_program(&folder, &arguments);
            assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
            read_files(&folder.join(out))
        };
        let single_thread = run("1");
        assert!(single_thread.len() > 10);
        for threads in ["2", "5"] {
            assert_eq!(run(threads), single_thread, "{scenario} with {threads} threads");
        }
    }
}

#[test]
fn several_seeds_have_a_spread() {
    let folder = empty_directory("seeds");
    let arguments = [
        "run",
        "linear",
        "--set",
        "algorithm.rounds=5",
        "--seed",
        "3",
        "--seeds",
        "4",
        "--format",
        "json",
        "--out",
        "out",
    ];
    let output = run_program(&folder, &arguments);
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    let summary = read_json(&folder.join("out/summary.json"));
    assert_eq!(stdout_text(&output), std::fs::read_to_string(folder.join("out/summary.json")).unwrap());
    assert_eq!(summary["seeds"], serde_json::json!([3, 4, 5, 6]));
    let mut distances: Vec<f64> = (3..7)
        .map(|seed| {
            read_json(&folder.join(format!("out/seed-{seed}/summary.json")))["final"]["distance"]
                .as_f64()
                .unwrap()
        })
        .collect();
    distances.sort_by(f64::total_cmp);
    let spread = &summary["final"]["distance"];
    assert_eq!(spread["median"], distances[1] + (distances[2] - distances[1]) * 0.5);
    assert_eq!(spread["q25"], distances[0] + (distances[1] - distances[0]) * 0.75);
    assert_eq!(spread["q75"], distances[2] + (distances[3] - distances[2]) * 0.25);
}

/// A run removes the results of earlier runs in its directory but keeps files of the user.
#[test]
fn run_removes_only_files_of_earlier_runs() {
    let folder = empty_directory("again");
    let out = folder.join("out");
    let run = |further_arguments: &[&str]| {
        let arguments = ["run", "linear", "--set", "algorithm.rounds=2", "--out", "out", "--overwrite"];
        let output = run_program(&folder, &[&arguments[..], further_arguments].concat());
        assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
        read_files(&out).into_keys().collect::<Vec<_>>()
    };
    let single_run = run(&[]);
    assert!(single_run.contains(&"model/representation.npy".to_owned()));
    // Files of the user, some with names similar to those of result files.
    let user_files = ["notes.txt", "seed-8/notes.txt", "seed-x/summary.json", "model/mine.npy", "seed-9.txt"];
    let several = run(&["--seeds", "3"]);
    assert!(several.iter().all(|file| file.starts_with("seed-") || !file.contains('/')), "{several:?}");
    assert!(!several.contains(&"rounds.jsonl".to_owned()), "the file of the single run is left");
    for file in user_files {
        std::fs::create_dir_all(out.join(file).parent().unwrap()).unwrap();
        std::fs::write(out.join(file), "mine").unwrap();
    }
    let local = run(&["--set", "algorithm.name=local-only"]);
    let mut expected: Vec<String> = user_files.map(str::to_owned).to_vec();
    expected.extend(
        [
            "clients.csv",
            "command.json",
            "finished.json",
            "model/heads.npy",
            "report.html",
            "results.csv",
            "rounds.jsonl",
            "scenario.toml",
            "summary.json",
        ]
        .map(str::to_owned),
    );
    expected.sort_unstable();
    assert_eq!(local, expected);
    assert!(!out.join("seed-7").exists() && out.join("seed-8").is_dir());
}

#[test]
fn failed_start_removes_nothing() {
    let folder = empty_directory("kept");
    let run = |change: &str| {
        run_program(
            &folder,
            &["run", "digits", "--set", "algorithm.rounds=2", "--set", change, "--out", "out", "--overwrite"],
        )
    };
    assert_eq!(exit_code(&run("seed=1")), 0);
    let files_before = read_files(&folder.join("out"));
    assert_eq!(exit_code(&run("data.partition.classes=11")), 2);
    assert_eq!(read_files(&folder.join("out")), files_before);
}

#[test]
fn report_has_figures_of_clients() {
    let folder = empty_directory("report-clients");
    let page = |words: &[&str], out: &str| {
        let rounds = ["--set", "algorithm.rounds=3", "--out", out];
        let output = run_program(&folder, &[words, &rounds].concat());
        assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
        std::fs::read_to_string(folder.join(out).join("report.html")).unwrap()
    };
    let demo = page(&["run", "demo"], "demo");
    for name in
        ["accuracy-of-clients", "accuracy-of-new-clients", "confusion-of-clients", "confusion-of-new-clients"]
    {
        assert_eq!(demo.matches(&format!("<figure data-file=\"{name}\">")).count(), 1, "{name}");
    }
    let linear = page(&["run", "linear"], "linear");
    assert!(!linear.contains("data-file=\"accuracy") && !linear.contains("data-file=\"confusion"));
    let compared = page(&["compare", "digits", "digits,algorithm.name=\"fedavg\""], "compared");
    assert_eq!(compared.matches("<figure data-file=\"accuracy-of-clients-").count(), 2);
    assert_eq!(compared.matches("<figure data-file=\"loss-rounds\">").count(), 1);
    assert_eq!(compared.matches("<figure data-file=\"loss-shared-model-rounds\">").count(), 1);
    let doubling = page(&["run", "stragglers"], "doubling");
    assert!(doubling.contains("id=\"axis-0-0\" checked><label for=\"axis-0-0\">simulated time<"));
}

#[test]
fn only_applicable_figures_are_written() {
    let folder = empty_directory("figures");
    let figures = |scenario: &str, algorithm: &str| -> Vec<String> {
        let algorithm = format!("algorithm.name={algorithm}");
        let arguments = [
            "run",
            scenario,
            "--set",
            &algorithm,
            "--set",
            "algorithm.rounds=2",
            "--set",
            "algorithm.step_size=0.1",
            "--format",
            "json",
        ];
        let output = run_program(&folder, &arguments);
        assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
        let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
        summary["final"].as_object().unwrap().keys().cloned().collect()
    };
    assert_eq!(figures("linear", "fedrep"), ["distance", "loss"]);
    assert_eq!(figures("new-clients", "fedrep"), ["distance", "loss", "test_mse", "test_mse_new_clients"]);
    assert_eq!(figures("new-clients", "local-only"), ["loss", "test_mse", "test_mse_new_clients"]);
    assert_eq!(figures("digits", "fedrep"), ["loss", "accuracy"]);
    assert_eq!(figures("digits", "fedavg"), ["loss", "accuracy", "accuracy_global"]);
    assert_eq!(
        figures("demo", "fedavg"),
        ["loss", "accuracy", "accuracy_global", "accuracy_new_clients", "accuracy_global_new_clients"]
    );
}

#[test]
fn compare_shows_scenarios_in_columns() {
    let folder = empty_directory("compare");
    let arguments = [
        "compare",
        "linear",
        "linear,algorithm.name=gd-gd",
        "linear",
        "--set",
        "algorithm.rounds=4",
        "--seeds",
        "2",
        "--out",
        "out",
    ];
    let output = run_program(&folder, &arguments);
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    let head = stdout_text(&output);
    assert!(head.contains("linear gd-gd") && head.contains("linear (2)"), "{head}");
    let summary = read_json(&folder.join("out/summary.json"));
    let runs = summary["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 3);
    assert_eq!(runs[0]["final"], runs[2]["final"], "the same scenario gave two results");
    assert_ne!(runs[0]["final"], runs[1]["final"]);
    for (run, label, settings) in [
        (&runs[0], "linear", Value::Null),
        (&runs[1], "linear gd-gd", serde_json::json!({"algorithm.name": "gd-gd"})),
        (&runs[2], "linear (2)", Value::Null),
    ] {
        assert_eq!((run["label"].as_str(), &run["settings"]), (Some(label), &settings));
    }
    let mut table = csv::Reader::from_path(folder.join("out/results.csv")).unwrap();
    let header = table.headers().unwrap().clone();
    let column = |name: &str| header.iter().position(|column| column == name).unwrap();
    let lines: Vec<csv::StringRecord> = table.records().map(Result::unwrap).collect();
    assert_eq!(lines.len(), 6);
    for (index, line) in lines.iter().enumerate() {
        let run = &runs[index / 2];
        assert_eq!(
            (&line[column("label")], &line[column("seed")]),
            (run["label"].as_str().unwrap(), ["7", "8"][index % 2])
        );
        assert_eq!(&line[column("algorithm.name")], if index / 2 == 1 { "gd-gd" } else { "" });
        assert_eq!(&line[column("status")], "finished");
    }
    let distances: Vec<f64> =
        lines[..2].iter().map(|line| line[column("distance")].parse().unwrap()).collect();
    let spread = &runs[0]["final"]["distance"];
    let mean = (distances[0] + distances[1]) / 2.0;
    assert!((spread["mean"].as_f64().unwrap() - mean).abs() < 1e-15);
    let sd = (distances[0] - distances[1]).abs() / 2.0_f64.sqrt();
    assert!((spread["sd"].as_f64().unwrap() - sd).abs() < 1e-15);
    assert!(folder.join("out/linear-gd-gd/seed-8/rounds.jsonl").is_file());
    let page = std::fs::read_to_string(folder.join("out/report.html")).unwrap();
    assert!(
        page.contains("<h1>Comparison: 2 scenarios, 2 algorithms</h1>"),
        "the title does not count families"
    );
    assert!(page.contains("class=\"line c1 d0\""), "the report lacks curves");
    assert!(page.contains("<h1>Comparison: 2 scenarios, 2 algorithms</h1>"), "the title has all labels");
}

/// Over several seeds each value of the spread over clients is the mean of those of the seeds.
#[test]
fn spread_over_clients_is_averaged_over_seeds() {
    let folder = empty_directory("results-per-client");
    let run = ["run", "digits", "--set", "algorithm.rounds=3", "--seeds", "3", "--out", "runs"];
    let output = run_program(&folder, &run);
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    let read = |path: &str| -> Value {
        serde_json::from_str(&std::fs::read_to_string(folder.join(path)).unwrap()).unwrap()
    };
    let all = read("runs/summary.json");
    let seeds: Vec<Value> = all["seeds"]
        .as_array()
        .unwrap()
        .iter()
        .map(|seed| read(&format!("runs/seed-{seed}/summary.json")))
        .collect();
    for name in ["accuracy", "accuracy_new_clients"] {
        for value in ["mean", "sd", "median", "q25", "q75"] {
            let of = |summary: &Value| summary["per_client"][name][value].as_f64();
            let Some(of_seeds) = seeds.iter().map(of).collect::<Option<Vec<f64>>>() else { continue };
            let mean = of_seeds.iter().sum::<f64>() / 3.0;
            assert!((of(&all).unwrap() - mean).abs() < 1e-12, "{name} {value}");
        }
    }
    assert!(all["per_client"]["accuracy"]["sd"].as_f64().unwrap() > 0.0);
}
