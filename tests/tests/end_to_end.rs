//! A real server with real TCP devices, each with its key, learns what the simulator learns, bit for bit.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::sync::Arc;

use fedspan_aggregator::linalg::{Matrix, orthonormal};
use fedspan_aggregator::store;
use fedspan_sim::run::{Unwatched, run};
use fedspan_sim::scenario::Scenario;
use fedspan_tests::keys::{identity, keys};
use fedspan_tests::{device, fleet_of, start_with};

const DATA: &str = r#"
seed = 11
[data]
kind = "linear-regression"
clients = 20
d = 20
k = 2
samples = 20
noise_std = 0.1
new_clients = 2
"#;

fn bits(matrix: &Matrix) -> Vec<u64> {
    matrix.iter().map(|v| v.to_bits()).collect()
}

async fn agrees(sections: &str) {
    let scenario = Scenario::parse("test", &format!("{DATA}{sections}"), &[]).expect("scenario");
    let simulated = run(&scenario, scenario.seed, &mut Unwatched).expect("simulation");
    let dataset = Arc::new(scenario.dataset(scenario.seed).expect("data"));
    let state = tempfile::tempdir().expect("a directory");
    let fleet = fleet_of(&scenario, &dataset, state.path(), &format!("{sections}[rounds]\ndeadline = 0\n"));
    let (protection, keys) = keys(state.path(), dataset.clients.len() as u64).expect("keys");
    let server = start_with(&fleet, protection, Vec::new(), true).await.expect("server");
    let mut devices = tokio::task::JoinSet::new();
    for index in 0..dataset.clients.len() {
        let own = identity(index as u64, &keys[&(index as u64)], 0);
        devices.spawn(device(scenario.clone(), Arc::clone(&dataset), index, own, server.address));
    }
    while let Some(ended) = devices.join_next().await {
        let session = ended.expect("no panic").expect("device");
        let counters = session.counters();
        assert_eq!((counters.malformed, counters.unopened, counters.unsealed), (0, 0, 0));
        assert!(!session.is_plaintext());
    }
    let status = server.end.await.expect("no panic").expect("served");
    assert_eq!(status.phase, "finished");
    assert_eq!(status.updates, simulated.counters_without_newcomers(dataset.newcomers.len()));
    let committed = store::read(state.path()).expect("readable").expect("committed");
    let (d, k) = (dataset.features, scenario.model.k);
    let served = Matrix::from_column_slice(d, k, &committed.state[..d * k]);
    let served = orthonormal(&served).expect("full rank");
    assert_eq!(bits(&served), bits(simulated.representation.as_ref().expect("there is one")));
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_devices_full_participation() {
    agrees("[model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 20\nstep_size = 0.25\n").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chunked_i8_downloads_and_f16_representations_with_a_power_start() {
    let sections = "[model]\nk = 5\ninit = \"power\"\n[algorithm]\nname = \"fedrep\"\nrounds = 10\nstep_size = 0.2\n\
                    download = \"i8\"\nupload = \"f16\"\nsend = \"representation\"\nweighting = \"samples\"\n";
    agrees(sections).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_random_half_and_gradient_heads() {
    let sections = "[model]\nk = 2\n[algorithm]\nname = \"gd-gd\"\nrounds = 15\nstep_size = 0.2\n\
                    [participation]\npolicy = \"fraction\"\nr = 0.5\n";
    agrees(sections).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_shared_model() {
    let sections =
        "[model]\nk = 2\n[algorithm]\nname = \"fedavg\"\nrounds = 10\nstep_size = 0.1\nlocal_steps = 3\n";
    agrees(sections).await;
}
