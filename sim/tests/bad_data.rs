//! Tests of malformed data files: each is refused with exit code 2 and a message with file and position,
//! without a panic.

use crate::common;
use std::path::Path;

use crate::common::{
    REST, assert_contains_all, damage, damaged, data_error_message, empty_directory, exit_code, idx_files,
    random_numbers, run_program, stderr_text, write_npz,
};
use fedspan_sim_core::data::file::Files;
use fedspan_sim_core::data::table::Columns;
use fedspan_sim_core::data::{idx, npz, table};
use fedspan_sim_core::scenario::Scenario;
use proptest::prelude::*;

#[test]
fn npz_arrays_of_wrong_shape_are_refused() {
    let folder = empty_directory("npz");
    let values = random_numbers(60, 1);
    let file = folder.join("data.npz");
    let data = "kind = \"npz\"\npath = \"data.npz\"";
    let x: (&str, &[u64], &[f64]) = ("x", &[3, 4, 5], &values);
    assert_contains_all(&data_error_message(&folder, data), &["data.npz", "No such file"]);
    write_npz(&file, &[x]);
    assert_contains_all(&data_error_message(&folder, data), &["data.npz", "no array named y"]);
    write_npz(&file, &[x, ("y", &[4, 3], &values[..12])]);
    assert_contains_all(&data_error_message(&folder, data), &["data.npz", "[4, 3]", "(3, 4)"]);
    write_npz(&file, &[("x", &[12, 5], &values), ("y", &[3, 4], &values[..12])]);
    assert_contains_all(&data_error_message(&folder, data), &["data.npz", "[12, 5]", "(clients, m, d)"]);
    write_npz(&file, &[x, ("y", &[3, 4], &values[..12]), ("b_star", &[4, 2], &values[..8])]);
    assert_contains_all(&data_error_message(&folder, data), &["data.npz", "b_star", "(4, 2)", "(5, k)"]);
    write_npz(&file, &[x, ("y", &[3, 4], &values[..12]), ("x_test", &[3, 4, 5], &values)]);
    assert_contains_all(&data_error_message(&folder, data), &["data.npz", "x_test and y_test"]);
    write_npz(&file, &[x, ("y", &[3, 4], &values[..12]), ("b_star", &[5], &values[..5])]);
    assert_contains_all(&data_error_message(&folder, data), &["data.npz", "b_star", "[5]", "(5, k)"]);
    write_npz(&file, &[("x", &[3, 4, 1], &values[..12]), ("y", &[3, 4], &values[..12])]);
    assert_contains_all(
        &data_error_message(&folder, &format!("{data}\nconstant = false")),
        &["my.toml", "model.k is 2", "at most 1, the number of features"],
    );
    std::fs::write(&file, "not a zip").unwrap();
    assert_contains_all(&data_error_message(&folder, data), &["data.npz", "not an npz archive"]);
}

#[test]
fn npz_values_outside_f32_are_refused() {
    let folder = empty_directory("npz-values");
    let valid_values = random_numbers(60, 1);
    let data = "kind = \"npz\"\npath = \"data.npz\"";
    // Each case has the name of an array, the bad value of its element 7, and parts of the expected message.
    for (key, bad_value, parts) in [
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
            let mut values = valid_values[..shape.iter().product::<u64>() as usize].to_vec();
            if name == key {
                values[7] = bad_value;
            }
            (name, shape, values)
        })
        .collect();
        let arrays: Vec<(&str, &[u64], &[f64])> =
            arrays.iter().map(|(name, shape, values)| (*name, &shape[..], &values[..])).collect();
        write_npz(&folder.join("data.npz"), &arrays);
        assert_contains_all(&data_error_message(&folder, data), &["data.npz", parts[0], parts[1]]);
    }
}

#[test]
fn npz_truth_with_dependent_columns_is_refused() {
    let folder = empty_directory("npz-truth");
    let values = random_numbers(60, 1);
    let dependent_columns: Vec<f64> = values[..5].iter().flat_map(|v| [*v, -3.0 * v]).collect();
    let data = "kind = \"npz\"\npath = \"data.npz\"";
    for truth in [dependent_columns, vec![0.0; 10]] {
        let (x, y): (&[f64], &[f64]) = (&values, &values[..12]);
        write_npz(
            &folder.join("data.npz"),
            &[("x", &[3, 4, 5], x), ("y", &[3, 4], y), ("b_star", &[5, 2], &truth)],
        );
        assert_contains_all(
            &data_error_message(&folder, data),
            &["data.npz", "b_star", "dependent", "column"],
        );
    }
}

/// The distance depends only on the span of the true representation, not on the basis that the file contains.
#[test]
fn distance_does_not_depend_on_the_basis_of_the_truth() {
    let folder = empty_directory("npz-basis");
    let values = random_numbers(60, 1);
    let basis = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    let mixed: Vec<f64> =
        basis.chunks(2).flat_map(|b| [3e9 * b[0] + b[1], 2e9 * b[0] - 5.0 * b[1]]).collect();
    let huge_basis: Vec<f64> = basis.iter().map(|b| b * 1e300).collect();
    std::fs::write(folder.join("my.toml"), format!("[data]\nkind = \"npz\"\npath = \"data.npz\"\n{REST}"))
        .unwrap();
    let distances = [&basis[..], &mixed, &huge_basis].map(|truth| {
        let (x, y): (&[f64], &[f64]) = (&values, &values[..12]);
        write_npz(
            &folder.join("data.npz"),
            &[("x", &[3, 4, 5], x), ("y", &[3, 4], y), ("b_star", &[5, 2], truth)],
        );
        let output = run_program(&folder, &["run", "my.toml", "--format", "json"]);
        assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
        let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        summary["final"]["distance"].as_f64().unwrap()
    });
    assert!(distances[0] > 0.01 && distances[0] <= 1.0, "{distances:?}");
    for distance in &distances[1..] {
        assert!((distance - distances[0]).abs() < 1e-6, "{distances:?}");
    }
}

/// A run fails if values overflow f32 on a device, so that no result contains such values. Methods that
/// compute on the host in f64 accept these values.
#[test]
fn non_finite_figures_fail_the_run() {
    let folder = empty_directory("overflow");
    let rows: Vec<f64> = random_numbers(300, 1);
    let data = "kind = \"csv\"\npath = \"data.csv\"\nclient = \"who\"\ntarget = \"y\"\nfeatures = [\"a\", \"b\"]\n\
                scale = \"none\"";
    std::fs::write(folder.join("my.toml"), format!("[data]\n{data}\n{REST}")).unwrap();
    for (x, y) in [(1e25, 1.0), (1.0, 1e30)] {
        let mut text = "who,a,b,y\n".to_owned();
        for (index, row) in rows.chunks(3).enumerate() {
            text += &format!("{},{},{},{}\n", index / 20, row[0] * x, row[1] * x, row[2] * y);
        }
        std::fs::write(folder.join("data.csv"), text).unwrap();
        for (algorithm, expected) in [("local-only", 0), ("pooled", 0), ("fedrep", 1)] {
            let name = format!("algorithm.name={algorithm}");
            let output =
                run_program(&folder, &["run", "my.toml", "--set", &name, "--out", "out", "--overwrite"]);
            assert_eq!(exit_code(&output), expected, "{algorithm}: {}", text_of(&output));
            assert_eq!(folder.join("out/summary.json").exists(), expected == 0, "{algorithm}");
        }
    }
}

fn text_of(output: &std::process::Output) -> String {
    common::stdout_text(output) + &stderr_text(output)
}

#[test]
fn csv_newcomers_must_match_the_training_file() {
    let folder = empty_directory("csv-holdout");
    let mut text = "who,a,b,y,kind\n".to_owned();
    for (index, row) in random_numbers(600, 3).chunks(3).enumerate() {
        let kind = if row[0] > 0.0 { "up" } else { "down" };
        text += &format!("w{},{},{},{},{kind}\n", index / 40, row[0], row[1], row[2]);
    }
    std::fs::write(folder.join("data.csv"), text).unwrap();
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
        let text = format!("[data]\n{}\n{REST}", data(target, task, split));
        let scenario = Scenario::parse(folder.join("my.toml").to_str().unwrap(), &text, &[]).unwrap();
        let set = scenario.dataset(1).unwrap();
        assert_eq!((set.clients.len(), set.newcomers.len()), (3, 2));
        let labelled = if task == "classes" { 6 } else { 7 };
        assert!(set.newcomers.iter().all(|new| new.train.len() == labelled && new.test.len() == 8));
        assert!(set.clients.iter().all(|client| client.train.len() == 32 && client.test.len() == 8));
        std::fs::write(folder.join("my.toml"), &text).unwrap();
        let output = run_program(&folder, &["run", "my.toml", "--format", "json"]);
        assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
        assert!(common::stdout_text(&output).contains(figure));
    }
    let too_many = "holdout_users = 2\nfold = 2";
    assert_contains_all(
        &data_error_message(&folder, &data("y", "regression", too_many)),
        &["fold = 2", "5 clients", "holdout_users = 2"],
    );
    let all_held_out = "holdout_users = 5";
    assert_contains_all(
        &data_error_message(&folder, &data("y", "regression", all_held_out)),
        &["5 clients", "holdout_users = 5"],
    );
    let too_few_samples = "holdout_users = 2\nnew_samples = 33";
    assert_contains_all(
        &data_error_message(&folder, &data("y", "regression", too_few_samples)),
        &["w0", "32", "33"],
    );
    let labels = "holdout_users = 2\nlabels_per_class = 30";
    assert_contains_all(
        &data_error_message(&folder, &data("kind", "classes", labels)),
        &["w0", "labels_per_class", "30"],
    );
}

#[test]
fn csv_errors_name_column_and_value() {
    let folder = empty_directory("csv");
    let data =
        "kind = \"csv\"\npath = \"data.csv\"\nclient = \"who\"\ntarget = \"y\"\nfeatures = [\"a\", \"b\"]";
    let file = folder.join("data.csv");
    std::fs::write(&file, "who,a,y\n1,2,3\n").unwrap();
    assert_contains_all(&data_error_message(&folder, data), &["data.csv", "no column \"b\"", "who, a, y"]);
    std::fs::write(&file, "who,a,b,y\n1,2,3,4\n1,two,3,4\n").unwrap();
    assert_contains_all(&data_error_message(&folder, data), &["data.csv", "line 3", "column a", "\"two\""]);
    std::fs::write(&file, "who,a,b,y\n1,2,3,4\n1,2,3,four\n").unwrap();
    assert_contains_all(
        &data_error_message(&folder, data),
        &["data.csv", "line 3", "column y", "\"four\"", "task = \"classes\""],
    );
    std::fs::write(&file, "who,a,b,y\n1,2,inf,4\n").unwrap();
    assert_contains_all(&data_error_message(&folder, data), &["data.csv", "line 2", "column b", "\"inf\""]);
    std::fs::write(&file, "who,a,b,y\n1,2,3\n").unwrap();
    assert_contains_all(&data_error_message(&folder, data), &["data.csv", "line 2: "]);
    std::fs::write(&file, "who,a,b,y\n").unwrap();
    assert_contains_all(&data_error_message(&folder, data), &["data.csv", "no rows"]);
}

#[test]
fn truncated_idx_files_are_refused() {
    let folder = empty_directory("idx");
    let data = "kind = \"idx\"\nimages = \"images\"\nlabels = \"labels\"";
    let (images, labels) = idx_files();
    std::fs::write(folder.join("labels"), &labels).unwrap();
    std::fs::write(folder.join("images"), &images[..30]).unwrap();
    assert_contains_all(
        &data_error_message(&folder, data),
        &["images", "14 bytes after byte 16", "expected 24"],
    );
    std::fs::write(folder.join("images"), &images[..9]).unwrap();
    assert_contains_all(&data_error_message(&folder, data), &["images", "ends in the header, at byte 9"]);
    std::fs::write(folder.join("images"), &labels).unwrap();
    assert_contains_all(&data_error_message(&folder, data), &["images", "expected 0x00000803"]);
    std::fs::write(folder.join("images"), &images).unwrap();
    std::fs::write(folder.join("labels"), [&labels[..7], &[5], &labels[8..13]].concat()).unwrap();
    assert_contains_all(&data_error_message(&folder, data), &["labels", "5 labels for 6 images"]);
}

#[test]
fn idx_partition_must_fit_the_images() {
    let folder = empty_directory("idx-partition");
    let (images, labels) = idx_files();
    std::fs::write(folder.join("images"), images).unwrap();
    std::fs::write(folder.join("labels"), labels).unwrap();
    let with_partition = |partition: &str| {
        format!("kind = \"idx\"\nimages = \"images\"\nlabels = \"labels\"\n[data.partition]\n{partition}")
    };
    let iid = with_partition("kind = \"iid\"\nclients = 7");
    assert_contains_all(&data_error_message(&folder, &iid), &["images", "7 clients", "6 samples"]);
    let shards = with_partition("clients = 4\nclasses = 2");
    assert_contains_all(
        &data_error_message(&folder, &shards),
        &["images", "4 clients x 2 shards", "6 samples"],
    );
    let classes = with_partition("clients = 1\nclasses = 4");
    assert_contains_all(
        &data_error_message(&folder, &classes),
        &["images", "classes = 4", "at most 3, the number of classes"],
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn damaged_npz_never_panics((cut, flips) in damage()) {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let complete = folder.join("whole.npz");
        if !complete.exists() {
            let values = random_numbers(60, 1);
            write_npz(&complete, &[("x", &[3, 4, 5], &values), ("y", &[3, 4], &values[..12])]);
        }
        let file = folder.join("damaged.npz");
        std::fs::write(&file, damaged(&std::fs::read(&complete).unwrap(), cut, &flips)).unwrap();
        let bytes = std::fs::read(&file).unwrap();
        for classification in [false, true] {
            let arrays = npz::Arrays { classification, ..npz::Arrays::default() };
            let _ = npz::table(&bytes, "damaged.npz", &arrays);
        }
        let _ = npz::read_matrix(file.to_str().unwrap(), 5);
    }

    #[test]
    fn damaged_npy_never_panics((cut, flips) in damage()) {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let file = folder.join("damaged.npy");
        npz::write(&file, &[5, 2], &random_numbers(10, 1)).unwrap();
        let bytes = damaged(&std::fs::read(&file).unwrap(), cut, &flips);
        std::fs::write(&file, bytes).unwrap();
        if let Ok(matrix) = npz::read_matrix(file.to_str().unwrap(), 5) {
            prop_assert!(matrix.iter().all(|value| value.is_finite()));
        }
    }

    #[test]
    fn damaged_idx_never_panics((cut, flips) in damage(), damages_images: bool) {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let (mut images, mut labels) = idx_files();
        let damaged_file = if damages_images { &mut images } else { &mut labels };
        *damaged_file = damaged(damaged_file, cut, &flips);
        let (first, second) = (folder.join("damaged-images"), folder.join("damaged-labels"));
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
        let text = "who,a,b,y\n1,2,3,4\n1,0.5,-3,2\n2,1e3,0,7\n";
        let bytes = damaged(text.as_bytes(), cut, &flips);
        let columns = Columns {
            client: Some("who".to_owned()),
            target: "y".to_owned(),
            features: vec!["a".to_owned(), "b".to_owned()],
            classification: false,
            delimiter: None,
            decimal: None,
            not_missing: Vec::new(),
        };
        if let Ok(table) = table::parse(&bytes, "damaged.csv", &columns) {
            prop_assert!(table.x.iter().all(|value| value.is_finite()));
            prop_assert_eq!(table.x.len(), table.rows() * 2);
        }
    }
}
