//! Computation times that are drawn from a distribution, once for each client or in every round (SRPFL,
//! section 5).

use fedspan_engine::random::{Purpose, stream};

use crate::scenario::{DynamicParameter, Speed, Spikes};

/// Computation times of a fleet that are drawn from a distribution.
#[derive(Clone, Debug)]
pub struct DrawnTimes {
    /// True if times change from round to round.
    dynamic: bool,
    seed: u64,
    /// Time of each client, or mean of the times of each client if times change from round to round.
    parameters: Vec<f64>,
    spikes: Option<Spikes>,
}

impl DrawnTimes {
    /// Draws the parameters of the clients.
    pub fn new(speed: Speed, seed: u64, clients: usize) -> Self {
        let min_fraction = 1.0 / clients.max(1) as f64;
        let draw = |client: u64| stream(seed, Purpose::Speed, client);
        let parameter = |client| min_fraction + (1.0 - min_fraction) * draw(client).uniform();
        // Mean of a uniform variable on [least, 1], and mean of its reciprocal.
        let (mean, reciprocal) = (
            0.5 * (1.0 + min_fraction),
            if min_fraction < 1.0 { -min_fraction.ln() / (1.0 - min_fraction) } else { 1.0 },
        );
        let means = match speed {
            Speed::TwoClass { slow_fraction, slow_factor } => {
                two_class(slow_fraction, slow_factor, seed, clients)
            }
            _ => Vec::new(),
        };
        let draw_parameter = |client: u64| match speed {
            Speed::Constant => 1.0,
            Speed::Uniform => 2.0 * draw(client).uniform(),
            Speed::Exponential => draw(client).exponential(),
            Speed::TwoClass { .. } => {
                let mean = usize::try_from(client).ok().and_then(|client| means.get(client));
                mean.copied().unwrap_or(1.0) * draw(client).exponential()
            }
            Speed::Pareto { tail_index } => pareto(tail_index, draw(client).uniform()),
            Speed::Dynamic(DynamicParameter::Mean) => parameter(client) / mean,
            Speed::Dynamic(DynamicParameter::Rate) => 1.0 / parameter(client) / reciprocal,
        };
        let dynamic = matches!(speed, Speed::Dynamic(_));
        Self { dynamic, seed, parameters: (0..clients as u64).map(draw_parameter).collect(), spikes: None }
    }

    /// Adds occasional long computations.
    #[must_use]
    pub fn with_spikes(self, spikes: Option<Spikes>) -> Self {
        Self { spikes, ..self }
    }

    /// Reassigns the drawn parameters so that the first client of `order` is the fastest.
    #[must_use]
    pub fn assign_in_order(mut self, order: &[usize]) -> Self {
        let mut sorted = self.parameters.clone();
        sorted.sort_by(f64::total_cmp);
        for (&client, time) in order.iter().zip(sorted) {
            if let Some(parameter) = self.parameters.get_mut(client) {
                *parameter = time;
            }
        }
        self
    }

    /// Computation time of a client in a round; 1 for an unknown client.
    pub fn time(&self, client: usize, round: u32) -> f64 {
        let index = stream_index(client, round);
        let is_spike =
            |spikes: &Spikes| stream(self.seed, Purpose::Spike, index).uniform() < spikes.probability;
        let factor = self.spikes.filter(is_spike).map_or(1.0, |spikes| spikes.factor);
        let parameter = factor * self.parameters.get(client).copied().unwrap_or(1.0);
        if self.dynamic {
            parameter * stream(self.seed, Purpose::RoundSpeed, index).exponential()
        } else {
            parameter
        }
    }
}

/// Mean time of each client if a random fraction of the clients, rounded, is slow.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a fraction of a count")]
fn two_class(slow_fraction: f64, slow_factor: f64, seed: u64, clients: usize) -> Vec<f64> {
    let slow = ((slow_fraction * clients as f64).round() as usize).min(clients);
    let mean = ((clients - slow) as f64 + slow as f64 * slow_factor) / clients.max(1) as f64;
    let mut means = vec![1.0 / mean; clients];
    let indices: Vec<usize> = (0..clients).collect();
    for client in stream(seed, Purpose::SlowClients, 0).choose(&indices, slow) {
        if let Some(client_mean) = means.get_mut(client) {
            *client_mean = slow_factor / mean;
        }
    }
    means
}

/// Value of the Pareto distribution of mean 1 with this tail index, from a `uniform` value on (0, 1].
fn pareto(tail_index: f64, uniform: f64) -> f64 {
    (tail_index - 1.0) / tail_index * uniform.max(f64::EPSILON).powf(-1.0 / tail_index)
}

/// Index of the random stream of a client in a round.
pub fn stream_index(client: usize, round: u32) -> u64 {
    u64::from(round) << 32 | client as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Speed; 7] = [
        Speed::Constant,
        Speed::Uniform,
        Speed::Exponential,
        Speed::TwoClass { slow_fraction: 0.2, slow_factor: 10.0 },
        Speed::Pareto { tail_index: 3.0 },
        Speed::Dynamic(DynamicParameter::Mean),
        Speed::Dynamic(DynamicParameter::Rate),
    ];

    /// Checks that the mean time is 1. The variance is largest if the parameter is a rate: about
    /// `2 M / ln^2 M`, or 42 for 1000 clients. The mean over 1000 clients and 100 seeds then has a standard
    /// error of 0.02.
    #[test]
    fn mean_time_is_one() {
        for kind in KINDS {
            let mut sum = 0.0;
            for seed in 0..100 {
                let times = DrawnTimes::new(kind, seed, 1000);
                sum += (0..1000).map(|client| times.time(client, 7)).sum::<f64>();
            }
            assert!((sum / 1e5 - 1.0).abs() < 0.1, "{kind:?}: {}", sum / 1e5);
        }
    }

    #[test]
    fn only_dynamic_times_change_between_rounds() {
        for kind in KINDS {
            let times = DrawnTimes::new(kind, 1, 20);
            let dynamic = matches!(kind, Speed::Dynamic(_));
            for client in 0..20 {
                assert!(times.time(client, 1) > 0.0);
                assert_eq!(times.time(client, 1) != times.time(client, 2), dynamic);
                assert_eq!(times.time(client, 3), times.clone().time(client, 3));
            }
        }
    }

    /// The fraction of Pareto times above x is `(x / x0)^-index`, with the smallest time `x0`.
    #[test]
    fn pareto_times_have_the_tail() {
        let times = DrawnTimes::new(Speed::Pareto { tail_index: 1.5 }, 2, 20_000);
        let fraction = |above: f64| {
            times.parameters.iter().filter(|time| **time > above).count() as f64
                / times.parameters.len() as f64
        };
        assert_eq!(fraction(1.0 / 3.0 - 1e-9), 1.0);
        for above in [0.5, 1.0, 3.0, 10.0] {
            let expected = (above * 3.0_f64).powf(-1.5);
            assert!(
                (fraction(above) / expected - 1.0).abs() < 0.15,
                "{above}: {} {expected}",
                fraction(above)
            );
        }
    }

    #[test]
    fn spikes_lengthen_some_computations() {
        for kind in KINDS {
            let times = DrawnTimes::new(kind, 6, 50);
            let spiked = times.clone().with_spikes(Some(Spikes { probability: 0.1, factor: 7.0 }));
            let ratios = (0..50).flat_map(|client| {
                let (times, spiked) = (&times, &spiked);
                (1..=40).map(move |round| spiked.time(client, round) / times.time(client, round))
            });
            let (mut long, mut all) = (0, 0);
            for ratio in ratios {
                assert!((ratio - 1.0).abs() < 1e-9 || (ratio - 7.0).abs() < 1e-9, "{kind:?}: {ratio}");
                long += usize::from(ratio > 2.0);
                all += 1;
            }
            assert!((150..=250).contains(&long), "{kind:?}: {long} of {all}");
        }
    }

    #[test]
    fn uniform_times_stay_below_two() {
        let times = DrawnTimes::new(Speed::Uniform, 3, 1000);
        assert!((0..1000).all(|client| (0.0..2.0).contains(&times.time(client, 1))));
        assert!((0..1000).any(|client| times.time(client, 1) > 1.9));
    }

    #[test]
    fn single_client_has_mean_one() {
        for kind in [Speed::Dynamic(DynamicParameter::Mean), Speed::Dynamic(DynamicParameter::Rate)] {
            assert_eq!(DrawnTimes::new(kind, 1, 1).parameters, [1.0]);
        }
    }

    #[test]
    fn two_class_has_exact_number_of_slow_clients() {
        for (fraction, slow) in [(0.0, 0), (0.1, 3), (0.5, 13), (0.99, 25), (1.0, 25)] {
            let means = two_class(fraction, 100.0, 5, 25);
            let shortest = means.iter().copied().fold(f64::INFINITY, f64::min);
            assert_eq!(means.iter().filter(|mean| **mean > 10.0 * shortest).count(), slow % 25, "{fraction}");
            assert!((means.iter().sum::<f64>() - 25.0).abs() < 1e-9, "the mean of the means is not 1");
        }
        let means = |seed| two_class(0.2, 100.0, seed, 50);
        assert!(means(1) != means(2), "another seed selected the same slow clients");
    }

    #[test]
    fn assigning_in_order_permutes_the_times() {
        let order: Vec<usize> = (0..30).rev().collect();
        for kind in KINDS {
            let unordered = DrawnTimes::new(kind, 4, 30);
            let ordered = unordered.clone().assign_in_order(&order);
            assert!(ordered.parameters.windows(2).all(|pair| pair[0] >= pair[1]), "{kind:?}");
            let sorted = |drawn: &DrawnTimes| {
                let mut times = drawn.parameters.clone();
                times.sort_by(f64::total_cmp);
                times
            };
            assert_eq!(sorted(&unordered), sorted(&ordered));
        }
    }
}
