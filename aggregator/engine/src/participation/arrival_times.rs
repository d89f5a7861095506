//! Mean arrival times and sample counts of the updates of a round, by rank of arrival.

/// Observations by rank of arrival.
#[derive(Clone, Debug)]
pub struct ArrivalTimes {
    ranks: Vec<Rank>,
    /// Factor of the weight of an observation for each later observation of its rank; 1 for equal weights.
    forgetting: f64,
}

/// Weighted sums over rounds of the observations at one rank of arrival.
#[derive(Clone, Copy, Debug, Default)]
struct Rank {
    /// Sum of the arrival times, in milliseconds.
    time: f64,
    /// Sum of the sample counts of this update and all updates before it in its round.
    samples: f64,
    /// Sum of the weights.
    count: f64,
}

impl ArrivalTimes {
    /// Creates sums without observations.
    pub fn new(forgetting: f64) -> Self {
        Self { ranks: Vec::new(), forgetting }
    }

    /// Makes room for the ranks of a round with `invited` devices.
    pub fn open(&mut self, invited: usize) {
        self.ranks.resize(invited.max(self.ranks.len()), Rank::default());
    }

    /// Number of ranks.
    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    /// Adds the arrival of an update at time `time`, in milliseconds, with `samples` samples of this update and
    /// all updates before it in the round.
    pub fn record(&mut self, rank: usize, time: f64, samples: f64) {
        let forgetting = self.forgetting;
        if let Some(rank) = self.ranks.get_mut(rank) {
            rank.time = forgetting * rank.time + time;
            rank.samples = forgetting * rank.samples + samples;
            rank.count = forgetting * rank.count + 1.0;
        }
    }

    /// Mean arrival time of the `n`-th update. For a rank that was never observed (for example, because the
    /// fleet has grown), returns the time of the last observed rank before it.
    pub fn mean(&self, n: usize) -> Option<f64> {
        let ranks = self.ranks.get(..n).unwrap_or(&self.ranks);
        ranks.iter().rfind(|rank| rank.count > 0.0).map(|rank| rank.time / rank.count)
    }

    /// Number of first updates that together have had `samples` samples on average; the number of observed
    /// ranks if no number of updates reaches this count.
    pub fn answers_with(&self, samples: u64) -> usize {
        let enough = |rank: &Rank| rank.count > 0.0 && rank.samples >= samples as f64 * rank.count;
        self.ranks.iter().position(enough).map_or(self.ranks.len(), |index| index + 1)
    }

    /// State for checkpoints: three values for each rank.
    pub fn state(&self) -> impl Iterator<Item = f64> + '_ {
        self.ranks.iter().flat_map(|rank| [rank.time, rank.samples, rank.count])
    }

    /// Restores a state that [`Self::state`] returned; `None` if the values are no such state.
    pub fn restored(forgetting: f64, state: &[f64]) -> Option<Self> {
        let (ranks, rest) = state.as_chunks();
        let rank = |sums: &[f64; 3]| Rank { time: sums[0], samples: sums[1], count: sums[2] };
        rest.is_empty().then(|| Self { ranks: ranks.iter().map(rank).collect(), forgetting })
    }
}
