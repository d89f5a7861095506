//! Tests of data sets without targets: error messages of scenarios, true eigenspaces, and available metrics.

use fedspan_client::source::{SampleSource, Targets};
use fedspan_engine::linalg::{Matrix, orthonormal, principal_angle_distance};
use fedspan_protocol::message::{HeadSolve, RoundId};
use fedspan_protocol::tensor::Encoding;
use fedspan_sim_core::data::Dataset;
use fedspan_sim_core::data::eigenspace::{Gram, pooled_truth};
use fedspan_sim_core::evaluate::{self, Scores};
use fedspan_sim_core::fleet::FleetArithmetic;
use fedspan_sim_core::scenario::Scenario;

/// Model and algorithm of the scenarios.
const REST: &str = "[model]\nk = 2\n[algorithm]\nname = \"fedpower\"\n";
const SPIKED: &str = "[data]\nkind = \"spiked-covariance\"\nclients = 3\nd = 8\nk = 2\nsamples = 30\n";
const GRAPHS: &str = "[data]\nkind = \"stochastic-block-model\"\nclients = 3\nd = 40\nk = 2\n";

fn parse(data: &str, changes: &[&str]) -> Result<Scenario, String> {
    let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
    Scenario::parse("my.toml", &format!("{data}{REST}"), &changes).map_err(|problem| problem.to_string())
}

fn dataset(data: &str, changes: &[&str], seed: u64) -> Dataset {
    parse(data, changes).unwrap().dataset(seed).unwrap()
}

#[test]
fn errors_name_file_line_and_key() {
    // The message contains the line for an error in a file, and the change for an error in a command line
    // change.
    for (data, from, to, parts) in [
        (SPIKED, "k = 2", "k = 9", &["my.toml:5", "data.k", "found 9", "from 1 to 8"][..]),
        (SPIKED, "samples = 30", "samples = 0", &["my.toml:6", "data.samples", "found 0", "from 1"]),
        (SPIKED, "samples = 30\n", "", &["my.toml:1", "data.samples", "missing"]),
        (SPIKED, "d = 8", "d = 4097", &["my.toml:4", "data.d", "found 4097", "from 1 to 4096"]),
        (SPIKED, "samples", "noise_std = -1\nsamples", &["my.toml:6", "data.noise_std", "from 0"]),
        (SPIKED, "samples", "noise_sdt = 1\nsamples", &["my.toml:6", "did you mean \"noise_std\""]),
        (
            SPIKED,
            "clients = 3\nd = 8\nk = 2\nsamples = 30",
            "clients = 1000000\nd = 4096\nk = 2\nsamples = 1000000",
            &["my.toml:3", "1000000 clients x 1000000 samples", "bytes", "8 GiB"],
        ),
        (GRAPHS, "k = 2", "k = 41", &["my.toml:5", "data.k", "found 41", "from 1 to 40"]),
        (GRAPHS, "k = 2", "k = 2\nsamples = 3", &["my.toml:6", "data.samples", "unknown key"]),
        (GRAPHS, "d = 40", "d = 0", &["my.toml:4", "data.d", "found 0", "from 1 to 4096"]),
        (
            GRAPHS,
            "clients = 3\nd = 40",
            "clients = 1000000\nd = 4000",
            &["my.toml:3", "1000000 clients x 4000 rows", "bytes", "8 GiB"],
        ),
    ] {
        assert!(data.contains(from), "{from}");
        let reported = parse(&data.replacen(from, to, 1), &[]).unwrap_err();
        assert_eq!(reported.lines().count(), 1, "{reported}");
        for part in parts {
            assert!(reported.contains(part), "{part:?} is not in {reported:?}");
        }
    }
}

#[test]
fn options_that_need_targets_are_refused() {
    for data in [SPIKED, GRAPHS] {
        for (change, key) in [
            ("algorithm={ name = \"fedrep\", rounds = 1, step_size = 0.1 }", "algorithm.name"),
            ("algorithm={ name = \"local-only\" }", "algorithm.name"),
            ("model.init=moments", "model.init"),
            ("model.init=power", "model.init"),
            ("stop.loss=0.1", "stop.loss"),
            ("stop.accuracy=0.9", "stop.accuracy"),
            ("fleet={ speed = \"exponential\", correlation = \"task\" }", "fleet.correlation"),
        ] {
            let reported = parse(data, &[change]).unwrap_err();
            assert!(reported.contains(key) && reported.contains("allowed here"), "{change}: {reported}");
        }
        for change in ["stop.distance=0.1", "model.init=truth-sine:0.5", "stop.change=0.1"] {
            assert!(parse(data, &[change]).is_ok(), "{change}");
        }
    }
    let reported = parse(SPIKED, &["model.k=9"]).unwrap_err();
    assert!(reported.contains("model.k") && reported.contains("from 1 to 8"), "{reported}");
}

#[test]
fn distance_is_the_only_figure_without_targets() {
    for data in [SPIKED, GRAPHS] {
        let dataset = dataset(data, &[], 5);
        let truth = dataset.truth.clone().unwrap();
        assert_eq!((dataset.outputs, dataset.classification, dataset.has_targets()), (1, false, false));
        let start = orthonormal(&Matrix::from_fn(dataset.features, 3, |i, j| (i * j + i + 1) as f64 % 7.0));
        let start = start.unwrap();
        let head = HeadSolve::LeastSquares { ridge: 0.0 };
        let (scores, clients) =
            evaluate::representation(&dataset, &start, Encoding::F32, head, FleetArithmetic::F32);
        let distance = Some(principal_angle_distance(&start, &truth));
        assert_eq!(scores, Scores { distance, ..Scores::default() });
        assert!(clients.is_empty());
        let w = Matrix::from_element(3, 1, 1.0);
        assert_eq!(evaluate::shared(&dataset.clients, &start, &w), Scores::default());
        let pooled = evaluate::pooled(&dataset, &[], 0, &dataset.clients, head);
        assert_eq!(pooled, Scores::default());
        assert!(evaluate::local_only(&dataset, &dataset.clients, head).is_empty());
        // An additional column beyond the target rank does not change the distance.
        let mut wider = Matrix::zeros(dataset.features, 3);
        wider.columns_mut(0, 2).copy_from(&truth);
        wider.column_mut(2).copy_from(&start.column(0));
        let computed = evaluate::distance(&dataset, &wider).distance.unwrap();
        assert!(computed < 1e-12, "{computed}");
    }
}

#[test]
fn device_gets_all_rows_and_zero_targets() {
    let dataset = dataset(SPIKED, &[], 1);
    let client = &dataset.clients[1];
    let mut source = client.source();
    source.rewind(RoundId { round: 3, stage: 0 }).unwrap();
    let samples = source.next().unwrap();
    let Targets::Values(values) = samples.targets else { panic!("classes") };
    assert_eq!((samples.x.len(), values), (30 * 8, &[0.0; 30][..]));
    assert_eq!(client.train.len(), 30);
    assert!(source.next().is_none());
    let part = client.train.select(8, &[4, 2]);
    assert_eq!((part.len(), &part.x[..8]), (2, &client.train.x[32..40]));
    assert!(!part.has_targets());
}

/// A single sample does not determine an eigenspace of two directions.
#[test]
fn ambiguous_eigenspace_is_a_data_error() {
    let reported = parse(SPIKED, &["data.clients=1", "data.samples=1"]).unwrap().dataset(1).unwrap_err();
    let reported = reported.to_string();
    assert!(reported.starts_with("my.toml: eigenvalues 2 and 3"), "{reported}");
}

/// Rows of images are scaled to norm 1, because only their directions influence the eigenspace.
#[test]
fn images_are_scaled_to_unit_norm() {
    let dataset = dataset("[data]\nkind = \"digits\"\n", &[], 1);
    let mut gram = Gram::new(dataset.features);
    dataset.clients.iter().for_each(|client| gram.add(&client.train.x));
    assert!((gram.mean().trace() - 1.0).abs() < 1e-12);
    let truth = pooled_truth(&dataset, 4).unwrap();
    assert_eq!(truth.shape(), (65, 4));
    let products = truth.transpose() * &truth;
    assert!((products - Matrix::identity(4, 4)).amax() < 1e-12);
    // Edge pixels are constant in all images, so there is no eigenspace of dimension 64.
    assert!(pooled_truth(&dataset, 64).is_err());
}

/// The built-in scenarios of papers have the numbers of clients, features and samples that their headers
/// state.
#[test]
fn scenarios_of_the_papers_have_their_data() {
    for (name, changes, clients, d, k, rows) in [
        ("fedpower", vec!["data.samples=1000".to_owned()], 20, 100, 4, 1000),
        ("fedpower-sbm", Vec::new(), 20, 1000, 2, 1000),
    ] {
        let scenario = Scenario::parse(name, Scenario::built_in(name).unwrap(), &changes).unwrap();
        let dataset = scenario.dataset(scenario.seed).unwrap();
        assert_eq!((dataset.clients.len(), dataset.features), (clients, d));
        assert!(dataset.clients.iter().all(|client| client.train.len() == rows));
        assert_eq!(dataset.truth.unwrap().shape(), (d, k));
    }
}
