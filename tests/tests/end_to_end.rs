//! Tests that a real server with real TCP devices, each with a key, learns the same bits as the simulator.

use std::sync::Arc;

use fedspan_aggregator::server::Status;
use fedspan_aggregator::store;
use fedspan_engine::linalg::{Matrix, orthonormal, principal_angle_distance};
use fedspan_sim_core::run::{NoProgress, Outcome, run};
use fedspan_sim_core::scenario::Scenario;
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

/// Table of rows with three dominant directions.
const ROWS: &str = r#"
seed = 11
[data]
kind = "spiked-covariance"
clients = 12
d = 20
k = 3
samples = 300
noise_std = 0.3
"#;

/// Compares the representation that a campaign learns from [`DATA`] with that of a simulation, bit for bit.
async fn assert_regression_agrees(sections: &str) {
    assert_agrees(DATA, sections).await;
}

/// Compares the representation of a real campaign with that of a simulation, bit for bit.
async fn assert_agrees(data: &str, sections: &str) {
    let (_, served, simulated) = served_and_simulated(data, sections).await;
    assert_eq!(bits(&served), bits(&simulated));
}

/// Returns status and representation of a real campaign, and the representation of its simulation.
async fn served_and_simulated(data: &str, sections: &str) -> (Status, Matrix, Matrix) {
    let (status, state, simulated, scenario) = run_and_simulate(data, sections).await;
    let (d, k) = (scenario.dataset(scenario.seed).expect("data").features, scenario.model.k);
    let served = Matrix::from_column_slice(d, k, &state[..d * k]);
    let served = orthonormal(&served).expect("full rank");
    (status, served, simulated.representation.expect("the simulation has a representation"))
}

/// Compares the shared layers of a network in a real campaign with those in its simulation, bit for bit.
async fn assert_layers_agree(sections: &str) {
    let data = "seed = 3\n[data]\nkind = \"digits\"\n[data.partition]\nclients = 6\nclasses = 4\n\
                [split]\nby = \"classes\"\ntest = 0.5\n";
    let (_, state, simulated, _) = run_and_simulate(data, sections).await;
    let layers: Vec<u32> =
        simulated.layers.iter().flat_map(|layer| layer.values.iter().map(|v| v.to_bits())).collect();
    let served: Vec<u32> = state.iter().map(|value| (*value as f32).to_bits()).collect();
    assert!(layers.len() > 200);
    // Some methods store a round counter after the layers.
    assert_eq!(served[..layers.len()], layers);
}

/// Runs a real campaign and its simulation; returns status, final state and the simulation's outcome.
async fn run_and_simulate(data: &str, sections: &str) -> (Status, Vec<f64>, Outcome, Scenario) {
    let scenario = Scenario::parse("test", &format!("{data}{sections}"), &[]).expect("scenario");
    let simulated = run(&scenario, scenario.seed, &mut NoProgress).expect("simulation");
    let dataset = Arc::new(scenario.dataset(scenario.seed).expect("data"));
    let state = tempfile::tempdir().expect("a directory");
    let fleet = fleet_of(&scenario, &dataset, state.path(), &format!("{sections}[rounds]\ndeadline = 0\n"));
    let (protection, keys) = keys(state.path(), dataset.clients.len() as u64).expect("keys");
    let server = start_with(&fleet, protection, Vec::new(), true).await.expect("server");
    let mut devices = tokio::task::JoinSet::new();
    for index in 0..dataset.clients.len() {
        let device_identity = identity(index as u64, &keys[&(index as u64)], 0);
        devices.spawn(device(scenario.clone(), Arc::clone(&dataset), index, device_identity, server.address));
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
    (status, committed.checkpoint.expect("a checkpoint").state, simulated, scenario)
}

/// Tests that the server chooses the ridge of final heads from the same integer sums as the simulation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fleet_chooses_the_ridge_that_the_simulation_chooses() {
    let data = "seed = 3\n[data]\nkind = \"digits\"\n[data.partition]\nclients = 6\nclasses = 4\n\
                [split]\nby = \"classes\"\ntest = 0.5\n";
    let model = "[model]\nk = 6\n[algorithm]\nname = \"fedrep\"\nrounds = 3\nstep_size = 0.5\n";
    let (_, state, simulated, _) = run_and_simulate(data, model).await;
    let ridge = simulated.ridge.expect("the fleet's choice");
    let (devices, sums) =
        state[state.len() - ridge.scores.len() - 1..].split_first().expect("the state ends with the scores");
    let means: Vec<f64> = sums.iter().map(|sum| sum / (65_536.0 * devices)).collect();
    assert_eq!((*devices, means), (6.0, ridge.scores));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dense_body_agrees() {
    assert_layers_agree(
        "[model]\nkind = \"mlp\"\nhidden = [16, 8]\n[algorithm]\nname = \"fedrep\"\nrounds = 3\nhead_epochs = 2\n",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn convolutional_network_agrees() {
    assert_layers_agree(
        "[model]\nkind = \"cnn\"\nfilters = [6]\nside = 3\nhidden = [12]\n[algorithm]\nname = \"fedrep\"\nrounds = 3\n\
         head_epochs = 2\n",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lstm_network_agrees() {
    assert_layers_agree(
        "[model]\nkind = \"lstm\"\ncells = 6\nhidden = [12]\n[algorithm]\nname = \"fedrep\"\nrounds = 3\n\
         head_epochs = 2\n",
    )
    .await;
}

/// Tests RoLoRA, which sends one factor per round, and FlexLoRA, which sends both factors. A device that has
/// answered on this connection does not receive unchanged tensors again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn network_adapters_agree() {
    for name in ["rolora", "flexlora"] {
        assert_layers_agree(&format!(
            "[model]\nkind = \"lora-mlp\"\nrank = 4\nwidth = 12\n[algorithm]\nname = \"{name}\"\nrounds = 4\nbody_epochs = 2\n\
             step_size = 0.3\n"
        ))
        .await;
    }
}

/// Tests RoLoRA on a linear model, first with a random half of the devices, then with half precision.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn linear_adapters_agree() {
    let data = "seed = 5\n[data]\nkind = \"low-rank-regression\"\nclients = 8\nd = 12\noutputs = 5\nrank = 2\nsamples = 20\n\
                heterogeneity = 0.3\n";
    let model = "[model]\nkind = \"lora-linear\"\nrank = 2\n[algorithm]\nname = \"rolora\"\nrounds = 10\nstep_size = 0.3\n";
    let half = "[participation]\npolicy = \"fraction\"\nr = 0.5\n";
    for variant in [half, "upload = \"f16\"\ndownload = \"i8\"\n"] {
        assert_agrees(data, &format!("{model}{variant}")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn last_layers_in_half_precision_agree() {
    assert_layers_agree(
        "[model]\nkind = \"mlp\"\nhidden = [16, 8]\n[algorithm]\nname = \"lg-fedavg\"\nrounds = 3\nshared_layers = 2\n\
         upload = \"f16\"\ndownload = \"f16\"\n",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fedrep_with_full_participation_agrees() {
    assert_regression_agrees(
        "[model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 20\nstep_size = 0.25\n",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn power_start_with_i8_downloads_and_f16_uploads_agrees() {
    let sections = "[model]\nk = 5\ninit = \"power\"\n[algorithm]\nname = \"fedrep\"\nrounds = 10\nstep_size = 0.2\n\
                    download = \"i8\"\nupload = \"f16\"\nsend = \"representation\"\nweighting = \"samples\"\n";
    assert_regression_agrees(sections).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gd_gd_with_a_random_half_agrees() {
    let sections = "[model]\nk = 2\n[algorithm]\nname = \"gd-gd\"\nrounds = 15\nstep_size = 0.2\n\
                    [participation]\npolicy = \"fraction\"\nr = 0.5\n";
    assert_regression_agrees(sections).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fedavg_agrees() {
    let sections =
        "[model]\nk = 2\n[algorithm]\nname = \"fedavg\"\nrounds = 10\nstep_size = 0.1\nlocal_steps = 3\n";
    assert_regression_agrees(sections).await;
}

const POWER: &str =
    "[model]\nk = 3\n[algorithm]\nname = \"fedpower\"\niterations = 5\nlocal_steps = 2\ndecay = true\n";

/// Tests FedPower with alignment, where each round except the last sends the basis as well as the product.
#[tokio::test(flavor = "multi_thread")]
async fn fedpower_agrees() {
    assert_agrees(ROWS, POWER).await;
}

/// Tests FedPower with noise: devices keep a ledger, the server keeps an account and enforces the promised
/// privacy. Devices use the system's entropy, so their updates are not reproducible.
#[tokio::test(flavor = "multi_thread")]
async fn fedpower_with_noise_finds_the_same_subspace() {
    let promise = "[privacy]\nepsilon = 20.0\ndelta = 1e-4\n";
    let (status, served, simulated) = served_and_simulated(ROWS, &format!("{POWER}{promise}")).await;
    let privacy = status.privacy.expect("an account");
    assert!(privacy.epsilon <= 20.0 && privacy.epsilon > 19.99, "{}", privacy.epsilon);
    assert_eq!((privacy.devices.len(), privacy.fell_back), (12, 0));
    let distance = principal_angle_distance(&served, &simulated);
    assert!(distance < 0.9 && distance > 1e-3, "similar subspaces, different noise: {distance}");
}
