//! What became of worlds, and who watches them.

use std::fmt;

use super::Millis;

/// What has befallen a world, and took effect.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// The server's power went.
    pub crashes: usize,
    /// Of those: at a write, a sync, or a change of the round's key.
    pub mid_write: usize,
    /// Of those: what had been written was not synced.
    pub torn: usize,
    /// The server came back to a round that had counted some of its updates.
    pub mid_round: usize,
    /// The server had to wait for its disk.
    pub stalls: usize,
    /// A device's power went before all was well.
    pub device_power_cuts: usize,
    /// Of those: in the middle of a write to its flash.
    pub flash_cuts: usize,
    /// Links that ended.
    pub link_resets: usize,
    /// Keys that were revoked.
    pub revoked: usize,
    /// Times that an account was held against what its device had paid.
    pub account_checks: usize,
}

impl Faults {
    /// The sum of many.
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

/// What became of a world.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// Rounds that were committed.
    pub rounds: usize,
    /// Updates that counted.
    pub counted: usize,
    /// What befell it.
    pub faults: Faults,
    /// Virtual milliseconds.
    pub time: Millis,
    /// Events.
    pub events: u64,
}

impl Report {
    /// The sum of many.
    pub fn add(&mut self, other: &Self) {
        self.rounds += other.rounds;
        self.counted += other.counted;
        self.faults.add(&other.faults);
        self.time += other.time;
        self.events += other.events;
    }
}

/// Who watches a world.
pub trait Watcher {
    /// An hour has passed: rounds so far, and bytes of memory that the simulated disk takes.
    fn hour(&mut self, _hour: Millis, _rounds: usize, _disk: u64) {}

    /// Something happens; asked only where [`Self::wants_events`].
    fn event(&mut self, _now: Millis, _event: &str) {}

    /// Whether it wants to hear of every event.
    fn wants_events(&self) -> bool {
        false
    }
}

/// Nobody does.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoWatcher;

impl Watcher for NoWatcher {}
