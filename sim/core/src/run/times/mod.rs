//! When each client answers each round. All of it is a function of seed, client and round, so that nothing depends
//! on the order in which it is asked for.

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
use crate::scenario::{Computing, Scenario};

/// The computing times of a fleet.
#[derive(Clone, Debug)]
pub struct Times(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Drawn(Drawn),
    Recorded(Recorded),
}

impl Times {
    /// The times that a scenario draws or names for those who train.
    ///
    /// # Errors
    /// [`DataError`] if a trace cannot be used.
    pub fn of(scenario: &Scenario, dataset: &Dataset, seed: u64) -> Result<Self, DataError> {
        let clients = dataset.clients.len();
        Ok(Self(match &scenario.fleet.computing {
            Computing::Drawn(speed, correlation) => {
                let drawn = Drawn::new(*speed, seed, clients);
                Kind::Drawn(match order(scenario, dataset, *correlation, seed) {
                    Some(order) => drawn.dealt(&order),
                    None => drawn,
                })
            }
            Computing::Trace(path) => Kind::Recorded(trace::read(&scenario.locate(path), clients)?),
        }))
    }

    /// Times as they were seen, by client (from 0) and round (as devices see it: from 1, those of the start
    /// included). A client never answers a round for which it has no entry.
    #[must_use]
    pub fn recorded(table: BTreeMap<(usize, u32), f64>) -> Self {
        Self(Kind::Recorded(Recorded::once(table)))
    }

    /// Time of a client in a round with this task; infinite if it never answers. A power iteration is a computation: what
    /// is drawn counts for each.
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
