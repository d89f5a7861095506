//! What became of worlds, and who watches them.

use super::Millis;
use super::chaos::Faults;

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
        self.faults.disasters += other.faults.disasters;
        self.faults.crashes += other.faults.crashes;
        self.faults.cuts += other.faults.cuts;
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
pub struct Unwatched;

impl Watcher for Unwatched {}
