//! What threads share data by. Code that takes it from here is checked in every order that its threads can run in:
//! `tests/threads` compiles the same files with a model checker's instead.

pub(crate) use std::sync::atomic::AtomicBool;
pub(crate) use std::sync::{Mutex, MutexGuard, RwLock};
