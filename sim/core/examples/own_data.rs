//! Example: runs the simulator on a program's own data, with recordings in memory, a scenario that is built
//! in code, and a table of the results.
//!
//! ```sh
//! cargo run -p fedspan-sim-core --example own_data
//! ```
//!
//! Each client is a pump with eight vibration features. Worn pumps differ from healthy pumps along two
//! directions that all pumps share, in a combination that is specific to the pump. Pumps that join after
//! training have ten labelled samples each.

use std::error::Error;

use fedspan_sim_core::data::{Client, Dataset, Labels, Set};
use fedspan_sim_core::report::table::Table;
use fedspan_sim_core::run::{Outcome, Simulation, Watcher};
use fedspan_sim_core::scenario::Scenario;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

const FEATURES: usize = 8;
/// Names of the classes, in the order of their numbers.
const CLASSES: [&str; 2] = ["healthy", "worn"];

/// Draws a uniform number from -1 to 1.
fn uniform(random: &mut ChaCha8Rng) -> f32 {
    (random.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0
}

/// Creates the samples of a pump whose wear is a combination `(a, b)` of the two directions. Replace this
/// function by a reader of your own recordings.
fn record(samples: usize, (a, b): (f32, f32), random: &mut ChaCha8Rng) -> Set {
    let x: Vec<f32> = (0..samples * FEATURES).map(|_| uniform(random)).collect();
    let is_worn = |x: &[f32]| a * (x[0] + x[1] - x[2]) + b * (x[3] - x[4]) > 0.0;
    let classes = x.chunks_exact(FEATURES).map(|x| u8::from(is_worn(x))).collect();
    Set::new(x, Labels::Classes(classes))
}

/// Creates `count` pumps, each with `labelled` training samples and 100 test samples.
fn pumps(count: usize, labelled: usize, random: &mut ChaCha8Rng) -> Vec<Client> {
    let mut make_pump = || {
        let wear = (uniform(random), uniform(random));
        Client::new(record(labelled, wear, random), record(100, wear, random))
    };
    (0..count).map(|_| make_pump()).collect()
}

/// Observer that prints every tenth round.
struct Progress;

impl Watcher for Progress {
    fn round(&mut self, done: u32, of: u32, scores: Option<&fedspan_sim_core::evaluate::Scores>) -> bool {
        if let Some(accuracy) = scores.and_then(|scores| scores.accuracy).filter(|_| done.is_multiple_of(10))
        {
            println!("round {done} of {of}: accuracy {accuracy:.3}");
        }
        true // continues the run
    }
}

/// Builds a table of the results with one row for each pump.
fn results_table(outcome: &Outcome) -> Table {
    let pumps = outcome.clients.iter().map(|pump| ("trained", pump));
    let pumps = pumps.chain(outcome.newcomers.iter().map(|pump| ("newcomer", pump)));
    let row = |(kind, pump): (&str, &fedspan_sim_core::evaluate::ClientScore)| {
        vec![kind.to_owned(), pump.accuracy.map_or_else(String::new, |accuracy| format!("{accuracy:.2}"))]
    };
    Table {
        title: "accuracy on samples that no pump was trained on".to_owned(),
        columns: vec!["pump".to_owned(), "accuracy".to_owned()],
        rows: pumps.map(row).collect(),
        notes: Vec::new(),
    }
}

/// Simulates a fleet of pumps.
pub fn main() -> Result<(), Box<dyn Error>> {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let (clients, newcomers) = (pumps(20, 40, &mut random), pumps(4, 10, &mut random));
    let mut dataset = Dataset::classes(FEATURES, CLASSES.len(), clients).with_newcomers(newcomers);
    dataset.class_names = CLASSES.map(str::to_owned).into();

    let scenario = Scenario::builder()
        .with_dataset(dataset)
        .width(2)
        .algorithm("fedrep")
        .rounds(50)
        .measured_step_size()
        .build()?;
    let outcome = Simulation::builder(&scenario).seed(1).watcher(&mut Progress).run()?;
    print!("{}", results_table(&outcome).text());

    let mean = |pumps: &[fedspan_sim_core::evaluate::ClientScore]| {
        pumps.iter().filter_map(|pump| pump.accuracy).sum::<f64>() / pumps.len() as f64
    };
    let (trained, new) = (mean(&outcome.clients), mean(&outcome.newcomers));
    println!("mean of the trained pumps {trained:.3}, of the newcomers {new:.3}");
    assert!(trained > 0.9 && new > 0.85, "{trained}, {new}");
    Ok(())
}
