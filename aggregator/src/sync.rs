//! Locks and atomics of the modules whose interleavings are model-checked: `tests/threads` compiles the same
//! files with those of the model checker instead.

pub(crate) use std::sync::atomic::AtomicBool;
pub(crate) use std::sync::{Mutex, MutexGuard, RwLock};
