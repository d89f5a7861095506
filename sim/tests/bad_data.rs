//! Data files that are not what they should be: exit 2 with the file and the place, and never a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::path::Path;

use common::{code, directory, errors, numbers, program, write_npz};
use fedspan_sim::data::table::Columns;
use fedspan_sim::data::{idx, npz, table};
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
    write_npz(&file, &[("x", &[3, 4, 1], &values[..12]), ("y", &[3, 4], &values[..12])]);
    has(&message(&here, data), &["my.toml", "model.k is 2", "1 feature"]);
    std::fs::write(&file, "not a zip").unwrap();
    has(&message(&here, data), &["data.npz", "not an npz archive"]);
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
    has(&message(&here, data), &["data.csv", "line 3", "column y", "\"four\""]);
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
        let _ = npz::dataset(file.to_str().unwrap());
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
        if let Ok(images) = idx::read(first.to_str().unwrap(), second.to_str().unwrap()) {
            prop_assert_eq!(images.set.x.len(), images.set.len() * images.features);
        }
    }

    #[test]
    fn damaged_csv_never_panics((cut, flips) in damage()) {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("damaged.csv");
        let whole = "who,a,b,y\n1,2,3,4\n1,0.5,-3,2\n2,1e3,0,7\n";
        std::fs::write(&file, damaged(whole.as_bytes(), cut, &flips)).unwrap();
        let columns = Columns {
            client: "who".to_owned(),
            target: "y".to_owned(),
            features: vec!["a".to_owned(), "b".to_owned()],
            classification: false,
        };
        if let Ok(data) = table::read(file.to_str().unwrap(), &columns) {
            for client in &data.clients {
                prop_assert!(client.train.x.iter().all(|value| value.is_finite()));
            }
        }
    }
}
