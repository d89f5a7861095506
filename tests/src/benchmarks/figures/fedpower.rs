//! FedPower (Guo et al. 2024) with the simulator, through the protocol: ten power iterations of 20 clients with an exchange
//! after each, with the noise of the Gaussian mechanism or without.

use fedspan_engine::linalg::to_f32;
use fedspan_sim_core::run::{Job, NoProgress, engine};
use fedspan_sim_core::scenario::Scenario;
use serde_json::json;

use super::{leak, version};
use crate::benchmarks::side::{Cost, Facts, Setting, Side, Turn};

/// Number of clients.
const CLIENTS: usize = 20;
/// Number of features.
const D: usize = 100;
/// Width of the subspace that is looked for.
const K: usize = 4;
/// Width of the basis that is iterated.
const R: usize = 5;
/// Number of iterations.
const ITERATIONS: usize = 10;
/// Number of rows of a client, as in the paper, and in the short form.
const ROWS: [usize; 2] = [100_000, 2000];
/// Seed of data and noise.
const SEED: u64 = 1;

/// Prepares the iterations without noise.
///
/// # Errors
/// A sentence, if the scenario is wrong or a file cannot be written.
pub fn plain(setting: &Setting) -> Result<Side, String> {
    start(setting, false)
}

/// Prepares the iterations with noise.
///
/// # Errors
/// A sentence, if the scenario is wrong or a file cannot be written.
pub fn with_noise(setting: &Setting) -> Result<Side, String> {
    start(setting, true)
}

fn start(setting: &Setting, is_private: bool) -> Result<Side, String> {
    let rows = ROWS[usize::from(setting.short)];
    let mut scenario = Scenario::builder()
        .set("data.kind", "spiked-covariance")
        .set("data.clients", CLIENTS as u32)
        .set("data.d", D as u32)
        .set("data.k", K as u32)
        .set("data.samples", rows as u32)
        .set("data.noise_std", 0.6)
        .width(R)
        .algorithm("fedpower")
        .set("algorithm.iterations", ITERATIONS as u32)
        .set("algorithm.local_steps", 1)
        .set("algorithm.final_ridge", 0.0)
        .set("evaluate_every", ITERATIONS as u32);
    if is_private {
        scenario = scenario.set("privacy.epsilon", 0.5).set("privacy.delta", 1e-4);
    }
    let scenario: &'static Scenario = leak(scenario.build().map_err(|error| error.to_string())?);
    // The job is prepared once, since drawing the rows takes longer than the iterations.
    let job = Job::prepare(scenario, SEED).map_err(|error| error.to_string())?;
    for (client, data) in job.dataset.clients.iter().enumerate() {
        setting.write(&format!("x-{client}.f32"), data.train.x.iter().copied())?;
    }
    let truth = job.dataset.truth.clone().ok_or("the data have no true subspace")?;
    setting.write("truth.f32", to_f32(&truth))?;
    setting.write("z.f32", to_f32(engine(scenario, &job.dataset, SEED, None).representation()))?;
    setting.write_sizes(
        &json!({ "clients": CLIENTS, "rows": rows, "d": D, "k": K, "r": R, "iterations": ITERATIONS }),
    )?;
    let products = (CLIENTS * rows * ITERATIONS) as f64;
    let facts = Facts {
        program: version(),
        form: format!(
            "clients and server, through the protocol{}",
            if is_private { ", with noise" } else { "" }
        ),
        dtype: if is_private { "rows i16, sums i32 and i64" } else { "f32" }.to_owned(),
        n: format!("{CLIENTS} clients x {rows} rows x {D}, r {R}, {ITERATIONS} iterations"),
        cost: Some(Cost {
            unit: "rows".to_owned(),
            units: products,
            operations: products * 4.0 * (D * R) as f64,
            bytes: products * 4.0 * D as f64,
            resident: 4.0 * (CLIENTS * rows * D) as f64,
            check: "distance".to_owned(),
            ..Cost::default()
        }),
    };
    let turn = Box::new(move |repeats| {
        let mut turn = Turn { seconds: 0.0, check: f64::NAN };
        for _ in 0..repeats {
            let outcome = job.run(&mut NoProgress).map_err(|error| error.to_string())?;
            turn.seconds += outcome.seconds;
            turn.check = outcome.scores.distance.ok_or("the outcome has no distance")?;
        }
        Ok(turn)
    });
    Ok(Side { facts, turn })
}
