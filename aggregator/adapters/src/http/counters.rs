//! Event counters by name, which `GET /status` returns.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Number of events since the server started, by event name.
#[derive(Debug, Default)]
pub struct Counters(Mutex<BTreeMap<&'static str, u64>>);

impl Counters {
    /// Adds 1 to the counter of this name.
    pub fn increment(&self, name: &'static str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_insert(0) += 1;
    }

    /// Returns a copy of all counters.
    pub fn snapshot(&self) -> BTreeMap<&'static str, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
