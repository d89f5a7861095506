//! Example of a custom task on both sides of a TCP connection: devices upload the mean of their features, a
//! task that FedSpan does not contain, and the server computes a representation from the means.
//!
//! ```sh
//! cargo run -p fedspan-aggregator --example own_task
//! ```
//!
//! Server and devices use task number 12, which is reserved for private use (`protocol/SPEC.md`), so neither
//! the protocol nor the client nor the server needs changes. The device side is
//! `edge-client/examples/own_device_task.rs`; the server side is [`MeanDirection`]. The samples here vary
//! around a mean, and their targets depend on the direction of that mean alone.

#[allow(dead_code, reason = "this example has samples of its own")]
mod device;
#[path = "../../edge-client/examples/own_device_task.rs"]
mod mean_task;

use std::error::Error;
use std::net::SocketAddr;

use fedspan_aggregator::config::Fleet;
use fedspan_aggregator::server::Server;
use fedspan_client::task::Tasks;
use fedspan_client::{Linear, Recording, Workspace};
use fedspan_engine::aggregate::{RoundAggregate, Rule, UpdateWeight};
use fedspan_engine::algorithm::{Algorithm, random_start};
use fedspan_engine::linalg::{Matrix, RankDeficient, orthonormal, to_f32};
use fedspan_engine::{DeviceId, Request, Tensor, Weighting};
use fedspan_protocol::message::{HeadSolve, PrivateTask, Task};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// Number of features of a sample.
const FEATURES: usize = device::FEATURES;
/// Number of devices.
const DEVICES: u64 = 4;
/// Number of samples of a device.
const SAMPLES: usize = 200;
/// Bound of the features: devices clip larger magnitudes.
const BOUND: f32 = 8.0;

/// Server side of the task. The representation is the direction of the mean of all samples, d x 1.
struct MeanDirection {
    representation: Matrix,
    round: RoundAggregate,
}

impl MeanDirection {
    /// Starts from a random direction.
    fn new(seed: u64) -> Self {
        let round = RoundAggregate::new(Rule::MEAN, Weighting::Samples, FEATURES);
        Self { representation: random_start(FEATURES, 1, seed), round }
    }
}

impl Algorithm for MeanDirection {
    fn request(&self) -> Request {
        let encoding = Encoding::F32;
        let task = Task::Private12(PrivateTask { encoding, parameters: [BOUND, 0.0, 0.0, 0.0, 0.0] });
        let mean = TensorDescriptor::inline(Role::Moment, encoding, FEATURES as u16, 1);
        Request { task, tensors: Vec::new(), encoding, expects: vec![mean] }
    }

    fn absorb(&mut self, device: DeviceId, weight: UpdateWeight, tensors: &[Tensor]) {
        self.round.absorb(device, weight, tensors);
    }

    fn finish(&mut self) -> Result<(), RankDeficient> {
        if let Some(mean) = self.round.take_vector(&[]) {
            self.representation = orthonormal(&Matrix::from_column_slice(FEATURES, 1, &mean))?;
        }
        Ok(())
    }

    fn representation(&self) -> &Matrix {
        &self.representation
    }

    fn fit_request(&self, head: HeadSolve) -> Request {
        let values = to_f32(&self.representation);
        let broadcast = Tensor { role: Role::Representation, rows: FEATURES as u16, cols: 1, values };
        let encoding = Encoding::F32;
        Request { task: Task::FitHead { head }, tensors: vec![broadcast], encoding, expects: Vec::new() }
    }

    fn state(&self) -> Vec<f64> {
        self.representation.as_slice().to_vec()
    }

    fn restore(&mut self, state: &[f64]) -> bool {
        let fits = state.len() == FEATURES;
        if fits {
            self.representation.copy_from_slice(state);
        }
        fits
    }
}

/// Samples `x = 2 u + noise` and targets `a u^T x`, with a direction u that all devices share and another
/// slope a for each device.
fn draw_samples(device: u64, random: &mut ChaCha8Rng) -> (Vec<f32>, Vec<f32>) {
    let direction = [1.0, 1.0, 0.0, 0.0, -1.0, 0.0_f32].map(|value| value / 3.0_f32.sqrt());
    let slope = 1.0 + device as f32 / 2.0;
    let mut uniform = || 3.0_f32.sqrt() * ((random.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0);
    let mut x = Vec::new();
    let mut y = Vec::new();
    for _ in 0..SAMPLES {
        let sample = direction.map(|value| 2.0 * value + uniform());
        y.push(slope * sample.iter().zip(direction).map(|(x, u)| x * u).sum::<f32>());
        x.extend(sample);
    }
    (x, y)
}

/// Runs one device, and returns the fraction of the variance of unseen targets that its model does not
/// explain.
async fn run_device(number: u64, server: SocketAddr) -> Result<f32, Box<dyn Error>> {
    let mut random = ChaCha8Rng::seed_from_u64(number);
    let (x, y) = draw_samples(number, &mut random);
    let (unseen_x, unseen_y) = draw_samples(number, &mut random);
    let model = Linear::new(Workspace::<FEATURES, 1>::new());
    let tasks = Tasks::new(model, mean_task::Mean::<FEATURES>::new());
    let recording = Recording::regression(&x, &y, FEATURES, 1);
    let mut tasks = device::take_part(number, server, tasks, recording, random).await?;
    let mean = unseen_y.iter().sum::<f32>() / SAMPLES as f32;
    let mut unexplained = 0.0;
    let mut total = 0.0;
    for (x, y) in unseen_x.chunks_exact(FEATURES).zip(&unseen_y) {
        let mut predicted = [0.0];
        tasks.first_mut().predict(x, &mut predicted)?;
        unexplained += (predicted[0] - y).powi(2);
        total += (y - mean).powi(2);
    }
    Ok(unexplained / total)
}

/// Serves a campaign with one round of the custom task, followed by the round of final heads.
#[tokio::main]
pub async fn main() -> Result<(), Box<dyn Error>> {
    let state = tempfile::tempdir()?;
    let fleet = Fleet::builder()
        .state(state.path())
        .tcp("127.0.0.1:0")
        .plaintext()
        .devices(DEVICES as usize)
        .features(FEATURES)
        .width(1)
        .algorithm("fedrep") // for rounds, final heads and the model that devices announce
        .rounds(1)
        .step_size(0.0)
        .set("algorithm.final_ridge", 0.0)
        .build()?;

    let algorithm = Box::new(MeanDirection::new(fleet.seed));
    let server = Server::builder(fleet).algorithm("direction of the mean", algorithm).bind().await?;
    let address = server.address()?;
    println!("listening on {address}");

    let serving = tokio::spawn(server.serve(std::future::pending(), true));
    let (a, b, c, d) = tokio::try_join!(
        run_device(0, address),
        run_device(1, address),
        run_device(2, address),
        run_device(3, address)
    )?;
    println!("variance left by the devices' models: {a:.4}, {b:.4}, {c:.4}, {d:.4}");
    let status = serving.await??;
    println!("{} after round {}", status.phase, status.round);

    assert_eq!((status.phase.as_str(), status.updates.counted), ("finished", 2 * DEVICES));
    // The mean of 800 samples differs from the direction by a few hundredths. A random direction would leave
    // most of the variance unexplained.
    assert!([a, b, c, d].into_iter().all(|unexplained| unexplained < 0.01), "{a}, {b}, {c}, {d}");
    Ok(())
}
