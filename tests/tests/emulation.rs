//! Test program of emulated boards and their budgets. The tests are linked into one program, because linking
//! each file separately takes longer than its tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod budget;
mod budgets;
mod emulated;
mod flash;
mod network;
mod network_sizes;
mod power;
mod sealing;
mod template;
