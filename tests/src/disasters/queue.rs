//! Event queue, ordered by time. Events of the same time keep the order in which they were scheduled.

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
    /// Creates an empty queue at time 0.
    pub fn new() -> Self {
        Self { order: BinaryHeap::new(), events: BTreeMap::new(), next: 0, now: Millis::ZERO }
    }

    /// Returns the current virtual time.
    pub fn now(&self) -> Millis {
        self.now
    }

    /// Schedules an event. A time in the past means the current time.
    pub fn schedule_at(&mut self, time: Millis, event: E) {
        self.order.push(Reverse((time.max(self.now), self.next)));
        self.events.insert(self.next, event);
        self.next += 1;
    }

    /// Schedules an event after a delay of `delay`.
    pub fn schedule_after(&mut self, delay: Millis, event: E) {
        self.schedule_at(self.now + delay, event);
    }

    /// Removes the next event and advances the time to it.
    pub fn next(&mut self) -> Option<E> {
        let Reverse((time, number)) = self.order.pop()?;
        self.now = time;
        self.events.remove(&number)
    }
}
