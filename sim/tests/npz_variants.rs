//! Tests that npz files of every type, memory order, shape and compression have the same data, bit for bit,
//! as a CSV file of the same table.

use std::path::Path;

use crate::common::arrays::{Zipped, archive, npy_bytes, numbers_as, texts_as, to_column_major};
use crate::common::table::{Cell, Grid, Writing};
use crate::common::{
    assert_contains_all, data_error_message, empty_directory, exit_code, random_numbers, run_program,
    stderr_text,
};
use fedspan_sim_core::data::{Client, Dataset, Labels};
use fedspan_sim_core::scenario::Scenario;
use serde_json::Value;

const ROWS: usize = 60;
const WIDTH: usize = 3;

/// Table of five clients with twelve rows each, in alternating order. All values are whole numbers that every
/// type can represent.
struct Data {
    x: Vec<f64>,
    y: Vec<f64>,
    client: Vec<f64>,
}

fn data() -> Data {
    let x: Vec<f64> =
        random_numbers(ROWS * WIDTH, 5).iter().map(|value| (value * 100.0).round().abs()).collect();
    let class = |row: &[f64]| {
        if row[0] > row[1] {
            1.0
        } else if row[2] > 50.0 {
            2.0
        } else {
            5.0
        }
    };
    Data {
        y: x.chunks_exact(WIDTH).map(class).collect(),
        client: (0..ROWS).map(|row| 10.0 + (row % 5) as f64).collect(),
        x,
    }
}

/// Writes the table as CSV file.
fn write_csv(folder: &Path, data: &Data) {
    let header = ["a", "b", "c", "who", "y"].map(str::to_owned).to_vec();
    let rows = data
        .x
        .chunks_exact(WIDTH)
        .zip(&data.client)
        .zip(&data.y)
        .map(|((x, client), y)| x.iter().chain([client, y]).map(|value| Cell::Number(*value)).collect());
    let grid = Grid { header, rows: rows.collect() };
    std::fs::write(folder.join("t.csv"), Writing::PLAIN.write(&grid)).unwrap();
}

const CSV: &str = "kind = \"csv\"\npath = \"t.csv\"\nclient = \"who\"\ntarget = \"y\"\nfeatures = \"*\"\n";
const NPZ: &str = "kind = \"npz\"\npath = \"t.npz\"\n";
const MODEL: &str = "[model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 2\nstep_size = 0.25\n";

/// Data set of a scenario with the given data section, or the error message.
fn read_dataset(folder: &Path, data: &str) -> Result<Dataset, String> {
    let text = format!("[data]\n{data}{MODEL}");
    let scenario = Scenario::parse(folder.join("my.toml").to_str().unwrap(), &text, &[]);
    scenario.map_err(|problem| problem.to_string())?.dataset(3).map_err(|error| error.to_string())
}

/// All values on which training and scores depend, as bits.
fn bits(dataset: &Dataset) -> Vec<(Vec<u32>, Vec<u64>, Labels)> {
    let client_bits = |client: &Client| {
        [&client.train, &client.test].map(|set| {
            let f32_bits = set.x.iter().map(|value| value.to_bits()).collect();
            let f64_bits =
                set.x_f64.iter().chain(&set.y_f64).flatten().map(|value| value.to_bits()).collect();
            (f32_bits, f64_bits, set.y.clone())
        })
    };
    dataset.clients.iter().chain(&dataset.newcomers).flat_map(client_bits).collect()
}

/// Asserts that two data sets are equal, bit for bit.
fn assert_equal(dataset: &Dataset, expected: &Dataset, context: &str) {
    assert_eq!(bits(dataset), bits(expected), "{context}");
    let properties =
        |set: &Dataset| (set.features, set.outputs, set.dropped_users, set.layout, set.classification);
    assert_eq!(properties(dataset), properties(expected), "{context}");
    assert_eq!(
        (&dataset.client_names, &dataset.newcomer_names),
        (&expected.client_names, &expected.newcomer_names),
        "{context}"
    );
    assert_eq!(dataset.class_names, expected.class_names, "{context}");
}

#[test]
fn types_orders_shapes_and_packings_give_equal_data() {
    let folder = empty_directory("npz-variants");
    let data = data();
    write_csv(&folder, &data);
    let expected =
        read_dataset(&folder, &format!("{CSV}task = \"classes\"\n[split]\ntest = 0.25\n")).unwrap();
    assert_eq!(expected.class_names, ["1", "2", "5"]);
    let types = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"];
    let texts = |values: &[f64]| values.iter().map(f64::to_string).collect::<Vec<String>>();
    let mut count = 0;
    for (type_index, kind) in types.into_iter().enumerate() {
        for sign in ["<", ">"] {
            for fortran in [false, true] {
                for column in [false, true] {
                    let zipped = [Zipped::Stored, Zipped::Deflated, Zipped::Large][count % 3];
                    let version = 1 + (count % 3) as u8;
                    let descr = format!("{sign}{kind}");
                    let shape = [ROWS, WIDTH];
                    let x = if fortran { to_column_major(&data.x, &shape) } else { data.x.clone() };
                    let vector_shape: &[usize] = if column { &[ROWS, 1] } else { &[ROWS] };
                    let name_type =
                        format!("{}{}", [">", "<"][count % 2], types[(type_index + count) % types.len()]);
                    // Names are numbers of another type, or texts of characters, or texts of bytes.
                    let names = |values: &[f64], form: usize| match form % 3 {
                        0 => npy_bytes(
                            &name_type,
                            fortran,
                            vector_shape,
                            &numbers_as(&name_type, values),
                            version,
                        ),
                        1 => {
                            let descr = format!("{sign}U4");
                            npy_bytes(
                                &descr,
                                fortran,
                                vector_shape,
                                &texts_as(&descr, &texts(values)),
                                version,
                            )
                        }
                        _ => {
                            npy_bytes("|S3", fortran, vector_shape, &texts_as("|S3", &texts(values)), version)
                        }
                    };
                    let files = [
                        ("x", npy_bytes(&descr, fortran, &shape, &numbers_as(&descr, &x), version)),
                        ("y", names(&data.y, count / 2)),
                        ("client", names(&data.client, count)),
                        // The type of this array cannot be read, but the array is not used.
                        ("other", npy_bytes("|O", false, &[1], b"pickle", 1)),
                    ];
                    archive(&folder.join("t.npz"), zipped, &files);
                    let dataset =
                        read_dataset(&folder, &format!("{NPZ}task = \"classes\"\n[split]\ntest = 0.25\n"));
                    let context = format!("{descr} {fortran} {column} {zipped:?} {name_type} {count}");
                    let dataset = dataset.unwrap_or_else(|reported| panic!("{context}: {reported}"));
                    assert!(dataset.warnings.is_empty(), "{context}: {:?}", dataset.warnings);
                    assert_equal(&dataset, &expected, &context);
                    count += 1;
                }
            }
        }
    }
    assert_eq!(count, 88);
}

/// Arrays with one client per index of the first axis have the same data in both memory orders.
#[test]
fn clients_by_axis_equal_clients_by_number() {
    let folder = empty_directory("npz-variants-places");
    let data = data();
    // The rows are sorted by client.
    let mut order: Vec<usize> = (0..ROWS).collect();
    order.sort_by_key(|row| row % 5);
    let x: Vec<f64> = order.iter().flat_map(|row| data.x[row * WIDTH..(row + 1) * WIDTH].to_vec()).collect();
    let y: Vec<f64> = order.iter().map(|row| data.y[*row]).collect();
    let f8 = |fortran, shape: &[usize], values: &[f64]| {
        let values = if fortran { to_column_major(values, shape) } else { values.to_vec() };
        npy_bytes("<f8", fortran, shape, &numbers_as("<f8", &values), 1)
    };
    let files = [
        ("x", f8(false, &[ROWS, WIDTH], &data.x)),
        ("y", f8(false, &[ROWS], &data.y)),
        ("client", f8(false, &[ROWS], &data.client)),
    ];
    archive(&folder.join("t.npz"), Zipped::Stored, &files);
    for task in ["classes", "regression"] {
        let scenario = format!("{NPZ}task = \"{task}\"\n[split]\ntest = 0.25\n");
        archive(&folder.join("t.npz"), Zipped::Stored, &files);
        let expected = bits(&read_dataset(&folder, &scenario).unwrap());
        for fortran in [false, true] {
            for shape in [&[5, 12][..], &[5, 12, 1]] {
                let files = [("x", f8(fortran, &[5, 12, WIDTH], &x)), ("y", f8(fortran, shape, &y))];
                archive(&folder.join("t.npz"), Zipped::Deflated, &files);
                assert_eq!(bits(&read_dataset(&folder, &scenario).unwrap()), expected, "{fortran} {shape:?}");
            }
        }
    }
}

/// All options for splitting and scaling have the same effect for npz files as for CSV files, with array
/// names in place of column names.
#[test]
fn npz_and_csv_support_the_same_options() {
    let folder = empty_directory("npz-variants-csv");
    let data = data();
    write_csv(&folder, &data);
    let f8 = |shape: &[usize], values: &[f64]| npy_bytes("<f8", false, shape, &numbers_as("<f8", values), 1);
    let files = [
        ("inputs", f8(&[ROWS, WIDTH], &data.x)),
        ("labels", f8(&[ROWS], &data.y)),
        ("owner", f8(&[ROWS], &data.client)),
    ];
    archive(&folder.join("t.npz"), Zipped::Stored, &files);
    let mapped = "x = \"inputs\"\ny = \"labels\"\nclient = \"owner\"\n";
    let mut count = 0;
    for (task, further_sections) in [
        ("classes", "[split]\ntest = 0.3\n"),
        ("classes", "[split]\nby = \"random\"\ntest = 0.3\nvalidation = 0.2\n"),
        ("classes", "[split]\nby = \"stratified\"\n"),
        ("classes", "[split]\nby = \"classes\"\ntest = 0.3\n"),
        ("classes", "[split]\nby = \"time\"\ngap = 2\nholdout_users = 2\nfold = 1\nlabels_per_class = 0\n"),
        ("classes", "[data.partition]\nkind = \"shards\"\nclients = 6\n[split]\ntest = 0.2\n"),
        (
            "classes",
            "[data.partition]\nkind = \"dirichlet\"\nclients = 4\n[split]\nby = \"classes\"\ntests = \"all\"\n",
        ),
        (
            "classes",
            "[data.partition]\nkind = \"iid\"\nclients = 7\nsizes = \"log-normal\"\n[split]\ntest = 0.2\n",
        ),
        ("classes", "[data.partition]\nkind = \"natural\"\nusers = 3\n[split]\ntest = 0.2\n"),
        (
            "classes",
            "[data.partition]\nclients = 6\nkind = \"shards\"\n[split]\ntest = 0.2\nholdout_users = 2\nholdout_classes = [2]\n",
        ),
        ("regression", "[split]\ntest = 0.3\n"),
        ("regression", "[split]\nby = \"random\"\nholdout_users = 1\nnew_samples = 3\n"),
        ("regression", "[data.partition]\nkind = \"iid\"\nclients = 6\n[split]\ntest = 0.2\n"),
    ] {
        for scaling in
            ["", "scale = \"robust\"\n", "scale = \"none\"\nconstant = false\n", "constant = false\n"]
        {
            let context = format!("{task} {scaling} {further_sections}");
            let csv = read_dataset(&folder, &format!("{CSV}task = \"{task}\"\n{scaling}{further_sections}"));
            let csv = csv.unwrap_or_else(|reported| panic!("{context}: {reported}"));
            // Without an option for the test part, an npz file is split into its own training and test
            // arrays.
            let further_sections = if further_sections.contains("test =") || further_sections.contains("by =")
            {
                further_sections.to_owned()
            } else {
                format!("{further_sections}test = 0.2\n")
            };
            let npz = read_dataset(
                &folder,
                &format!("{NPZ}{mapped}task = \"{task}\"\n{scaling}{further_sections}"),
            );
            let npz = npz.unwrap_or_else(|reported| panic!("{context}: {reported}"));
            assert_equal(&npz, &csv, &context);
            count += 1;
        }
    }
    assert_eq!(count, 13 * 4);
}

/// Summaries of runs on an npz file and on a CSV file of the same table are equal, bit for bit.
#[test]
fn npz_summaries_equal_those_of_csv() {
    let folder = empty_directory("npz-variants-summary");
    let data = data();
    write_csv(&folder, &data);
    let texts: Vec<String> = data.client.iter().map(f64::to_string).collect();
    let files = [
        (
            "x",
            npy_bytes(
                ">f2",
                true,
                &[ROWS, WIDTH],
                &numbers_as(">f2", &to_column_major(&data.x, &[ROWS, WIDTH])),
                3,
            ),
        ),
        ("y", npy_bytes("<u1", false, &[ROWS, 1], &numbers_as("<u1", &data.y), 1)),
        ("client", npy_bytes("<U2", false, &[ROWS], &texts_as("<U2", &texts), 2)),
    ];
    archive(&folder.join("t.npz"), Zipped::Large, &files);
    for algorithm in ["fedrep", "local-only"] {
        let mut summaries = Vec::new();
        for kind in [CSV, NPZ] {
            let text = format!("[data]\n{kind}task = \"classes\"\n[split]\ntest = 0.25\n{MODEL}");
            std::fs::write(folder.join("my.toml"), text).unwrap();
            let output = run_program(
                &folder,
                &[
                    "run",
                    "my.toml",
                    "--format",
                    "json",
                    "--set",
                    &format!("algorithm.name={algorithm}"),
                    "--out",
                    "o",
                    "--overwrite",
                ],
            );
            assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
            let mut summary: Value = serde_json::from_slice(&output.stdout).unwrap();
            for field in ["timing", "data"] {
                summary.as_object_mut().unwrap().remove(field);
            }
            summaries.push((summary, std::fs::read(folder.join("o/clients.csv")).unwrap()));
        }
        assert_eq!(summaries[0], summaries[1]);
    }
}

/// Error messages contain the array, the position and the value.
#[test]
fn unusable_arrays_are_named() {
    let folder = empty_directory("npz-variants-bad");
    let data = data();
    let f8 = |shape: &[usize], values: &[f64]| npy_bytes("<f8", false, shape, &numbers_as("<f8", values), 1);
    let valid_files = || {
        vec![
            ("x", f8(&[ROWS, WIDTH], &data.x)),
            ("y", f8(&[ROWS], &data.y)),
            ("client", f8(&[ROWS], &data.client)),
        ]
    };
    let scenario = format!("{NPZ}task = \"classes\"\n");
    let assert_rejected = |name: &str, bytes: Vec<u8>, parts: &[&str]| {
        let mut files = valid_files();
        files.iter_mut().find(|(file_name, _)| *file_name == name).unwrap().1 = bytes;
        archive(&folder.join("t.npz"), Zipped::Deflated, &files);
        assert_contains_all(&data_error_message(&folder, &scenario), &[&["t.npz", name], parts].concat());
    };
    archive(&folder.join("t.npz"), Zipped::Stored, &valid_files());
    read_dataset(&folder, &scenario).unwrap();
    let texts = |change: &str| -> Vec<String> {
        (0..ROWS).map(|row| if row == 17 { change.to_owned() } else { "walk".to_owned() }).collect()
    };
    for missing in ["", "NA", "nan", "NaN", "null", "?"] {
        assert_rejected(
            "y",
            npy_bytes("<U4", false, &[ROWS], &texts_as("<U4", &texts(missing)), 1),
            &["[17]", &format!("{missing:?}")],
        );
        assert_rejected(
            "client",
            npy_bytes("|S4", false, &[ROWS, 1], &texts_as("|S4", &texts(missing)), 1),
            &["[17]", "client"],
        );
    }
    for (name, value, reported) in [
        ("y", f64::NAN, "NaN"),
        ("y", 1.5, "1.5"),
        ("client", f64::INFINITY, "inf"),
        ("client", 2.5, "2.5"),
        ("x", f64::NAN, "NaN"),
        ("x", -1e39, "-1e39"),
    ] {
        let (shape, mut values): (&[usize], _) =
            if name == "x" { (&[ROWS, WIDTH], data.x.clone()) } else { (&[ROWS], data.y.clone()) };
        values[17] = value;
        let position = if name == "x" { "[5, 2]" } else { "[17]" };
        assert_rejected(name, f8(shape, &values), &[position, reported]);
    }
    assert_rejected(
        "client",
        npy_bytes("<i8", false, &[ROWS], &[1i64 << 60; ROWS].map(i64::to_le_bytes).concat(), 1),
        &["[0]", "texts"],
    );
    assert_rejected("x", npy_bytes("|O", false, &[ROWS, WIDTH], &[0; 100], 1), &["Python objects", "astype"]);
    assert_rejected("y", npy_bytes("<c16", false, &[ROWS], &[0; 16 * ROWS], 1), &["c16"]);
    assert_rejected("y", npy_bytes("<M8[ns]", false, &[ROWS], &[0; 8 * ROWS], 1), &["M8"]);
    assert_rejected("x", f8(&[], &data.x[..1]), &["shape []", "(n, d)"]);
    assert_rejected("x", f8(&[ROWS * WIDTH], &data.x), &["shape [180]", "(n, d)"]);
    assert_rejected("x", f8(&[5, 12, WIDTH, 1], &data.x), &["shape [5, 12, 3, 1]", "(n, d)"]);
    assert_rejected("y", f8(&[1, ROWS], &data.y), &["shape [1, 60]", "(60)"]);
    assert_rejected("y", f8(&[], &data.y[..1]), &["shape []", "(60)"]);
    let record = "[('a', '<f8'), ('b', '<i4')]";
    let mut bytes = npy_bytes("", false, &[ROWS], &[0; 12 * ROWS], 1);
    let quotes_at = bytes.windows(2).position(|pair| pair == b"''").unwrap();
    let pad = record.len() - 2;
    bytes.splice(quotes_at..quotes_at + 2, record.bytes());
    let blanks = bytes.windows(pad).position(|blank| blank.iter().all(|byte| *byte == b' '));
    if let Some(blanks) = blanks {
        bytes.drain(blanks..blanks + pad);
    }
    assert_rejected("y", bytes, &["records"]);
}

/// The memory for an array is limited by the size of the file and does not depend on the declared shape
/// alone.
#[test]
fn array_memory_is_bounded_by_file_size() {
    let folder = empty_directory("npz-variants-large");
    let ones = |kind: &str, width: usize, shape: &[usize]| {
        npy_bytes(kind, false, shape, &vec![1; shape.iter().product::<usize>() * width], 1)
    };
    let rows = 12_000_000;
    // 12 million numbers of one byte take 12 kB in the compressed file and would take 96 MB in memory.
    let files =
        [("x", ones("|u1", 1, &[rows, 1])), ("y", ones("|u1", 1, &[10])), ("client", ones("|u1", 1, &[10]))];
    archive(&folder.join("t.npz"), Zipped::Deflated, &files);
    assert_contains_all(
        &data_error_message(&folder, NPZ),
        &["t.npz", "x", "96000000 bytes of memory", "67108864", "numpy.savez"],
    );
    let texts = npy_bytes("|S1", false, &[rows], &vec![b'a'; rows], 1);
    let files = [("x", ones("|u1", 1, &[10, 1])), ("y", ones("|u1", 1, &[10])), ("client", texts)];
    archive(&folder.join("t.npz"), Zipped::Deflated, &files);
    assert_contains_all(&data_error_message(&folder, NPZ), &["t.npz", "client", "bytes of memory"]);
    // An uncompressed array of similar size is read.
    let x = npy_bytes("|u1", false, &[9_000_000, 1], &vec![1; 9_000_000], 1);
    let files = [("x", x), ("y", ones("|u1", 1, &[10])), ("client", ones("|u1", 1, &[10]))];
    archive(&folder.join("t.npz"), Zipped::Stored, &files);
    assert_contains_all(&data_error_message(&folder, NPZ), &["y has shape [10]", "(9000000)"]);
}

/// A gap requires parts that are separated in time, and is refused for a test part that the file contains.
#[test]
fn gap_without_a_cut_in_time_is_refused() {
    let folder = empty_directory("npz-variants-gap");
    let parse = |split: &str| {
        let text = format!("[data]\n{NPZ}{split}{MODEL}");
        let scenario = Scenario::parse(folder.join("my.toml").to_str().unwrap(), &text, &[]);
        scenario.map(|_| ()).map_err(|problem| problem.to_string())
    };
    for accepted in [
        "[split]\ntest = 0.2\ngap = 3\n",
        "[split]\nvalidation = 0.2\ngap = 3\n",
        "[split]\nby = \"files\"\ngap = 0\n",
    ] {
        assert_eq!(parse(accepted), Ok(()), "{accepted}");
    }
    for refused in [
        "[split]\ngap = 3\n",
        "[split]\nby = \"files\"\ngap = 3\n",
        "[data.partition]\nkind = \"iid\"\n[split]\nvalidation = 0.2\ngap = 3\n",
    ] {
        let reported = parse(refused).unwrap_err();
        assert!(reported.contains("split.gap: found 3"), "{refused}: {reported}");
    }
}
