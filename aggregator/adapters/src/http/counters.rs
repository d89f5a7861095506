//! Event counters by name, for `GET /status`.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Number of events since the server started, by event name.
#[derive(Debug, Default)]
pub struct Counters(Mutex<BTreeMap<&'static str, u64>>);

impl Counters {
    /// Adds one to the counter of this name.
    pub fn increment(&self, name: &'static str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_insert(0) += 1;
    }

    /// Copies all counters.
    pub fn snapshot(&self) -> BTreeMap<&'static str, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
