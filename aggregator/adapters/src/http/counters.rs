//! Event counters by name, which `GET /status` returns.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Events that the status shows even if they have not occurred: attacks and faults that an operator looks for.
const ALWAYS_SHOWN: [&str; 9] = [
    "connections-evicted",
    "connections-refused",
    "counted-capped",
    "damaged",
    "host",
    "origin",
    "throttled",
    "too-many",
    "unauthorized",
];

/// Number of events since the server started, by event name.
#[derive(Debug)]
pub struct Counters(Mutex<BTreeMap<&'static str, u64>>);

impl Default for Counters {
    fn default() -> Self {
        Self(Mutex::new(ALWAYS_SHOWN.map(|name| (name, 0)).into()))
    }
}

impl Counters {
    /// Adds 1 to the counter of this name.
    pub fn increment(&self, name: &'static str) {
        self.add(name, 1);
    }

    /// Adds a number of events to the counter of this name.
    pub fn add(&self, name: &'static str, events: u64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_insert(0) += events;
    }

    /// Returns a copy of all counters.
    pub fn snapshot(&self) -> BTreeMap<&'static str, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
