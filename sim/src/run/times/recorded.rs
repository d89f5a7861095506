//! Times that are given.

use std::collections::BTreeMap;

/// Times by client and round.
#[derive(Clone, Debug)]
pub struct Recorded {
    table: BTreeMap<(usize, u32), f64>,
}

impl Recorded {
    /// A table, as it is.
    pub fn new(table: BTreeMap<(usize, u32), f64>) -> Self {
        Self { table }
    }

    /// Time of a client in a round; infinite where the table has none.
    pub fn time(&self, client: usize, round: u32) -> f64 {
        self.table.get(&(client, round)).copied().unwrap_or(f64::INFINITY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_no_entry_never_answers() {
        let recorded = Recorded::new(BTreeMap::from([((3, 1), 2.5)]));
        assert_eq!(recorded.time(3, 1), 2.5);
        assert_eq!([recorded.time(3, 2), recorded.time(2, 1)], [f64::INFINITY; 2]);
    }
}
