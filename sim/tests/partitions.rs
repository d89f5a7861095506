//! Tests of the partition of data over clients into training samples, test samples and newcomers.

use std::collections::BTreeMap;

use fedspan_sim_core::data::{Client, Dataset, Labels, Set};
use fedspan_sim_core::scenario::Scenario;

/// Model and algorithm of the scenarios.
const REST: &str = "[model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 1\nstep_size = 0.1\n";

fn scenario(data: &str) -> Result<Scenario, String> {
    let text = format!("[data]\n{data}\n{REST}");
    Scenario::parse("my.toml", &text, &[]).map_err(|problem| problem.to_string())
}

fn dataset(data: &str) -> Dataset {
    scenario(data).unwrap().dataset(1).unwrap()
}

/// Asserts that a scenario is refused with a message that contains all parts.
fn assert_refused(data: &str, parts: &[&str]) {
    let reported = match scenario(data) {
        Err(reported) => reported,
        Ok(scenario) => scenario.dataset(1).unwrap_err().to_string(),
    };
    assert!(parts.iter().all(|part| reported.contains(part)), "{reported}");
}

/// Number of samples of each class that occurs in a set.
fn classes(set: &Set) -> BTreeMap<u8, usize> {
    let Labels::Classes(labels) = &set.y else { panic!("classes") };
    labels.iter().fold(BTreeMap::new(), |mut counts, label| {
        *counts.entry(*label).or_default() += 1;
        counts
    })
}

/// Rows of a set as bits, which identify them.
fn rows(set: &Set, d: usize) -> Vec<Vec<u32>> {
    set.x.chunks_exact(d).map(|row| row.iter().map(|value| value.to_bits()).collect()).collect()
}

/// Sum of a count over clients.
fn sum_over_clients(clients: &[Client], size: impl Fn(&Client) -> usize) -> usize {
    clients.iter().map(size).sum()
}

/// Partition of MNIST by classes, with the sizes of a paper.
const MNIST: &str =
    "kind = \"mnist5k\"\n[data.partition]\nclients = 50\nclasses = 2\n[split]\nby = \"classes\"\n";
/// Partition of the digits by classes.
const DIGITS: &str = "kind = \"digits\"\n[data.partition]\nclients = 20\nclasses = 2\n[split]\nby = \"classes\"\n\
                      train_per_class = 140\n";

/// Partitions by classes have the sizes of the papers, and each client is tested on its own classes. MNIST
/// has 4000 training images and 1000 test images, 80 and 20 for each of 50 clients. The digits have 1400
/// training images, 70 for each of 20 clients, and 397 test images.
#[test]
fn class_partition_gives_tests_of_own_classes() {
    for (data, clients, train, test, per_class) in [(MNIST, 50, 80, 1000, 400), (DIGITS, 20, 70, 397, 140)] {
        let share = dataset(data);
        assert_eq!(share.clients.len(), clients);
        assert!(share.clients.iter().all(|client| client.train.len() == train));
        assert_eq!(
            sum_over_clients(&share.clients, |client| client.test.len()),
            test,
            "a test sample was assigned twice or not at all"
        );
        let with_all_tests = dataset(&format!("{data}tests = \"all\"\n"));
        for (share, with_all_tests) in share.clients.iter().zip(&with_all_tests.clients) {
            assert_eq!(share.train, with_all_tests.train);
            let (trains, shares, tests) =
                (classes(&share.train), classes(&share.test), classes(&with_all_tests.test));
            assert!(trains.len() <= 2 && trains.keys().eq(tests.keys()) && trains.keys().eq(shares.keys()));
            // A client has the same fraction of the test samples of a class as of its training samples, up to
            // rounding.
            for (class, count) in shares {
                let part = tests[&class] as f64 * trains[&class] as f64 / per_class as f64;
                assert!((count as f64 - part).abs() < 1.0, "{count} for {part}");
            }
        }
    }
}

/// No test row is a training row of any client. The bundled digits are all different, so equal rows are the
/// same digit.
#[test]
fn test_rows_are_not_training_rows() {
    for (extra, count) in [
        ("", 397),
        // Validation rows are a quarter of 140 samples of each of ten classes.
        ("validation = 0.25\n", 350),
        ("holdout_clients = 4\nlabels_per_class = 3\n", 397),
    ] {
        let data = dataset(&format!("{DIGITS}{extra}"));
        let all_clients = || data.clients.iter().chain(&data.newcomers);
        let mut trained: Vec<_> = all_clients().flat_map(|client| rows(&client.train, 65)).collect();
        let rows_of_clients = trained.len();
        trained.sort_unstable();
        trained.dedup();
        assert_eq!(trained.len(), rows_of_clients, "a sample belongs to two clients");
        let tested: Vec<_> = all_clients().flat_map(|client| rows(&client.test, 65)).collect();
        assert_eq!(tested.len(), count, "{extra}");
        assert!(tested.iter().all(|row| trained.binary_search(row).is_err()), "{extra}");
    }
}

#[test]
fn held_out_clients_label_few_and_are_tested_alike() {
    let whole_fleet = dataset(DIGITS);
    let with_newcomers = dataset(&format!("{DIGITS}holdout_clients = 5\nfold = 1\nlabels_per_class = 3\n"));
    assert_eq!((with_newcomers.clients.len(), with_newcomers.newcomers.len()), (15, 5));
    let training_clients = whole_fleet.clients[..5].iter().chain(&whole_fleet.clients[10..]);
    assert!(
        with_newcomers
            .clients
            .iter()
            .zip(training_clients)
            .all(|(a, b)| a.train == b.train && a.test == b.test)
    );
    for (newcomer, same_client) in with_newcomers.newcomers.iter().zip(&whole_fleet.clients[5..10]) {
        assert_eq!(newcomer.test, same_client.test);
        let labelled = classes(&newcomer.train);
        assert!(
            labelled.values().all(|count| *count == 3)
                && labelled.keys().eq(classes(&same_client.train).keys())
        );
    }
    let complete = dataset(&format!("{DIGITS}holdout_clients = 5\nfold = 1\nlabels_per_class = 0\n"));
    assert_eq!(complete.newcomers[0].train, whole_fleet.clients[5].train);
}

/// Held-out classes occur only among newcomers, as in Figure 6 of the FedRep paper.
#[test]
fn held_out_classes_belong_to_newcomers_only() {
    for extra in ["by = \"stratified\"\n", "by = \"classes\"\n"] {
        let data = dataset(&format!(
            "kind = \"digits\"\n[data.partition]\nclients = 14\n[split]\n{extra}holdout_clients = 4\n\
             holdout_classes = [9, 2, 5]\nlabels_per_class = 2\n"
        ));
        assert_eq!((data.clients.len(), data.newcomers.len(), data.outputs), (10, 4, 7));
        let assert_training_classes = |clients: &[Client], class_count: u8| {
            let mut labels: Vec<u8> =
                clients.iter().flat_map(|client| classes(&client.train).into_keys()).collect();
            labels.sort_unstable();
            labels.dedup();
            assert_eq!(labels, (0..class_count).collect::<Vec<u8>>());
            for client in clients {
                assert!(classes(&client.test).keys().all(|class| classes(&client.train).contains_key(class)));
            }
        };
        assert_training_classes(&data.clients, 7);
        assert_training_classes(&data.newcomers, 3);
        // Classes 2, 5 and 9 have 177, 182 and 180 of the 1797 digits.
        let total = sum_over_clients(&data.clients, |client| client.train.len() + client.test.len());
        assert_eq!(total, 1797 - 177 - 182 - 180);
    }
}

#[test]
fn sizes_and_dirichlet_are_read_from_the_file() {
    let sizes = |partition: &str| {
        let data =
            dataset(&format!("kind = \"mnist5k\"\n[data.partition]\n{partition}\n[split]\ntest = 0\n"));
        data.clients.iter().map(|client| client.train.len()).collect::<Vec<_>>()
    };
    // The sizes of the SRPFL paper are 100 plus a uniform number from 0 to 50.
    for kind in ["shards", "iid"] {
        let sizes = sizes(&format!("kind = \"{kind}\"\nclients = 40\nsamples = 100\nsizes = \"uniform\""));
        assert!(sizes.iter().all(|size| (100..=150).contains(size)), "{sizes:?}");
        assert!(sizes.iter().min() < Some(&110) && sizes.iter().max() > Some(&140), "{sizes:?}");
    }
    assert_eq!(sizes("kind = \"iid\"\nclients = 7\nsamples = 90"), [90; 7]);
    let words = sizes("kind = \"log-normal-sizes\"\nclients = 30");
    assert_eq!(words, sizes("kind = \"iid\"\nclients = 30\nsizes = \"log-normal\""));
    let dirichlet = sizes("kind = \"dirichlet\"\nclients = 30\nalpha = 0.3\nmin_samples = 20");
    assert_eq!((dirichlet.len(), dirichlet.iter().sum::<usize>()), (30, 5000));
    assert!(dirichlet.iter().all(|size| *size >= 20));
}

#[test]
fn impossible_partitions_are_refused_with_figures() {
    let partition = |text: &str| format!("kind = \"digits\"\n[data.partition]\n{text}\n");
    let split = |text: &str| format!("kind = \"digits\"\n[split]\n{text}\n");
    assert_refused(&partition("kind = \"natural\""), &["\"natural\"", "\"shards\", \"dirichlet\", \"iid\""]);
    assert_refused(&partition("kind = \"diriclet\""), &["did you mean \"dirichlet\"?"]);
    assert_refused(&partition("kind = \"dirichlet\"\nalpha = 0"), &["data.partition.alpha", "0.001"]);
    assert_refused(
        &partition("kind = \"dirichlet\"\nsizes = \"uniform\""),
        &["unknown key for kind \"dirichlet\"", "alpha"],
    );
    assert_refused(
        &partition("kind = \"dirichlet\"\nalpha = 0.001\nclients = 100"),
        &["digits", "1000 draws", "100 clients"],
    );
    assert_refused(&partition("samples = 90"), &["digits", "20 clients", "1797 samples", "needed: 1800"]);
    assert_refused(&split("by = \"files\""), &["\"files\"", "\"stratified\"", "\"classes\""]);
    assert_refused(&split("by = \"random\"\ntrain_per_class = 3"), &["train_per_class", "unknown key"]);
    assert_refused(&split("holdout_clients = 20"), &["holdout_clients = 20", "20 clients"]);
    assert_refused(&split("holdout_clients = 6\nfold = 3"), &["fold = 3", "3 such folds"]);
    assert_refused(&split("fold = 1"), &["split.fold: found 1", "set holdout_clients"]);
    assert_refused(
        &split("holdout_clients = 2\nlabels_per_class = 99"),
        &["labels_per_class is 99", "client \"0\""],
    );
    assert_refused(&split("holdout_classes = [1]"), &["split.holdout_classes", "holdout_clients"]);
    assert_refused(
        &split("holdout_classes = [1, 256]\nholdout_clients = 2"),
        &["split.holdout_classes", "0 to 255"],
    );
    assert_refused(&split("holdout_classes = [17]\nholdout_clients = 2"), &["no sample of class 17"]);
    assert_refused(&split("holdout_classes = [1]\nholdout_clients = 20"), &["20 of 20 clients"]);
    let all_classes = "holdout_classes = [0,1,2,3,4,5,6,7,8,9]\nholdout_clients = 2";
    assert_refused(&split(all_classes), &["at most 0, the number of classes"]);
}

/// A split in time is refused for images, because they have no order in time.
#[test]
fn images_refuse_a_split_in_time() {
    let images = "kind = \"idx\"\nimages = \"i\"\nlabels = \"l\"\n";
    let tested = format!("{images}test_images = \"i\"\ntest_labels = \"l\"\n");
    let leaf = "kind = \"leaf\"\npath = \"f\"\n";
    let (for_one_file, for_test_files) =
        ("\"stratified\", \"random\", \"classes\" (", "\"classes\", \"files\" (");
    for (data, allowed) in [
        ("kind = \"digits\"\n", for_one_file),
        (images, for_one_file),
        (&tested, for_test_files),
        (leaf, for_one_file),
    ] {
        let reported = scenario(&format!("{data}[split]\nby = \"time\"\n")).unwrap_err();
        assert!(
            reported.contains("split.by: found \"time\", but these samples have no order in time"),
            "{reported}"
        );
        assert!(reported.contains(allowed), "{reported}");
        assert_eq!(reported.lines().count(), 1);
    }
    let stratified = dataset("kind = \"digits\"\n[split]\nby = \"stratified\"\n");
    let default_data = dataset("kind = \"digits\"\n");
    assert_eq!(stratified.clients[3].test, default_data.clients[3].test);
}

/// If a partition assigns rows to clients, a split in time uses the order of the rows in the file.
#[test]
fn partitioned_rows_are_cut_in_time() {
    let folder = crate::common::empty_directory("partitions-time");
    let mut csv = "row,y\n".to_owned();
    for row in 0..120 {
        csv += &format!("{row},{}\n", row * 7 % 3);
    }
    std::fs::write(folder.join("t.csv"), csv).unwrap();
    let path = folder.join("t.csv");
    for partition in ["kind = \"iid\"", "kind = \"shards\"", "kind = \"dirichlet\"\nmin_samples = 10"] {
        let data = dataset(&format!(
            "kind = \"csv\"\npath = {path:?}\ntarget = \"y\"\nfeatures = [\"row\"]\ntask = \"classes\"\nscale = \"none\"\n\
             [data.partition]\nclients = 4\n{partition}\n[split]\nby = \"time\"\ntest = 0.25\n"
        ));
        assert_eq!(sum_over_clients(&data.clients, |client| client.train.len() + client.test.len()), 120);
        for client in &data.clients {
            // Every second value is the constant feature.
            let rows: Vec<f32> = client.train.x.iter().chain(&client.test.x).copied().step_by(2).collect();
            assert!(rows.is_sorted(), "{partition}: {rows:?}");
        }
    }
}
