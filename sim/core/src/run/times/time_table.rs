//! Table of given computation times by client and round.

use std::collections::BTreeMap;

/// Computation times by client and round.
#[derive(Clone, Debug)]
pub struct TimeTable {
    table: BTreeMap<(usize, u32), f64>,
    /// Number of rounds after which the table repeats; `None` if the table does not repeat.
    repeated: Option<u32>,
}

impl TimeTable {
    /// Builds a table without repetition. A client does not answer in a round without an entry.
    pub fn once(table: BTreeMap<(usize, u32), f64>) -> Self {
        Self { table, repeated: None }
    }

    /// Builds a table of `rounds` rounds that repeats from the first round.
    pub fn repeated(table: BTreeMap<(usize, u32), f64>, rounds: u32) -> Self {
        Self { table, repeated: Some(rounds.max(1)) }
    }

    /// Time of a client in a round, counted from 1; infinite if the table has no entry.
    pub fn time(&self, client: usize, round: u32) -> f64 {
        let round = self.repeated.map_or(round, |rounds| round.saturating_sub(1) % rounds + 1);
        self.table.get(&(client, round)).copied().unwrap_or(f64::INFINITY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_without_entry_never_answers() {
        let table = TimeTable::once(BTreeMap::from([((3, 1), 2.5)]));
        assert_eq!(table.time(3, 1), 2.5);
        assert_eq!([table.time(3, 2), table.time(2, 1)], [f64::INFINITY; 2]);
    }

    #[test]
    fn table_repeats_from_first_round() {
        let table = TimeTable::repeated(BTreeMap::from([((0, 1), 2.0), ((0, 2), 3.0)]), 2);
        assert_eq!([1, 2, 3, 4].map(|round| table.time(0, round)), [2.0, 3.0, 2.0, 3.0]);
    }
}
