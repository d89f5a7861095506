//! Dropouts of simulated devices, which miss rounds. Patterns differ in the clients that miss rounds and in
//! the correlation of dropouts; the mean fraction of missed rounds is `dropout` for every pattern. A dropout
//! is a function of seed, client and period.

use fedspan_engine::random::{Purpose, stream};

use super::drawn::stream_index;
use crate::scenario::{DropoutPattern, FleetSection};

/// Dropouts of a fleet.
#[derive(Clone, Debug)]
pub struct Dropouts {
    probability: f64,
    seed: u64,
    kind: Kind,
}

/// Pattern of dropouts, with its state.
#[derive(Clone, Debug)]
enum Kind {
    Independent,
    /// For each client, true if the client is always absent.
    Persistent(Vec<bool>),
    Outages {
        /// Site of each client.
        site: Vec<usize>,
        /// Mean length of an outage, in periods.
        length: f64,
        /// State of each site: the latest computed period, and true if the site is down in this period.
        known: Vec<(u32, bool)>,
    },
}

impl Dropouts {
    /// Creates the dropouts of a scenario's fleet. Clients are assigned to sites at random. The sizes of
    /// sites differ by at most one client.
    #[must_use]
    pub fn new(fleet: &FleetSection, clients: usize, seed: u64) -> Self {
        let probability = fleet.dropout;
        let kind = match fleet.pattern {
            DropoutPattern::Independent => Kind::Independent,
            DropoutPattern::Persistent => {
                let mut absent = vec![false; clients];
                for client in shuffled(clients, seed).into_iter().take(absent_count(probability, clients)) {
                    if let Some(is_absent) = absent.get_mut(client) {
                        *is_absent = true;
                    }
                }
                Kind::Persistent(absent)
            }
            DropoutPattern::Outages { sites, rounds } => {
                let mut site = vec![0; clients];
                for (position, client) in shuffled(clients, seed).into_iter().enumerate() {
                    if let Some(site) = site.get_mut(client) {
                        *site = position % sites.max(1);
                    }
                }
                Kind::Outages { site, length: rounds, known: vec![(0, false); sites] }
            }
        };
        Self { probability, seed, kind }
    }

    /// Checks the settings for a fleet of `clients` clients.
    ///
    /// # Errors
    /// Key of the setting that is not possible for the fleet, and a message with the numbers.
    pub fn check(fleet: &FleetSection, clients: usize) -> Result<(), (&'static str, String)> {
        match fleet.pattern {
            DropoutPattern::Persistent if absent_count(fleet.dropout, clients) >= clients => {
                let message = format!(
                    "found {}, which is all of {clients} clients in every round, so no client would ever answer; reduce it",
                    fleet.dropout
                );
                Err(("dropout", message))
            }
            DropoutPattern::Outages { sites, .. } if sites > clients => Err((
                "outage_sites",
                format!("found {sites}, allowed: at most the fleet's {clients} clients"),
            )),
            _ => Ok(()),
        }
    }

    /// True if a client is unavailable in a period, counted from 1. A period is a round, or an extension of
    /// a round.
    pub fn drops_out(&mut self, client: usize, period: u32) -> bool {
        let (probability, seed) = (self.probability, self.seed);
        if probability <= 0.0 {
            return false;
        }
        match &mut self.kind {
            Kind::Independent => uniform_draw(seed, client, period) < probability,
            Kind::Persistent(absent) => absent.get(client).copied().unwrap_or(false),
            Kind::Outages { site, length, known: site_states } => {
                let Some(site) = site.get(client).copied() else { return false };
                let Some((known_period, is_down)) = site_states.get_mut(site) else { return false };
                if *known_period == 0 || *known_period > period {
                    (*known_period, *is_down) = (1, uniform_draw(seed, site, 1) < probability);
                }
                // Markov chain of two states (Gilbert 1960). The length of outages has a geometric
                // distribution, and a site is down for the given fraction of all periods.
                let (stays_down, goes_down) =
                    (1.0 - 1.0 / *length, probability / ((1.0 - probability) * *length));
                while *known_period < period {
                    *known_period += 1;
                    *is_down = uniform_draw(seed, site, *known_period)
                        < if *is_down { stays_down } else { goes_down };
                }
                *is_down
            }
        }
    }
}

/// Draws a uniform number in [0, 1) for a client or a site in a period.
fn uniform_draw(seed: u64, index: usize, period: u32) -> f64 {
    stream(seed, Purpose::Dropout, stream_index(index, period)).uniform()
}

/// All clients in random order. The absent clients are a prefix of this order, so a larger dropout
/// probability adds clients to the absent clients.
fn shuffled(clients: usize, seed: u64) -> Vec<usize> {
    let indices: Vec<usize> = (0..clients).collect();
    // Periods count from 1, so the stream of period 0 is not used otherwise.
    stream(seed, Purpose::Dropout, stream_index(0, 0)).choose(&indices, clients)
}

/// Number of clients that are always absent.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "fleets are far smaller than 2^52, and the probability is below 1"
)]
fn absent_count(probability: f64, clients: usize) -> usize {
    (probability * clients as f64).round() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{ComputeTimes, Correlation, Speed};

    const PERIODS: u32 = 4000;

    fn dropouts(dropout: f64, pattern: DropoutPattern, clients: usize, seed: u64) -> Dropouts {
        let compute_times = ComputeTimes::Drawn(Speed::Constant, Correlation::None);
        let fleet = FleetSection {
            compute_times,
            spikes: None,
            communication: 0.0,
            dropout,
            pattern,
            link: None,
            waking: None,
            window: None,
            i16_share: 0.0,
            normal_equations_only: false,
        };
        assert_eq!(Dropouts::check(&fleet, clients), Ok(()));
        Dropouts::new(&fleet, clients, seed)
    }

    /// Builds the table of dropouts by period and client.
    fn dropout_table(mut dropouts: Dropouts, clients: usize) -> Vec<Vec<bool>> {
        (1..=PERIODS)
            .map(|period| (0..clients).map(|client| dropouts.drops_out(client, period)).collect())
            .collect()
    }

    fn share_lost(lost: impl Iterator<Item = bool>) -> f64 {
        let (mut total, mut lost_count) = (0.0, 0.0);
        for lost in lost {
            total += 1.0;
            lost_count += f64::from(u8::from(lost));
        }
        lost_count / total
    }

    #[test]
    fn every_pattern_loses_the_configured_fraction() {
        let outages = DropoutPattern::Outages { sites: 5, rounds: 8.0 };
        for probability in [0.0, 0.1, 0.5, 0.7] {
            for (pattern, tolerance) in
                [(DropoutPattern::Independent, 0.01), (DropoutPattern::Persistent, 1e-9), (outages, 0.05)]
            {
                let periods = dropout_table(dropouts(probability, pattern, 20, 3), 20);
                let lost = share_lost(periods.into_iter().flatten());
                assert!((lost - probability).abs() <= tolerance, "{pattern:?} {probability}: {lost}");
            }
        }
    }

    #[test]
    fn larger_probability_keeps_absent_clients_absent() {
        let absent =
            |probability| dropout_table(dropouts(probability, DropoutPattern::Persistent, 20, 7), 20);
        let (fewer_absent, more_absent) = (absent(0.3), absent(0.6));
        assert!(
            fewer_absent.iter().all(|period| *period == fewer_absent[0]),
            "the absent clients changed between periods"
        );
        assert!(fewer_absent[0].iter().zip(&more_absent[0]).all(|(fewer, more)| !fewer || *more));
        assert!(
            dropout_table(dropouts(0.3, DropoutPattern::Persistent, 20, 8), 20) != fewer_absent,
            "another seed selected the same absent clients"
        );
    }

    #[test]
    fn outage_takes_whole_site_for_the_configured_length() {
        let periods =
            dropout_table(dropouts(0.3, DropoutPattern::Outages { sites: 4, rounds: 6.0 }, 22, 5), 22);
        let is_same_site = |a: usize, b: usize| periods.iter().all(|period| period[a] == period[b]);
        let mut sizes: Vec<usize> = Vec::new();
        let mut seen = [false; 22];
        for client in 0..22 {
            if !seen[client] {
                let site: Vec<usize> = (0..22).filter(|other| is_same_site(client, *other)).collect();
                site.iter().for_each(|other| seen[*other] = true);
                sizes.push(site.len());
            }
        }
        sizes.sort_unstable();
        assert_eq!(sizes, [5, 5, 6, 6]);
        let outages =
            |client: usize| periods.windows(2).filter(|pair| !pair[0][client] && pair[1][client]).count();
        let periods_down = |client: usize| periods.iter().filter(|period| period[client]).count();
        let (outages, periods_down): (usize, usize) =
            (0..22).fold((0, 0), |(b, d), client| (b + outages(client), d + periods_down(client)));
        #[allow(clippy::cast_precision_loss)]
        let length = periods_down as f64 / outages as f64;
        assert!((length - 6.0).abs() < 0.7, "{length}");
    }

    /// Periods may be queried in any order, and may be skipped.
    #[test]
    fn query_order_does_not_matter() {
        for pattern in [
            DropoutPattern::Independent,
            DropoutPattern::Persistent,
            DropoutPattern::Outages { sites: 3, rounds: 4.0 },
        ] {
            let in_order = dropout_table(dropouts(0.4, pattern, 9, 2), 9);
            let mut out_of_order = dropouts(0.4, pattern, 9, 2);
            for period in (1..=PERIODS).rev().step_by(37).chain([5, 2, 900]) {
                for client in [8, 0, 4] {
                    let expected = &in_order[period as usize - 1];
                    assert_eq!(
                        out_of_order.drops_out(client, period),
                        expected[client],
                        "{pattern:?} {period}"
                    );
                }
            }
        }
    }

    #[test]
    fn check_rejects_fleet_that_never_answers() {
        let compute_times = ComputeTimes::Drawn(Speed::Constant, Correlation::None);
        let fleet = |dropout, pattern| FleetSection {
            compute_times: compute_times.clone(),
            spikes: None,
            communication: 0.0,
            dropout,
            pattern,
            link: None,
            waking: None,
            window: None,
            i16_share: 0.0,
            normal_equations_only: false,
        };
        let check = |fleet: &FleetSection, clients| Dropouts::check(fleet, clients).err().unwrap_or_default();
        let (key, message) = check(&fleet(0.9, DropoutPattern::Persistent), 4);
        assert!(
            key == "dropout" && message.contains("found 0.9") && message.contains("all of 4 clients"),
            "{message}"
        );
        assert_eq!(Dropouts::check(&fleet(0.9, DropoutPattern::Persistent), 10), Ok(()));
        let (key, message) = check(&fleet(0.5, DropoutPattern::Outages { sites: 5, rounds: 3.0 }), 4);
        assert!(
            key == "outage_sites" && message == "found 5, allowed: at most the fleet's 4 clients",
            "{message}"
        );
    }
}
