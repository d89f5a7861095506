//! What happens next: events in order of time, and at the same time in the order in which they were planned.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::Millis;

/// Events to come.
#[derive(Debug)]
pub struct Queue<E> {
    order: BinaryHeap<Reverse<(Millis, u64)>>,
    events: BTreeMap<u64, E>,
    next: u64,
    now: Millis,
}

impl<E> Queue<E> {
    /// Nothing is planned.
    pub fn new() -> Self {
        Self { order: BinaryHeap::new(), events: BTreeMap::new(), next: 0, now: 0 }
    }

    /// The time.
    pub fn now(&self) -> Millis {
        self.now
    }

    /// Plans an event; what should have been before now is now.
    pub fn at(&mut self, time: Millis, event: E) {
        self.order.push(Reverse((time.max(self.now), self.next)));
        self.events.insert(self.next, event);
        self.next += 1;
    }

    /// Plans an event after a while.
    pub fn after(&mut self, wait: Millis, event: E) {
        self.at(self.now.saturating_add(wait), event);
    }

    /// The next event, whose time is now then.
    pub fn next(&mut self) -> Option<E> {
        let Reverse((time, number)) = self.order.pop()?;
        self.now = time;
        self.events.remove(&number)
    }
}
