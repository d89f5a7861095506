//! Times that are drawn: once for each client, or in every round (SRPFL, section 5).

use fedspan_aggregator::random::{Purpose, stream};

use crate::scenario::{Reading, Speed};

/// The drawn times of a fleet.
#[derive(Clone, Debug)]
pub struct Drawn {
    kind: Speed,
    seed: u64,
    /// Each client's own: its time, or the mean around which its times are drawn.
    own: Vec<f64>,
}

impl Drawn {
    /// Draws what belongs to the clients themselves.
    #[must_use]
    pub fn new(kind: Speed, seed: u64, clients: usize) -> Self {
        let least = 1.0 / clients.max(1) as f64;
        let parameter = |client: u64| least + (1.0 - least) * stream(seed, Purpose::Speed, client).uniform();
        // The means of a uniform variable on [least, 1] and of its reciprocal.
        let (mean, reciprocal) =
            (0.5 * (1.0 + least), if least < 1.0 { -least.ln() / (1.0 - least) } else { 1.0 });
        let own = |client| match kind {
            Speed::Constant => 1.0,
            Speed::Exponential => stream(seed, Purpose::Speed, client).exponential(),
            Speed::Dynamic(Reading::Mean) => parameter(client) / mean,
            Speed::Dynamic(Reading::Rate) => 1.0 / parameter(client) / reciprocal,
        };
        Self { kind, seed, own: (0..clients as u64).map(own).collect() }
    }

    /// Time of a client in a round; 1 for one that is not known.
    #[must_use]
    pub fn time(&self, client: usize, round: u32) -> f64 {
        let own = self.own.get(client).copied().unwrap_or(1.0);
        match self.kind {
            Speed::Constant | Speed::Exponential => own,
            Speed::Dynamic(_) => {
                let index = u64::from(round) << 32 | client as u64;
                own * stream(self.seed, Purpose::RoundSpeed, index).exponential()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Speed; 4] =
        [Speed::Constant, Speed::Exponential, Speed::Dynamic(Reading::Mean), Speed::Dynamic(Reading::Rate)];

    /// Mean 1 over clients and rounds. The reading as a rate has the heaviest tail: a variance of about
    /// `2 M / ln^2 M`, 42 for 1000 clients; with 1000 clients of 100 seeds the mean is good to 0.03.
    #[test]
    fn the_mean_computation_is_one() {
        for kind in KINDS {
            let mut sum = 0.0;
            for seed in 0..100 {
                let drawn = Drawn::new(kind, seed, 1000);
                sum += (0..1000).map(|client| drawn.time(client, 7)).sum::<f64>();
            }
            assert!((sum / 1e5 - 1.0).abs() < 0.1, "{kind:?}: {}", sum / 1e5);
        }
    }

    #[test]
    fn dynamic_drawn_change_from_round_to_round_and_no_others() {
        for kind in KINDS {
            let drawn = Drawn::new(kind, 1, 20);
            let dynamic = matches!(kind, Speed::Dynamic(_));
            for client in 0..20 {
                assert!(drawn.time(client, 1) > 0.0);
                assert_eq!(drawn.time(client, 1) != drawn.time(client, 2), dynamic);
                assert_eq!(drawn.time(client, 3), drawn.clone().time(client, 3));
            }
        }
    }

    #[test]
    fn a_single_client_has_mean_one_too() {
        for kind in [Speed::Dynamic(Reading::Mean), Speed::Dynamic(Reading::Rate)] {
            assert_eq!(Drawn::new(kind, 1, 1).own, [1.0]);
        }
    }
}
