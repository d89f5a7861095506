//! Results of worlds, and the trait of their observers.

use std::fmt;

use fedspan_engine::Millis;

/// Numbers of faults that took effect.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Number of power cuts of the server.
    pub crashes: usize,
    /// Number of power cuts of the server during a write, a sync, or a change of the round key.
    pub mid_write: usize,
    /// Number of power cuts of the server that lost or tore unsynced writes.
    pub torn: usize,
    /// Number of restarts of the server into an open round with counted updates.
    pub mid_round: usize,
    /// Number of write stalls of the server.
    pub stalls: usize,
    /// Number of power cuts of devices before the faults ended.
    pub device_power_cuts: usize,
    /// Number of power cuts of devices during a flash write.
    pub flash_cuts: usize,
    /// Number of link resets.
    pub link_resets: usize,
    /// Number of revoked keys.
    pub revoked: usize,
    /// Number of comparisons of the server's account of a device with what the device has paid.
    pub account_checks: usize,
}

impl Faults {
    /// Adds the faults of another world.
    pub fn add(&mut self, other: &Self) {
        let Self {
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
        } = other;
        self.crashes += crashes;
        self.mid_write += mid_write;
        self.torn += torn;
        self.mid_round += mid_round;
        self.stalls += stalls;
        self.device_power_cuts += device_power_cuts;
        self.flash_cuts += flash_cuts;
        self.link_resets += link_resets;
        self.revoked += revoked;
        self.account_checks += account_checks;
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
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
        } = self;
        write!(
            f,
            "{crashes} server power cuts ({mid_write} during a write, {torn} that tore unsynced data), {mid_round} restarts into a \
             round with counted updates, {stalls} write stalls, {device_power_cuts} device power cuts ({flash_cuts} during a flash \
             write), {link_resets} link resets, {revoked} keys revoked, {account_checks} account checks"
        )
    }
}

/// Result of a world.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// Number of committed rounds.
    pub rounds: usize,
    /// Number of counted updates.
    pub counted: usize,
    /// Faults that took effect.
    pub faults: Faults,
    /// Virtual time of the last commit.
    pub last_commit: Millis,
    /// Virtual time at the end of the world.
    pub time: Millis,
    /// Number of processed events.
    pub events: u64,
}

impl Report {
    /// Adds the results of another world.
    pub fn add(&mut self, other: &Self) {
        self.rounds += other.rounds;
        self.counted += other.counted;
        self.faults.add(&other.faults);
        self.time += other.time;
        self.events += other.events;
    }
}

/// Observer of a world.
pub trait Watcher {
    /// Called after every hour of virtual time, with the number of committed rounds and the memory of the
    /// simulated disk in bytes.
    fn hour(&mut self, _hour: u64, _rounds: usize, _disk: u64) {}

    /// Called for every event if [`Self::wants_events`] is true.
    fn event(&mut self, _now: Millis, _event: &str) {}

    /// Returns true if the observer wants [`Self::event`] to be called.
    fn wants_events(&self) -> bool {
        false
    }
}

/// Observer that ignores all calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoWatcher;

impl Watcher for NoWatcher {}
