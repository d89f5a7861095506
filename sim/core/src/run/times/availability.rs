//! Times at which devices can be reached: a device that sleeps is asked when it wakes, and it answers before it sleeps
//! again. The times are functions of seed and client.

use fedspan_engine::random::{Purpose, stream};

use crate::scenario::{Cycle, FleetSection, Phases};

/// Largest number of periods in which a common time of two cycles is searched.
const PERIODS: u32 = 100_000;

/// Times at which the devices of a fleet can be reached.
#[derive(Clone, Debug)]
pub struct Availability {
    cycles: Vec<PhasedCycle>,
}

/// Cycle with the time at which it begins for each client.
#[derive(Clone, Debug)]
struct PhasedCycle {
    cycle: Cycle,
    begins: Vec<f64>,
}

impl Availability {
    /// Draws the times at which the cycles of a scenario's fleet begin.
    #[must_use]
    pub fn new(fleet: &FleetSection, clients: usize, seed: u64) -> Self {
        let cycles = [fleet.waking, fleet.window].into_iter().zip(0_u64..);
        let cycles = cycles.filter_map(|(cycle, number)| Some((cycle?, number)));
        let cycles = cycles.map(|(cycle, number)| {
            let fraction = |client: usize| match cycle.phases {
                Phases::Together => 0.0,
                Phases::Even => client as f64 / clients.max(1) as f64,
                Phases::Random => stream(seed, Purpose::Waking, number << 32 | client as u64).uniform(),
            };
            PhasedCycle {
                cycle,
                begins: (0..clients).map(|client| fraction(client) * cycle.period).collect(),
            }
        });
        Self { cycles: cycles.collect() }
    }

    /// First time from `now` on at which a client can be reached: `now` itself if it is awake. Infinite if its cycles have
    /// no common time.
    #[must_use]
    pub fn next(&self, client: usize, now: f64) -> f64 {
        let mut time = now;
        for _ in 0..PERIODS {
            let later = self.cycles.iter().fold(time, |time, cycle| cycle.next(client, time));
            // With a single cycle, or if all allow the time.
            if later == time || self.cycles.len() < 2 {
                return later;
            }
            time = later;
        }
        f64::INFINITY
    }

    /// Checks that every client can be reached.
    ///
    /// # Errors
    /// Key of the setting that is not possible for the fleet, and a message with the number of the client, from 1.
    pub fn check(fleet: &FleetSection, clients: usize, seed: u64) -> Result<(), (&'static str, String)> {
        let availability = Self::new(fleet, clients, seed);
        match (0..clients).find(|client| availability.next(*client, 0.0).is_infinite()) {
            Some(client) => Err((
                "window",
                format!(
                    "client {} is never awake in its window; use a longer window, or other periods",
                    client + 1
                ),
            )),
            None => Ok(()),
        }
    }
}

impl PhasedCycle {
    /// First time from `now` on at which the cycle allows the client.
    fn next(&self, client: usize, now: f64) -> f64 {
        let Cycle { period, length, .. } = self.cycle;
        let begins = self.begins.get(client).copied().unwrap_or(0.0);
        // Periods are counted, since a sum of many periods would be inexact.
        let count = ((now - begins) / period).floor();
        let start = begins + count * period;
        if now < start + length { now } else { begins + (count + 1.0) * period }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{ComputeTimes, Correlation, DropoutPattern, Speed};

    fn fleet(waking: Option<Cycle>, window: Option<Cycle>) -> FleetSection {
        FleetSection {
            compute_times: ComputeTimes::Drawn(Speed::Constant, Correlation::None),
            spikes: None,
            communication: 0.0,
            dropout: 0.0,
            pattern: DropoutPattern::Independent,
            link: None,
            waking,
            window,
            i16_share: 0.0,
            normal_equations_only: false,
        }
    }

    fn cycle(period: f64, length: f64, phases: Phases) -> Option<Cycle> {
        Some(Cycle { period, length, phases })
    }

    #[test]
    fn device_without_cycles_is_always_awake() {
        let availability = Availability::new(&fleet(None, None), 3, 1);
        assert_eq!([0.0, 0.3, 1e9].map(|now| availability.next(2, now)), [0.0, 0.3, 1e9]);
    }

    /// A device that is awake is asked at once; one that sleeps, at its next wake, which is at most a period away.
    #[test]
    fn device_is_asked_when_it_wakes() {
        for phases in [Phases::Together, Phases::Even, Phases::Random] {
            for (period, length) in [(20.0, 2.0), (1.0, 0.999), (3600.0, 0.5), (0.3, 0.1)] {
                let availability = Availability::new(&fleet(cycle(period, length, phases), None), 7, 3);
                let mut asleep = 0;
                for client in 0..7 {
                    for step in 0..500 {
                        let now = f64::from(step) * 0.37 * period;
                        let next = availability.next(client, now);
                        assert!(next >= now && next - now <= period - length + 1e-9 * now.max(1.0));
                        assert_eq!(availability.next(client, next), next, "not awake when it wakes");
                        asleep += u32::from(next > now);
                        let before = (now + next) / 2.0;
                        if next > now {
                            assert_eq!(availability.next(client, before), next, "awake before it wakes");
                        }
                    }
                }
                // The fraction of time asleep, at times that are spread evenly.
                let fraction = f64::from(asleep) / 3500.0;
                assert!((fraction - (1.0 - length / period)).abs() < 0.03, "{phases:?} {period}: {fraction}");
            }
        }
    }

    #[test]
    fn phases_are_spread_as_named() {
        let next = |phases, client| {
            Availability::new(&fleet(cycle(20.0, 2.0, phases), None), 4, 9).next(client, 2.5)
        };
        assert_eq!([0, 1, 2, 3].map(|client| next(Phases::Together, client)), [20.0; 4]);
        assert_eq!([0, 1, 2, 3].map(|client| next(Phases::Even, client)), [20.0, 5.0, 10.0, 15.0]);
        let random = [0, 1, 2, 3].map(|client| next(Phases::Random, client));
        assert!(random.windows(2).all(|pair| pair[0] != pair[1]), "{random:?}");
    }

    /// A device that wakes every hour, at night only.
    #[test]
    fn both_cycles_must_allow_a_time() {
        let availability = Availability::new(
            &fleet(cycle(60.0, 1.0, Phases::Even), cycle(1440.0, 480.0, Phases::Together)),
            60,
            1,
        );
        for client in 0..60 {
            for step in 0..300 {
                let now = f64::from(step) * 31.7;
                let next = availability.next(client, now);
                let (hour, day) = ((next - client as f64).rem_euclid(60.0), next.rem_euclid(1440.0));
                assert!(hour < 1.0 + 1e-9 && day < 480.0, "{client}: {next}");
                assert!(next >= now && next - now <= 960.0 + 60.0);
            }
        }
        // Awake at the first minute of each hour, with a window that never contains one.
        let never = fleet(cycle(60.0, 1.0, Phases::Even), cycle(120.0, 20.0, Phases::Together));
        assert_eq!(Availability::check(&fleet(never.waking, None), 60, 1), Ok(()));
        let (key, message) = Availability::check(&never, 60, 1).err().unwrap_or_default();
        assert!(key == "window" && message.starts_with("client 21 is never awake"), "{message}");
    }
}
