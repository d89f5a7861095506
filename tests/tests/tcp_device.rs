//! Tests of the example `tcp_device` against a real server. Eight devices with keys from records and samples
//! from files train the same model as the simulator, bit for bit; edge-client/README.md shows the example's
//! code; errors about wrong arguments and files are single lines that name them.

use std::fs;
use std::path::Path;

use fedspan_aggregator::store;
use fedspan_client::secure::Provision;
use fedspan_client::store::{Record, Store};
use fedspan_engine::linalg::{Matrix, orthonormal};
use fedspan_sim_core::data::{Labels, Set};
use fedspan_sim_core::run::{NoProgress, run as simulate};
use fedspan_sim_core::scenario::Scenario;
use fedspan_tests::keys::keys;
use fedspan_tests::{fleet_of, start_with};

use crate::example::{C, D, Data, FileStore, Identity, K, Options, Source, USAGE, run};

/// Data of the wearers of `aggregator/examples/fleet.toml`.
const DATA: &str = "seed = 1\n[data]\nkind = \"watch-imu\"\n[split]\nby = \"time\"\ntest = 0.5\n";
const SECTIONS: &str = "[model]\nk = 24\n[algorithm]\nname = \"fedrep\"\nrounds = 6\nstep_size = 1.0\nridge = 0.01\n\
                        final_ridge = 0.03\n";

/// Formats samples in the format that the example reads. `{}` prints the shortest number that is parsed as
/// the same bits.
fn format_samples(set: &Set) -> String {
    let Labels::Classes(classes) = &set.y else { panic!("classes") };
    let mut text = String::from("# features, class\n");
    for (x, class) in set.x.chunks(D).zip(classes) {
        x.iter().for_each(|value| text.push_str(&format!("{value},")));
        text.push_str(&format!("{class}\n"));
    }
    text
}

fn options_for(address: String, identity: Identity, samples: Source) -> Options {
    Options { address, identity, samples, state: None }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn example_devices_train_the_same_model_as_the_simulator() {
    let scenario = Scenario::parse("test", &format!("{DATA}{SECTIONS}"), &[]).expect("scenario");
    let simulated = simulate(&scenario, scenario.seed, &mut NoProgress).expect("simulation");
    let dataset = scenario.dataset(scenario.seed).expect("data");
    let count = dataset.clients.len();
    assert_eq!((dataset.features, dataset.outputs, dataset.newcomers.len()), (D, C, 0));
    let state = tempfile::tempdir().expect("a directory");
    let fleet = fleet_of(&scenario, &dataset, state.path(), &format!("{SECTIONS}[rounds]\ndeadline = 0\n"));
    let (protection, keys) = keys(state.path(), count as u64).expect("keys");
    let server = start_with(&fleet, protection, Vec::new(), true).await.expect("server");
    let address = server.address.to_string();
    // A device without a key is refused with a readable message.
    let keyless_options = options_for(address.clone(), Identity::Plaintext(0), Source::Synthetic(1));
    let refused = tokio::task::spawn_blocking(move || run(&keyless_options)).await.expect("no panic");
    assert_eq!(refused, Err("refused: the server encrypts frames, and the device has no key".to_owned()));

    let mut devices = tokio::task::JoinSet::new();
    for (device, client) in (0u64..).zip(&dataset.clients) {
        let device_file = |name: &str| state.path().join(format!("device-{device}.{name}"));
        let (record, data) = (device_file("bin"), device_file("csv"));
        let mut bytes = [0xFF; 512];
        let provision = Provision { device, key: keys[&device].clone(), noise: None };
        let length = provision.write(&mut bytes).expect("a record");
        fs::write(&record, &bytes[..length]).expect("written");
        fs::write(&data, format_samples(&client.train)).expect("written");
        let mut device_options = options_for(address.clone(), Identity::Record(record), Source::File(data));
        device_options.state = Some(device_file("state"));
        devices.spawn_blocking(move || run(&device_options));
    }
    for line in devices.join_all().await {
        let line = line.expect("took part");
        // The rounds are six training rounds and the final head.
        assert!(line.contains("finished round 7, 7 answers counted"), "{line}");
    }
    let status = server.end.await.expect("no panic").expect("served");
    assert_eq!(status.phase, "finished");
    let committed = store::read(state.path()).expect("readable").expect("committed");
    let served = committed.checkpoint.expect("a checkpoint").state;
    let served = orthonormal(&Matrix::from_column_slice(D, K, &served[..D * K])).expect("full rank");
    let bits = |matrix: &Matrix| matrix.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&served), bits(&simulated.representation.expect("a representation")));
    // The store contains the head and the last round for a later start of the device.
    let mut reopened_store = FileStore::open(Some(&state.path().join("device-0.state"))).expect("a store");
    let mut head = [0.0; K * C];
    let header = reopened_store.load(&mut head).expect("readable").expect("a record");
    assert!(header.round == 7 && head.iter().any(|value| *value != 0.0));
    assert!(reopened_store.load_handshakes().expect("readable") > 0);
}

/// Tests that a block of edge-client/README.md consists of the lines between the marks of the example, without their
/// indent.
#[test]
fn readme_shows_the_code_of_the_example() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| fs::read_to_string(root.join(path)).expect("readable");
    let example = read("edge-client/examples/tcp_device.rs");
    let (_, after_mark) = example.split_once("    // README\n").expect("a first mark");
    let (block, _) = after_mark.split_once("    // end\n").expect("a last mark");
    let block: String =
        block.lines().map(|line| format!("{}\n", line.strip_prefix("    ").expect("an indent"))).collect();
    assert!(block.lines().count() >= 10);
    let page = "edge-client/README.md";
    assert!(read(page).contains(&format!("```rust,ignore\n{block}```\n")), "{page} should show:\n{block}");
}

fn parse_arguments(arguments: &str) -> Result<Options, String> {
    Options::parse(arguments.split_whitespace().map(str::to_owned))
}

#[test]
fn invalid_arguments_are_named_in_the_error() {
    let arguments = "localhost:4410 --record one.bin --data one.csv --state one.state";
    let expected = Options {
        address: "localhost:4410".to_owned(),
        identity: Identity::Record("one.bin".into()),
        samples: Source::File("one.csv".into()),
        state: Some("one.state".into()),
    };
    assert_eq!(parse_arguments(arguments), Ok(expected));
    assert!(parse_arguments("--synthetic 3 --plaintext 7 [::1]:1").is_ok());
    for (arguments, problem) in [
        ("", "the server's ADDRESS is missing"),
        ("a:1", "missing: either --record or --plaintext"),
        ("a:1 --plaintext 1", "missing: either --data or --synthetic"),
        ("a:1 b:1", "found b:1 after another, allowed: one ADDRESS"),
        (
            "a:1 --plaintext 1 --record x",
            "found --record after another, allowed: either --record or --plaintext",
        ),
        ("a:1 --plaintext -1", "--plaintext: found \"-1\", allowed: a number from 0 on"),
        ("a:1 --data", "--data needs a value"),
        ("a:1 --key x", "found --key, allowed: the options of --help"),
        ("a --plaintext 1 --synthetic 1", "found address a, allowed: HOST:PORT with a port from 1 to 65535"),
        (
            "a:0 --plaintext 1 --synthetic 1",
            "found address a:0, allowed: HOST:PORT with a port from 1 to 65535",
        ),
    ] {
        assert_eq!(parse_arguments(arguments), Err(problem.to_owned()), "{arguments}");
    }
    for option in ["--record", "--plaintext", "--data", "--synthetic", "--state", "--help"] {
        assert!(USAGE.contains(option));
    }
}

#[test]
fn invalid_samples_are_reported_with_their_line() {
    let row = |class: &str| format!("{}{class}\n", "0.5, ".repeat(D));
    let data = Data::parse(&format!("# a comment\n{}\n{}", row("0"), row("6"))).expect("two samples");
    assert_eq!((data.x, data.classes), (vec![0.5; 2 * D], vec![0, 6]));
    let short_row = format!("{}1,2\n", row("1"));
    for (text, problem) in [
        (String::new(), "no samples in it".to_owned()),
        (short_row, format!("line 2: found 2 values, allowed: {D} features and a class")),
        (row("7"), "line 1: found class \"7\", allowed: 0 to 6".to_owned()),
        (
            row("1").replacen("0.5", "NaN", 1),
            "line 1: found feature \"NaN\", allowed: a finite number".to_owned(),
        ),
    ] {
        assert_eq!(Data::parse(&text), Err(problem));
    }
    let (first, second) = (Data::synthetic(1), Data::synthetic(2));
    assert_eq!((first.classes.len(), &first), (20 * C, &Data::synthetic(1)));
    assert!(first != second && first.classes == second.classes);
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = |name: &str| folder.path().join(name);
    fs::write(path("odd"), [0; 33]).expect("written");
    let problem = FileStore::open(Some(&path("odd"))).expect_err("33 bytes");
    assert!(problem.ends_with("odd: 33 bytes are not a store; use another file"), "{problem}");
    // The record was never written, and the data file does not exist.
    fs::write(path("erased"), [0xFF; 512]).expect("written");
    let address = "127.0.0.1:1".to_owned();
    let erased = options_for(address.clone(), Identity::Record(path("erased")), Source::Synthetic(1));
    assert!(run(&erased).expect_err("erased").starts_with(&path("erased").display().to_string()));
    let missing = options_for(address.clone(), Identity::Plaintext(1), Source::File(path("none")));
    assert!(run(&missing).expect_err("missing").starts_with(&path("none").display().to_string()));
    let unreachable =
        run(&options_for(address, Identity::Plaintext(1), Source::Synthetic(1))).expect_err("no server");
    assert!(
        unreachable.starts_with("127.0.0.1:1: ") && unreachable.ends_with("a server must listen there"),
        "{unreachable}"
    );
    // A reopened store must have the same counters and head.
    let mut store = FileStore::open(Some(&path("state"))).expect("a new store");
    assert_eq!(store.load(&mut [0.0; 2]), Ok(None));
    store.save_spent(5).expect("written");
    store
        .save(&Record { campaign: u64::MAX, round: 9, representation: u32::MAX, head: &[1.5, -0.0] })
        .expect("written");
    store.save_handshakes(128).expect("written");
    let mut reopened = FileStore::open(Some(&path("state"))).expect("the store");
    let mut head = [0.0f32; 2];
    let header = reopened.load(&mut head).expect("readable").expect("a record");
    assert_eq!((header.campaign, header.round, header.representation), (u64::MAX, 9, u32::MAX));
    assert_eq!(head.map(f32::to_bits), [1.5f32, -0.0].map(f32::to_bits));
    assert_eq!((reopened.load_spent(), reopened.load_handshakes()), (Ok(5), Ok(128)));
    assert_eq!(reopened.load(&mut [0.0; 3]), Ok(None));
}
