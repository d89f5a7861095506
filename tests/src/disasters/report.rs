//! What became of worlds, and who watches them.

use std::fmt;

use super::Millis;

/// What has befallen a world, and took effect.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// The server's power went.
    pub crashes: usize,
    /// Of those: at a write, a sync, or a change of the round's key.
    pub inside: usize,
    /// Of those: what had been written was not synced.
    pub torn: usize,
    /// The server came back to a round that had counted some of its updates.
    pub amid: usize,
    /// The server had to wait for its disk.
    pub stalls: usize,
    /// A device's power went before all was well.
    pub devices: usize,
    /// Of those: in the middle of a write to its flash.
    pub flash: usize,
    /// Links that ended.
    pub links: usize,
    /// Keys that were revoked.
    pub revoked: usize,
    /// Times that an account was held against what its device had paid.
    pub accounts: usize,
}

impl Faults {
    /// The sum of many.
    pub fn add(&mut self, other: &Self) {
        let Self { crashes, inside, torn, amid, stalls, devices, flash, links, revoked, accounts } = other;
        self.crashes += crashes;
        self.inside += inside;
        self.torn += torn;
        self.amid += amid;
        self.stalls += stalls;
        self.devices += devices;
        self.flash += flash;
        self.links += links;
        self.revoked += revoked;
        self.accounts += accounts;
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { crashes, inside, torn, amid, stalls, devices, flash, links, revoked, accounts } = self;
        write!(
            f,
            "the server's power went {crashes} times, {inside} of them in the middle of what it wrote, {torn} with something that was \
             not synced; it came back {amid} times to a round that had counted some; its disk kept it waiting {stalls} times; \
             {devices} devices lost their power, {flash} while they wrote; {links} links ended; {revoked} keys were revoked; \
             {accounts} looks at accounts"
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

    /// Something happens; asked only where [`Self::listens`].
    fn event(&mut self, _now: Millis, _event: &str) {}

    /// Whether it wants to hear of every event.
    fn listens(&self) -> bool {
        false
    }
}

/// Nobody does.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl Watcher for NoProgress {}
