//! Who loses a round. Every pattern loses the same part of all rounds of all clients, `dropout`, in the mean; they differ
//! in who loses them, and when. All of it is a function of seed, client and period.

use fedspan_engine::random::{Purpose, stream};

use super::drawn::in_round;
use crate::scenario::{FleetSection, Pattern};

/// The dropouts of a fleet.
#[derive(Clone, Debug)]
pub struct Dropouts {
    probability: f64,
    seed: u64,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Independent,
    /// Who is never there, by client.
    Persistent(Vec<bool>),
    Outages {
        /// Where each client is.
        site: Vec<usize>,
        /// Mean length of an outage, in periods.
        length: f64,
        /// The period of which each site's state is known, and whether it is down then.
        known: Vec<(u32, bool)>,
    },
}

impl Dropouts {
    /// Those of a scenario's fleet. Sites are equal in size, as far as that goes, and chance says who is where.
    #[must_use]
    pub fn new(fleet: &FleetSection, clients: usize, seed: u64) -> Self {
        let probability = fleet.dropout;
        let kind = match fleet.pattern {
            Pattern::Independent => Kind::Independent,
            Pattern::Persistent => {
                let mut gone = vec![false; clients];
                for client in shuffled(clients, seed).into_iter().take(never_there(probability, clients)) {
                    if let Some(place) = gone.get_mut(client) {
                        *place = true;
                    }
                }
                Kind::Persistent(gone)
            }
            Pattern::Outages { sites, rounds } => {
                let mut site = vec![0; clients];
                for (place, client) in shuffled(clients, seed).into_iter().enumerate() {
                    if let Some(site) = site.get_mut(client) {
                        *site = place % sites.max(1);
                    }
                }
                Kind::Outages { site, length: rounds, known: vec![(0, false); sites] }
            }
        };
        Self { probability, seed, kind }
    }

    /// Checks a fleet of so many clients.
    ///
    /// # Errors
    /// The key that asks for more than there is, and in words what is wrong with it.
    pub fn fits(fleet: &FleetSection, clients: usize) -> Result<(), (&'static str, String)> {
        match fleet.pattern {
            Pattern::Persistent if never_there(fleet.dropout, clients) >= clients => {
                let message = format!(
                    "found {}, which is all of {clients} clients in every round: nobody would ever answer",
                    fleet.dropout
                );
                Err(("dropout", message))
            }
            Pattern::Outages { sites, .. } if sites > clients => Err((
                "outage_sites",
                format!("found {sites}, allowed: at most the fleet's {clients} clients"),
            )),
            _ => Ok(()),
        }
    }

    /// Whether a client cannot be reached in a period, from 1: an exchange, or the time by which one was extended.
    pub fn lost(&mut self, client: usize, period: u32) -> bool {
        let (probability, seed) = (self.probability, self.seed);
        if probability <= 0.0 {
            return false;
        }
        match &mut self.kind {
            Kind::Independent => drawn(seed, client, period) < probability,
            Kind::Persistent(gone) => gone.get(client).copied().unwrap_or(false),
            Kind::Outages { site, length, known } => {
                let Some(site) = site.get(client).copied() else { return false };
                let Some((at, down)) = known.get_mut(site) else { return false };
                if *at == 0 || *at > period {
                    (*at, *down) = (1, drawn(seed, site, 1) < probability);
                }
                // A Markov chain of two states (Gilbert 1960): outages of a geometric length, and between them times of
                // such a length that a site is down in that part of all periods.
                let (stays, falls) = (1.0 - 1.0 / *length, probability / ((1.0 - probability) * *length));
                while *at < period {
                    *at += 1;
                    *down = drawn(seed, site, *at) < if *down { stays } else { falls };
                }
                *down
            }
        }
    }
}

/// Uniform in 0 to 1, of a client or a site in a period.
fn drawn(seed: u64, who: usize, period: u32) -> f64 {
    stream(seed, Purpose::Dropout, in_round(who, period)).uniform()
}

/// All clients in an order that chance gives: more of them drop out with a larger probability, and the same ones besides.
fn shuffled(clients: usize, seed: u64) -> Vec<usize> {
    let all: Vec<usize> = (0..clients).collect();
    // Periods begin with 1.
    stream(seed, Purpose::Dropout, in_round(0, 0)).choose(&all, clients)
}

/// How many are never there, where it is always the same ones.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "fleets are far smaller than 2^52, and the probability is below 1"
)]
fn never_there(probability: f64, clients: usize) -> usize {
    (probability * clients as f64).round() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Computing, Correlation, Speed};

    const PERIODS: u32 = 4000;

    fn dropouts(dropout: f64, pattern: Pattern, clients: usize, seed: u64) -> Dropouts {
        let computing = Computing::Drawn(Speed::Constant, Correlation::None);
        let fleet = FleetSection { computing, communication: 0.0, dropout, pattern, link: None };
        assert_eq!(Dropouts::fits(&fleet, clients), Ok(()));
        Dropouts::new(&fleet, clients, seed)
    }

    /// By period, then by client.
    fn table(mut dropouts: Dropouts, clients: usize) -> Vec<Vec<bool>> {
        (1..=PERIODS)
            .map(|period| (0..clients).map(|client| dropouts.lost(client, period)).collect())
            .collect()
    }

    fn part(lost: impl Iterator<Item = bool>) -> f64 {
        let (mut all, mut there) = (0.0, 0.0);
        for lost in lost {
            all += 1.0;
            there += f64::from(u8::from(lost));
        }
        there / all
    }

    #[test]
    fn every_pattern_loses_the_part_that_was_asked_for() {
        let outages = Pattern::Outages { sites: 5, rounds: 8.0 };
        for probability in [0.0, 0.1, 0.5, 0.7] {
            for (pattern, off) in [(Pattern::Independent, 0.01), (Pattern::Persistent, 1e-9), (outages, 0.05)]
            {
                let all = table(dropouts(probability, pattern, 20, 3), 20);
                let lost = part(all.into_iter().flatten());
                assert!((lost - probability).abs() <= off, "{pattern:?} {probability}: {lost}");
            }
        }
    }

    #[test]
    fn who_is_never_there_is_so_with_a_larger_probability_too() {
        let gone = |probability| table(dropouts(probability, Pattern::Persistent, 20, 7), 20);
        let (few, many) = (gone(0.3), gone(0.6));
        assert!(few.iter().all(|period| *period == few[0]), "the same in every period");
        assert!(few[0].iter().zip(&many[0]).all(|(few, many)| !few || *many));
        assert!(table(dropouts(0.3, Pattern::Persistent, 20, 8), 20) != few, "chance says who");
    }

    #[test]
    fn a_site_is_gone_together_and_for_as_long_as_was_asked_for() {
        let all = table(dropouts(0.3, Pattern::Outages { sites: 4, rounds: 6.0 }, 22, 5), 22);
        let alike = |a: usize, b: usize| all.iter().all(|period| period[a] == period[b]);
        let mut sizes: Vec<usize> = Vec::new();
        let mut seen = [false; 22];
        for client in 0..22 {
            if !seen[client] {
                let site: Vec<usize> = (0..22).filter(|other| alike(client, *other)).collect();
                site.iter().for_each(|other| seen[*other] = true);
                sizes.push(site.len());
            }
        }
        sizes.sort_unstable();
        assert_eq!(sizes, [5, 5, 6, 6]);
        let begun = |client: usize| all.windows(2).filter(|pair| !pair[0][client] && pair[1][client]).count();
        let down = |client: usize| all.iter().filter(|period| period[client]).count();
        let (begun, down): (usize, usize) =
            (0..22).fold((0, 0), |(b, d), client| (b + begun(client), d + down(client)));
        #[allow(clippy::cast_precision_loss)]
        let length = down as f64 / begun as f64;
        assert!((length - 6.0).abs() < 0.7, "{length}");
    }

    /// Rounds may be asked about in any order, some of them never.
    #[test]
    fn it_does_not_matter_in_which_order_it_is_asked() {
        for pattern in [Pattern::Independent, Pattern::Persistent, Pattern::Outages { sites: 3, rounds: 4.0 }]
        {
            let all = table(dropouts(0.4, pattern, 9, 2), 9);
            let mut asked = dropouts(0.4, pattern, 9, 2);
            for period in (1..=PERIODS).rev().step_by(37).chain([5, 2, 900]) {
                for client in [8, 0, 4] {
                    let before = &all[period as usize - 1];
                    assert_eq!(asked.lost(client, period), before[client], "{pattern:?} {period}");
                }
            }
        }
    }

    #[test]
    fn a_fleet_that_would_never_answer_is_found_out() {
        let computing = Computing::Drawn(Speed::Constant, Correlation::None);
        let fleet = |dropout, pattern| FleetSection {
            computing: computing.clone(),
            communication: 0.0,
            dropout,
            pattern,
            link: None,
        };
        let said = |fleet: &FleetSection, clients| Dropouts::fits(fleet, clients).err().unwrap_or_default();
        let (key, why) = said(&fleet(0.9, Pattern::Persistent), 4);
        assert!(key == "dropout" && why.contains("found 0.9") && why.contains("all of 4 clients"), "{why}");
        assert_eq!(Dropouts::fits(&fleet(0.9, Pattern::Persistent), 10), Ok(()));
        let (key, why) = said(&fleet(0.5, Pattern::Outages { sites: 5, rounds: 3.0 }), 4);
        assert!(key == "outage_sites" && why == "found 5, allowed: at most the fleet's 4 clients", "{why}");
    }
}
