//! Simulated times and dropouts of clients. Every time is a function of seed, client and round, so results do
//! not depend on the order of queries.

mod availability;
mod drawn;
mod dropout;
mod link;
mod speed_order;
mod time_table;
mod trace;

use std::collections::BTreeMap;

pub use availability::Availability;
use drawn::DrawnTimes;
pub use dropout::Dropouts;
use fedspan_protocol::message::Task;
pub use link::{Link, Transmission};
use speed_order::speed_order;
use time_table::TimeTable;

use crate::data::{DataError, Dataset};
use crate::scenario::{ComputeTimes, Scenario};

/// Computation times of a fleet, in mean computations.
#[derive(Clone, Debug)]
pub struct Times(Kind);

/// Source of computation times.
#[derive(Clone, Debug)]
enum Kind {
    Drawn(DrawnTimes),
    Given(TimeTable),
}

impl Times {
    /// Reads or draws the computation times of a scenario's training clients.
    ///
    /// # Errors
    /// [`DataError`] if a trace file cannot be used.
    pub fn new(scenario: &Scenario, dataset: &Dataset, seed: u64) -> Result<Self, DataError> {
        let clients = dataset.clients.len();
        Ok(Self(match &scenario.fleet.compute_times {
            ComputeTimes::Drawn(speed, correlation) => {
                let times = DrawnTimes::new(*speed, seed, clients).with_spikes(scenario.fleet.spikes);
                Kind::Drawn(match speed_order(scenario, dataset, *correlation, seed) {
                    Some(order) => times.assign_in_order(&order),
                    None => times,
                })
            }
            ComputeTimes::Trace(path) => Kind::Given(trace::read(&scenario.locate(path), clients)?),
        }))
    }

    /// Creates times from a table by client (from 0) and round (from 1, including the start rounds, which
    /// compute the initial representation). A client does not answer in a round without an entry.
    #[must_use]
    pub fn from_table(table: BTreeMap<(usize, u32), f64>) -> Self {
        Self(Kind::Given(TimeTable::once(table)))
    }

    /// Computation time of a client in a round with this task; infinite if the client does not answer. Each
    /// power iteration takes one drawn computation time.
    #[must_use]
    pub fn time(&self, client: usize, round: u32, task: &Task) -> f64 {
        let computations = match *task {
            Task::FedPower { iterations, .. } => f64::from(iterations),
            _ => 1.0,
        };
        match &self.0 {
            Kind::Drawn(drawn) => computations * drawn.time(client, round),
            Kind::Given(table) => table.time(client, round),
        }
    }
}
