//! Data files that are not what they should be: exit 2 with the file and the place, and never a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::path::Path;

use common::{code, directory, errors, numbers, program, write_npz};
use fedspan_sim::data::file::Files;
use fedspan_sim::data::table::Columns;
use fedspan_sim::data::{Set, cifar, idx, leaf, npz, table};
use fedspan_sim::scenario::Scenario;
use proptest::prelude::*;

const REST: &str = "[model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 3\nstep_size = 0.25\n";

/// Runs a scenario on data that are wrong; the message.
fn message(here: &Path, data: &str) -> String {
    std::fs::write(here.join("my.toml"), format!("[data]\n{data}\n{REST}")).unwrap();
    let output = program(here, &["run", "my.toml", "--out", "out"]);
    let said = errors(&output);
    assert_eq!(code(&output), 2, "{said}");
    assert!(!here.join("out").exists(), "nothing is written");
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

fn has(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "{part:?} is not in {said:?}");
    }
}

#[test]
fn npz_arrays_of_wrong_shapes() {
    let here = directory("npz");
    let values = numbers(60, 1);
    let file = here.join("data.npz");
    let data = "kind = \"npz\"\npath = \"data.npz\"";
    let x: (&str, &[u64], &[f64]) = ("x", &[3, 4, 5], &values);
    has(&message(&here, data), &["data.npz", "No such file"]);
    write_npz(&file, &[x]);
    has(&message(&here, data), &["data.npz", "no array named y"]);
    write_npz(&file, &[x, ("y", &[4, 3], &values[..12])]);
    has(&message(&here, data), &["data.npz", "[4, 3]", "(3, 4)"]);
    write_npz(&file, &[("x", &[12, 5], &values), ("y", &[3, 4], &values[..12])]);
    has(&message(&here, data), &["data.npz", "[12, 5]", "(clients, m, d)"]);
    write_npz(&file, &[x, ("y", &[3, 4], &values[..12]), ("b_star", &[4, 2], &values[..8])]);
    has(&message(&here, data), &["data.npz", "b_star", "(4, 2)", "(5, k)"]);
    write_npz(&file, &[x, ("y", &[3, 4], &values[..12]), ("x_test", &[3, 4, 5], &values)]);
    has(&message(&here, data), &["data.npz", "x_test and y_test"]);
    write_npz(&file, &[x, ("y", &[3, 4], &values[..12]), ("b_star", &[5], &values[..5])]);
    has(&message(&here, data), &["data.npz", "b_star", "[5]", "(5, k)"]);
    write_npz(&file, &[("x", &[3, 4, 1], &values[..12]), ("y", &[3, 4], &values[..12])]);
    has(&message(&here, data), &["my.toml", "model.k is 2", "1 feature"]);
    std::fs::write(&file, "not a zip").unwrap();
    has(&message(&here, data), &["data.npz", "not an npz archive"]);
}

#[test]
fn npz_values_that_are_no_numbers_for_a_device() {
    let here = directory("npz-values");
    let good = numbers(60, 1);
    let data = "kind = \"npz\"\npath = \"data.npz\"";
    // Which array, what stands there, and what the message shows: element 7 of each.
    for (key, bad, parts) in [
        ("x", f64::NAN, ["x at [0, 1, 2]", "NaN"]),
        ("y", f64::NEG_INFINITY, ["y at [1, 3]", "-inf"]),
        ("x_test", 1e300, ["x_test at [0, 1, 2]", "1e300"]),
        ("y_test", f64::NAN, ["y_test at [1, 3]", "NaN"]),
        ("b_star", f64::INFINITY, ["b_star at [3, 1]", "inf"]),
    ] {
        let arrays: Vec<(&str, Vec<u64>, Vec<f64>)> = [
            ("x", vec![3, 4, 5]),
            ("y", vec![3, 4]),
            ("x_test", vec![3, 4, 5]),
            ("y_test", vec![3, 4]),
            ("b_star", vec![5, 2]),
        ]
        .into_iter()
        .map(|(name, shape)| {
            let mut values = good[..shape.iter().product::<u64>() as usize].to_vec();
            if name == key {
                values[7] = bad;
            }
            (name, shape, values)
        })
        .collect();
        let arrays: Vec<(&str, &[u64], &[f64])> =
            arrays.iter().map(|(name, shape, values)| (*name, &shape[..], &values[..])).collect();
        write_npz(&here.join("data.npz"), &arrays);
        has(&message(&here, data), &["data.npz", parts[0], parts[1]]);
    }
}

#[test]
fn npz_truth_whose_columns_are_dependent() {
    let here = directory("npz-truth");
    let values = numbers(60, 1);
    let twice: Vec<f64> = values[..5].iter().flat_map(|v| [*v, -3.0 * v]).collect();
    let data = "kind = \"npz\"\npath = \"data.npz\"";
    for truth in [twice, vec![0.0; 10]] {
        let (x, y): (&[f64], &[f64]) = (&values, &values[..12]);
        write_npz(
            &here.join("data.npz"),
            &[("x", &[3, 4, 5], x), ("y", &[3, 4], y), ("b_star", &[5, 2], &truth)],
        );
        has(&message(&here, data), &["data.npz", "b_star", "dependent", "column"]);
    }
}

/// The span is what a distance is about, not the basis that the file happens to hold.
#[test]
fn distance_does_not_depend_on_the_basis_of_the_truth() {
    let here = directory("npz-basis");
    let values = numbers(60, 1);
    let basis = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    let mixed: Vec<f64> =
        basis.chunks(2).flat_map(|b| [3e9 * b[0] + b[1], 2e9 * b[0] - 5.0 * b[1]]).collect();
    let huge: Vec<f64> = basis.iter().map(|b| b * 1e300).collect();
    std::fs::write(here.join("my.toml"), format!("[data]\nkind = \"npz\"\npath = \"data.npz\"\n{REST}"))
        .unwrap();
    let distances = [&basis[..], &mixed, &huge].map(|truth| {
        let (x, y): (&[f64], &[f64]) = (&values, &values[..12]);
        write_npz(
            &here.join("data.npz"),
            &[("x", &[3, 4, 5], x), ("y", &[3, 4], y), ("b_star", &[5, 2], truth)],
        );
        let output = program(&here, &["run", "my.toml", "--format", "json"]);
        assert_eq!(code(&output), 0, "{}", errors(&output));
        let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        summary["final"]["distance"].as_f64().unwrap()
    });
    assert!(distances[0] > 0.01 && distances[0] <= 1.0, "{distances:?}");
    for other in &distances[1..] {
        assert!((other - distances[0]).abs() < 1e-6, "{distances:?}");
    }
}

/// Numbers that a device cannot reckon with never end as figures, and never as missing ones.
#[test]
fn figures_that_are_no_numbers_fail_the_run() {
    let here = directory("overflow");
    let rows: Vec<f64> = numbers(300, 1);
    let data =
        "kind = \"csv\"\npath = \"data.csv\"\nclient = \"who\"\ntarget = \"y\"\nfeatures = [\"a\", \"b\"]";
    std::fs::write(here.join("my.toml"), format!("[data]\n{data}\n{REST}")).unwrap();
    for (x, y) in [(1e25, 1.0), (1.0, 1e30)] {
        let mut text = "who,a,b,y\n".to_owned();
        for (index, row) in rows.chunks(3).enumerate() {
            text += &format!("{},{},{},{}\n", index / 20, row[0] * x, row[1] * x, row[2] * y);
        }
        std::fs::write(here.join("data.csv"), text).unwrap();
        for algorithm in ["fedrep", "local-only", "pooled"] {
            let name = format!("algorithm.name={algorithm}");
            let output = program(&here, &["run", "my.toml", "--set", &name, "--out", "out"]);
            assert_eq!(code(&output), 1, "{algorithm}: {}", text_of(&output));
            if algorithm != "fedrep" {
                has(&errors(&output), &["loss", "NaN", "round 0"]);
            }
            assert!(!here.join("out/summary.json").exists(), "{algorithm}: no figures of a failed run");
        }
    }
}

fn text_of(output: &std::process::Output) -> String {
    common::text(output) + &errors(output)
}

#[test]
fn csv_people_who_come_later() {
    let here = directory("csv-holdout");
    let mut text = "who,a,b,y,kind\n".to_owned();
    for (index, row) in numbers(600, 3).chunks(3).enumerate() {
        let kind = if row[0] > 0.0 { "up" } else { "down" };
        text += &format!("w{},{},{},{},{kind}\n", index / 40, row[0], row[1], row[2]);
    }
    std::fs::write(here.join("data.csv"), text).unwrap();
    let data = |target: &str, task: &str, split: &str| {
        format!(
            "kind = \"csv\"\npath = \"data.csv\"\nclient = \"who\"\ntarget = \"{target}\"\ntask = \"{task}\"\n\
             features = [\"a\", \"b\"]\n[split]\n{split}"
        )
    };
    for (target, task, split, figure) in [
        ("y", "regression", "holdout_users = 2\nnew_samples = 7", "test_mse_new_clients"),
        ("kind", "classes", "holdout_users = 2\nfold = 1\nlabels_per_class = 3", "accuracy_new_clients"),
    ] {
        let whole = format!("[data]\n{}\n{REST}", data(target, task, split));
        let scenario = Scenario::parse(here.join("my.toml").to_str().unwrap(), &whole, &[]).unwrap();
        let set = scenario.dataset(1).unwrap();
        assert_eq!((set.clients.len(), set.newcomers.len()), (3, 2));
        let labelled = if task == "classes" { 6 } else { 7 };
        assert!(set.newcomers.iter().all(|new| new.train.len() == labelled && new.test.len() == 8));
        assert!(set.clients.iter().all(|one| one.train.len() == 32 && one.test.len() == 8));
        std::fs::write(here.join("my.toml"), &whole).unwrap();
        let output = program(&here, &["run", "my.toml", "--format", "json"]);
        assert_eq!(code(&output), 0, "{}", errors(&output));
        assert!(common::text(&output).contains(figure));
    }
    let too_many = "holdout_users = 2\nfold = 2";
    has(&message(&here, &data("y", "regression", too_many)), &["fold = 2", "5 clients", "holdout_users = 2"]);
    let all = "holdout_users = 5";
    has(&message(&here, &data("y", "regression", all)), &["5 clients", "holdout_users = 5"]);
    let few = "holdout_users = 2\nnew_samples = 33";
    has(&message(&here, &data("y", "regression", few)), &["w0", "32", "33"]);
    let labels = "holdout_users = 2\nlabels_per_class = 30";
    has(&message(&here, &data("kind", "classes", labels)), &["w0", "labels_per_class", "30"]);
}

#[test]
fn csv_columns_and_numbers() {
    let here = directory("csv");
    let data =
        "kind = \"csv\"\npath = \"data.csv\"\nclient = \"who\"\ntarget = \"y\"\nfeatures = [\"a\", \"b\"]";
    let file = here.join("data.csv");
    std::fs::write(&file, "who,a,y\n1,2,3\n").unwrap();
    has(&message(&here, data), &["data.csv", "no column \"b\"", "who, a, y"]);
    std::fs::write(&file, "who,a,b,y\n1,2,3,4\n1,two,3,4\n").unwrap();
    has(&message(&here, data), &["data.csv", "line 3", "column a", "\"two\""]);
    std::fs::write(&file, "who,a,b,y\n1,2,3,4\n1,2,3,four\n").unwrap();
    has(&message(&here, data), &["data.csv", "line 3", "column y", "\"four\"", "task = \"classes\""]);
    std::fs::write(&file, "who,a,b,y\n1,2,inf,4\n").unwrap();
    has(&message(&here, data), &["data.csv", "line 2", "column b", "\"inf\""]);
    std::fs::write(&file, "who,a,b,y\n1,2,3\n").unwrap();
    has(&message(&here, data), &["data.csv", "line: 2"]);
    std::fs::write(&file, "who,a,b,y\n").unwrap();
    has(&message(&here, data), &["data.csv", "no rows"]);
}

/// A valid pair of IDX files: 6 images of 2 x 2, 3 classes.
fn idx_files() -> (Vec<u8>, Vec<u8>) {
    let mut images = vec![0, 0, 8, 3, 0, 0, 0, 6, 0, 0, 0, 2, 0, 0, 0, 2];
    images.extend(0..24);
    let mut labels = vec![0, 0, 8, 1, 0, 0, 0, 6];
    labels.extend([0, 1, 2, 0, 1, 2]);
    (images, labels)
}

#[test]
fn idx_files_that_end_early() {
    let here = directory("idx");
    let data = "kind = \"idx\"\nimages = \"images\"\nlabels = \"labels\"";
    let (images, labels) = idx_files();
    std::fs::write(here.join("labels"), &labels).unwrap();
    std::fs::write(here.join("images"), &images[..30]).unwrap();
    has(&message(&here, data), &["images", "14 bytes after byte 16", "announces 24"]);
    std::fs::write(here.join("images"), &images[..9]).unwrap();
    has(&message(&here, data), &["images", "ends in the header, at byte 9"]);
    std::fs::write(here.join("images"), &labels).unwrap();
    has(&message(&here, data), &["images", "expected 0x00000803"]);
    std::fs::write(here.join("images"), &images).unwrap();
    std::fs::write(here.join("labels"), [&labels[..7], &[5], &labels[8..13]].concat()).unwrap();
    has(&message(&here, data), &["labels", "5 labels for 6 images"]);
}

#[test]
fn idx_partitions_that_do_not_fit_the_images() {
    let here = directory("idx-partition");
    let (images, labels) = idx_files();
    std::fs::write(here.join("images"), images).unwrap();
    std::fs::write(here.join("labels"), labels).unwrap();
    let with = |partition: &str| {
        format!("kind = \"idx\"\nimages = \"images\"\nlabels = \"labels\"\n[data.partition]\n{partition}")
    };
    let iid = with("kind = \"iid\"\nclients = 7");
    has(&message(&here, &iid), &["images", "7 clients", "6 samples"]);
    let shards = with("clients = 4\nclasses = 2");
    has(&message(&here, &shards), &["images", "4 clients x 2 shards", "6 samples"]);
    let classes = with("clients = 1\nclasses = 4");
    has(&message(&here, &classes), &["images", "classes = 4", "3 classes"]);
}

#[test]
fn idx_test_parts_labels_and_sums() {
    let here = directory("idx-pairs");
    let (images, mut labels) = idx_files();
    for (name, bytes) in [("images", &images), ("labels", &labels), ("test-images", &images)] {
        std::fs::write(here.join(name), bytes).unwrap();
    }
    labels[8..].fill(3);
    std::fs::write(here.join("test-labels"), &labels).unwrap();
    let one = "kind = \"idx\"\nimages = \"images\"\nlabels = \"labels\"\n";
    let both = format!("{one}test_images = \"test-images\"\ntest_labels = \"test-labels\"\n");
    let partition = "[data.partition]\nclients = 2\nclasses = 1\n";
    let read = |data: &str| {
        let whole = format!("[data]\n{data}\n{REST}");
        let scenario = Scenario::parse(here.join("my.toml").to_str().unwrap(), &whole, &[]);
        scenario.map_err(|problem| problem.to_string())?.dataset(1).map_err(|error| error.to_string())
    };
    // Class 3 is in the test part alone: nobody trains on it, nobody is scored on it.
    let set = read(&format!("{both}{partition}")).unwrap();
    assert_eq!((set.outputs, set.clients.iter().map(|client| client.test.len()).sum::<usize>()), (4, 0));
    let pooled = read(&format!("{both}{partition}[split]\nby = \"time\"\ntest = 0.5\n")).unwrap();
    let count = |client: &fedspan_sim::data::Client| client.train.len() + client.test.len();
    assert_eq!(pooled.clients.iter().map(count).sum::<usize>(), 12);
    // Images of 1 x 4 beside images of 2 x 2.
    let mut wide = images.clone();
    (wide[11], wide[15]) = (1, 4);
    std::fs::write(here.join("test-images"), &wide).unwrap();
    has(&message(&here, &both), &["test-images", "1 x 4", "images are of 2 x 2"]);
    has(&message(&here, &format!("{one}test_images = \"images\"")), &["my.toml", "test_labels"]);
    has(
        &message(&here, &format!("{one}first_label = 1")),
        &["labels", "label 0 at byte 8", "first_label is 1"],
    );
    // By hand: an image that stands column by column.
    let straight = read(&format!("{one}{partition}")).unwrap();
    let turned = read(&format!("{one}transposed = true\n{partition}")).unwrap();
    for (a, b) in straight.clients.iter().zip(&turned.clients) {
        for (a, b) in a.train.x.chunks(5).zip(b.train.x.chunks(5)) {
            assert_eq!([a[0], a[2], a[1], a[3], a[4]], b);
        }
    }
    let sums = |first: &str, second: &str| format!("{one}sha256 = [\"{first}\", \"{second}\"]\n");
    let (right, zeros) = ("11bff7da67bbd3b8ee2ebea4a9a17ac8bd0b9f04c7bac61ee68ccb2e88e4cdcf", "0".repeat(64));
    has(&message(&here, &sums(right, &zeros)), &["images", "SHA-256", right]);
    has(&message(&here, &format!("{one}sha256 = [\"12\"]")), &["data.sha256", "64 hexadecimal digits"]);
}

/// Three records a file; the pixels of record `i` are `i`.
fn cifar_files(here: &Path, labels: &[u8]) {
    let record = |i: u8| [labels, &[i; 3072]].concat();
    let bytes: Vec<u8> = (0..3).flat_map(record).collect();
    let ten = (1..=5).map(|i| format!("data_batch_{i}.bin")).chain(["test_batch.bin".to_owned()]);
    for name in ten.chain(["train.bin".to_owned(), "test.bin".to_owned()]) {
        std::fs::write(here.join(name), &bytes).unwrap();
    }
}

#[test]
fn cifar_records() {
    let here = directory("cifar");
    let data = |more: &str| {
        format!(
            "kind = \"cifar\"\npath = \"{}\"\n{more}\n[data.partition]\nkind = \"iid\"\nclients = 3\n",
            here.display()
        )
    };
    let read = |more: &str| {
        let scenario = Scenario::parse("my.toml", &format!("[data]\n{}{REST}", data(more)), &[]).unwrap();
        scenario.dataset(1).map_err(|error| error.to_string())
    };
    has(&message(&here, &data("")), &["data_batch_1.bin", "No such file"]);
    cifar_files(&here, &[7]);
    let set = read("augment = true").unwrap();
    assert_eq!((set.features, set.outputs, set.clients.len()), (3073, 10, 3));
    assert!(set.clients.iter().all(|client| client.train.len() == 5 && client.test.len() == 1));
    assert!(set.clients.iter().all(|client| client.augment.is_some()));
    for row in set.clients.iter().flat_map(|client| client.train.x.chunks_exact(3073)) {
        // Red of 0, 1 or 2, ImageNet's mean and deviation.
        let red = f64::from(row[0]) * 0.229 + 0.485;
        assert!([0.0, 1.0, 2.0].iter().any(|pixel| (red - pixel / 255.0).abs() < 1e-6), "{red}");
        assert_eq!((row[3072], row[1023].to_bits()), (1.0, row[0].to_bits()));
    }
    cifar_files(&here, &[19, 99]);
    assert_eq!(read("version = \"cifar-100\"").unwrap().outputs, 100);
    assert_eq!(read("version = \"cifar-100-coarse\"").unwrap().outputs, 20);
    cifar_files(&here, &[20, 100]);
    has(&read("version = \"cifar-100\"").unwrap_err(), &["train.bin", "label 100 at byte 1", "0 to 99"]);
    has(&read("version = \"cifar-100-coarse\"").unwrap_err(), &["label 20 at byte 0", "0 to 19"]);
    let whole = std::fs::read(here.join("test.bin")).unwrap();
    cifar_files(&here, &[1, 1]);
    std::fs::write(here.join("test.bin"), &whole[..4000]).unwrap();
    has(&read("version = \"cifar-100\"").unwrap_err(), &["test.bin", "byte 3074", "926 bytes of 3074"]);
    std::fs::write(here.join("test.bin"), "").unwrap();
    has(&read("version = \"cifar-100\"").unwrap_err(), &["test.bin", "byte 0", "0 bytes of 3074"]);
}

const LEAF: &str = r#"{"users": ["b", "a", "none"], "num_samples": [2, 3, 0], "hierarchies": [1], "user_data": {
    "b": {"x": [[0, 0.5, 1, 2], [4, 5, 6, -7e-1]], "y": [1, 0]}, "none": {"x": [], "y": []},
    "a": {"x": [[1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]], "y": [2, 2, 2]}}}"#;

#[test]
fn leaf_users_are_clients() {
    let here = directory("leaf");
    let file = here.join("all.json");
    let data = |more: &str| format!("kind = \"leaf\"\npath = \"all.json\"\n{more}\n");
    let name = here.join("my.toml");
    let read = |more: &str| {
        let scenario = Scenario::parse(name.to_str().unwrap(), &format!("[data]\n{}{REST}", data(more)), &[]);
        scenario.map_err(|problem| problem.to_string())?.dataset(1).map_err(|error| error.to_string())
    };
    std::fs::write(&file, LEAF).unwrap();
    let set = read("[split]\ntest = 0\n").unwrap();
    let sizes =
        |set: &fedspan_sim::data::Dataset| set.clients.iter().map(|c| c.train.len()).collect::<Vec<_>>();
    assert_eq!((set.features, set.outputs, sizes(&set)), (5, 3, vec![3, 2]));
    assert_eq!(set.clients[1].train.x.iter().sum::<f32>(), 3.5 + 14.3 + 2.0);
    assert_eq!(sizes(&read("[data.partition]\nmin_samples = 3\n[split]\ntest = 0\n").unwrap()), [3]);
    assert_eq!(
        sizes(&read("[data.partition]\nkind = \"iid\"\nclients = 5\n[split]\ntest = 0\n").unwrap()),
        [1; 5]
    );
    // One client is held out, one has a test part of its own.
    std::fs::write(here.join("test.json"), r#"{"user_data": {"a": {"x": [[9, 9, 9, 9]], "y": [2]}}}"#)
        .unwrap();
    let tested =
        read("test_path = \"test.json\"\n[split]\nholdout_clients = 1\nlabels_per_class = 2\n").unwrap();
    assert_eq!((tested.newcomers[0].train.len(), tested.newcomers[0].test.len()), (2, 1));
    assert_eq!(tested.clients[0].test.len(), 0);
    has(&read("[data.partition]\nusers = 3\n").unwrap_err(), &["users = 3", "of 3 users 2"]);
    has(&read("vectors = \"all.json\"\n").unwrap_err(), &["all.json", "data.vectors"]);
    for (from, to, parts) in [
        ("[2, 3, 0]", "[2, 4, 0]", &["\"a\"", "announces 4", "there are 3"][..]),
        ("[2, 3, 0]", "[2, 3]", &["3 names", "2 numbers"]),
        ("\"none\"]", "\"nobody\"]", &["\"nobody\"", "user_data"]),
        ("[1, 1, 1, 1]", "[1, 1, 1]", &["\"b\", sample 0", "4 values", "3"]),
        ("[1, 1, 1, 1]", "[1, 1, NaN, 1]", &["line 3", "column"]),
        ("[1, 1, 1, 1]", "[1, 1, 1e39, 1]", &["line 3", "1e39"]),
        ("[1, 1, 1, 1]", "[1, 1, \"1\", 1]", &["line 3", "numbers and text"]),
        ("[1, 1, 1, 1]", "[\"1\", \"t\"]", &["line 3", "2 fields"]),
        ("[1, 1, 1, 1]", "[]", &["line 3", "without values"]),
        ("[1, 1, 1, 1]", "1", &["line 3", "a list of numbers"]),
        ("[2, 2, 2]}", "[2, 256, 2]}", &["line 3", "256"]),
        ("[2, 2, 2]}", "[2, -1, 2]}", &["line 3", "-1"]),
        ("[2, 2, 2]}", "[2, 2]}", &["\"a\"", "3 samples in x, 2 in y"]),
        ("\"none\": {", "\"b\": {", &["line 2", "\"b\" stands twice"]),
        ("}}}", "}}", &["line 3", "EOF"]),
    ] {
        let bad = LEAF.replace(from, to);
        assert_ne!(bad, LEAF, "{from}");
        std::fs::write(&file, bad).unwrap();
        has(&read("").unwrap_err(), &[&["all.json"], parts].concat());
    }
    std::fs::write(
        &file,
        [LEAF.as_bytes()[..30].to_vec(), vec![0xff], LEAF.as_bytes()[30..].to_vec()].concat(),
    )
    .unwrap();
    has(&message(&here, &data("")), &["all.json", "line 1"]);
}

#[test]
fn leaf_tweets_become_means_of_word_vectors() {
    let here = directory("leaf-text");
    let tweet = |text: &str| format!("[\"1\", \"date\", \"NO_QUERY\", \"who\", \"{text}\", \"rest\"]");
    let text = format!(
        "{{\"user_data\": {{\"u\": {{\"x\": [{}, {}], \"y\": [0, 1]}}}}}}",
        tweet("Good, good day"),
        tweet("#odd")
    );
    std::fs::create_dir_all(here.join("train")).unwrap();
    std::fs::write(here.join("train/one.json"), text).unwrap();
    std::fs::write(here.join("glove.txt"), "good 1 2\nday 4 -1\n, 3 3\nnight nonsense\n").unwrap();
    let name = here.join("my.toml");
    let data = "kind = \"leaf\"\npath = \"train\"\n";
    let whole = format!("[data]\n{data}vectors = \"glove.txt\"\n[split]\ntest = 0\n{REST}");
    let set = Scenario::parse(name.to_str().unwrap(), &whole, &[]).unwrap().dataset(1).unwrap();
    // Each class is shuffled by itself.
    assert_eq!(set.clients[0].train.x, [9.0 / 4.0, 6.0 / 4.0, 1.0, 0.0, 0.0, 1.0]);
    has(&message(&here, data), &["train", "data.vectors"]);
    std::fs::remove_file(here.join("train/one.json")).unwrap();
    has(&message(&here, data), &["train", "no .json file"]);
}

#[test]
fn npz_classes() {
    let here = directory("npz-classes");
    let values = numbers(60, 1);
    let data = "kind = \"npz\"\npath = \"data.npz\"\ntask = \"classes\"\n";
    let mut classes: Vec<f64> = (0..12).map(|i| f64::from(i % 3)).collect();
    let write =
        |y: &[f64]| write_npz(&here.join("data.npz"), &[("x", &[3, 4, 5], &values), ("y", &[3, 4], y)]);
    write(&classes);
    let name = here.join("my.toml");
    let scenario = Scenario::parse(name.to_str().unwrap(), &format!("[data]\n{data}{REST}"), &[]).unwrap();
    let set = scenario.dataset(1).unwrap();
    assert_eq!((set.outputs, set.classification), (3, true));
    assert_eq!(set.clients[1].train.y, fedspan_sim::data::Labels::Classes(vec![1, 2, 0, 1]));
    for bad in [-1.0, 256.0, 0.5, f64::NAN] {
        classes[7] = bad;
        write(&classes);
        has(&message(&here, data), &["data.npz", "y at [1, 3]", "0 to 255"]);
    }
}

/// A file cut somewhere, with some bytes changed.
fn damaged(whole: &[u8], cut: usize, flips: &[(usize, u8)]) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    for (at, mask) in flips {
        let at = at % bytes.len();
        bytes[at] ^= mask;
    }
    bytes.truncate(cut % (bytes.len() + 1));
    bytes
}

fn damage() -> impl Strategy<Value = (usize, Vec<(usize, u8)>)> {
    let cut = prop_oneof![Just(usize::MAX), any::<usize>()];
    (cut, proptest::collection::vec((any::<usize>(), any::<u8>()), 0..4))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn damaged_npz_never_panics((cut, flips) in damage()) {
        let here = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let whole = here.join("whole.npz");
        if !whole.exists() {
            let values = numbers(60, 1);
            write_npz(&whole, &[("x", &[3, 4, 5], &values), ("y", &[3, 4], &values[..12])]);
        }
        let file = here.join("damaged.npz");
        std::fs::write(&file, damaged(&std::fs::read(&whole).unwrap(), cut, &flips)).unwrap();
        let bytes = std::fs::read(&file).unwrap();
        let _ = npz::dataset(&bytes, "damaged.npz", false);
        let _ = npz::dataset(&bytes, "damaged.npz", true);
        let _ = npz::read_matrix(file.to_str().unwrap(), 5);
    }

    #[test]
    fn damaged_npy_never_panics((cut, flips) in damage()) {
        let here = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let file = here.join("damaged.npy");
        npz::write(&file, &[5, 2], &numbers(10, 1)).unwrap();
        let bytes = damaged(&std::fs::read(&file).unwrap(), cut, &flips);
        std::fs::write(&file, bytes).unwrap();
        if let Ok(matrix) = npz::read_matrix(file.to_str().unwrap(), 5) {
            prop_assert!(matrix.iter().all(|value| value.is_finite()));
        }
    }

    #[test]
    fn damaged_idx_never_panics((cut, flips) in damage(), which: bool) {
        let here = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let (mut images, mut labels) = idx_files();
        let one = if which { &mut images } else { &mut labels };
        *one = damaged(one, cut, &flips);
        let (first, second) = (here.join("damaged-images"), here.join("damaged-labels"));
        std::fs::write(&first, images).unwrap();
        std::fs::write(&second, labels).unwrap();
        let pair = (first.to_str().unwrap().to_owned(), second.to_str().unwrap().to_owned());
        let files = idx::Idx { train: pair, ..idx::Idx::default() };
        if let Ok(images) = files.read(&mut Files::new("", &[])) {
            prop_assert_eq!(images.set.x.len(), images.set.len() * images.features);
        }
    }

    #[test]
    fn damaged_csv_never_panics((cut, flips) in damage()) {
        let whole = "who,a,b,y\n1,2,3,4\n1,0.5,-3,2\n2,1e3,0,7\n";
        let bytes = damaged(whole.as_bytes(), cut, &flips);
        let columns = Columns {
            client: "who".to_owned(),
            target: "y".to_owned(),
            features: vec!["a".to_owned(), "b".to_owned()],
            classification: false,
        };
        if let Ok((data, _)) = table::parse(&bytes, "damaged.csv", &columns) {
            for client in &data.clients {
                prop_assert!(client.train.x.iter().all(|value| value.is_finite()));
            }
        }
    }

    #[test]
    fn damaged_cifar_never_panics((cut, flips) in damage()) {
        let mut set = Set::empty(true);
        let bytes = damaged(&[[3; 3073], [9; 3073]].concat(), cut, &flips);
        if cifar::append(&bytes, "damaged.bin", cifar::Kind::Ten, &mut set).is_ok() {
            prop_assert_eq!((set.len(), set.x.len()), (bytes.len() / 3073, bytes.len() / 3073 * 3073));
        }
    }

    #[test]
    fn damaged_leaf_never_panics((cut, flips) in damage()) {
        let bytes = damaged(LEAF.as_bytes(), cut, &flips);
        if let Ok(users) = leaf::json::parse(&bytes, "damaged.json")
            && let Ok(pool) = leaf::pool("damaged.json", &[users], None)
        {
            prop_assert_eq!(pool.set.x.len(), pool.set.len() * pool.features);
            prop_assert!(pool.set.x.iter().all(|value| value.is_finite()));
        }
    }

    #[test]
    fn damaged_vectors_never_panic((cut, flips) in damage()) {
        let bytes = damaged(b"good 1 2\nday 4 -1e3\n, 3 3\n", cut, &flips);
        if let Ok(vectors) = leaf::words::Vectors::parse(&bytes, "damaged.txt", 100, ["good day,"].into_iter()) {
            prop_assert_eq!(vectors.mean("a good day").len(), vectors.width);
        }
    }
}
