//! How long each client computes in each round: a pure function of client and round, so that nothing depends on
//! the order in which it is asked for.

mod drawn;
mod recorded;

use std::collections::BTreeMap;

use drawn::Drawn;
use recorded::Recorded;

use crate::scenario::Speed;

/// The computing times of a fleet.
#[derive(Clone, Debug)]
pub struct Times(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Drawn(Drawn),
    Recorded(Recorded),
}

impl Times {
    /// Draws what belongs to the clients themselves.
    #[must_use]
    pub fn drawn(speed: Speed, seed: u64, clients: usize) -> Self {
        Self(Kind::Drawn(Drawn::new(speed, seed, clients)))
    }

    /// Times as they were seen, by client (from 0) and round (as devices see it, from 1, those of the start
    /// included). A client never answers a round that it has no entry for.
    #[must_use]
    pub fn recorded(table: BTreeMap<(usize, u32), f64>) -> Self {
        Self(Kind::Recorded(Recorded::new(table)))
    }

    /// Time of a client in a round; infinite if it never answers.
    #[must_use]
    pub fn time(&self, client: usize, round: u32) -> f64 {
        match &self.0 {
            Kind::Drawn(drawn) => drawn.time(client, round),
            Kind::Recorded(recorded) => recorded.time(client, round),
        }
    }
}
