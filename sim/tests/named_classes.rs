//! Tests of class names: only labels that occur in a file are classes, and held-out classes are given by
//! their names in the file.

use crate::common::{
    assert_contains_all, empty_directory, exit_code, random_numbers, run_program, stderr_text, write_npz,
};
use fedspan_sim_core::data::{Dataset, Labels};
use fedspan_sim_core::scenario::Scenario;
use serde_json::{Value, json};

/// Labels of the three classes in the files.
const LABELS: [u8; 3] = [3, 7, 10];
const MODEL: &str = "[model]\nk = 2\n[algorithm]\nname = \"local-only\"\nfinal_ridge = 0.01\n";

/// Samples of six users, twelve each, as user, features and label. The three classes are separable.
fn rows() -> Vec<(usize, Vec<f64>, u8)> {
    let values = random_numbers(72 * 3, 3);
    let row = |(row, x): (usize, &[f64])| {
        let class = (0..3).max_by(|a, b| x[*a].total_cmp(&x[*b])).unwrap();
        (row % 6, x.to_vec(), LABELS[class])
    };
    values.chunks_exact(3).enumerate().map(row).collect()
}

/// Writes the samples as CSV, LEAF and npz file. In the CSV file labels are words if `words` is set.
fn write_files(folder: &std::path::Path, words: bool) {
    let name = |label: u8| match (words, label) {
        (false, label) => label.to_string(),
        (true, 3) => "walk".to_owned(),
        (true, 7) => "run".to_owned(),
        (true, _) => "rest".to_owned(),
    };
    let mut csv = String::from("who,a,b,c,y\n");
    let mut users = serde_json::Map::new();
    for user in 0..6 {
        let samples: Vec<_> = rows().into_iter().filter(|(owner, ..)| *owner == user).collect();
        let x: Vec<_> = samples.iter().map(|(_, x, _)| x.clone()).collect();
        let y: Vec<_> = samples.iter().map(|(.., label)| f64::from(*label)).collect();
        users.insert(format!("u{user}"), json!({ "x": x, "y": y }));
    }
    for (user, x, label) in rows() {
        csv += &format!("u{user},{},{},{},{}\n", x[0], x[1], x[2], name(label));
    }
    std::fs::write(folder.join("t.csv"), csv).unwrap();
    std::fs::write(folder.join("t.json"), json!({ "user_data": users }).to_string()).unwrap();
    let rows = rows();
    let x: Vec<f64> = rows.iter().flat_map(|(_, x, _)| x.clone()).collect();
    let y: Vec<f64> = rows.iter().map(|(.., label)| f64::from(*label)).collect();
    let client: Vec<f64> = rows.iter().map(|(user, ..)| *user as f64).collect();
    write_npz(&folder.join("t.npz"), &[("x", &[72, 3], &x), ("y", &[72], &y), ("client", &[72], &client)]);
}

const CSV: &str = "kind = \"csv\"\npath = \"t.csv\"\nclient = \"who\"\ntarget = \"y\"\nfeatures = \"*\"\ntask = \"classes\"\n";
const NPZ: &str = "kind = \"npz\"\npath = \"t.npz\"\ntask = \"classes\"\n";
const LEAF: &str = "kind = \"leaf\"\npath = \"t.json\"\n";

/// Data set of a scenario with the given data section, or the error message.
fn read_dataset(folder: &std::path::Path, data: &str) -> Result<Dataset, String> {
    let scenario =
        Scenario::parse(folder.join("my.toml").to_str().unwrap(), &format!("[data]\n{data}{MODEL}"), &[]);
    scenario.map_err(|problem| problem.to_string())?.dataset(1).map_err(|error| error.to_string())
}

/// Classes that occur among the clients, and classes that occur among the newcomers.
fn classes(dataset: &Dataset) -> [Vec<u8>; 2] {
    [&dataset.clients, &dataset.newcomers].map(|clients| {
        let classes_of =
            |y: &Labels| if let Labels::Classes(classes) = y { classes.clone() } else { panic!("{y:?}") };
        let labels = clients
            .iter()
            .flat_map(|client| [classes_of(&client.train.y), classes_of(&client.test.y)].concat());
        let mut labels: Vec<u8> = labels.collect();
        labels.sort_unstable();
        labels.dedup();
        labels
    })
}

/// In every kind of file, only labels of samples are classes.
#[test]
fn classes_are_the_occurring_labels() {
    let folder = empty_directory("named-classes");
    write_files(&folder, false);
    let mut summaries: Vec<Value> = Vec::new();
    for (data, names) in [(CSV, ["10", "3", "7"]), (NPZ, ["3", "7", "10"]), (LEAF, ["3", "7", "10"])] {
        let dataset = read_dataset(&folder, data).unwrap();
        assert_eq!((dataset.outputs, &dataset.class_names[..]), (3, &names.map(str::to_owned)[..]), "{data}");
        assert_eq!(classes(&dataset)[0], [0, 1, 2]);
        std::fs::write(folder.join("my.toml"), format!("[data]\n{data}{MODEL}")).unwrap();
        let output = run_program(&folder, &["run", "my.toml", "--format", "json"]);
        assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
        let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(summary["classes"], json!(names));
        summaries.push(summary["final"].clone());
    }
}

/// Held-out classes are given by their labels, even if the labels are numbers.
#[test]
fn classes_are_held_out_by_name() {
    let folder = empty_directory("named-classes-held");
    let with_holdout = |data: &str, classes: &str| {
        let key = if data == LEAF { "holdout_clients" } else { "holdout_users" };
        let partition = "[data.partition]\nkind = \"iid\"\nclients = 6\n";
        read_dataset(
            &folder,
            &format!(
                "{data}{partition}[split]\ntest = 0.2\n{key} = 2\nlabels_per_class = 0\nholdout_classes = {classes}\n"
            ),
        )
    };
    write_files(&folder, false);
    let count = |label: u8| rows().iter().filter(|(.., row_label)| *row_label == label).count();
    for data in [CSV, NPZ, LEAF] {
        for (reported, label) in [("[10]", 10), ("[7]", 7), ("[\"3\"]", 3), ("[\"3.0\", 3]", 3)] {
            let dataset =
                with_holdout(data, reported).unwrap_or_else(|error| panic!("{data} {reported}: {error}"));
            assert_eq!(classes(&dataset), [vec![0, 1], vec![0]], "{data} {reported}");
            let samples: usize =
                dataset.newcomers.iter().map(|client| client.train.len() + client.test.len()).sum();
            assert_eq!(samples, count(label), "{data} {reported}");
        }
        // The value 1 would be the index of a class, but there is no class with label "1".
        assert_contains_all(
            &with_holdout(data, "[1]").unwrap_err(),
            &["holdout_classes", "\"1\"", "allowed: ", "10"],
        );
        assert_contains_all(
            &with_holdout(data, "[\"walk\"]").unwrap_err(),
            &["holdout_classes", "\"walk\"", "allowed: ", "10"],
        );
        assert_contains_all(&with_holdout(data, "[3, 7, 10]").unwrap_err(), &["t."]);
    }
    write_files(&folder, true);
    for (reported, label) in [("[\"walk\"]", 3), ("[\"rest\"]", 10), ("[1]", 7), ("[0]", 10)] {
        let dataset = with_holdout(CSV, reported).unwrap();
        let samples: usize =
            dataset.newcomers.iter().map(|client| client.train.len() + client.test.len()).sum();
        assert_eq!(samples, count(label), "{reported}");
    }
    assert_contains_all(&with_holdout(CSV, "[3]").unwrap_err(), &["\"3\"", "allowed: rest, run, walk"]);
    assert_contains_all(
        &with_holdout(CSV, "[\"Walk\"]").unwrap_err(),
        &["\"Walk\"", "allowed: rest, run, walk"],
    );
}
