//! Time from the text of a scenario of 100 clients to the first aggregated round in the simulator: data, server, clients, and
//! their round through the protocol.

use std::time::Instant;

use fedspan_sim_core::evaluate::Scores;
use fedspan_sim_core::run::{Watcher, run};
use fedspan_sim_core::scenario::Scenario;

use super::version;
use crate::benchmarks::side::{Cost, Facts, Setting, Side, Turn};

/// Number of clients.
const CLIENTS: usize = 100;

/// Duration that a test of a campaign may take in a test suite of many, in seconds.
const TARGET: f64 = 0.003;

/// Prepares the figure.
///
/// # Errors
/// None.
pub fn start(_: &Setting) -> Result<Side, String> {
    let facts = Facts {
        program: version(),
        form: "scenario to first round".to_owned(),
        dtype: "f32".to_owned(),
        n: format!("{CLIENTS} clients x 20 samples x 20, k 2"),
        cost: Some(Cost {
            unit: "starts".to_owned(),
            units: 1.0,
            target: TARGET,
            check: "clients in the round".to_owned(),
            ..Cost::default()
        }),
    };
    let turn = Box::new(|repeats| {
        let mut turn = Turn { seconds: 0.0, check: f64::NAN };
        for _ in 0..repeats {
            let begin = Instant::now();
            let text = format!(
                "evaluate_every = 1000\n[data]\nkind = \"linear-regression\"\nclients = {CLIENTS}\nd = 20\nk = 2\n\
                 samples = 20\n[model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 100\nstep_size = 0.25\n"
            );
            let scenario = Scenario::parse("start", &text, &[]).map_err(|problem| problem.to_string())?;
            let mut first_round = FirstRound { end: None };
            let outcome = run(&scenario, 1, &mut first_round).map_err(|error| error.to_string())?;
            let end = first_round.end.ok_or("no round was finished")?;
            turn.seconds += end.duration_since(begin).as_secs_f64();
            turn.check = outcome.updates as f64;
        }
        Ok(turn)
    });
    Ok(Side { facts, turn })
}

/// Observer that ends the run after the first round.
struct FirstRound {
    end: Option<Instant>,
}

impl Watcher for FirstRound {
    fn round(&mut self, done: u32, _of: u32, _scores: Option<&Scores>) -> bool {
        if done > 0 && self.end.is_none() {
            self.end = Some(Instant::now());
        }
        self.end.is_none()
    }
}
