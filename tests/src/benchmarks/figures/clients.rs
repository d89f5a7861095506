//! Many clients of which few take part in a round: time of a whole simulation, and its peak memory.

use std::time::Instant;

use fedspan_sim_core::run::{Job, NoProgress};
use fedspan_sim_core::scenario::Scenario;

use super::version;
use crate::benchmarks::side::{Cost, Facts, Setting, Side, Turn};
use crate::load::memory_of;

/// Number of clients, and of those in the short form.
const CLIENTS: [usize; 2] = [1_000_000, 10_000];
/// Part of the clients that takes part in a round.
const PART: f64 = 0.001;
/// Number of rounds.
const ROUNDS: usize = 100;

/// Prepares the figure.
///
/// # Errors
/// A sentence, if the scenario is wrong.
pub fn start(setting: &Setting) -> Result<Side, String> {
    let clients = CLIENTS[usize::from(setting.short)];
    let scenario = Scenario::builder()
        .set("data.kind", "linear-regression")
        .set("data.clients", clients as u32)
        .set("data.d", 20)
        .set("data.k", 2)
        .set("data.samples", 20)
        .width(2)
        .algorithm("fedrep")
        .rounds(ROUNDS as u32)
        .step_size(0.25)
        .set("algorithm.final_ridge", 0.0)
        .set("evaluate", "distance")
        .set("participation.policy", "fraction")
        .set("participation.r", PART)
        .build()
        .map_err(|error| error.to_string())?;
    let facts = Facts {
        program: version(),
        form: "data and rounds, without final heads".to_owned(),
        dtype: "f32".to_owned(),
        n: format!(
            "{clients} clients x 20 samples x 20, k 2, {ROUNDS} rounds of {}",
            (PART * clients as f64).round()
        ),
        cost: Some(Cost {
            unit: "clients".to_owned(),
            units: clients as f64,
            check: "peak memory in MB".to_owned(),
            ..Cost::default()
        }),
    };
    let turn = Box::new(move |repeats| {
        let begin = Instant::now();
        for _ in 0..repeats {
            let job = Job::prepare(&scenario, 1).map_err(|error| error.to_string())?;
            job.run(&mut NoProgress).map_err(|error| error.to_string())?;
        }
        let seconds = begin.elapsed().as_secs_f64();
        let memory = memory_of(std::process::id()).map_err(|error| error.to_string())?;
        Ok(Turn { seconds, check: memory.peak as f64 / 1e6 })
    });
    Ok(Side { facts, turn })
}
