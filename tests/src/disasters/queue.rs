//! Event queue: ordered by time, events of the same time in the order they were scheduled.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use fedspan_engine::Millis;

/// Scheduled events.
#[derive(Debug)]
pub struct Queue<E> {
    order: BinaryHeap<Reverse<(Millis, u64)>>,
    events: BTreeMap<u64, E>,
    next: u64,
    now: Millis,
}

impl<E> Queue<E> {
    /// An empty queue at time 0.
    pub fn new() -> Self {
        Self { order: BinaryHeap::new(), events: BTreeMap::new(), next: 0, now: Millis::ZERO }
    }

    /// Current virtual time in ms.
    pub fn now(&self) -> Millis {
        self.now
    }

    /// Schedules an event; a time in the past means now.
    pub fn at(&mut self, time: Millis, event: E) {
        self.order.push(Reverse((time.max(self.now), self.next)));
        self.events.insert(self.next, event);
        self.next += 1;
    }

    /// Schedules an event `wait` ms from now.
    pub fn after(&mut self, wait: Millis, event: E) {
        self.at(self.now + wait, event);
    }

    /// Takes the next event and advances the time to it.
    pub fn next(&mut self) -> Option<E> {
        let Reverse((time, number)) = self.order.pop()?;
        self.now = time;
        self.events.remove(&number)
    }
}
