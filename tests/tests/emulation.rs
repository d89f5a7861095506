//! Tests of emulated boards and their budgets, linked into one program, as linking each file by itself takes
//! longer than its tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod budget;
mod budgets;
mod emulated;
mod flash;
mod network;
mod power;
mod sealing;
