//! How often what has happened, by name.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Counts since the start.
#[derive(Debug, Default)]
pub struct Counters(Mutex<BTreeMap<&'static str, u64>>);

impl Counters {
    /// One more.
    pub fn add(&self, what: &'static str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(what).or_insert(0) += 1;
    }

    /// All of them.
    pub fn all(&self) -> BTreeMap<&'static str, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
