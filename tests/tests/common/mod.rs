//! Helpers of tests: a device and a server that share keys, between which the test carries the frames.
#![allow(dead_code, unused_imports, clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod board;
mod conversation;
mod keys;
mod rounds;
mod server_end;
mod wire;

pub use board::{Board, Device, unopened};
pub use conversation::{connected, converse, recording, round};
pub use keys::{DEVICE, OTHER, SECRET, keys, protected, table, withdrawable};
pub use rounds::{D, K, opening};
pub use server_end::{ServerEnd, WELCOME, gate, react, requirements};
pub use wire::{plain, plain_open, uncobs};
