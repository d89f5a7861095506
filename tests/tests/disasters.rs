//! Tests of simulated disasters: the same seed gives the same world, and a sample of worlds breaks no
//! invariant. The program `disasters` runs many more worlds.

use fedspan_engine::Millis;
use fedspan_tests::disasters::{Faults, Kind, NoWatcher, Watcher, run};

/// Digest of all events of a world.
#[derive(Default)]
struct Digest(u64);

impl Watcher for Digest {
    fn event(&mut self, now: Millis, event: &str) {
        let mix = |hash: u64, byte: u64| (hash ^ byte).wrapping_mul(0x0100_0000_01b3);
        self.0 = event.bytes().map(u64::from).chain([now.as_u64()]).fold(self.0, mix);
    }

    fn wants_events(&self) -> bool {
        true
    }
}

#[test]
fn same_seed_gives_the_same_world() {
    let mut worlds = Vec::new();
    for seed in 1..=12 {
        let (mut first, mut second) = (Digest::default(), Digest::default());
        let report = run(seed, Kind::Hectic, &mut first).unwrap();
        assert_eq!(run(seed, Kind::Hectic, &mut second).unwrap(), report, "seed {seed}");
        assert_eq!(first.0, second.0, "seed {seed}");
        worlds.push(first.0);
    }
    worlds.sort_unstable();
    worlds.dedup();
    assert_eq!(worlds.len(), 12);
}

#[test]
fn random_worlds_break_no_invariant() {
    // These seeds differ from the default ones of the program `disasters`.
    let mut faults = Faults::default();
    for seed in 1_000_000..1_000_060 {
        let report = run(seed, Kind::Hectic, &mut NoWatcher)
            .unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        assert!(report.rounds > 0 && report.counted > 0, "seed {seed}");
        faults.add(&report.faults);
    }
    println!("{faults}");
    // The faults must occur often enough, also in the middle of writes and rounds.
    let Faults {
        crashes,
        mid_write,
        torn,
        mid_round,
        stalls,
        device_power_cuts,
        flash_cuts,
        link_resets,
        revoked,
        account_checks,
    } = faults;
    assert!(crashes > 40 && mid_write > 15 && torn > 10 && mid_round > 15 && stalls > 2, "{faults}");
    assert!(
        device_power_cuts > 40 && flash_cuts > 10 && link_resets > 10 && revoked > 2 && account_checks > 100,
        "{faults}"
    );
}

#[test]
fn day_of_a_small_fleet_breaks_no_invariant() {
    let report = run(1, Kind::Day { devices: 12 }, &mut NoWatcher).unwrap();
    assert!(report.rounds > 50 && report.counted > 500, "{report:?}");
}

/// Devices that are awake for less than two seconds of a period, and never together, take part in every round, and the
/// server closes a round in every period.
#[test]
fn fleet_that_sleeps_has_a_round_in_every_period() {
    for (devices, period, every) in
        [(4, 20, false), (4, 20, true), (4, 3_600, false), (4, 3_600, true), (9, 600, true)]
    {
        let report = run(2, Kind::Sleeping { devices, period, every }, &mut NoWatcher).unwrap();
        let (rounds, devices_count) = (report.rounds, usize::try_from(devices).unwrap());
        assert_eq!(rounds, 20, "{devices} {period} {every}");
        // The updates of all rounds, and the final heads that were fitted before the end of the world.
        let counted = 20 * devices_count..=21 * devices_count;
        assert!(counted.contains(&report.counted), "{devices} {period} {every}: {}", report.counted);
        // A device sleeps for the whole period after a stay of less than five seconds. The first round opens when the last device wakes, and the last one closes a period after it has opened.
        let limit = 1_000 * period * 21 + 5_000 * 20;
        let last = report.last_commit.as_u64();
        assert!(last <= limit, "{devices} devices, {period} s, {every}: 20 rounds took {last} ms");
        println!("{devices} devices that wake once in {period} s, every: {every}: 20 rounds in {last} ms");
    }
}
