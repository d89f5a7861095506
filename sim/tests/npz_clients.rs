//! Tests of npz files that contain a client number for each row.

use crate::common::{
    REST, assert_contains_all, damage, damaged, data_error_message, empty_directory, npy, random_numbers,
    write_archive, write_npz,
};
use fedspan_sim_core::data::{Client, DataError, Dataset, Labels, Set, npz};
use fedspan_sim_core::scenario::Scenario;
use proptest::prelude::*;

const DATA: &str = "kind = \"npz\"\npath = \"data.npz\"\n";

/// Options that keep the values of the file unchanged: no scaling and no constant feature.
const AS_IT_IS: &str = "scale = \"none\"\nconstant = false\n";

/// Reads the data set of a scenario in the given directory.
fn read_dataset(folder: &std::path::Path, further_sections: &str) -> Dataset {
    let name = folder.join("my.toml");
    let text = format!("[data]\n{DATA}{further_sections}{REST}");
    Scenario::parse(name.to_str().unwrap(), &text, &[]).unwrap().dataset(1).unwrap()
}

/// Sum of the features, which identifies a row, and target of each row.
fn rows(set: &Set, d: usize) -> Vec<(f32, f32)> {
    let y: Vec<f32> = match &set.y {
        Labels::Values { values: y, .. } | Labels::Absent(y) => y.clone(),
        Labels::Classes(y) => y.iter().map(|&class| f32::from(class)).collect(),
    };
    set.x.chunks(d).map(|row| row.iter().sum()).zip(y).collect()
}

/// Clients may have different numbers of rows: clients 3, 0 and 7 have three, one and two rows, and client 0
/// has no test rows.
#[test]
fn clients_may_have_different_sizes() {
    let folder = empty_directory("npz-ragged");
    let (x, x_test): (Vec<f64>, Vec<f64>) =
        ((0..12).map(f64::from).collect(), (0..6).map(f64::from).collect());
    let arrays: [(&str, &[u64], &[f64]); 6] = [
        ("x", &[6, 2], &x),
        ("y", &[6], &[10.0, 11.0, 12.0, 13.0, 14.0, 15.0]),
        ("client", &[6], &[3.0, 7.0, 3.0, 0.0, 7.0, 3.0]),
        ("x_test", &[3, 2], &x_test),
        ("y_test", &[3], &[20.0, 21.0, 22.0]),
        ("client_test", &[3], &[7.0, 3.0, 7.0]),
    ];
    write_npz(&folder.join("data.npz"), &arrays);
    let set = read_dataset(&folder, AS_IT_IS);
    let rows_of = |client: &Client| (rows(&client.train, 2), rows(&client.test, 2));
    let expected = [
        (vec![(13.0, 13.0)], vec![]),
        (vec![(1.0, 10.0), (9.0, 12.0), (21.0, 15.0)], vec![(5.0, 21.0)]),
        (vec![(5.0, 11.0), (17.0, 14.0)], vec![(1.0, 20.0), (9.0, 22.0)]),
    ];
    assert_eq!(set.clients.iter().map(rows_of).collect::<Vec<_>>(), expected);
    assert_eq!((set.features, set.outputs, set.classification), (2, 1, false));
    // The file is read without test rows, and with targets as classes.
    write_npz(&folder.join("data.npz"), &arrays[..3]);
    let set = read_dataset(&folder, &format!("{AS_IT_IS}task = \"classes\"\n"));
    assert_eq!((set.outputs, set.classification), (6, true));
    assert_eq!(set.class_names, ["10", "11", "12", "13", "14", "15"]);
    assert!(set.clients.iter().all(|client| client.test.is_empty() && client.test.is_classes()));
}

/// A file with a client number for each row and a file with one client per index of the first axis have the
/// same data.
#[test]
fn equal_sizes_match_the_axis_layout() {
    let (by_place, by_number) = (empty_directory("npz-places"), empty_directory("npz-numbers"));
    let values = random_numbers(60, 1);
    let (y, owner): (&[f64], Vec<f64>) = (&values[..12], (0..12).map(|row| f64::from(row / 4)).collect());
    write_npz(&by_place.join("data.npz"), &[("x", &[3, 4, 5], &values), ("y", &[3, 4], y)]);
    write_npz(
        &by_number.join("data.npz"),
        &[("x", &[12, 5], &values), ("y", &[12], y), ("client", &[12], &owner)],
    );
    let [numbered, positional] = [&by_number, &by_place].map(|folder| read_dataset(folder, "").clients);
    assert_eq!(numbered.len(), positional.len());
    for (numbered, positional) in numbered.iter().zip(&positional) {
        assert_eq!((&numbered.train, &numbered.test), (&positional.train, &positional.test));
    }
}

/// Integers of every width are read, among them 64 bits, which is NumPy's default.
#[test]
fn integers_of_every_width_are_read() {
    let folder = empty_directory("npz-integers");
    let file = folder.join("data.npz");
    let owner = [4i64, 4, 9];
    macro_rules! check {
        ($($type:ty)*) => {$(
            let x: Vec<$type> = vec![1, 2, 3, 4, 5, 6];
            let y: Vec<$type> = vec![0, 2, 1];
            let owner: Vec<$type> = owner.iter().map(|&number| <$type>::try_from(number).unwrap()).collect();
            let files = [("x", npy(&[3, 2], &x)), ("y", npy(&[3], &y)), ("client", npy(&[3], &owner))];
            write_archive(&file, &files.map(|(name, bytes)| (name.to_owned(), bytes)));
            let set = read_dataset(&folder, &format!("{AS_IT_IS}task = \"classes\"\n"));
            let train: Vec<_> = set.clients.iter().map(|client| rows(&client.train, 2)).collect();
            assert_eq!(train, [vec![(3.0, 0.0), (7.0, 2.0)], vec![(11.0, 1.0)]], stringify!($type));
        )*};
    }
    check!(i8 i16 i32 i64 u8 u16 u32 u64);
}

#[test]
fn inconsistent_arrays_are_refused() {
    let folder = empty_directory("npz-owners");
    let file = folder.join("data.npz");
    let values = random_numbers(60, 1);
    let y = &values[..12];
    let owner = [0.0, 1.0].repeat(6);
    let x: (&str, &[u64], &[f64]) = ("x", &[12, 5], &values);
    let y: (&str, &[u64], &[f64]) = ("y", &[12], y);
    let client: (&str, &[u64], &[f64]) = ("client", &[12], &owner);
    let assert_rejected = |arrays: &[(&str, &[u64], &[f64])], parts: &[&str]| {
        write_npz(&file, arrays);
        assert_contains_all(&data_error_message(&folder, DATA), &[&["data.npz"], parts].concat());
    };
    assert_rejected(&[x, y], &["x has shape [12, 5]", "(clients, m, d), or (n, d) with client (n)"]);
    assert_rejected(
        &[("x", &[3, 4, 5], &values), y, client],
        &["x has shape [3, 4, 5]", "expected (n, d) with client (n)"],
    );
    assert_rejected(&[x, ("y", &[3, 4], &values[..12]), client], &["y has shape [3, 4]", "(12)"]);
    assert_rejected(&[x, y, ("client", &[11], &owner[..11])], &["client has shape [11]", "(12)"]);
    assert_rejected(&[client], &["no array named x", "x and y"]);
    for (number, reported) in
        [(0.5, "0.5"), (-1.0, "-1.0"), (f64::NAN, "NaN"), (9_007_199_254_740_992.0, "9007199")]
    {
        let mut owner = owner.clone();
        owner[7] = number;
        assert_rejected(&[x, y, ("client", &[12], &owner)], &["client at [7]", reported, "whole number"]);
    }
    let (x_test, y_test) = (("x_test", &[2u64, 5][..], &values[..10]), ("y_test", &[2u64][..], &values[..2]));
    assert_rejected(&[x, y, client, x_test, y_test], &["x_test has shape [2, 5]", "client_test (n)"]);
    assert_rejected(
        &[x, y, client, x_test, y_test, ("client_test", &[2], &[1.0, 5.0])],
        &["client_test at [1]", "client 5"],
    );
    assert_rejected(&[x, y, client, ("client_test", &[2], &[1.0, 1.0])], &["no array named x_test"]);
    let by_place: [(&str, &[u64], &[f64]); 2] =
        [("x_test", &[2, 1, 5], &values[..10]), ("y_test", &[2, 1], &values[..2])];
    assert_rejected(&[x, y, client, by_place[0], by_place[1]], &["x_test [2, 1, 5]", "do not fit x [12, 5]"]);
    let too_narrow: (&str, &[u64], &[f64]) = ("x_test", &[2, 4], &values[..8]);
    assert_rejected(
        &[x, y, client, too_narrow, y_test, ("client_test", &[2], &[1.0, 1.0])],
        &["x_test [2, 4]", "do not fit x [12, 5]"],
    );
    assert_rejected(
        &[("x", &[0, 5], &[]), ("y", &[0], &[]), ("client", &[0], &[])],
        &["x has shape [0, 5]", "expected at least one value"],
    );
}

/// A header that declares a quadrillion clients without samples is refused before memory is allocated for the
/// clients.
#[test]
fn clients_without_samples_take_no_memory() {
    let folder = empty_directory("npz-nothing");
    let empty_arrays: [(&str, &[u64], &[f64]); 2] = [("x", &[1 << 50, 0, 5], &[]), ("y", &[1 << 50, 0], &[])];
    write_npz(&folder.join("data.npz"), &empty_arrays);
    assert_contains_all(
        &data_error_message(&folder, DATA),
        &["data.npz", "x has shape", "expected at least one value"],
    );
    let values = random_numbers(60, 1);
    let training_arrays: [(&str, &[u64], &[f64]); 2] =
        [("x", &[3, 4, 5], &values), ("y", &[3, 4], &values[..12])];
    let tests: [(&str, &[u64], &[f64]); 2] =
        [("x_test", &[1 << 50, 0, 5], &[]), ("y_test", &[1 << 50, 0], &[])];
    write_npz(&folder.join("data.npz"), &[training_arrays[0], training_arrays[1], tests[0], tests[1]]);
    assert_contains_all(&data_error_message(&folder, DATA), &["data.npz", "do not fit"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Every row is assigned to its client exactly once and in the order of the file, for any numbers of
    /// rows.
    #[test]
    fn rows_go_to_their_owner_in_order(owners in prop::collection::vec(0u32..6, 1..40)) {
        let folder = empty_directory("npz-any");
        let file = folder.join("data.npz");
        let n = owners.len() as u64;
        let x: Vec<f64> = (0..owners.len()).map(|row| row as f64).collect();
        let owner: Vec<f64> = owners.iter().map(|&owner| f64::from(owner) * 1e12).collect();
        write_npz(&file, &[("x", &[n, 1], &x), ("y", &[n], &x), ("client", &[n], &owner)]);
        let set = read_dataset(&folder, AS_IT_IS);
        let mut numbers = owners.clone();
        numbers.sort_unstable();
        numbers.dedup();
        let names: Vec<String> = numbers.iter().map(|&number| format!("{}", u64::from(number) * 1_000_000_000_000)).collect();
        prop_assert_eq!(&set.client_names, &names);
        for (client, number) in set.clients.iter().zip(numbers) {
            let expected = owners.iter().enumerate().filter(|(_, owner)| **owner == number);
            prop_assert_eq!(&client.train.x, &expected.map(|(row, _)| row as f32).collect::<Vec<_>>());
        }
    }

    #[test]
    fn damaged_owners_never_panic((cut, flips) in damage()) {
        let file = empty_directory("npz-damaged").join("whole.npz");
        let values = random_numbers(60, 1);
        let owner = [0.0, 5.0, 1.0].repeat(4);
        let arrays: [(&str, &[u64], &[f64]); 3] =
            [("x", &[12, 5], &values), ("y", &[12], &owner), ("client", &[12], &owner)];
        write_npz(&file, &arrays);
        let bytes = damaged(&std::fs::read(&file).unwrap(), cut, &flips);
        for classification in [false, true] {
            let arrays = npz::Arrays { classification, ..npz::Arrays::default() };
            if let Err(DataError { file, message }) = npz::table(&bytes, "damaged.npz", &arrays) {
                prop_assert!(!file.is_empty() && !message.is_empty());
            }
        }
    }
}
