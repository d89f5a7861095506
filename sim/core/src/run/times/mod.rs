//! Answer times of clients. Every time is a function of seed, client and round, so nothing depends on the
//! order of queries.

mod drawn;
mod dropout;
mod link;
mod order;
mod recorded;
mod trace;

use std::collections::BTreeMap;

use drawn::Drawn;
pub use dropout::Dropouts;
use fedspan_protocol::message::Task;
pub use link::Link;
use order::order;
use recorded::Recorded;

use crate::data::{DataError, Dataset};
use crate::scenario::{ComputeTimes, Scenario};

/// Computation times of a fleet.
#[derive(Clone, Debug)]
pub struct Times(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Drawn(Drawn),
    Recorded(Recorded),
}

impl Times {
    /// Reads or draws the computation times of a scenario's training clients.
    ///
    /// # Errors
    /// [`DataError`] if a trace file cannot be used.
    pub fn of(scenario: &Scenario, dataset: &Dataset, seed: u64) -> Result<Self, DataError> {
        let clients = dataset.clients.len();
        Ok(Self(match &scenario.fleet.compute_times {
            ComputeTimes::Drawn(speed, correlation) => {
                let drawn = Drawn::new(*speed, seed, clients);
                Kind::Drawn(match order(scenario, dataset, *correlation, seed) {
                    Some(order) => drawn.dealt(&order),
                    None => drawn,
                })
            }
            ComputeTimes::Trace(path) => Kind::Recorded(trace::read(&scenario.locate(path), clients)?),
        }))
    }

    /// Uses a table of times by client (from 0) and round (as devices count: from 1, including rounds of the
    /// start). A client never answers a round without an entry.
    #[must_use]
    pub fn recorded(table: BTreeMap<(usize, u32), f64>) -> Self {
        Self(Kind::Recorded(Recorded::once(table)))
    }

    /// Time of a client in a round with this task; infinite if it never answers. Each power iteration takes
    /// one drawn computation time.
    #[must_use]
    pub fn time(&self, client: usize, round: u32, task: &Task) -> f64 {
        let computations = match *task {
            Task::FedPower { iterations, .. } => f64::from(iterations),
            _ => 1.0,
        };
        match &self.0 {
            Kind::Drawn(drawn) => computations * drawn.time(client, round),
            Kind::Recorded(recorded) => recorded.time(client, round),
        }
    }
}
