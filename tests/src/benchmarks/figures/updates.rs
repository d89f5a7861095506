//! Updates of FedRep on linear models with the simulator, through the protocol: every client solves its head and sends
//! the gradient of the representation as an encoded update; the server averages them, makes a step and a QR
//! decomposition, and broadcasts.

use fedspan_sim_core::data::set::{Labels, Set};
use fedspan_sim_core::data::{Client, Dataset};
use fedspan_sim_core::run::{Job, NoProgress, engine};
use fedspan_sim_core::scenario::Scenario;
use serde_json::json;

use super::{leak, pseudo_random_values, version};
use crate::benchmarks::side::{Cost, Facts, Setting, Side, Turn};

/// Number of clients; all take part in every round.
const CLIENTS: usize = 500;
/// Number of rounds of a campaign, which is one repeat.
pub const ROUNDS: usize = 100;
/// Step size of the representation.
pub const STEP_SIZE: f32 = 0.5;
/// Size of the noise on the targets, which keeps the loss above rounding errors.
const NOISE: f32 = 0.1;
/// Seed of the campaign, which determines the initial representation.
const SEED: u64 = 1;

/// Sizes of the model.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Number of features.
    pub d: usize,
    /// Width of the representation.
    pub k: usize,
    /// Number of samples of a client.
    pub samples: usize,
    /// Number of targets of a sample.
    pub outputs: usize,
}

/// Sizes of the papers' simulations.
pub const SMALL: Sizes = Sizes { d: 20, k: 2, samples: 20, outputs: 1 };
/// A model for many sensors.
pub const MEDIUM: Sizes = Sizes { d: 64, k: 4, samples: 32, outputs: 1 };
/// The largest linear model of the boards' table.
pub const LARGE: Sizes = Sizes { d: 128, k: 8, samples: 32, outputs: 1 };
/// The sizes of the smartwatch data.
pub const CLASSES: Sizes = Sizes { d: 57, k: 8, samples: 35, outputs: 7 };

/// Prepares data and scenario.
///
/// # Errors
/// A sentence, if the scenario is wrong or a file cannot be written.
pub fn start(sizes: &Sizes, setting: &Setting) -> Result<Side, String> {
    let Sizes { d, k, samples, outputs } = *sizes;
    let clients = clients(sizes);
    setting.write("x.f32", clients.iter().flat_map(|client| client.train.x.iter().copied()))?;
    setting.write("y.f32", clients.iter().flat_map(|client| labels(client).iter().copied()))?;
    let scenario = Scenario::builder()
        .with_dataset(Dataset::regression(d, outputs, clients))
        .width(k)
        .algorithm("fedrep")
        .rounds(ROUNDS as u32)
        .step_size(f64::from(STEP_SIZE))
        // The final heads cost the same as those of a round.
        .set("algorithm.final_ridge", 0.0)
        .set("evaluate_every", ROUNDS as u32)
        .build()
        .map_err(|error| error.to_string())?;
    let scenario = leak(scenario);
    let job = Job::prepare(scenario, SEED).map_err(|error| error.to_string())?;
    let initial = fedspan_engine::linalg::to_f32(engine(scenario, &job.dataset, SEED, None).representation());
    setting.write("b.f32", initial)?;
    let numbers = json!({ "clients": CLIENTS, "d": d, "k": k, "samples": samples, "outputs": outputs,
        "rounds": ROUNDS, "step_size": STEP_SIZE });
    setting.write_sizes(&numbers)?;

    let updates = (ROUNDS * CLIENTS) as f64;
    let facts = Facts {
        program: version(),
        form: "clients and server, through the protocol".to_owned(),
        dtype: "f32, server f64".to_owned(),
        n: n(sizes),
        cost: Some(Cost {
            unit: "updates".to_owned(),
            units: updates,
            operations: updates * operations(sizes),
            bytes: updates * 4.0 * (samples * (d + outputs)) as f64,
            resident: 4.0 * (CLIENTS * samples * (d + outputs)) as f64,
            check: "loss".to_owned(),
            ..Cost::default()
        }),
    };
    let turn = Box::new(move |repeats| {
        let mut turn = Turn { seconds: 0.0, check: f64::NAN };
        for _ in 0..repeats {
            let outcome = job.run(&mut NoProgress).map_err(|error| error.to_string())?;
            // The time of the scores does not count, here and in the rivals; that of the final heads does.
            turn.seconds += outcome.seconds;
            turn.check = outcome.scores.loss.ok_or("the outcome has no loss")?;
        }
        Ok(turn)
    });
    Ok(Side { facts, turn })
}

/// Returns the description of the sizes.
#[must_use]
pub fn n(sizes: &Sizes) -> String {
    let Sizes { d, k, samples, outputs } = *sizes;
    format!("{CLIENTS} clients x {samples} samples x {d}, k {k}, outputs {outputs}, {ROUNDS} rounds")
}

/// Draws the data of all clients.
#[must_use]
pub fn clients(sizes: &Sizes) -> Vec<Client> {
    (0..CLIENTS as u32).map(|client| draw(sizes, client)).collect()
}

/// Returns the targets of a client, row-major, samples x outputs.
#[must_use]
pub fn labels(client: &Client) -> &[f32] {
    match &client.train.y {
        Labels::Values { values, .. } => values,
        _ => &[],
    }
}

/// Draws the data of a client: targets are linear in the directions of the first k features, with noise.
fn draw(sizes: &Sizes, client: u32) -> Client {
    let Sizes { d, k, samples, outputs } = *sizes;
    let x = pseudo_random_values(samples * d, 3 * client + 1);
    let head = pseudo_random_values(k * outputs, 3 * client + 2);
    let noise = pseudo_random_values(samples * outputs, 3 * client + 3);
    let targets = x.chunks_exact(d).zip(noise.chunks_exact(outputs)).flat_map(|(x, noise)| {
        let head = &head;
        (0..outputs).map(move |output| {
            let signal = |row| x[row] * head[row * outputs + output];
            (0..k).map(signal).sum::<f32>() + NOISE * noise[output]
        })
    });
    let y = Labels::Values { values: targets.collect(), outputs };
    Client::new(Set::new(x, y), Set::default())
}

/// Returns the number of additions and multiplications of one update: projection, normal equations, their solution,
/// residual, and the two factors' product that is the gradient.
fn operations(sizes: &Sizes) -> f64 {
    let [d, k, m, c] = [sizes.d, sizes.k, sizes.samples, sizes.outputs].map(|n| n as f64);
    let head = m * k * (k + 1.0) + 2.0 * m * k * c + k * k * k / 3.0 + 2.0 * k * k * c;
    2.0 * m * d * k + head + 2.0 * m * k * c + 2.0 * m * d * c + 2.0 * d * k * c
}
