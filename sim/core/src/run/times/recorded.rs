//! Times that are given.

use std::collections::BTreeMap;

/// Times by client and round.
#[derive(Clone, Debug)]
pub struct Recorded {
    table: BTreeMap<(usize, u32), f64>,
    /// The rounds of a table that is repeated from its beginning.
    repeated: Option<u32>,
}

impl Recorded {
    /// A table as it is: a client never answers a round for which it has no entry.
    pub fn once(table: BTreeMap<(usize, u32), f64>) -> Self {
        Self { table, repeated: None }
    }

    /// A table of `rounds` rounds, one after the other and from the beginning again.
    pub fn repeated(table: BTreeMap<(usize, u32), f64>, rounds: u32) -> Self {
        Self { table, repeated: Some(rounds.max(1)) }
    }

    /// Time of a client in a round, from 1; infinite for one that has none.
    pub fn time(&self, client: usize, round: u32) -> f64 {
        let round = self.repeated.map_or(round, |rounds| round.saturating_sub(1) % rounds + 1);
        self.table.get(&(client, round)).copied().unwrap_or(f64::INFINITY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_no_entry_never_answers() {
        let recorded = Recorded::once(BTreeMap::from([((3, 1), 2.5)]));
        assert_eq!(recorded.time(3, 1), 2.5);
        assert_eq!([recorded.time(3, 2), recorded.time(2, 1)], [f64::INFINITY; 2]);
    }

    #[test]
    fn rounds_come_again_from_the_first() {
        let recorded = Recorded::repeated(BTreeMap::from([((0, 1), 2.0), ((0, 2), 3.0)]), 2);
        assert_eq!([1, 2, 3, 4].map(|round| recorded.time(0, round)), [2.0, 3.0, 2.0, 3.0]);
    }
}
