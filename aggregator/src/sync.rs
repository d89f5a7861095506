//! Locks and atomics of the modules whose interleavings are model-checked. `tests/threads` compiles the same
//! modules with the locks and atomics of the model checker.

pub(crate) use std::sync::atomic::AtomicBool;
pub(crate) use std::sync::{Mutex, MutexGuard, RwLock};
