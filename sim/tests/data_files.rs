//! Tests of the readers of IDX, CIFAR, LEAF and npz files: the data sets that they produce, and their error
//! messages for damaged files.

use std::path::Path;

use crate::common::{
    REST, assert_contains_all, damage, damaged, data_error_message, empty_directory, idx_files,
    random_numbers, write_npz,
};
use fedspan_sim_core::data::{Client, Dataset, Labels, Set, cifar, leaf};
use fedspan_sim_core::run::{NoProgress, run};
use fedspan_sim_core::scenario::Scenario;
use proptest::prelude::*;

#[test]
fn idx_files_are_read_and_their_checksums_compared() {
    let folder = empty_directory("idx-pairs");
    let (images, mut labels) = idx_files();
    for (name, bytes) in [("images", &images), ("labels", &labels), ("test-images", &images)] {
        std::fs::write(folder.join(name), bytes).unwrap();
    }
    labels[8..].fill(3);
    std::fs::write(folder.join("test-labels"), &labels).unwrap();
    let train_files = "kind = \"idx\"\nimages = \"images\"\nlabels = \"labels\"\n";
    let all_files = format!("{train_files}test_images = \"test-images\"\ntest_labels = \"test-labels\"\n");
    let partition = "[data.partition]\nclients = 2\nclasses = 1\n";
    let read = |data: &str| {
        let text = format!("[data]\n{data}\n{REST}");
        let scenario = Scenario::parse(folder.join("my.toml").to_str().unwrap(), &text, &[]);
        scenario.map_err(|problem| problem.to_string())?.dataset(1).map_err(|error| error.to_string())
    };
    // Class 3 occurs only in the test part, so no client has samples of this class.
    let set = read(&format!("{all_files}{partition}")).unwrap();
    assert_eq!((set.outputs, set.clients.iter().map(|client| client.test.len()).sum::<usize>()), (4, 0));
    let pooled = read(&format!("{all_files}{partition}[split]\nby = \"stratified\"\ntest = 0.5\n")).unwrap();
    let count = |client: &Client| client.train.len() + client.test.len();
    assert_eq!(pooled.clients.iter().map(count).sum::<usize>(), 12);
    // The test images are 1 x 4, the training images 2 x 2.
    let mut wide_images = images.clone();
    (wide_images[11], wide_images[15]) = (1, 4);
    std::fs::write(folder.join("test-images"), &wide_images).unwrap();
    assert_contains_all(
        &data_error_message(&folder, &all_files),
        &["test-images", "1 x 4", "expected those of images: 2 x 2"],
    );
    assert_contains_all(
        &data_error_message(&folder, &format!("{train_files}test_images = \"images\"")),
        &["my.toml", "test_labels"],
    );
    assert_contains_all(
        &data_error_message(&folder, &format!("{train_files}first_label = 1")),
        &["labels", "label 0 at byte 8", "allowed: from 1, the value of data.first_label"],
    );
    // The option data.transposed swaps the second and third pixel of each 2 x 2 image.
    let not_transposed = read(&format!("{train_files}{partition}")).unwrap();
    let transposed = read(&format!("{train_files}transposed = true\n{partition}")).unwrap();
    for (a, b) in not_transposed.clients.iter().zip(&transposed.clients) {
        for (a, b) in a.train.x.chunks(5).zip(b.train.x.chunks(5)) {
            assert_eq!([a[0], a[2], a[1], a[3], a[4]], b);
        }
    }
    let checksum_keys =
        |first: &str, second: &str| format!("{train_files}sha256 = [\"{first}\", \"{second}\"]\n");
    let zeros = "0".repeat(64);
    // Reads the actual checksum of a file from the error message about a wrong one.
    let actual_checksum = |first: &str, name: &str| {
        let reported = data_error_message(&folder, &checksum_keys(first, &zeros));
        assert_contains_all(&reported, &[name, "SHA-256", &zeros]);
        let checksums: Vec<&str> = reported.split([' ', ',']).filter(|word| word.len() == 64).collect();
        checksums.into_iter().find(|sum| *sum != zeros).unwrap().to_owned()
    };
    let first = actual_checksum(&zeros, "images");
    let second = actual_checksum(&first, "labels");
    assert!(read(&format!("{}{partition}", checksum_keys(&first, &second.to_uppercase()))).is_ok());
    let one_too_many = format!("{train_files}sha256 = [\"{first}\", \"{second}\", \"{first}\"]\n{partition}");
    assert_contains_all(&read(&one_too_many).unwrap_err(), &["my.toml", "3 checksums for 2 files"]);
    assert_contains_all(
        &data_error_message(&folder, &format!("{train_files}sha256 = [\"12\"]")),
        &["data.sha256", "64 hexadecimal digits"],
    );
}

/// Writes CIFAR files of three records each. Record `i` has the given label bytes, and all of its pixels have
/// value `i`.
fn cifar_files(folder: &Path, labels: &[u8]) {
    let record = |i: u8| [labels, &[i; 3072]].concat();
    let bytes: Vec<u8> = (0..3).flat_map(record).collect();
    let file_names = (1..=5).map(|i| format!("data_batch_{i}.bin")).chain(["test_batch.bin".to_owned()]);
    for name in file_names.chain(["train.bin".to_owned(), "test.bin".to_owned()]) {
        std::fs::write(folder.join(name), &bytes).unwrap();
    }
}

/// The file contains one colour plane after another, but in a sample the three colours of a pixel are
/// adjacent.
#[test]
fn colours_of_a_pixel_are_adjacent() {
    let image = (0..3u8)
        .flat_map(|colour| (0..1024u32).map(move |pixel_index| (pixel_index % 64) as u8 + 64 * colour));
    let record: Vec<u8> = [4].into_iter().chain(image).collect();
    let mut set = Set::empty(true);
    cifar::append(&record, "file", cifar::Kind::Ten, &mut set).unwrap();
    assert_eq!(set.x.len(), 3 * 1024 + 1);
    for (pixel_index, pixel) in set.x.chunks_exact(3).enumerate() {
        for (colour, (mean, deviation)) in [(0.485, 0.229), (0.456, 0.224), (0.406, 0.225)].iter().enumerate()
        {
            let byte = (pixel_index % 64 + 64 * colour) as f32;
            assert!(
                (pixel[colour] - (byte / 255.0 - mean) / deviation).abs() < 1e-5,
                "{pixel_index} {colour}"
            );
        }
    }
}

#[test]
fn cifar_records_are_read() {
    let folder = empty_directory("cifar");
    let data = |further_keys: &str| {
        format!(
            "kind = \"cifar\"\npath = \"{}\"\n{further_keys}\n[data.partition]\nkind = \"iid\"\nclients = 3\n",
            folder.display()
        )
    };
    let read = |further_keys: &str| {
        let scenario =
            Scenario::parse("my.toml", &format!("[data]\n{}{REST}", data(further_keys)), &[]).unwrap();
        scenario.dataset(1).map_err(|error| error.to_string())
    };
    assert_contains_all(&data_error_message(&folder, &data("")), &["data_batch_1.bin", "No such file"]);
    cifar_files(&folder, &[7]);
    let set = read("augment = true").unwrap();
    assert_eq!((set.features, set.outputs, set.clients.len()), (3073, 10, 3));
    assert!(set.clients.iter().all(|client| client.train.len() == 5 && client.test.len() == 1));
    assert!(set.clients.iter().all(|client| client.augment.is_some()));
    for row in set.clients.iter().flat_map(|client| client.train.x.chunks_exact(3073)) {
        // Pixels of value 0, 1 or 2 are normalised with the mean and deviation of ImageNet's red channel.
        let red = f64::from(row[0]) * 0.229 + 0.485;
        assert!([0.0, 1.0, 2.0].iter().any(|pixel| (red - pixel / 255.0).abs() < 1e-6), "{red}");
        assert_eq!((row[3072], row[1023].to_bits()), (1.0, row[0].to_bits()));
    }
    cifar_files(&folder, &[19, 99]);
    assert_eq!(read("version = \"cifar-100\"").unwrap().outputs, 100);
    assert_eq!(read("version = \"cifar-100-coarse\"").unwrap().outputs, 20);
    cifar_files(&folder, &[20, 100]);
    assert_contains_all(
        &read("version = \"cifar-100\"").unwrap_err(),
        &["train.bin", "label 100 at byte 1", "0 to 99"],
    );
    assert_contains_all(
        &read("version = \"cifar-100-coarse\"").unwrap_err(),
        &["label 20 at byte 0", "0 to 19"],
    );
    let bytes = std::fs::read(folder.join("test.bin")).unwrap();
    cifar_files(&folder, &[1, 1]);
    std::fs::write(folder.join("test.bin"), &bytes[..4000]).unwrap();
    assert_contains_all(
        &read("version = \"cifar-100\"").unwrap_err(),
        &["test.bin", "byte 3074", "926 bytes, expected 3074"],
    );
    std::fs::write(folder.join("test.bin"), "").unwrap();
    assert_contains_all(
        &read("version = \"cifar-100\"").unwrap_err(),
        &["test.bin", "byte 0", "0 bytes, expected 3074"],
    );
}

/// LEAF file with three users, of whom one has no samples.
const LEAF: &str = r#"{"users": ["b", "a", "none"], "num_samples": [2, 3, 0], "hierarchies": [1], "user_data": {
    "b": {"x": [[0, 0.5, 1, 2], [4, 5, 6, -7e-1]], "y": [1, 0]}, "none": {"x": [], "y": []},
    "a": {"x": [[1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]], "y": [2, 2, 2]}}}"#;

#[test]
fn leaf_users_become_clients() {
    let folder = empty_directory("leaf");
    let file = folder.join("all.json");
    let data = |further_keys: &str| format!("kind = \"leaf\"\npath = \"all.json\"\n{further_keys}\n");
    let name = folder.join("my.toml");
    let read = |further_keys: &str| {
        let scenario =
            Scenario::parse(name.to_str().unwrap(), &format!("[data]\n{}{REST}", data(further_keys)), &[]);
        scenario.map_err(|problem| problem.to_string())?.dataset(1).map_err(|error| error.to_string())
    };
    // Counts may have a decimal point or an exponent, and a byte order mark is ignored.
    std::fs::write(&file, ["\u{feff}", &LEAF.replace("[2, 3, 0]", "[2.0, 3e0, 0]")].concat()).unwrap();
    read("").unwrap();
    std::fs::write(&file, LEAF).unwrap();
    let set = read("[split]\ntest = 0\n").unwrap();
    let sizes = |set: &Dataset| set.clients.iter().map(|c| c.train.len()).collect::<Vec<_>>();
    assert_eq!((set.features, set.outputs, sizes(&set)), (5, 3, vec![3, 2]));
    assert_eq!(set.clients[1].train.x.iter().sum::<f32>(), 3.5 + 14.3 + 2.0);
    assert_eq!(set.dropped_users, 1, "only the user without samples must be dropped");
    let large = read("[data.partition]\nmin_samples = 3\n[split]\ntest = 0\n").unwrap();
    assert_eq!((sizes(&large), large.dropped_users), (vec![3], 2));
    let one_user = read("[data.partition]\nusers = 1\n[split]\ntest = 0\n").unwrap();
    assert_eq!(
        (one_user.clients.len(), one_user.dropped_users),
        (1, 1),
        "users that were not drawn count as dropped"
    );
    // The test file contains only a user that the training file does not contain.
    let only_test = r#"{"user_data": {"c": {"x": [[9, 9, 9, 9]], "y": [2]}}}"#;
    std::fs::write(folder.join("other.json"), only_test).unwrap();
    let message = read("test_path = \"other.json\"\n").unwrap_err().to_string();
    assert!(message.contains("none of its 1 users (the first is \"c\")"), "{message}");
    assert_eq!(
        sizes(&read("[data.partition]\nkind = \"iid\"\nclients = 5\n[split]\ntest = 0\n").unwrap()),
        [1; 5]
    );
    // One client is held out, and one client has test samples in the test file.
    std::fs::write(folder.join("test.json"), r#"{"user_data": {"a": {"x": [[9, 9, 9, 9]], "y": [2]}}}"#)
        .unwrap();
    let tested =
        read("test_path = \"test.json\"\n[split]\nholdout_clients = 1\nlabels_per_class = 2\n").unwrap();
    assert_eq!((tested.newcomers[0].train.len(), tested.newcomers[0].test.len()), (2, 1));
    assert_eq!(tested.clients[0].test.len(), 0);
    assert_contains_all(
        &read("[data.partition]\nusers = 3\n").unwrap_err(),
        &["users = 3", "of 3 users only 2"],
    );
    let split = "[split]\nholdout_clients = 1\nholdout_classes = [1]\n";
    assert_contains_all(
        &read(split).unwrap_err(),
        &[
            "my.toml",
            "split.holdout_classes",
            "found with kind = \"natural\", where a user may have samples on both sides",
            "allowed with \"shards\", ",
        ],
    );
    assert_contains_all(&read("vectors = \"all.json\"\n").unwrap_err(), &["all.json", "data.vectors"]);
    assert_contains_all(&read("words = 3\n").unwrap_err(), &["data.words: found 3", "set data.vectors"]);
    assert_contains_all(
        &read("vocabulary = 9\n").unwrap_err(),
        &["data.vocabulary: found 9", "set data.vectors"],
    );
    for (from, to, parts) in [
        ("[2, 3, 0]", "[2, 4, 0]", &["\"a\"", "found 3 samples", "expected 4"][..]),
        ("[2, 3, 0]", "[2, 3]", &["3 names in users", "2 numbers in num_samples"]),
        ("\"none\"]", "\"nobody\"]", &["\"nobody\"", "user_data"]),
        ("[1, 1, 1, 1]", "[1, 1, 1]", &["\"a\", sample 1", "found 4 values", "expected 3"]),
        ("[1, 1, 1, 1]", "[1, 1, NaN, 1]", &["line 3", "column"]),
        ("[1, 1, 1, 1]", "[1, 1, 1e39, 1]", &["line 3", "1e39"]),
        ("[1, 1, 1, 1]", "[1, 1, \"1\", 1]", &["line 3", "numbers and text"]),
        ("[1, 1, 1, 1]", "[\"1\", \"t\"]", &["line 3", "2 fields"]),
        ("[1, 1, 1, 1]", "[]", &["line 3", "without values"]),
        ("[1, 1, 1, 1]", "1", &["line 3", "a list of numbers"]),
        ("[2, 2, 2]}", "[2, 256, 2]}", &["line 3", "256"]),
        ("[2, 2, 2]}", "[2, -1, 2]}", &["line 3", "-1"]),
        ("[2, 2, 2]}", "[2, 2]}", &["\"a\"", "3 samples in x and 2 in y"]),
        ("\"none\": {", "\"b\": {", &["line 2", "\"b\" twice in user_data"]),
        ("\"none\"], \"num_samples\": [2, 3, 0]", "\"a\"]", &["\"a\" twice in users"]),
        (", \"none\"], \"num_samples\": [2, 3, 0]", "]", &["\"none\" in user_data but not in users"]),
        ("[2, 3, 0]", "[2, 3.5, 0]", &["line 1", "3.5", "whole number"]),
        ("{\"users\"", "[{\"users\"", &["a JSON object with users"]),
        ("}}}", "}}", &["line 3", "EOF"]),
    ] {
        let invalid = LEAF.replace(from, to);
        assert_ne!(invalid, LEAF, "{from}");
        std::fs::write(&file, invalid).unwrap();
        assert_contains_all(&read("").unwrap_err(), &[&["all.json"], parts].concat());
    }
    std::fs::write(
        &file,
        [LEAF.as_bytes()[..30].to_vec(), vec![0xff], LEAF.as_bytes()[30..].to_vec()].concat(),
    )
    .unwrap();
    assert_contains_all(&data_error_message(&folder, &data("")), &["all.json", "line 1"]);
}

#[test]
fn leaf_tweets_become_means_of_word_vectors() {
    let folder = empty_directory("leaf-text");
    let tweet = |text: &str| format!("[\"1\", \"date\", \"NO_QUERY\", \"who\", \"{text}\", \"rest\"]");
    let text = format!(
        "{{\"user_data\": {{\"u\": {{\"x\": [{}, {}], \"y\": [0, 1]}}}}}}",
        tweet("Good, good day"),
        tweet("#odd")
    );
    std::fs::create_dir_all(folder.join("train")).unwrap();
    std::fs::write(folder.join("train/one.json"), text).unwrap();
    std::fs::write(folder.join("glove.txt"), "good 1 2\nday 4 -1\n, 3 3\nnight nonsense\n").unwrap();
    let name = folder.join("my.toml");
    let data = "kind = \"leaf\"\npath = \"train\"\n";
    let text = format!("[data]\n{data}vectors = \"glove.txt\"\n[split]\ntest = 0\n{REST}");
    let set = Scenario::parse(name.to_str().unwrap(), &text, &[]).unwrap().dataset(1).unwrap();
    // Classes are shuffled separately, so samples of different classes keep their order.
    assert_eq!(set.clients[0].train.x, [9.0 / 4.0, 6.0 / 4.0, 1.0, 0.0, 0.0, 1.0]);
    assert_contains_all(&data_error_message(&folder, data), &["train", "data.vectors"]);
    // With data.words, a sample is a series of word vectors for recurrent networks.
    let series = Scenario::parse(name.to_str().unwrap(), &text, &["data.words=3".to_owned()]).unwrap();
    let set = series.dataset(1).unwrap();
    let (good_vector, comma_vector, day_vector) = ([1.0, 2.0], [3.0, 3.0], [4.0, -1.0]);
    assert_eq!(
        set.clients[0].train.x,
        [&comma_vector[..], &good_vector, &day_vector, &[1.0], &[0.0; 6], &[1.0]].concat()
    );
    let lstm_overrides =
        ["data.words=3", "model={ kind = \"lstm\", cells = 4 }", "algorithm.rounds=2"].map(str::to_owned);
    let scenario = Scenario::parse(name.to_str().unwrap(), &text, &lstm_overrides).unwrap();
    assert!(run(&scenario, 1, &mut NoProgress).unwrap().diverged.is_none());
    let long_sequences =
        Scenario::parse(name.to_str().unwrap(), &text, &["data.words=1000".to_owned()]).unwrap();
    assert_eq!(long_sequences.dataset(1).unwrap().features, 2001);
    std::fs::remove_file(folder.join("train/one.json")).unwrap();
    assert_contains_all(&data_error_message(&folder, data), &["train", "no .json file"]);
}

#[test]
fn npz_labels_become_classes() {
    let folder = empty_directory("npz-classes");
    let values = random_numbers(60, 1);
    let data = "kind = \"npz\"\npath = \"data.npz\"\ntask = \"classes\"\n";
    let mut classes: Vec<f64> = (0..12).map(|i| f64::from(i % 3)).collect();
    let write =
        |y: &[f64]| write_npz(&folder.join("data.npz"), &[("x", &[3, 4, 5], &values), ("y", &[3, 4], y)]);
    write(&classes);
    let name = folder.join("my.toml");
    let scenario = Scenario::parse(name.to_str().unwrap(), &format!("[data]\n{data}{REST}"), &[]).unwrap();
    let set = scenario.dataset(1).unwrap();
    assert_eq!((set.outputs, set.classification), (3, true));
    assert_eq!(set.clients[1].train.y, Labels::Classes(vec![1, 2, 0, 1]));
    // Classes are the values that occur in the file, in ascending order.
    classes[7] = -1.0;
    write(&classes);
    let set = scenario.dataset(1).unwrap();
    assert_eq!((set.outputs, set.class_names.first().map(String::as_str)), (4, Some("-1")));
    classes[7] = f64::NAN;
    write(&classes);
    assert_contains_all(&data_error_message(&folder, data), &["data.npz", "y at [1, 3]"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

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
